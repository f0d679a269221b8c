"""Rows from any source: files in any supported format, standard input, rows and frames in memory."""

from __future__ import annotations

import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, cast

from metrist.errors import InputError, RunError, did_you_mean
from metrist.io.compression import (
    BYTE_ORDER_MARK,
    STANDARD_INPUT,
    CheckedStream,
    FileFormat,
    Meter,
    decode_stream,
    detect_compression,
    display_name,
    open_bytes,
    uncompressed_name,
)
from metrist.io.json_rows import Row, Wish, find_rows, json_line_rows, json_list_rows
from metrist.io.remote import expand as expand_url
from metrist.io.remote import fetch, is_remote
from metrist.io.row_model import Location, RowError, format_value
from metrist.io.table_rows import (
    Cells,
    detect_delimiter,
    frame_rows,
    read_delimited,
    read_excel,
    read_parquet,
    to_plain_value,
)
from metrist.io.tools import TOOLS, recognise_tool
from metrist.io.tools.inspect_ai import read_archive
from metrist.records import Record

FORMATS = {
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".json": "list or lines",
    ".csv": ",",
    ".tsv": "\t",
    ".parquet": "parquet",
    ".xlsx": "excel",
    ".xlsm": "excel",
    ".eval": "inspect_ai",
}
#: Formats that are named in their first bytes, and what to do about each, whatever the file's name says.
_OTHER_FORMATS = {
    b"PAR1": "Parquet is read from files named .parquet only",
    b"PK\x03\x04": "this is a zip archive; Excel sheets are read from files named .xlsx",
    b"\xd0\xcf\x11\xe0": "this is an old Excel file, or one with a password; save it as .xlsx or CSV",
    b"\x1f\x8b": "this is a gzip archive; name it .gz",
    b"\xfd7zXZ": "this is an xz archive; name it .xz",
    b"\x28\xb5\x2f\xfd": "this is a Zstandard archive; name it .zst",
}
_PATTERN = re.compile(r"[*?[]")
#: The names under which a process has its own streams, one of which may be a terminal.
_STREAM = re.compile(r"/dev/(stdin|fd/|tty)|/proc/self/fd/")
#: Bytes that a delimiter is detected in.
_SAMPLE = 1 << 16
_DELIMITER_NAMES = {"\t": "tabs", "|": "|", ",": ",", ";": ";"}


def read_file_rows(
    path: str, form: FileFormat, meter: Meter | None = None, wish: Wish | None = None
) -> Iterator[tuple[int, Row | Cells | RowError]]:
    """Yield the rows of a file, or their errors, with the line each begins on (in Parquet and .xlsx: the row's number).
    What is recognised is added to the notes of `form`. Where `wish` says so, rows of JSONL are `PlainRow`s."""
    name = display_name(path)
    form.notes.clear()
    form.tool = ""
    kind = FORMATS.get(PurePath(uncompressed_name(path)).suffix.lower(), "")
    if kind in ("parquet", "excel"):
        if detect_compression(path):
            what = "Parquet compresses its own columns" if kind == "parquet" else "an .xlsx file is an archive already"
            raise InputError(f"{name}: {what}; unpack the file first")
        yield from read_parquet(path, name) if kind == "parquet" else read_excel(path, form)
        return
    if kind == "inspect_ai":
        form.tool = kind
        form.notes.append(f"format = {kind}")
        yield from read_archive(path, name)
        return
    with open_bytes(path, meter) as raw:
        head = raw.peek(8)
        for magic, advice in _OTHER_FORMATS.items():
            if head.startswith(magic):
                raise InputError(f"{name}: {advice}")
        # JSON in UTF-8 shows in its first two bytes.
        head = head[:2]
        is_plain = head[:1] in (b"{", b"[") and head[1:] != b"\0" and not form.encoding
        stream = raw if is_plain else decode_stream(raw, name, form)
        kind = _kind_by_first_bytes(stream, name, kind, form.sheet)
        cast(CheckedStream, raw.raw).has_lines = kind not in ("list", "objects")
        if kind == "lines":
            yield from _convert_tool_rows(json_line_rows(stream, wish), form)
        elif kind in ("list", "objects"):
            yield from _convert_tool_rows(json_list_rows(stream, name, form), form)
        else:
            delimiter = form.delimiter or detect_delimiter(stream.peek(1)[:_SAMPLE], kind)
            if not form.delimiter and delimiter != kind:
                form.notes.append(f"delimited by {_DELIMITER_NAMES.get(delimiter, repr(delimiter))}")
            yield from read_delimited(stream, name, delimiter, form)


