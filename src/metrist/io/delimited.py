"""CSV and TSV: a header line, then a row of cells for each output."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from typing import IO

from metrist.errors import InputError
from metrist.io.cells import Cells
from metrist.io.place import Fault, shown
from metrist.io.text_lines import BYTE_ORDER_MARK, decoded

_LARGEST_FIELD = 2**31 - 1
_KINDS = {",": "CSV", "\t": "TSV"}


def delimited_rows(stream: IO[bytes], name: str, delimiter: str) -> Iterator[tuple[int, Cells | Fault]]:
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
            yield begin, lines.take_fault() or Fault(f"not readable as {_KINDS[delimiter]}: {error}")
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
        self._fault: Fault | None = None

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            try:
                yield decoded(line)
            except Fault as fault:
                self._fault = self._fault or fault
                yield line.decode("utf-8", "replace")

    def take_fault(self) -> Fault | None:
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
        raise InputError(f"{name}:1: the header names the column {shown(twice)} twice")
    return header


def _row(header: list[str], cells: list[str]) -> Cells | Fault:
    if len(cells) != len(header):
        return Fault(f"must have {len(header)} cells like the header, got {len(cells)}")
    return Cells((column, cell) for column, cell in zip(header, cells, strict=True) if column)
