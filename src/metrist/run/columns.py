"""Columns of a large run: the same scores and names as the shard files and lists hold, as arrays that are mapped.

run/columns/inputs/<input>/<key>/columns.json      key, number of rows, and type, shape and SHA-256 of each array
run/columns/results/<metric>/<key>/<array>.bin     an array

They are a copy, made of the shard files when they are first needed, and can be deleted at any time. The key is a hash
of all that they were made of, so that columns of an earlier state are never read; columns that do not match their
hashes are made again. A folder of columns appears whole, by a rename: of two processes that make it, one is kept.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from metrist.columns import HashColumn, MeanRows, NameColumn, NarrowRows, SparseColumn, TextColumn, release_pages
from metrist.errors import RunError
from metrist.io.dedup import DigestIndex
from metrist.run.shard_file import INCOMPLETE, KIND, SPARSE_KEYS, read_sparse, sparse_fields
from metrist.scores import Failure, Scores

FOLDER = "columns"
_PAGE = "columns.json"
_ARRAY = re.compile(r"[a-z]+[0-9]*(\.[a-z]+)?")
#: A run with more outputs than this works from columns; a smaller one from Python objects, which is faster.
MAX_IN_MEMORY = 200_000
#: Types of whole numbers that statistics are stored in where they fit, from narrow to wide.
_NARROW = (np.dtype("<u2"), np.dtype("<i4"), np.dtype("<f8"))
#: Rows that are converted at a time.
_CHUNK = 1 << 16
#: Names that are numbered without a look at all earlier ones.
_RECENT = 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Arrays of one folder, mapped when they are asked for."""

    folder: Path
    rows: int
    facts: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


def open_columns(parent: Path, key: str, build: Callable[[ColumnsWriter], dict[str, Any]]) -> Columns:
    """The columns with this key, made by `build` where there are none, or where they are damaged. `build` appends the
    arrays and returns facts to store with them."""
    columns = _read(parent / key, key)
    if columns is not None:
        return columns
    try:
        columns = _build(parent, key, build)
    except OSError as error:  # The folder may only be read, or its disk is full: another disk may have room.
        try:
            temporary = Path(tempfile.mkdtemp(prefix="metrist-columns-"))
            atexit.register(shutil.rmtree, temporary, ignore_errors=True)
            columns = _build(temporary, key, build)
        except OSError:
            raise RunError(f"cannot write {parent}: {error.strerror}; no score is lost") from error
    else:
        _remove_outdated(parent, key)
    return columns


def _build(parent: Path, key: str, build: Callable[[ColumnsWriter], dict[str, Any]]) -> Columns:
    writer = ColumnsWriter(parent / key)
    try:
        writer.finish(key, build(writer))
    finally:
        writer.discard()
    columns = _read(parent / key, key)
    if columns is None:
        raise RunError(f"{parent / key} cannot be read back: check the disk")
    return columns


def _read(folder: Path, key: str) -> Columns | None:
    """The columns of a folder; None if they are not there, not whole, or damaged."""
    try:
        facts = json.loads((folder / _PAGE).read_bytes())
        if facts["key"] != key:
            return None
        arrays = {name: _map(folder, name, entry) for name, entry in facts["arrays"].items()}
        columns = Columns(folder, int(facts["rows"]), facts["facts"], arrays)
        _check_arrays(columns)
        release_pages(*arrays.values())
        return columns
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError):
        return None


def _check_arrays(columns: Columns) -> None:
    """Refuse arrays that do not fit together: a stranger may have written them, with the right checksums."""
    rows, arrays = columns.rows, columns.arrays
    for name, array in arrays.items():
        owner, _, kind = name.rpartition(".")
        limit = {"codes": f"{owner}.ends", "missing": "", "rows": ""}.get(kind)
        if limit is not None and len(array):
            size = len(arrays[limit]) if limit else rows
            if array.dtype.kind not in "iu" or array.ndim != 1 or int(array.min()) < 0 or int(array.max()) >= size:
                raise ValueError(f"{name} leads out of its array")
        elif kind == "ends":
            data = arrays[f"{owner}.names" if f"{owner}.names" in arrays else f"{owner}.data"]
            ends = [int(array[0]), int(array[-1])] if len(array) else [0, 0]
            if array.dtype != np.int64 or data.dtype != np.uint8 or ends[0] < 0 or ends[1] != len(data):
                raise ValueError(f"{name} does not fit its data")
            if (array[1:] < array[:-1]).any():
                raise ValueError(f"{name} is not sorted")
        elif name in ("values", "stats", "hashes", "sources", *_list_parts(columns.facts)) and len(array) != rows:
            raise ValueError(f"{name} has another number of rows")
    if len({len(arrays[name]) for name in ("sparse.rows", "sparse.kinds", "sparse.ends") if name in arrays}) > 1:
        raise ValueError("the sparse arrays have different numbers of rows")


