"""Read tables: CSV, Excel, Parquet, and pandas, polars and Arrow frames. In a cell, lists and objects are JSON text."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import IO, Any

from metrist.errors import InputError, MissingExtra, did_you_mean, format_count
from metrist.io.compression import (
    BYTE_ORDER_MARK,
    HIGHEST_RATIO,
    FileFormat,
    check_unpacked,
    display_name,
    largest_row,
    looks_like_windows_1252,
    undecodable,
)
from metrist.io.row_model import RowError, describe_json_error, format_value
from metrist.io.writer import unescape_formula

_OBJECTS = {"ratings", "scores"}
_LISTS = {"systems", "outputs", "raters", "errors"}
_KINDS = {",": "CSV", "\t": "TSV"}
#: The first columns of tables of scores that metrist writes, with formulas escaped.
_SCORE_COLUMNS = ["item", "system", "metric", "value"]
_DELIMITERS = (",", ";", "\t", "|")
#: Lines that a delimiter is detected in, and the share of them that must have as many cells as the header.
_SAMPLE_LINES = 50
_ENOUGH = 0.8
#: Bounds of what an .xlsx file may unpack to, in bytes, and where it is far more than its size.
_LARGEST_SHEET, _SMALL_SHEET = 2**31, 2**26
#: Rows of Arrow tables that are converted at once.
_BATCH = 1024
#: Types that mark missing values in frames.
_MISSING = {"NAType", "NaTType", "NoneType"}


#: Rows of Parquet that are converted at once, and bytes of text that these may take.
_PARQUET_ROWS, _PARQUET_BYTES = 1024, 1 << 26
#: Entries of lists in a row group, and bytes of texts in them, up to which nothing is looked at.
_LIST_ENTRIES, _LIST_BYTES = 1 << 26, 1 << 30


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
        # A JSON list of strings; any other text is one reference, such as `[laughs] hello`.
        with suppress(ValueError, RecursionError):
            listed = json.loads(value) if value.lstrip().startswith("[") else None
            if isinstance(listed, list) and all(isinstance(text, str) for text in listed):
                return listed
        return [value]
    if name in _LISTS or name.startswith("rating:"):
        if not value.lstrip().startswith("["):
            return [value] if name == "raters" else value
    elif name not in _OBJECTS:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RowError(f"{name!r} must be JSON: {describe_json_error(error)}") from None


def detect_delimiter(head: bytes, usual: str) -> str:
    """Return the delimiter of a table that begins with these bytes: the usual one, unless the header or the rows
    contradict it."""
    text = head.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace")
    lines = text.splitlines(keepends=True)[:_SAMPLE_LINES]
    if lines and lines[0].startswith("sep=") and len(lines[0].strip()) == len("sep=;"):
        return lines[0][4]
    # The last line may be cut off.
    lines = lines[:-1] if len(lines) > 1 and not lines[-1].endswith(("\n", "\r")) else lines
    shares: dict[str, float] = {}
    for delimiter in dict.fromkeys((usual, *_DELIMITERS)):
        try:
            rows = [cells for cells in csv.reader(lines, delimiter=delimiter) if cells]
        except csv.Error:
            continue
        if rows and len(rows[0]) > 1:
            shares[delimiter] = sum(len(cells) == len(rows[0]) for cells in rows) / len(rows)
    if not shares or shares.get(usual, 0) >= _ENOUGH:
        return usual
    return max(shares, key=shares.__getitem__)


def read_delimited(
    stream: IO[bytes], name: str, delimiter: str, form: FileFormat
) -> Iterator[tuple[int, Cells | RowError]]:
    """Yield the rows of a CSV or TSV file with the lines they begin on. Columns without a name are dropped."""
    # The csv module has one limit for the whole process, and a text may well be over 1 MB.
    csv.field_size_limit(largest_row())
    lines = _Lines(stream, form)
    # strict: a stray quote must be an error; a lenient parser would swallow the rows that follow.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = next((cells for cells in reader if cells), [])
    except csv.Error as error:
        raise InputError(f"{name}:1: the header line is not readable: {error}") from error
    header_error = lines.pop_error()
    if header_error is not None:
        raise InputError(f"{name}:1: {header_error}")
    _check_header(header, f"{name}:1")
    is_escaped = header[: len(_SCORE_COLUMNS)] == _SCORE_COLUMNS
    while header:
        begin = reader.line_num + lines.skipped + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            kind = _KINDS.get(delimiter, f"a table with {delimiter!r}")
            yield begin, lines.pop_error() or RowError(f"not readable as {kind}: {error}")
            continue
        if cells is None:
            return
        row_error = lines.pop_error()
        if row_error is not None:
            yield begin, row_error
        elif any(cells) if len(cells) > 1 else cells:  # Spreadsheets leave rows of commas.
            if is_escaped:
                cells = list(map(unescape_formula, cells))
            if not any(cells[len(header) :]):
                del cells[len(header) :]  # commas at the end of the line
            row: Cells | RowError
            if len(cells) == len(header):
                row = Cells((column, cell) for column, cell in zip(header, cells, strict=True) if column)
            else:
                row = RowError(
                    f"must have {format_count(len(header), 'cell')} like the header, got {len(cells)}; put texts that "
                    "contain the delimiter in quotes, or skip such rows with `skip_bad=True`"
                )
            yield begin, row


class _Lines:
    """Decoded lines. The csv module cannot continue after an exception raised here, so an error is stored, and the
    decodable part of the line is passed on.

    A file that is ASCII up to a line in Windows-1252 is read as that from there on; UTF-8 in a later line is an error.
    """

    def __init__(self, stream: IO[bytes], form: FileFormat) -> None:
        first = stream.readline().removeprefix(BYTE_ORDER_MARK)
        # Excel's own first line, which names the delimiter.
        self.skipped = int(first.startswith(b"sep=") and len(first.strip()) == len(b"sep=;"))
        self._lines = chain([first] if first and not self.skipped else [], stream)
        self._error: RowError | None = None
        self._form = form
        self._is_utf8 = form.encoding is not None
        self._is_windows = False

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                if not self._is_utf8 and looks_like_windows_1252(line):
                    if not self._is_windows:
                        self._is_windows = True
                        self._form.notes.append("Windows-1252 text")
                    yield line.decode("cp1252")
                    continue
                self._error = self._error or undecodable(line, error)
                yield line.decode("utf-8", "replace")
                continue
            if len(text) != len(line):
                self._is_utf8 = True
                if self._is_windows:
                    self._error = self._error or RowError(
                        "UTF-8 text after text in Windows-1252: the file mixes encodings; use `encoding` to name one"
                    )
            yield text

    def pop_error(self) -> RowError | None:
        error, self._error = self._error, None
        return error


def _check_header(header: list[str], place: str) -> None:
    names = [column for column in header if column]
    repeated = next((column for column in names if names.count(column) > 1), None)
    if repeated is not None:
        raise InputError(
            f"{place}: the header names the column {format_value(repeated)} twice; give the two columns different names"
        )


def _write_cell(value: Any) -> Any:
    if value is None:  # An empty cell is an empty output, as in CSV, where the two cannot be told apart.
        return ""
    return value.isoformat() if hasattr(value, "isoformat") else value


def read_excel(path: str, form: FileFormat) -> Iterator[tuple[int, Cells | RowError]]:
    """Yield the rows of a sheet of an .xlsx file with their numbers. Formulas count as the values stored for them."""
    try:
        import openpyxl
    except ImportError:
        raise MissingExtra("reading .xlsx files", "tables") from None
    name = display_name(path)
    _check_archive(path, name)
    try:
        # With `data_only`, a cell with a formula has the value that Excel computed last.
        book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
    except Exception as error:  # openpyxl raises whatever the damage leads to
        raise InputError(f"{name}: not an .xlsx file, or a damaged one: {error}", code="damaged") from error
    try:
        sheet = _choose_sheet(book, name, form)
        sheet.reset_dimensions()  # What the file says about its size may be wrong.
        header: list[str] | None = None
        for number, cells in enumerate(sheet.iter_rows(), 1):
            values = [cell.value for cell in cells]
            if all(value is None for value in values):
                continue
            if header is None:
                header = ["" if c.value is None or c.data_type == "e" else str(c.value).strip() for c in cells]
                _check_header(header, f"{name}:{number}")
                continue
            wrong = next((cell for cell in cells if cell.data_type == "e"), None)
            if wrong is not None:
                yield number, RowError(f"cell {wrong.coordinate} holds the error {wrong.value}")
            elif any(value is not None for value in values[len(header) :]):
                found = f"must have {format_count(len(header), 'cell')} like the header, got {len(values)}"
                yield number, RowError(found)
            else:
                values += [None] * (len(header) - len(values))
                texts = map(_write_cell, values)
                yield number, Cells((column, text) for column, text in zip(header, texts, strict=False) if column)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name}: a damaged .xlsx file: {error}", code="damaged") from error
    finally:
        book.close()


def _check_archive(path: str, name: str) -> None:
    """Refuse a file that unpacks to a size that no real sheet has."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            sizes = [(part.file_size, part.compress_size) for part in archive.infolist()]
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise InputError(
            f"{name}: not an .xlsx file, or one with a password ({error}); save it as .xlsx or CSV"
        ) from error
    size = sum(size for size, _ in sizes)
    packed = sum(packed for _, packed in sizes)
    if size > _LARGEST_SHEET or (size > _SMALL_SHEET and size > HIGHEST_RATIO * packed):
        raise InputError(f"{name}: unpacks to {size >> 20:,} MiB, which is no plausible sheet; save it as CSV")


