"""Which format a file is in: its suffix tells, or its first bytes where no suffix does."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import IO, Any

from metrist.errors import InputError, did_you_mean
from metrist.io.compression import (
    BYTE_ORDER_MARK,
    STANDARD_INPUT,
    Meter,
    compression_of,
    display_name,
    open_bytes,
    uncompressed_name,
)
from metrist.io.json_rows import Row, json_line_rows, json_list_rows
from metrist.io.row_model import Fault, Place, shown
from metrist.io.table_rows import Cells, delimited_rows, frame_rows, parquet_rows, plain
from metrist.records import Record

FORMATS = {
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".json": "list or lines",
    ".csv": ",",
    ".tsv": "\t",
    ".parquet": "parquet",
}


def file_rows(path: str, meter: Meter | None = None) -> Iterator[tuple[int, Row | Cells | Fault]]:
    """The file's rows with the line each begins on (in Parquet: its number), or with what is wrong with them."""
    name = display_name(path)
    kind = FORMATS.get(PurePath(uncompressed_name(path)).suffix.lower(), "")
    if kind == "parquet":
        if compression_of(path):
            raise InputError(f"{name}: Parquet compresses its own columns; unpack the file first")
        yield from parquet_rows(path)
        return
    with open_bytes(path, meter) as stream:
        # `.json` is used for one list as often as for an object a line.
        if kind in ("", "list or lines"):
            kind = _kind_by_first_bytes(stream, name)
        yield from _text_rows(stream, name, kind)


def _text_rows(stream: IO[bytes], name: str, kind: str) -> Iterator[tuple[int, Row | Cells | Fault]]:
    if kind == "lines":
        return json_line_rows(stream)
    return json_list_rows(stream, name) if kind == "list" else delimited_rows(stream, name, kind)


def _kind_by_first_bytes(stream: io.BufferedReader, name: str) -> str:
    head = stream.peek(1).removeprefix(BYTE_ORDER_MARK).lstrip()
    if head.startswith(b"PAR1"):
        raise InputError(f"{name}: Parquet is read from files named .parquet only")
    if head.startswith(b"["):
        return "list"
    if head.startswith(b"{") or not head:
        return "lines"
    return "\t" if b"\t" in head.split(b"\n", 1)[0] else ","


# Rows out of any source: one file or several, standard input, rows and frames in memory.


Numbered = Iterable[tuple[int, "Row | Cells | Record | Fault"]]
UNNAMED = "unnamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """Rows that can be gone over, and the system of those that name none. `size` is a file's bytes, where known, and
    `meter` counts those that were read."""

    name: str | None
    system: str
    read: Callable[[], Numbered]
    size: int | None = None
    meter: Meter = field(default_factory=Meter)
    #: The rows themselves, where they are a list or tuple in memory.
    rows: Sequence[Any] | None = None

    def place(self, line: int) -> Place:
        return Place(self.name, line)


def open_rows(path: str | os.PathLike[str]) -> Iterator[tuple[Place, Row]]:
    """A file's rows as they stand there, each with its place; the first that cannot be read is an `InputError`."""
    file = file_source(path)
    for line, row in file.read():
        if isinstance(row, Fault):
            raise InputError(f"{file.place(line)}: {row}")
        if isinstance(row, dict):
            yield file.place(line), row


def sources_of(source: Any) -> tuple[RowSource, ...]:
    """What the rows of `read_records` come from: a path, several, a frame, or rows."""
    if isinstance(source, (str, os.PathLike)):
        return (file_source(source),)
    walk = frame_rows(source)
    if walk is not None:
        return (RowSource(name=None, system=UNNAMED, read=lambda: enumerate(walk(), 1)),)
    if isinstance(source, (Mapping, Record, bytes)) or not isinstance(source, Iterable):
        hint = "; put a single row in a list" if isinstance(source, (Mapping, Record)) else ""
        raise InputError(
            f"records are read from a path, a list of paths, rows or a frame, not from {type(source).__name__}{hint}"
        )
    if isinstance(source, (list, tuple)) and source and all(isinstance(one, (str, os.PathLike)) for one in source):
        return tuple(file_source(path) for path in source)
    read = _read_once(source, "the rows") if isinstance(source, Iterator) else lambda: source
    rows = source if isinstance(source, (list, tuple)) else None
    return (RowSource(name=None, system=UNNAMED, read=lambda: enumerate(map(_own, read()), 1), rows=rows),)


def _own(row: Any) -> Row | Record | Fault:
    """A row that may be taken apart: the caller's own mapping stays as it is."""
    if isinstance(row, Record):
        return row
    if not isinstance(row, Mapping):
        return Fault(f"must be a mapping or a Record, got {shown(row)}")
    wrong = next((name for name in row if not isinstance(name, str)), None)
    if wrong is not None:
        return Fault(f"must have texts for the names of its fields, got {shown(wrong)}")
    return {name: value if type(value) is str else plain(value) for name, value in row.items()}


def _read_once(rows: Iterable[Any], name: str) -> Callable[[], Iterable[Any]]:
    spent: list[bool] = []

    def read() -> Iterable[Any]:
        if spent:
            raise InputError(f"{name} were read already and can be read only once; give a list or a file instead")
        spent.append(True)
        return rows

    return read


def file_source(path: str | os.PathLike[str]) -> RowSource:
    """A file's rows. That it is there is checked at once; what it holds, when it is read."""
    text = os.fspath(path)
    if text == STANDARD_INPUT:
        once = _read_once(file_rows(text), "the rows of standard input")
        return RowSource(name=display_name(text), system=UNNAMED, read=once)
    if not _is_regular(text):
        once = _read_once(file_rows(text), f"the rows of {display_name(text)}")
        return RowSource(name=display_name(text), system=_stem(text), read=once)
    meter = Meter()

    def read() -> Numbered:
        meter.taken = 0
        return file_rows(text, meter)

    return RowSource(name=display_name(text), system=_stem(text), read=read, size=os.path.getsize(text), meter=meter)


def _is_regular(path: str) -> bool:
    """Whether the file can be read again and again; a pipe cannot."""
    name = display_name(path)
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise InputError(f"{name}: there is no such file{_nearest(path)}") from None
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{name!r}: cannot be read: {reason}") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{name}: is a folder; name the files in it (metrist convert reads whole folders)")
    return stat.S_ISREG(mode)


def _nearest(path: str) -> str:
    try:
        return did_you_mean(Path(path).name, os.listdir(Path(path).parent))
    except OSError:
        return f"; its folder {display_name(Path(path).parent)!r} does not exist either"


def _stem(path: str) -> str:
    """The file's name without the suffixes that tell its format: `nllb-3.3b` for `nllb-3.3b.jsonl.gz`."""
    name = PurePath(uncompressed_name(path))
    return display_name(name.stem if name.suffix.lower() in FORMATS else name) or UNNAMED