def _list_parts(facts: Mapping[str, Any]) -> list[str]:
    parts = facts.get("parts", ())
    if not all(isinstance(part, str) for part in parts):
        raise ValueError("the parts must be texts")
    return [f"part{number}" for number in range(len(parts))]


def _map(folder: Path, name: str, entry: Mapping[str, Any]) -> NDArray[Any]:
    if not _ARRAY.fullmatch(name):
        raise ValueError("not the name of an array")
    path = folder / f"{name}.bin"
    shape = tuple(int(size) for size in entry["shape"])
    dtype = np.dtype(str(entry["dtype"]))
    if dtype.kind not in "iuf" or min(shape, default=-1) < 0:
        raise ValueError("not an array of numbers")
    if path.stat().st_size != dtype.itemsize * math.prod(shape):
        raise ValueError("another size than its page says")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
            raise ValueError("its content does not match its checksum")
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.asarray(np.memmap(path, dtype, "r", shape=shape))


def _remove_outdated(parent: Path, key: str) -> None:
    """Delete the columns of earlier states. Where another process still maps them, they stay until it ends."""
    with suppress(OSError):
        for entry in os.scandir(parent):
            if entry.is_dir(follow_symlinks=False) and entry.name != key and not entry.name.startswith("."):
                shutil.rmtree(entry.path, ignore_errors=True)


def remove_columns(run: Path) -> None:
    """Delete all columns of a run folder."""
    shutil.rmtree(run / FOLDER, ignore_errors=True)


@dataclass(slots=True, eq=False)
class _ArrayFile:
    """An array that is being written."""

    file: IO[bytes]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    digest: Any
    count: int = 0


class ColumnsWriter:
    """Writes arrays in parts, into a folder that gets its name at the end."""

    def __init__(self, folder: Path) -> None:
        self._target = folder
        self._part = folder.with_name(f".{folder.name[:32]}-{secrets.token_hex(6)}.part")
        self._part.mkdir(parents=True)
        self._arrays: dict[str, _ArrayFile] = {}

    def append(self, name: str, array: NDArray[Any]) -> None:
        """Append rows to an array."""
        if name not in self._arrays:
            file = (self._part / f"{name}.bin").open("w+b")
            self._arrays[name] = _ArrayFile(file, array.dtype, array.shape[1:], hashlib.sha256())
        own = self._arrays[name]
        assert (array.dtype, array.shape[1:]) == (own.dtype, own.shape)
        data = np.ascontiguousarray(array).data.cast("B") if array.size else b""
        own.file.write(data)
        own.digest.update(data)
        own.count += len(array)

    def read(self, name: str) -> NDArray[Any]:
        """An array as far as it is written."""
        own = self._arrays[name]
        own.file.flush()
        if not own.count:
            return np.empty((0, *own.shape), own.dtype)
        return np.memmap(self._part / f"{name}.bin", own.dtype, "r", shape=(own.count, *own.shape))

    def replace(self, name: str, parts: Iterator[NDArray[Any]]) -> None:
        """Write an array again, from parts that may be made of its present rows."""
        fresh = f"{name}.new"
        for part in parts:
            self.append(fresh, part)
        self._arrays.pop(name).file.close()
        self._arrays[name] = self._arrays.pop(fresh)
        self._arrays[name].file.flush()
        os.replace(self._part / f"{fresh}.bin", self._part / f"{name}.bin")

    def drop(self, name: str) -> None:
        """Leave out an array that was needed only to make others."""
        if name in self._arrays:
            self._arrays.pop(name).file.close()
            (self._part / f"{name}.bin").unlink()

    def finish(self, key: str, facts: dict[str, Any]) -> None:
        """Close the arrays and give the folder its name."""
        arrays = {}
        for name, own in self._arrays.items():
            own.file.flush()
            os.fsync(own.file.fileno())
            own.file.close()
            shape = [own.count, *own.shape]
            arrays[name] = {"dtype": own.dtype.str, "shape": shape, "sha256": own.digest.hexdigest()}
        rows = facts.pop("rows")
        page = json.dumps({"key": key, "rows": rows, "facts": facts, "arrays": arrays}, indent=1)
        with (self._part / _PAGE).open("wb") as file:
            file.write(f"{page}\n".encode("ascii"))
            file.flush()
            os.fsync(file.fileno())
        if self._target.exists() and _read(self._target, key) is not None:
            return  # Another process was faster: it made the same columns.
        if self._target.exists():  # It is damaged.
            old = self._target.with_name(f".{self._target.name[:32]}-{secrets.token_hex(6)}.old")
            with suppress(OSError):
                self._target.rename(old)
                shutil.rmtree(old, ignore_errors=True)
        with suppress(OSError):  # Another process may have been faster even now.
            self._part.rename(self._target)

    def discard(self) -> None:
        """Delete what got no name."""
        for own in self._arrays.values():
            with suppress(OSError):  # Closing writes what is left, for which a full disk has no room.
                own.file.close()
        shutil.rmtree(self._part, ignore_errors=True)