def _convert_tool_rows(rows: Iterator[tuple[int, Any]], form: FileFormat) -> Iterator[tuple[int, Any]]:
    """Convert the rows of a file that another tool wrote, which its first row shows; others stay as they are."""
    first = next(rows, None)
    if first is None:
        return
    form.tool = recognise_tool(first[1])
    rows = chain([first], rows)
    if not form.tool:
        yield from rows
        return
    form.notes.append(f"format = {form.tool}")
    bad: list[tuple[int, RowError]] = []

    def entries() -> Iterator[tuple[int, Row]]:
        for line, row in rows:
            if isinstance(row, RowError):
                bad.append((line, row))
            else:
                yield line, row

    for converted in TOOLS[form.tool].rows(entries()):
        yield from bad
        bad.clear()
        yield converted
    yield from bad


def _kind_by_first_bytes(stream: io.BufferedReader, name: str, kind: str, sheet: str | None) -> str:
    """Return the kind of a file whose name does not tell: a `.json` file may hold one list or one object per line."""
    head = stream.peek(1).removeprefix(BYTE_ORDER_MARK).lstrip()
    if kind in (",", "\t", "lines"):
        return kind
    if not head:
        return "lines"
    if head.startswith(b"["):
        return "list"
    line, newline, _ = head.partition(b"\n")
    if not head.startswith(b"{"):
        return "\t" if b"\t" in line else ","
    try:
        # The first line may be a row, or the beginning of an object over several lines or of a list of rows.
        is_row = find_rows(json.loads(line), sheet) is None
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except (ValueError, RecursionError):
        is_row = bool(newline) and line.rstrip().endswith(b"}")
    return "lines" if is_row else "objects"


Numbered = Iterable[tuple[int, "Row | Cells | Record | RowError"]]
UNNAMED = "unnamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """Rows to iterate over, and the system of rows that name none. `size` is the file's size in bytes if known, and
    `meter` counts the bytes that were read."""

    name: str | None
    system: str
    read: Callable[..., Numbered]
    size: int | None = None
    meter: Meter = field(default_factory=Meter)
    format: FileFormat = field(default_factory=FileFormat)
    #: The rows themselves if they are a list or tuple in memory.
    rows: Sequence[Any] | None = None
    #: The path of a regular file; None for everything else, such as standard input.
    path: str | None = None
    #: Whether the rows can be read more than once.
    is_repeatable: bool = True
    #: Rows of the file before these, where they are a slice of it.
    first_row: int = 0

    def read_as(self, wish: Wish) -> Iterator[tuple[int, Any]]:
        """The rows, those of a regular file in the form that is wished for."""
        return iter(self.read(wish=wish) if isinstance(self.read, partial) else self.read())

    def location(self, line: int) -> Location:
        return Location(self.name, line)


def read_rows(path: str | os.PathLike[str]) -> Iterator[tuple[Location, Row]]:
    """Yield the raw rows of a file with their locations; raise `InputError` for the first that cannot be read."""
    file = open_source(path)
    for line, row in file.read():
        if isinstance(row, RowError):
            raise InputError(f"{file.location(line)}: {row}", code="invalid_row")
        if isinstance(row, dict):
            yield file.location(line), row


def resolve_sources(source: Any, form: FileFormat) -> tuple[RowSource, ...]:
    """Resolve the argument of `read_records`: a path, several paths, a pattern of paths, a frame, or rows."""
    if isinstance(source, (str, os.PathLike)):
        source = [source]
    walk = None if isinstance(source, list) else frame_rows(source)
    if walk is not None:
        return (RowSource(name=None, system=UNNAMED, read=lambda: enumerate(walk(), 1)),)
    if isinstance(source, (Mapping, Record, bytes)) or not isinstance(source, Iterable):
        hint = "; put a single row in a list" if isinstance(source, (Mapping, Record)) else ""
        if isinstance(source, Mapping) and hasattr(source, "column_names"):
            hint = f"; choose a split: {', '.join(source)}"
        raise InputError(
            f"records are read from a path, a list of paths, rows or a frame, not from {type(source).__name__}{hint}"
        )
    if isinstance(source, (list, tuple)) and source and all(isinstance(path, (str, os.PathLike)) for path in source):
        return tuple(open_source(path, form) for pattern in source for path in expand_pattern(pattern))
    read = _read_once(source, "the rows") if isinstance(source, Iterator) else lambda: source
    rows = source if isinstance(source, (list, tuple)) else None
    return (
        RowSource(
            name=None,
            system=UNNAMED,
            read=lambda: enumerate(map(_copy_row, read()), 1),
            rows=rows,
            is_repeatable=not isinstance(source, Iterator),
        ),
    )


def expand_pattern(path: str | os.PathLike[str]) -> list[str | os.PathLike[str]]:
    """Return the files that match a pattern such as `runs/*.jsonl`, sorted; any other path as it is."""
    text = os.fspath(path)
    if is_remote(text):
        return [*expand_url(text)]
    if not _PATTERN.search(text) or os.path.exists(text):
        return [path]
    import glob

    files = sorted(file for file in glob.glob(text, recursive=True) if not os.path.isdir(file))
    if not files:
        raise InputError(f"{display_name(text)}: no file matches this pattern", code="missing_file")
    return list(files)


def _copy_row(row: Any) -> Row | Record | RowError:
    """Copy a row, so that parsing does not change the caller's mapping."""
    if isinstance(row, Record):
        return row
    if not isinstance(row, Mapping):
        return RowError(f"must be a mapping or a Record, got {format_value(row)}")
    copy: Row = {}
    for name, value in row.items():
        if not isinstance(name, str):
            return RowError(f"must have text keys, got {format_value(name)}")
        try:
            copy[name] = value if type(value) is str else to_plain_value(value)
        except RecursionError:
            return RowError(f"{format_value(name)} is nested too deeply; drop it from the row")
    return copy


