"""The manifest and the parts of a run, opened for reading: records, inputs, and what metrics have scored."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, wraps
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrist.errors import RunError, format_path, label_item, quote_word
from metrist.io.dedup import SourceCheck
from metrist.io.remote import find_copy, is_remote, local_path
from metrist.names import Codes, NameColumn, encode_names, take_names
from metrist.records import HASH_BYTES, Hashes
from metrist.run import tables
from metrist.run.manifest import MANIFEST, Damaged, Input, Manifest, Missing, Part, StoredMetric
from metrist.run.remote_store import RemoteStore
from metrist.run.score_tables import find_unsettled
from metrist.run.store import Store
from metrist.run.tables import read_hashes

#: How much of what was read last is kept: the values of a million outputs by eight metrics. Of ten million outputs, one
#: column is kept.
KEPT_BYTES = 1 << 26
#: About what a digest of a source takes.
_DIGEST_BYTES = 150


def open_store(path: str | os.PathLike[str]) -> Store:
    if isinstance(path, str) and is_remote(path):
        return RemoteStore(path)
    return Store(Path(path))


@dataclass(eq=False)
class RunRecords:
    """The names of all records of a run, in the order in which its inputs were added; a record that several
    inputs share is there once. `inputs` has the number of each record's input."""

    items: NameColumn
    systems: NameColumn
    inputs: NDArray[np.int32]
    #: The rows of all parts that the records are in; None: they are all rows in order.
    rows: NDArray[np.int64] | None = None
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.inputs)


#: The exceptions that a part with invalid values causes.
_FAULTS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    RecursionError,
    Damaged,
    pa.ArrowException,
)
_Method = TypeVar("_Method", bound=Callable[..., Any])