# ---- Names


class NamesWriter:
    """Writes a column of names: codes, and the distinct names in the order of their first use. The memory that it takes
    grows by some 30 bytes for each distinct name."""

    def __init__(self, writer: ColumnsWriter, name: str) -> None:
        self._writer, self._name = writer, name
        self._index = DigestIndex()
        self._recent: dict[str, int] = {}
        self._end = 0
        writer.append(f"{name}.names", np.empty(0, np.uint8))
        writer.append(f"{name}.ends", np.empty(0, np.int64))
        writer.append(f"{name}.codes", np.empty(0, np.int32))

    def append(self, names: Sequence[str]) -> None:
        """Append names to the column."""
        recent, number = self._recent, self._index.number
        codes, new, ends = list[int](), list[bytes](), list[int]()
        for name in names:
            code = recent.get(name)
            if code is None:
                count = len(self._index)
                code = number(hash(name), hash(f"\0{name}"))
                if code == count:
                    data = name.encode("utf-8", "surrogatepass")
                    self._end += len(data)
                    new.append(data)
                    ends.append(self._end)
                if len(recent) >= _RECENT:
                    recent.clear()
                recent[name] = code
            codes.append(code)
        self._writer.append(f"{self._name}.codes", np.array(codes, np.int32))
        if new:
            self._writer.append(f"{self._name}.names", np.frombuffer(b"".join(new), np.uint8))
            self._writer.append(f"{self._name}.ends", np.array(ends, np.int64))


#: Distinct names up to which they are kept as Python objects.
_FEW_NAMES = 10_000


def read_names(columns: Columns, name: str) -> NameColumn:
    """A column of names."""
    texts = TextColumn(columns.arrays[f"{name}.names"], columns.arrays[f"{name}.ends"])
    return NameColumn(columns.arrays[f"{name}.codes"], tuple(texts) if len(texts) <= _FEW_NAMES else texts)


def to_rows(hashes: Sequence[str], width: int) -> NDArray[np.uint8]:
    """Hashes as rows of bytes; an empty one is a row of zeros."""
    if isinstance(hashes, HashColumn):
        return hashes.rows
    empty = "00" * width
    return np.frombuffer(bytes.fromhex("".join(text or empty for text in hashes)), np.uint8).reshape(-1, width)


