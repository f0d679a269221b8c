"""Rows of tables, where a cell holds one text: what is a list or an object in JSON is written out in it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import IO, Any

from metrist.errors import InputError, MissingExtra
from metrist.io.compression import BYTE_ORDER_MARK, decoded, display_name
from metrist.io.json_rows import unreadable
from metrist.io.row_model import RowError, format_value

_OBJECTS = {"ratings", "scores"}
_LISTS = {"systems", "outputs", "raters", "errors"}


class Cells(dict[str, Any]):
    """A row of a table (CSV, TSV, Parquet, a frame)."""


def parse_cells(cells: Cells) -> dict[str, Any]:
    """The row as JSON would have it: a cell with nothing in it is absent, except an output, which may be empty;
    lists and objects are read from their JSON text; a single reference or rater becomes a list of one."""
    row = {}
    for name, value in cells.items():
        if type(value) is not str:
            if value is not None:
                row[name] = value
        elif value or name == "output":
            row[name] = _opened(name, value)
    return row


def _opened(name: str, value: str) -> Any:
    if name == "references":
        return _references(value)
    if name in _LISTS or name.startswith("rating:"):
        if value.lstrip().startswith("["):
            return _json(name, value)
        return [value] if name == "raters" else value
    return _json(name, value) if name in _OBJECTS else value


def _references(text: str) -> list[str]:
    """A JSON list of strings, or one reference: a text may well begin with a bracket, as `[laughs] hello` does."""
    try:
        found = json.loads(text) if text.lstrip().startswith("[") else None
    except (ValueError, RecursionError):
        found = None
    listed = isinstance(found, list) and all(isinstance(one, str) for one in found)
    return list(found or ()) if listed else [text]


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError(f"{name!r} must hold JSON: {unreadable(error)}") from None


# CSV and TSV: a header line, then a row of cells for each output.


_LARGEST_FIELD = 2**31 - 1
_KINDS = {",": "CSV", "\t": "TSV"}


def read_delimited(stream: IO[bytes], name: str, delimiter: str) -> Iterator[tuple[int, Cells | RowError]]:
    """The line each row begins on, with its cells by column. Columns without a name are left out."""
    # The csv module has one limit for the whole process; a 1 MB cell is text like any other here.
    csv.field_size_limit(_LARGEST_FIELD)
    lines = _Lines(stream)
    # strict: a stray quote must be told, not guessed at, or it swallows the rows that follow.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header = _header(reader, lines, name)
    while header:
        begin = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield begin, lines.take_fault() or RowError(f"not readable as {_KINDS[delimiter]}: {error}")
            continue
        if cells is None:
            return
        fault = lines.take_fault()
        if fault is not None or cells:
            yield begin, fault or _row(header, cells)


class _Lines:
    """Decoded lines. The csv module cannot go on after an exception from here, so a fault is kept aside and
    what can be read of the line stands in for it."""

    def __init__(self, stream: IO[bytes]) -> None:
        first = stream.readline().removeprefix(BYTE_ORDER_MARK)
        self._lines = chain([first] if first else [], stream)
        self._fault: RowError | None = None

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            try:
                yield decoded(line)
            except RowError as fault:
                self._fault = self._fault or fault
                yield line.decode("utf-8", "replace")

    def take_fault(self) -> RowError | None:
        fault, self._fault = self._fault, None
        return fault


def _header(reader: Iterator[list[str]], lines: _Lines, name: str) -> list[str]:
    try:
        header: list[str] = next((cells for cells in reader if cells), [])
    except csv.Error as error:
        raise InputError(f"{name}:1: the header line is not readable: {error}") from error
    fault = lines.take_fault()
    if fault is not None:
        raise InputError(f"{name}:1: {fault}")
    named = [column for column in header if column]
    twice = next((column for column in named if named.count(column) > 1), None)
    if twice is not None:
        raise InputError(f"{name}:1: the header names the column {format_value(twice)} twice")
    return header


def _row(header: list[str], cells: list[str]) -> Cells | RowError:
    if len(cells) != len(header):
        return RowError(f"must have {len(header)} cells like the header, got {len(cells)}")
    return Cells((column, cell) for column, cell in zip(header, cells, strict=True) if column)


# Parquet, a batch of rows at a time.


_BATCH = 1024


def read_parquet(path: str) -> Iterator[tuple[int, Cells]]:
    """Row numbers, from 1, with their cells by column."""
    pyarrow, parquet = _package()
    name = display_name(path)
    try:
        with parquet.ParquetFile(path) as file:
            yield from _numbered(file.iter_batches(batch_size=_BATCH))
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{name}: not a Parquet file, or a damaged one: {error}") from error


def _package() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("reading Parquet", "tables") from None
    return pyarrow, pyarrow.parquet


def _numbered(batches: Iterator[Any]) -> Iterator[tuple[int, Cells]]:
    start = 1
    for batch in batches:
        yield from enumerate(map(Cells, batch.to_pylist()), start)
        start += batch.num_rows


# Rows of pandas and polars frames and Arrow tables, known by what they can do: none of them is imported here.


_MISSING = {"NAType", "NaTType", "NoneType"}


def frame_rows(source: Any) -> Callable[[], Iterator[Cells]] | None:
    """How to go over the frame's rows, or None where the source is no frame."""
    if hasattr(source, "collect") and hasattr(source, "collect_schema"):
        raise InputError("a lazy frame has no rows yet: call .collect() on it first")
    if hasattr(source, "itertuples") and hasattr(source, "columns"):
        return lambda: _named(source.columns, source.itertuples(index=False, name=None))
    if hasattr(source, "iter_rows") and hasattr(source, "columns"):
        return lambda: _named(source.columns, source.iter_rows())
    if hasattr(source, "to_batches") and hasattr(source, "schema"):
        return lambda: (Cells(row) for batch in source.to_batches(max_chunksize=1024) for row in batch.to_pylist())
    return None


def _named(columns: Any, rows: Iterator[tuple[Any, ...]]) -> Iterator[Cells]:
    names = [str(column) for column in columns]
    for values in rows:
        yield Cells((name, to_plain_value(value)) for name, value in zip(names, values, strict=True))


def to_plain_value(value: Any) -> Any:
    """The value in Python's own types; None for all the ways in which a frame says that there is none."""
    if isinstance(value, str):
        return str(value)
    if type(value).__name__ in _MISSING:
        return None
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [to_plain_value(part) for part in value]
    return None if isinstance(value, float) and value != value else value