@contextmanager
def report_damage(name: str) -> Iterator[None]:
    """Say in one line that a run is damaged."""
    try:
        yield
    except MemoryError:  # One of Arrow's exceptions, too.
        raise
    except (*_FAULTS, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise RunError(
            f"{name} is damaged ({reason}): restore it, or score into a new folder", code="damaged"
        ) from error


def refuses_damage(method: _Method) -> _Method:
    """A method of something that has a run's `name`."""

    @wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        with report_damage(self.name):
            return method(self, *arguments)

    return call  # type: ignore[return-value]


class RecentColumns:
    """What was read last, up to `KEPT_BYTES`, and at least one entry. Safe to use from several threads."""

    def __init__(self) -> None:
        #: Arrays, or mappings of arrays, with their sizes.
        self._kept = dict[Any, tuple[Any, int]]()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return RecentColumns, ()

    def get(self, key: Any, size: int, read: Callable[[], Any]) -> Any:
        """An array, or a mapping of arrays, of about `size` bytes: the kept one, or what is read now."""
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is not None:
                self._kept[key] = kept  # As the newest.
                return kept[0]
            self._make_room(size)  # Before others take its place in memory.
        columns = read()
        self.add(key, columns)
        return columns

    def add(self, key: Any, columns: Any) -> None:
        """Keep what was just read. Nobody may write into it."""
        arrays = list(columns.values()) if isinstance(columns, dict) else [columns]
        for array in arrays:
            array.setflags(write=False)
        size = sum(array.nbytes for array in arrays)
        with self._lock:
            self._make_room(size)
            self._kept[key] = columns, size

    def has_room(self, size: int) -> bool:
        """Whether so many bytes can be kept without forgetting others."""
        with self._lock:
            return sum(used for _, used in self._kept.values()) + size <= KEPT_BYTES

    def _make_room(self, size: int) -> None:
        """Forget the oldest, so that there is room for so many bytes."""
        used = sum(used for _, used in self._kept.values())
        while self._kept and used + size > KEPT_BYTES:
            used -= self._kept.pop(next(iter(self._kept)))[1]
            tables.release_memory()


@dataclass(eq=False, repr=False)
class StoredRun:
    """What all readers of a run share."""

    store: Store
    manifest: Manifest
    recent: RecentColumns = field(default_factory=RecentColumns, init=False)

    @classmethod
    def open(cls, store: Store) -> Self:
        """The run of a store, whose parts stay as long as it is used."""
        store.hold_parts()
        manifest = store.read_manifest()
        if manifest is None:
            raise RunError(f"{store.name} is not a run folder: it has no {MANIFEST}", code="invalid_value")
        return cls(store, manifest)

    def release(self) -> None:
        """Forget what was read; it is read again where it is asked for."""
        self.__dict__.pop("view", None)
        self.recent = RecentColumns()
        tables.release_memory()

    @property
    def name(self) -> str:
        return self.store.name

    @property
    def has_texts(self) -> bool:
        return self.manifest.texts

    def list_parts(self, folder: str) -> Iterator[tuple[Input, Part]]:
        """The parts of a table with their inputs."""
        for one in self.manifest.inputs:
            for part in one.tables.get(folder, ()):
                yield one, part

    def read_part(
        self, folder: str, part: Part, columns: Sequence[str] | None = None, encoded: Sequence[str] = ()
    ) -> pa.Table:
        """A part of the run, with columns in `encoded` as dictionaries; one that is damaged is an error."""
        try:
            return self.store.read_part(folder, part, columns, encoded)
        except Damaged as error:
            raise self.describe_damage(folder, part, error) from None

    def find_filled(self, folder: str, part: Part) -> set[str]:
        """The columns of a part that have a value in some row; a part that is damaged is an error."""
        try:
            return self.store.find_filled(folder, part)
        except Damaged as error:
            raise self.describe_damage(folder, part, error) from None

    def describe_damage(self, folder: str, part: Part, error: Damaged) -> RunError:
        """What to do about a part that cannot be read."""
        listed = (self.store.read_manifest() or self.manifest).list_parts()
        if isinstance(error, Missing) and f"{folder}/{part.file}" not in listed:
            return RunError(f"{self.name} changed while it was read: run the command again", code="changed")
        return RunError(f"{error}: run the same `metrist score` again to redo it", code="damaged")

    def iterate_parts(
        self, folder: str, columns: Sequence[str] | None = None, encoded: Sequence[str] = ()
    ) -> Iterator[tuple[Input, pa.Table]]:
        """The rows of a table part by part, each with its input."""
        for one, part in self.list_parts(folder):
            yield one, self.read_part(folder, part, columns, encoded)

    def iterate_records(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Input, pa.Table]]:
        """The records part by part, each with its input; a record that several inputs share is there once."""
        start, kept = 0, self.kept_rows
        for one, table in self.iterate_parts("records", columns):
            stop = start + len(table)
            yield one, table if kept is None else table.filter(pa.array(kept[start:stop]))
            start = stop

    # ---- Records

    @property
    def kept_rows(self) -> NDArray[np.bool_] | None:
        """Which rows of the parts are records of the run; None: all."""
        if not self._has_several_inputs or self.view.rows is None:
            return None
        kept = np.zeros(sum(part.rows for _, part in self.list_parts("records")), np.bool_)
        kept[self.view.rows] = True
        return kept

    @property
    def _has_several_inputs(self) -> bool:
        return len({one.number for one, _ in self.list_parts("records")}) > 1

    @cached_property
    @refuses_damage
    def view(self) -> RunRecords:
        """The names of all records."""
        names = ("item", "system")
        columns: dict[str, list[pa.Array]] = {name: [] for name in names}
        hashes = [np.empty((0, HASH_BYTES), np.uint8)]
        inputs = [np.empty(0, np.int32)]
        originals: dict[int, list[Any]] = {}
        count, several = 0, self._has_several_inputs
        # Hashes tell which records several inputs share.
        key = ["record"] if several else []
        for one, table in self.iterate_parts("records", [*key, *names, "original"], names):
            for name in names:
                columns[name] += table[name].chunks
            hashes += [read_hashes(table["record"])] if key else []
            inputs.append(np.full(len(table), one.number, np.int32))
            originals |= {count + row: json.loads(text) for row, text in tables.list_present(table, "original")}
            count += len(table)
        encoded = {name: read_names(columns.pop(name)) for name in names}
        for number, name in enumerate(names):
            if any(original[number] != encoded[name][row] for row, original in originals.items()):
                texts = list(encoded[name])
                for row, original in originals.items():
                    texts[row] = original[number]
                encoded[name] = encode_names(texts)
        records = RunRecords(items=encoded["item"], systems=encoded["system"], inputs=np.concatenate(inputs))
        rows = self._choose_records(records, np.concatenate(hashes)) if several else None
        if rows is not None:
            items, systems = take_names(records.items, rows), take_names(records.systems, rows)
            records = replace(records, items=items, systems=systems, inputs=records.inputs[rows], rows=rows)
        if several:
            check = SourceCheck()
            check.add(records.items, self._read_sources(rows))
            records.notes += check.describe()
        return records

    @property
    def sources(self) -> NameColumn:
        """Digests of the sources, by which systems' items are compared; empty where there is none."""
        size, rows = len(self.view), self.view.rows
        if size * _DIGEST_BYTES <= KEPT_BYTES:
            return self._read_sources(rows)
        return NamesOnDemand(size, lambda: self._read_sources(rows))

    @refuses_damage
    def _read_sources(self, rows: NDArray[np.int64] | None) -> NameColumn:
        """The digests of the sources of all rows, or of these."""
        column = "source_digest"
        chunks = [table[column].chunks for _, table in self.iterate_parts("records", [column], [column])]
        names = read_names(list(chain.from_iterable(chunks)))
        return names if rows is None else take_names(names, rows)

    @refuses_damage
    def read_hashes(self) -> Hashes:
        """The hashes of all records, as long as the names are."""
        blocks = [read_hashes(table["record"]) for _, table in self.iterate_parts("records", ["record"])]
        hashes = np.concatenate([np.empty((0, HASH_BYTES), np.uint8), *blocks])
        rows = self.view.rows
        return hashes if rows is None else hashes[rows]

    def read_digests(self, parts: Sequence[Part]) -> dict[tuple[str, str], bytes]:
        """The hash of each record of some parts, by its item and system."""
        names: dict[tuple[str, str], bytes] = {}
        for part in parts:
            table = self.read_part("records", part, ["item", "system", "record"])
            columns = [table[name].to_pylist() for name in ("item", "system", "record")]
            names |= {(item, system): digest for item, system, digest in zip(*columns, strict=True)}
        return names

    def _choose_records(self, records: RunRecords, hashes: Hashes) -> NDArray[np.int64] | None:
        """The rows that are records of the run, in order: of rows with one name the first, unless a later row without a
        file takes its place; None: all."""
        keys = records.items.codes.astype(np.int64) * max(1, len(records.systems.names)) + records.systems.codes
        order = np.argsort(keys, kind="stable")
        repeated = np.zeros(len(keys), np.bool_)
        repeated[order[1:]] = keys[order[1:]] == keys[order[:-1]]
        if not repeated.any():
            return None
        chosen = np.arange(len(keys))
        is_file = {one.number: one.path is not None for one in self.manifest.inputs}
        first_of: dict[int, int] = {}
        for row in order[np.isin(keys[order], keys[repeated])].tolist():
            first = first_of.setdefault(int(keys[row]), row)
            if row == first or (hashes[row] == hashes[chosen[first]]).all():
                continue
            if not is_file[int(records.inputs[row])] and not is_file[int(records.inputs[first])]:
                chosen[first] = row
            elif not records.notes:  # Two runs at once added them.
                one, other = (self.find_input(int(records.inputs[n])) for n in (first, row))
                records.notes.append(
                    f"item {label_item(records.items[row])!r} of system {records.systems[row]!r} has one text in "
                    f"{self.describe_input(one)} and another in {self.describe_input(other)}: the first is used; "
                    "`metrist remove` one of them"
                )
        return chosen[~repeated]

    def find_input(self, number: int) -> Input:
        return next(one for one in self.manifest.inputs if one.number == number)

    @property
    def reference_counts(self) -> tuple[int, ...]:
        """The different numbers of references that records have."""
        return tuple(sorted({number for one in self.manifest.inputs for number in one.references}))

    # ---- Scores

    def finished_metrics(self) -> list[StoredMetric]:
        """The metrics whose scores can be read."""
        return [metric for metric in self.manifest.metrics if metric.finished and not metric.compares]

    def read_settled(
        self,
        text: str,
        signature: str,
        *,
        tokens: bool = False,
        retry_failed: bool = False,
        damaged: dict[Part, str] | None = None,
    ) -> Hashes:
        """The hashes of the records, or pairs, that this version of a metric has scored and need not score again: none
        where nothing at all succeeded. Parts that cannot be read are added to `damaged`."""
        found = [np.empty((0, HASH_BYTES), np.uint8)]
        has_success = False
        metric = self.manifest.metric(text)
        version = metric.version(signature) if metric else None
        if metric is None or version is None:
            return found[0]
        key = "pair" if metric.compares else "record"
        for part in version.parts:
            if tokens and not part.tokens:
                continue
            try:
                if damaged is not None:
                    self.store.verify_part(metric.place, part)
                table = self.store.read_part(metric.place, part, [key, "failure_kind", "incomplete"])
                unsettled = find_unsettled(table, retry_failed=retry_failed)
                found.append(np.delete(read_hashes(table[key]), unsettled, axis=0))
                has_success |= table["failure_kind"].null_count > 0
            except Damaged as error:
                if damaged is None:
                    raise RunError(f"{error}: run the same `metrist score` again to redo it", code="damaged") from None
                damaged[part] = str(error)
        return np.concatenate(found if has_success else found[:1])

    def describe_missing(self, metric: StoredMetric, missing: NDArray[np.int64]) -> list[str]:
        """Notes on the records that a metric has not scored, with the command that adds their scores."""
        notes = []
        inputs = self.view.inputs[missing]
        for one in self.manifest.inputs:
            count = int((inputs == one.number).sum())
            if not count:
                continue
            outputs = f"{count:,} of {one.records:,} outputs of {self.describe_input(one)}"
            named = f"{metric.name}={metric.text}" if metric.name else metric.text
            options = f"-m {quote_word(named)} -o {quote_word(f'{self.name}/')}"
            command = f"`metrist score {self.describe_reading(one)} {options}`"
            if one.path is None:
                command = "score the same rows again"
            notes.append(f"{metric.label} has not scored {outputs}: {command} to add them")
        return notes

    def describe_unfinished(self) -> list[str]:
        """Notes on the metrics that are left out, because they are not finished, or of which scores are outdated."""
        metrics = [metric for metric in self.manifest.metrics if not metric.compares]
        notes = [
            f"{metric.label} is left out, because it is not finished: run the same `metrist score` again"
            for metric in metrics
            if not metric.finished
        ]
        return notes + [
            f"{metric.label}: these are the scores of an earlier run; a later one, by another version of the metric, "
            "was not finished: run `metrist score` again"
            for metric in metrics
            if metric.finished and not metric.versions[-1].finished
        ]

    # ---- Inputs

    def describe_input(self, one: Input) -> str:
        """An input as messages name it: its URL, or its file as seen from the current folder."""
        if one.path is None or one.name is None or is_remote(one.name):
            return one.name or "rows in memory"
        return format_path(self.find_file(one) or self.find_place(one))

    def describe_reading(self, one: Input) -> str:
        """The arguments that read an input again, from the current folder."""
        return " ".join([quote_word(self.describe_input(one)), *describe_options(one.options)])

    def find_place(self, one: Input) -> Path:
        """Where the file of an input lay when it was scored; for one by URL, its copy."""
        if is_remote(one.path):
            return local_path(str(one.path))
        return Path("" if is_remote(self.store.path) else self.store.path) / str(one.path)

    def find_file(self, one: Input) -> Path | None:
        """Where the file of an input is now: where it lay as seen from the run folder, under the name that was typed,
        or beside the run folder; None if it is in none of these places."""
        if one.path is None or one.name is None:
            return None
        if is_remote(one.path):
            return find_copy(one.path, str(self.store.path))
        places = [self.find_place(one), Path(one.name)]
        if not is_remote(self.store.path):
            places.append(Path(os.path.normpath(Path(self.store.path).parent / Path(one.name).name)))
        return next((path for path in places if path.is_file()), None)