def to_keys(rows: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """Rows of bytes as one entry each, which can be sorted and searched."""
    return np.ascontiguousarray(rows).view(f"S{rows.shape[1]}").reshape(-1)


# ---- Scores of one metric


class ScoresWriter:
    """Writes the scores of shard files, one file after another."""

    def __init__(self, writer: ColumnsWriter) -> None:
        self._writer = writer
        self.rows = 0
        self._parts: list[str] = []
        self._width = -1
        self._narrow = 0
        self._sparse_end = 0
        writer.append("values", np.empty(0, np.float64))
        writer.append("sparse.rows", np.empty(0, np.int64))
        writer.append("sparse.kinds", np.empty(0, np.uint8))
        writer.append("sparse.ends", np.empty(0, np.int64))
        writer.append("sparse.data", np.empty(0, np.uint8))

    def append(self, scores: Scores) -> None:
        """Append a block of scores."""
        size = len(scores)
        self._append_parts(scores)
        self._append_stats(scores)
        self._writer.append("values", np.asarray(scores.values, np.float64))
        fields = sparse_fields(scores)
        rows = [(self.rows + n, _kinds(fields[n]), json.dumps(fields[n]).encode("ascii")) for n in sorted(fields)]
        self._append_sparse(rows)
        self.rows += size

    def _append_sparse(self, rows: Sequence[tuple[int, int, bytes]]) -> None:
        if not rows:
            return
        positions, kinds, texts = zip(*rows, strict=True)
        ends = self._sparse_end + np.cumsum([len(text) for text in texts])
        self._sparse_end = int(ends[-1])
        self._writer.append("sparse.rows", np.array(positions, np.int64))
        self._writer.append("sparse.kinds", np.array(kinds, np.uint8))
        self._writer.append("sparse.ends", ends.astype(np.int64))
        self._writer.append("sparse.data", np.frombuffer(b"".join(texts), np.uint8))

    def _append_parts(self, scores: Scores) -> None:
        for name in scores.parts:
            if name not in self._parts:
                self._parts.append(name)
                for start in range(0, self.rows, _CHUNK):
                    self._writer.append(self._part(name), np.full(min(_CHUNK, self.rows - start), np.nan))
        for name in self._parts:
            column = scores.parts.get(name)
            missing = np.full(len(scores), np.nan)
            self._writer.append(self._part(name), missing if column is None else np.asarray(column, np.float64))

    def _part(self, name: str) -> str:
        return f"part{self._parts.index(name)}"

    def _append_stats(self, scores: Scores) -> None:
        """Append statistics, in the narrowest type that holds all of them exactly. Those of scores that pool to their
        mean are not stored: `MeanRows` makes them of the values."""
        stats = np.asarray(scores.stats, np.float64)
        if len(scores.failures) == len(scores):  # Such a block does not know how many statistics the metric has.
            stats = np.zeros((len(stats), max(self._width, 2)))
        width = stats.shape[1]
        is_mean = width == 2 and _same_bits(stats, MeanRows(np.asarray(scores.values))[:])
        if self._width < 0:
            if is_mean:
                return
            self._width = width
            self._start_stats()
        if width < self._width:
            stats = np.pad(stats, ((0, 0), (0, self._width - width)))
        elif width > self._width:
            self._width = width
            self._rewrite_stats()
        while not _fits(stats, _NARROW[self._narrow]):
            self._narrow += 1
            self._rewrite_stats()
        self._writer.append("stats", stats.astype(_NARROW[self._narrow]))

    def _start_stats(self) -> None:
        """Write the statistics of the scores so far, which all pooled to their mean."""
        values = self._writer.read("values")
        self._writer.append("stats", np.empty((0, self._width), _NARROW[self._narrow]))
        if not np.isnan(values).all():
            self._narrow = len(_NARROW) - 1
            self._rewrite_stats()
        for start in range(0, len(values), _CHUNK):
            rows = MeanRows(values[start : start + _CHUNK])[:]
            padded = np.pad(rows, ((0, 0), (0, self._width - 2)))
            self._writer.append("stats", padded.astype(_NARROW[self._narrow]))

    def _rewrite_stats(self) -> None:
        old, dtype = self._writer.read("stats"), _NARROW[self._narrow]

        def widen() -> Iterator[NDArray[Any]]:
            yield np.empty((0, self._width), dtype)
            for start in range(0, len(old), _CHUNK):
                part = old[start : start + _CHUNK].astype(dtype)
                yield np.pad(part, ((0, 0), (0, self._width - part.shape[1])))

        self._writer.replace("stats", widen())

    def reorder(self, chosen: NDArray[np.int64], pending: Failure) -> None:
        """Make the nth row the one that was number `chosen[n]`; where that is -1, there is a failure instead."""
        missing = chosen < 0
        arrays: dict[str, Any] = {"values": np.nan, **{self._part(name): np.nan for name in self._parts}}
        if self._width >= 0:
            arrays["stats"] = 0
        for name, nothing in arrays.items():
            self._writer.replace(name, _gather(self._writer.read(name), chosen, nothing))
        rows, kinds, ends, data = (self._writer.read(f"sparse.{name}") for name in ("rows", "kinds", "ends", "data"))
        number_of = dict(zip(rows.tolist(), range(len(rows)), strict=True))
        failure = {"failure": str(pending), KIND: pending.kind}
        self._sparse_end, self.rows = 0, len(chosen)
        for name in ("rows", "kinds", "ends", "data"):
            self._writer.replace(f"sparse.{name}", iter([np.empty(0, self._writer.read(f"sparse.{name}").dtype)]))
        touched = np.flatnonzero(missing | np.isin(chosen, rows))
        for start in range(0, len(touched), _CHUNK):
            block = list[tuple[int, int, bytes]]()
            for position in touched[start : start + _CHUNK].tolist():
                number = number_of.get(int(chosen[position]))
                if number is None:
                    block.append((position, _kinds(failure), json.dumps(failure).encode("ascii")))
                else:
                    first = int(ends[number - 1]) if number else 0
                    block.append((position, int(kinds[number]), data[first : int(ends[number])].tobytes()))
            self._append_sparse(block)

    def finish(self) -> dict[str, Any]:
        """The facts to store with the arrays."""
        return {"rows": self.rows, "parts": self._parts}


def _kinds(row: Mapping[str, Any]) -> int:
    """Which of the sparse columns have a value in this row, as bits."""
    return sum(1 << n for n, key in enumerate((*SPARSE_KEYS, INCOMPLETE)) if row.get(key) is not None)


def _gather(old: NDArray[Any], chosen: NDArray[np.int64], nothing: float) -> Iterator[NDArray[Any]]:
    yield old[:0]
    for start in range(0, len(chosen), _CHUNK):
        rows = chosen[start : start + _CHUNK]
        part = old[np.maximum(rows, 0)] if len(old) else np.zeros((len(rows), *old.shape[1:]), old.dtype)
        part[rows < 0] = nothing
        yield part


def _same_bits(first: NDArray[np.float64], second: NDArray[np.float64]) -> bool:
    return bool(np.array_equal(first.view(np.int64), np.ascontiguousarray(second).view(np.int64)))


def _fits(stats: NDArray[np.float64], dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "f":
        return True
    limits = np.iinfo(dtype)
    if not ((stats >= limits.min) & (stats <= limits.max)).all():
        return False
    return _same_bits(stats.astype(dtype).astype(np.float64), np.ascontiguousarray(stats))


def read_scores(columns: Columns) -> Scores:
    """The scores that were written."""
    arrays = columns.arrays
    values = arrays["values"]
    rows, kinds, data = arrays["sparse.rows"], arrays["sparse.kinds"], arrays["sparse.data"]
    ends = arrays["sparse.ends"]

    def read_row(number: int) -> dict[str, Any]:
        start = int(ends[number - 1]) if number else 0
        try:
            return dict(json.loads(data[start : int(ends[number])].tobytes()))
        except (ValueError, TypeError, RecursionError) as error:
            raise RunError(f"{columns.folder} is damaged ({error}): delete it, and it is made again") from None

    def column(bit: int, name: str) -> Mapping[int, Any]:
        numbers = np.flatnonzero(kinds & (1 << bit))
        if not len(numbers):
            return {}
        return SparseColumn(rows[numbers], lambda n: read_sparse({0: read_row(int(numbers[n]))})[name][0])

    sparse = {name: column(bit, name) for bit, name in enumerate(SPARSE_KEYS.values())}
    incomplete = rows[np.flatnonzero(kinds & (1 << len(SPARSE_KEYS)))]
    stats: Any = NarrowRows(arrays["stats"]) if "stats" in arrays else MeanRows(values)
    if "stats" in arrays and arrays["stats"].dtype == np.float64:
        stats = arrays["stats"]
    scores = Scores(
        values=values,
        parts={name: arrays[f"part{n}"] for n, name in enumerate(columns.facts["parts"])},
        stats=stats,
        incomplete=frozenset(incomplete.tolist()),
        **sparse,
    )
    release_pages(values)
    return scores
