"""Flat files: a row per item, system and metric, as JSONL, CSV or Parquet."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from metrist import kernels
from metrist.errors import RunError
from metrist.io.compression import detect_compression, uncompressed_name
from metrist.io.rows import check_own, read_columns
from metrist.io.writer import atomic_write_bytes, csv_line, encodable
from metrist.io.writer import check_writable as check_place
from metrist.names import encode_names
from metrist.ratings import Error
from metrist.scores import Scores

COLUMNS = (
    "item", "system", "metric", "value", "parts", "stats", "errors", "explanation", "failure", "signature",
)  # fmt: skip
#: Columns that tell a file of results, also of an earlier version, from one of records.
_RESULT_COLUMNS = {"item", "system", "metric", "value", "signature"}
#: Those that tell a file of preferences, which `metrist prefer` writes.
_PREFERENCE_COLUMNS = {"item", "comparator", "choice"}
#: Columns that exist only if a metric of the run fills them: the answers that scores were parsed from, or that could
#: not be parsed, and the scores of single tokens.
RAW = "raw"
TOKENS = "tokens"
#: Records written at a time. Part of the format: Parquet's row groups follow it.
CHUNK = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flat:
    """The content of a flat file; `scores` and `signatures` are by the metric's text. `progress` is called with the
    number of records written and of all."""

    items: Sequence[str]
    systems: Sequence[str]
    scores: Mapping[str, Scores]
    signatures: Mapping[str, str]
    progress: Callable[[int, int], None] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        blocks = self.scores.values()
        raw = (RAW,) if any(scores.raws for scores in blocks) else ()
        return (*COLUMNS, *raw, *((TOKENS,) if any(scores.tokens for scores in blocks) else ()))

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
        """Plain rows in the order record, metric; a missing number is None."""
        with_raw, with_tokens = RAW in self.columns, TOKENS in self.columns
        end = len(self.items) if stop is None else stop
        for first in range(start, end, CHUNK):
            last = min(first + CHUNK, end)
            blocks = {metric: scores.block(first, last) for metric, scores in self.scores.items()}
            for i in range(last - first):
                for metric, scores in blocks.items():
                    score = scores[i]
                    yield {
                        "item": self.items[first + i],
                        "system": self.systems[first + i],
                        "metric": metric,
                        "value": _number(score.value),
                        "parts": {name: _number(value) for name, value in score.parts.items()},
                        "stats": list(score.stats),
                        "errors": error_rows(score.errors),
                        "explanation": score.explanation,
                        "failure": score.failure,
                        "signature": self.signatures[metric],
                        **({RAW: scores.raws.get(i)} if with_raw else {}),
                        **({TOKENS: scores.tokens.get(i)} if with_tokens else {}),
                    }

    def unicode_rows(self, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
        """The rows for tables that hold only valid Unicode."""
        return map(_encodable_within, self.rows(start, stop))

    def chunks(self) -> Iterator[tuple[int, int]]:
        """The ranges of records that are written together."""
        for start in range(0, len(self.items), CHUNK):
            yield start, min(start + CHUNK, len(self.items))
            if self.progress:
                self.progress(min(start + CHUNK, len(self.items)), len(self.items))


def flat_suffix(path: Path) -> str | None:
    """The suffix of a flat format in a path, compression aside; None for any other."""
    suffix = Path(uncompressed_name(path)).suffix.lower()
    return suffix if suffix in _WRITERS else None


def is_flat_file(path: Path) -> bool:
    """Whether a path is a .jsonl file that a run wrote, and not one of records."""
    return flat_suffix(path) == ".jsonl" and path.is_file() and read_columns(path) >= _RESULT_COLUMNS


def check_replaceable(path: Path) -> None:
    """Refuse to replace a file that no run has written."""
    check_own(path, "results", columns=(_RESULT_COLUMNS, _PREFERENCE_COLUMNS))


def check_writable(path: Path) -> None:
    """Refuse a flat file that could not be written at the end, before any work is done."""
    suffix = flat_suffix(path)
    if suffix is None:
        raise RunError(
            f"cannot write {path}: expected a name that ends in .jsonl, .csv or .parquet", code="cannot_write"
        )
    if suffix == ".parquet" and detect_compression(path):
        raise RunError(f"cannot write {path}: Parquet compresses by itself, name it .parquet", code="cannot_write")
    check_place(path)


def write_flat(path: Path, flat: Flat) -> None:
    """Write the file whole or not at all."""
    check_writable(path)
    check_replaceable(path)
    with atomic_write_bytes(path) as file:
        _WRITERS[flat_suffix(path) or ""](file, flat)


def _write_jsonl(file: IO[bytes], flat: Flat) -> None:
    import pyarrow as pa

    names = [encode_names(column) for column in (flat.items, flat.systems)]
    # Each distinct name is quoted once.
    texts = [pa.array(list(map(quoted, column.names)), pa.large_string()) for column in names]
    for start, stop in flat.chunks():
        items, systems = (
            own.take(pa.array(column.codes[start:stop])).cast(pa.string())
            for own, column in zip(texts, names, strict=True)
        )
        columns = list[Any]()
        for piece in chain(*(_list_pieces(flat, metric, items, systems, start, stop) for metric in flat.scores)):
            if isinstance(piece, str):
                columns.append(piece.encode("utf-8"))
            elif isinstance(piece, tuple):
                columns.append(piece)
            else:
                _, offsets, data = piece.buffers()
                ends = np.frombuffer(offsets, np.int32)[piece.offset :][: len(piece) + 1]
                columns.append((memoryview(data or b""), ends))
        kernels.join_columns(columns, stop - start, file.write)


def _list_pieces(flat: Flat, metric: str, items: Any, systems: Any, start: int, stop: int) -> list[Any]:
    """What one metric's lines are joined from: an encoder per line would take thirty times as long."""
    scores, size = flat.scores[metric].block(start, stop), stop - start
    parts: list[Any] = []
    for number, (name, column) in enumerate(scores.parts.items()):
        parts += [f"{', ' if number else ''}{quoted(name)}: ", _numbers(column)]
    stats: list[Any] = []
    for number, column in enumerate(scores.stats.T):
        # Statistics are mostly counts.
        stats += [", " if number else "", _numbers(column, short=True)]
    optional = [(name, v) for name, v in ((RAW, scores.raws), (TOKENS, scores.tokens)) if name in flat.columns]
    pieces: list[Any] = ['{"item": ', items, ', "system": ', systems]
    pieces += [f', "metric": {quoted(metric)}, "value": ', _numbers(scores.values)]
    pieces += [', "parts": {', *parts, '}, "stats": [', *stats, "]"]
    pieces += [', "errors": ', _sparse_texts(scores.errors, size, "[]", lambda errors: json.dumps(error_rows(errors)))]
    pieces += [', "explanation": ', _sparse_texts(scores.explanations, size, "null", quoted)]
    pieces += [', "failure": ', _sparse_texts(scores.failures, size, "null", quoted)]
    pieces += [f', "signature": {quoted(flat.signatures[metric])}']
    for name, values in optional:
        pieces += [f', "{name}": ', _sparse_texts(values, size, "null", _json)]
    return [*pieces, "}\n"]


