"""Which format a file is in: its suffix tells, or its first bytes where no suffix does."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import PurePath
from typing import IO

from metrist.errors import InputError
from metrist.io.cells import Cells
from metrist.io.compression import Meter, compression_of, display_name, open_bytes, uncompressed_name
from metrist.io.delimited import delimited_rows
from metrist.io.json_lines import Row, json_line_rows
from metrist.io.json_list import json_list_rows
from metrist.io.parquet import parquet_rows
from metrist.io.place import Fault
from metrist.io.text_lines import BYTE_ORDER_MARK

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
