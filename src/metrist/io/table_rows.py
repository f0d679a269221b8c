"""Read tables: CSV, TSV, Parquet, and pandas, polars and Arrow frames. In a cell, lists and objects are JSON text."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import IO, Any

from metrist.errors import InputError, MissingExtra
from metrist.io.compression import BYTE_ORDER_MARK, decode_line, display_name
from metrist.io.json_rows import describe_json_error
from metrist.io.row_model import RowError, format_value

_OBJECTS = {"ratings", "scores"}
_LISTS = {"systems", "outputs", "raters", "errors"}
_KINDS = {",": "CSV", "\t": "TSV"}
_LARGEST_FIELD = 2**31 - 1
#: Rows of Parquet files and Arrow tables that are converted at once.
_BATCH = 1024
#: Types that mark missing values in frames.
_MISSING = {"NAType", "NaTType", "NoneType"}


class Cells(dict[str, Any]):
    """A row of a table (CSV, TSV, Parquet, a frame)."""


def parse_cells(cells: Cells) -> dict[str, Any]:
    """Convert a row to what a JSON row would be: empty cells are dropped, except an output, which may be empty; lists
    and objects are parsed from their JSON text; a single reference or rater becomes a list of one."""
    row = {}
    for name, value in cells.items():
        if type(value) is not str:
            if value is not None:
                row[name] = value
        elif value or name == "output":
            row[name] = _parse_cell(name, value)
    return row


def _parse_cell(name: str, value: str) -> Any:
    if name == "references":
        return _parse_references(value)
    if name in _LISTS or name.startswith("rating:"):
        if value.lstrip().startswith("["):
            return _parse_json(name, value)
        return [value] if name == "raters" else value
    return _parse_json(name, value) if name in _OBJECTS else value


def _parse_references(text: str) -> list[str]:
    """Parse a JSON list of strings; any other text is one reference, such as `[laughs] hello`."""
    try:
        value = json.loads(text) if text.lstrip().startswith("[") else None
    except (ValueError, RecursionError):
        value = None
    is_list_of_texts = isinstance(value, list) and all(isinstance(element, str) for element in value)
    return list(value or ()) if is_list_of_texts else [text]


def _parse_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError(f"{name!r} must be JSON: {describe_json_error(error)}") from None


def read_delimited(stream: IO[bytes], name: str, delimiter: str) -> Iterator[tuple[int, Cells | RowError]]:
    """Yield the rows of a CSV or TSV file with the lines they begin on. Columns without a name are dropped."""
    # The csv module has one limit for the whole process, and a text may well be over 1 MB.
    csv.field_size_limit(_LARGEST_FIELD)
    lines = _Lines(stream)
    # strict: a stray quote must be an error; a lenient parser would swallow the rows that follow.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header = _read_header(reader, lines, name)
    while header:
        begin = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield begin, lines.pop_error() or RowError(f"not readable as {_KINDS[delimiter]}: {error}")
            continue
        if cells is None:
            return
        row_error = lines.pop_error()
        if row_error is not None or cells:
            yield begin, row_error or _build_row(header, cells)


class _Lines:
    """Decoded lines. The csv module cannot continue after an exception raised here, so an error is stored, and the
    decodable part of the line is passed on."""

    def __init__(self, stream: IO[bytes]) -> None:
        first = stream.readline().removeprefix(BYTE_ORDER_MARK)
        self._lines = chain([first] if first else [], stream)
        self._error: RowError | None = None

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            try:
                yield decode_line(line)
            except RowError as error:
                self._error = self._error or error
                yield line.decode("utf-8", "replace")

    def pop_error(self) -> RowError | None:
        error, self._error = self._error, None
        return error


def _read_header(reader: Iterator[list[str]], lines: _Lines, name: str) -> list[str]:
    try:
        header: list[str] = next((cells for cells in reader if cells), [])
    except csv.Error as error:
        raise InputError(f"{name}:1: the header line is not readable: {error}") from error
    header_error = lines.pop_error()
    if header_error is not None:
        raise InputError(f"{name}:1: {header_error}")
    names = [column for column in header if column]
    repeated = next((column for column in names if names.count(column) > 1), None)
    if repeated is not None:
        raise InputError(f"{name}:1: the header names the column {format_value(repeated)} twice")
    return header


def _build_row(header: list[str], cells: list[str]) -> Cells | RowError:
    if len(cells) != len(header):
        return RowError(f"must have {len(header)} cells like the header, got {len(cells)}")
    return Cells((column, cell) for column, cell in zip(header, cells, strict=True) if column)


def read_parquet(path: str) -> Iterator[tuple[int, Cells]]:
    """Yield the rows of a Parquet file with their numbers, from 1."""
    pyarrow, parquet = _import_pyarrow()
    name = display_name(path)
    try:
        with parquet.ParquetFile(path) as file:
            start = 1
            for batch in file.iter_batches(batch_size=_BATCH):
                yield from enumerate(map(Cells, batch.to_pylist()), start)
                start += batch.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{name}: not a Parquet file, or a damaged one: {error}") from error


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("reading Parquet", "tables") from None
    return pyarrow, pyarrow.parquet


def frame_rows(source: Any) -> Callable[[], Iterator[Cells]] | None:
    """Return a function that iterates over a frame's rows; None if the source is not a frame. Frames are recognized by
    their methods, so that no library is imported."""
    if hasattr(source, "collect") and hasattr(source, "collect_schema"):
        raise InputError("a lazy frame has no rows yet: call .collect() on it first")
    if hasattr(source, "itertuples") and hasattr(source, "columns"):
        return lambda: _name_values(source.columns, source.itertuples(index=False, name=None))
    if hasattr(source, "iter_rows") and hasattr(source, "columns"):
        return lambda: _name_values(source.columns, source.iter_rows())
    if hasattr(source, "to_batches") and hasattr(source, "schema"):
        return lambda: (Cells(row) for batch in source.to_batches(max_chunksize=_BATCH) for row in batch.to_pylist())
    return None


def _name_values(columns: Any, rows: Iterator[tuple[Any, ...]]) -> Iterator[Cells]:
    names = [str(column) for column in columns]
    for values in rows:
        yield Cells((name, to_plain_value(value)) for name, value in zip(names, values, strict=True))


def to_plain_value(value: Any) -> Any:
    """Convert a value to Python's own types; all markers of missing values become None."""
    if isinstance(value, str):
        return str(value)
    if type(value).__name__ in _MISSING:
        return None
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [to_plain_value(part) for part in value]
    return None if isinstance(value, float) and value != value else value
