"""CSV files as they were published: cells by line, and rows by the names of a header.

Mechanical Turk's exports end with columns for the requester's verdict that the rows lack, and CommonGen's sheets have
no header at all; the room of files refuses both, rightly for what users write themselves.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator

from metrist.errors import InputError
from metrist.io.compression import display_name, open_bytes

PathLike = str | os.PathLike[str]


def cells(path: PathLike) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line that has any, with the line's number."""
    name = display_name(path)
    with open_bytes(path) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, strict=True)
        begin = 1
        try:
            for found in reader:
                if any(found):
                    yield begin, found
                begin = reader.line_num + 1
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{name}:{begin}: not readable as CSV: {error}") from None


def table(path: PathLike) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows below the header; cells missing at a row's end are absent."""
    lines = cells(path)
    _, header = next(lines, (1, []))
    for line, found in lines:
        if len(found) > len(header):
            raise InputError(
                f"{display_name(path)}:{line}: must have at most {len(header)} cells like the header, got {len(found)}"
            )
        yield line, dict(zip(header, found, strict=False))