def _numbers(column: Any, *, short: bool = False) -> tuple[NDArray[np.float64], bool]:
    return np.ascontiguousarray(column, np.float64), short


def _sparse_texts(values: Mapping[int, Any], size: int, default: str, encode: Callable[[Any], str]) -> Any:
    """The JSON text of each row; the default as one text where no row has a value."""
    import pyarrow as pa

    if not values:
        return default
    return pa.array([encode(values[row]) if row in values else default for row in range(size)], pa.string())


def _json(tokens: Any) -> str:
    try:
        return json.dumps(tokens)
    except TypeError as error:
        raise RunError(f"a score cannot be written as JSON: {error}", code="cannot_write") from None


def _write_csv(file: IO[bytes], flat: Flat) -> None:
    columns = flat.columns
    file.write(csv_line(columns).encode("ascii"))
    for start, stop in flat.chunks():
        lines = []
        for row in flat.rows(start, stop):
            # Cells that hold several numbers are JSON, so that one column stays one column.
            nested = {name: _json(row[name]) if row.get(name) else "" for name in ("parts", "stats", "errors", TOKENS)}
            lines.append(csv_line([nested.get(name, row.get(name)) for name in columns]))
        file.write("".join(lines).encode("utf-8", "backslashreplace"))


def _write_parquet(file: IO[bytes], flat: Flat) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from metrist.run.tables import SCORES

    kinds = {name: SCORES.field(name).type for name in ("value", "parts", "errors")}
    kinds["stats"] = SCORES.field("statistics").type
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in flat.columns])
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for start, stop in flat.chunks():
            rows = []
            for row in flat.unicode_rows(start, stop):
                # Token scores may have any shape that JSON has, and a column has one type: there they are JSON.
                tokens = {TOKENS: _json(row[TOKENS])} if row.get(TOKENS) is not None else {}
                rows.append({**row, "parts": list(row["parts"].items()), **tokens})
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _encodable_within(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {_encodable_within(key): _encodable_within(inner) for key, inner in value.items()}
    return list(map(_encodable_within, value)) if isinstance(value, list | tuple) else value


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


_WRITERS = {".jsonl": _write_jsonl, ".csv": _write_csv, ".parquet": _write_parquet}


def error_rows(errors: Sequence[Error]) -> list[dict[str, Any]]:
    """Errors as plain rows, without the fields that have their default."""
    return [
        {
            f.name: getattr(error, f.name)
            for f in dataclasses.fields(error)
            if f.default is dataclasses.MISSING or getattr(error, f.name) != f.default
        }
        for error in errors
    ]