def _read_once(rows: Iterable[Any], name: str) -> Callable[[], Iterable[Any]]:
    is_read = False

    def read() -> Iterable[Any]:
        nonlocal is_read
        if is_read:
            raise InputError(f"{name} can be read only once and were read already; pass a list or a file instead")
        is_read = True
        return rows

    return read


class MissingFile(InputError):
    """A file that does not exist."""

    code = "missing_file"


def open_source(path: str | os.PathLike[str], form: FileFormat | None = None) -> RowSource:
    """Return the rows of a file. Its existence is checked now, its content when it is read."""
    form = replace(form, notes=[]) if form else FileFormat()
    text = os.fspath(path)
    name = display_name(text)
    if is_remote(text):
        return replace(open_source(fetch(text), form), name=name)
    if text == STANDARD_INPUT:
        once = _read_once(read_file_rows(text, form), "the rows of standard input")
        return RowSource(name=name, system=UNNAMED, read=once, format=form, is_repeatable=False)
    system = display_name(default_system(text)) or UNNAMED
    try:
        mode = os.stat(text).st_mode
    except FileNotFoundError:
        try:
            hint = did_you_mean(Path(text).name, os.listdir(Path(text).parent))
        except OSError:
            hint = f"; its folder {display_name(Path(text).parent)!r} does not exist either"
        raise MissingFile(f"{name}: no such file{hint}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{name!r}: cannot be read: {reason}") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{name}: is a folder; pass the files in it (`metrist convert` reads folders)")
    if stat.S_ISCHR(mode) and text != os.devnull and not _STREAM.match(text):
        raise InputError(f"{name}: is a device, expected a file, a pipe or - for standard input")
    if not stat.S_ISREG(mode):  # A pipe can be read only once.
        once = _read_once(read_file_rows(text, form), f"the rows of {name}")
        return RowSource(name=name, system=system, read=once, format=form, is_repeatable=False)
    meter = Meter()
    return RowSource(
        name=name,
        system=system,
        read=partial(read_file_rows, text, form, meter),
        size=os.path.getsize(text),
        meter=meter,
        format=form,
        path=text,
    )


def default_system(path: str | os.PathLike[str]) -> str:
    """Return a file's name without format suffixes: `nllb-3.3b` for `nllb-3.3b.jsonl.gz`."""
    file = PurePath(uncompressed_name(path))
    return file.stem if file.suffix.lower() in FORMATS else str(file)


def read_columns(path: Path) -> set[str]:
    """The columns of a file's first row; none if it cannot be read, which whoever reads it as records reports."""
    try:
        return set(next((row for _, row in read_rows(path)), ()))
    except InputError:
        return set()


def check_own(path: Path, what: str, columns: Iterable[set[str]] = (), mark: re.Pattern[bytes] | None = None) -> None:
    """Refuse to replace a file of another kind, unless it is empty: one whose first row has none of these sets of
    columns, or that does not have this mark."""
    if not path.is_file() or not path.stat().st_size:
        return
    found = read_columns(path) if mark is None else set()
    if not (any(found >= own for own in columns) or (mark and mark.search(path.read_bytes()))):
        raise RunError(
            f"cannot write {path}: there is a file that holds no {what}: name another one, or delete it",
            code="cannot_write",
        )