def _choose_sheet(book: Any, name: str, form: FileFormat) -> Any:
    names = [sheet.title for sheet in book.worksheets]
    if not names:
        raise InputError(f"{name}: has no sheet with cells", code="no_data")
    if form.sheet is not None:
        if form.sheet not in names:
            raise InputError(
                f"{name}: no sheet {form.sheet!r}{did_you_mean(form.sheet, names)}; it has {names}", code="unknown_name"
            )
        return book[form.sheet]
    others = f" of {len(names)} (`sheet`)" if len(names) > 1 else ""
    form.notes.append(f"sheet {names[0]!r}{others}")
    return book[names[0]]


def read_parquet(
    source: str | IO[bytes], name: str, groups: Sequence[int] | None = None, skipped: int = 0
) -> Iterator[tuple[int, Cells]]:
    """Yield the rows of a Parquet file, or of some of its row groups, with their numbers from 1; the first rows may be
    skipped."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(source) as file:
            groups_of_file = map(file.metadata.row_group, range(file.num_row_groups))
            chunks = [group.column(n) for group in groups_of_file for n in range(file.metadata.num_columns)]
            unpacked = sum(chunk.total_uncompressed_size for chunk in chunks)
            check_unpacked(name, unpacked, sum(chunk.total_compressed_size for chunk in chunks))
            read = 0
            for group in range(file.num_row_groups) if groups is None else groups:
                size = _choose_size(source, file.metadata, group, name)
                for batch in file.iter_batches(batch_size=size, row_groups=[group]):
                    first = min(max(skipped - read, 0), batch.num_rows)
                    yield from enumerate(map(Cells, batch.slice(first).to_pylist()), read + first + 1)
                    read += batch.num_rows
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{name}: not a Parquet file, or a damaged one: {error}", code="damaged") from error


def _choose_size(source: str | IO[bytes], metadata: Any, group: int, name: str) -> int:
    """How many rows of a group can be converted at once. A group with a row that is too large is refused."""
    limit = largest_row()
    row = 0  # Bytes of the largest row, or more.
    for column in range(metadata.num_columns):
        chunk = metadata.row_group(group).column(column)
        unpacked = chunk.total_uncompressed_size
        is_list = metadata.schema.column(column).max_repetition_level > 0
        if unpacked > limit and unpacked > HIGHEST_RATIO * chunk.total_compressed_size:
            raise _too_large(name, chunk, unpacked, limit)
        if is_list and chunk.num_values > _LIST_ENTRIES and chunk.num_values > HIGHEST_RATIO * unpacked:
            raise _too_large(name, chunk, chunk.num_values, limit)
        # Without a dictionary, each text takes its own bytes in the file.
        if (
            not chunk.has_dictionary_page
            or chunk.physical_type != "BYTE_ARRAY"
            or unpacked * _PARQUET_ROWS <= _PARQUET_BYTES
        ):
            continue
        longest = _find_longest(source, group, chunk, is_list=False)
        if is_list and longest * chunk.num_values > _LIST_BYTES:
            longest = _find_longest(source, group, chunk, is_list=True)
        if longest > limit:
            raise _too_large(name, chunk, longest, limit)
        row += longest
    return max(1, min(_PARQUET_ROWS, _PARQUET_BYTES // max(row, 1)))


def _too_large(name: str, chunk: Any, size: int, limit: int) -> InputError:
    return InputError(
        f"{name}: the column {chunk.path_in_schema!r} unpacks to {size:,} from {chunk.total_compressed_size:,} bytes, "
        f"more than the {limit:,} that a row may take; METRIST_MAX_ROW sets another limit",
        code="too_large",
    )


def _find_longest(source: str | IO[bytes], group: int, chunk: Any, *, is_list: bool) -> int:
    """The bytes of the longest text in the dictionary of a column, or of the row that has most of them in a list."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    path = chunk.path_in_schema
    with parquet.ParquetFile(source, read_dictionary=[path], buffer_size=1 << 16) as file:
        longest = 0
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS if is_list else 1, row_groups=[group], columns=[path]):
            for rows in batch.column(0) if is_list else [batch.column(0)]:
                texts = rows.values if isinstance(rows, pa.ListScalar) else rows
                while isinstance(texts, pa.ListArray | pa.StructArray):
                    texts = texts.flatten() if isinstance(texts, pa.ListArray) else texts.field(0)
                if not isinstance(texts, pa.DictionaryArray):
                    return chunk.total_uncompressed_size if texts is not None else longest
                lengths = pc.binary_length(texts.dictionary)
                total = pc.sum(lengths.take(texts.indices)) if is_list else pc.max(lengths)
                longest = max(longest, total.as_py() or 0)
            if not is_list:
                break
        return longest


def frame_rows(source: Any) -> Callable[[], Iterator[Cells]] | None:
    """Return a function that iterates over a frame's rows; None if the source is not a frame. Frames are recognized by
    their methods, so that no library is imported."""
    if hasattr(source, "collect") and hasattr(source, "collect_schema"):
        raise InputError("a lazy frame has no rows yet: call .collect() on it first", code="no_data")
    if hasattr(source, "itertuples") and hasattr(source, "columns"):
        return lambda: _name_values(source.columns, source.itertuples(index=False, name=None))
    if hasattr(source, "iter_rows") and hasattr(source, "columns"):
        return lambda: _name_values(source.columns, source.iter_rows())
    if hasattr(source, "features") and hasattr(source, "with_format"):  # A data set of Hugging Face, also a stream.
        tables = source.with_format("arrow")
        return lambda: (Cells(row) for table in tables.iter(_BATCH) for row in table.to_pylist())
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