class NamesOnDemand(NameColumn):
    """A column of names that is read when it is first asked for."""

    __slots__ = ("_read", "_size")
    _read: Callable[[], NameColumn]
    _size: int

    def __init__(self, size: int, read: Callable[[], NameColumn]) -> None:
        object.__setattr__(self, "_size", size)
        object.__setattr__(self, "_read", cache(read))

    @property
    def codes(self) -> Codes:
        return self._read().codes

    @property
    def names(self) -> tuple[str, ...]:
        return self._read().names

    def __len__(self) -> int:
        return self._size

    def __reduce__(self) -> tuple[Any, ...]:
        return NameColumn, (self.codes, self.names)


def describe_options(options: Mapping[str, Any]) -> list[str]:
    """Options of reading as they are typed."""
    texts: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if name == "fields":
            texts += [f"--field {quote_word(f'{ours}={theirs}')}" for ours, theirs in value.items()]
        elif name == "item_key":
            texts.append(f"{option} {quote_word('+'.join(value))}")
        elif name == "outputs":
            named = [f"{system}={column}" for system, column in value.items()] if isinstance(value, dict) else value
            texts += [f"--output {quote_word(entry)}" for entry in ([named] if isinstance(named, str) else named)]
        elif value is True:
            texts.append(option)
        elif isinstance(value, str):
            texts.append(f"{option} {'tab' if value == chr(9) else quote_word(value)}")
    return texts


def read_names(chunks: list[pa.DictionaryArray]) -> NameColumn:
    """A column of names from its encoded chunks, distinct names in the order of their first use."""
    if not chunks:
        return NameColumn(np.empty(0, np.int32), ())
    column = pa.chunked_array(chunks).unify_dictionaries()
    codes = tables.read_numbers(pa.chunked_array([chunk.indices for chunk in column.chunks]), np.int32)
    names = NameColumn(codes, tuple(column.chunk(column.num_chunks - 1).dictionary.to_pylist()))
    return take_names(names, slice(None))
