"""Slices of files, which several processes read on their own: lines of JSON, rows of Parquet, or a whole file of any
format."""

from __future__ import annotations

import io
import math
import mmap
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import PurePath
from typing import Any

from metrist.errors import InputError
from metrist.io.compression import BYTE_ORDER_MARK, FileFormat
from metrist.io.hashes import hash_file
from metrist.io.json_rows import Wish, json_line_rows
from metrist.io.reader import Reader, read_records
from metrist.io.remote import is_remote, open_store, retry
from metrist.io.rows import FORMATS, RowSource, open_source
from metrist.io.table_rows import read_parquet

#: Bytes that are read at once.
_BLOCK_BYTES = 1 << 24
#: Rows of a slice of a Parquet file: their texts may take far more bytes than the file says.
_SLICE_ROWS = 1 << 16
#: The last bytes of a Parquet file: the size of its footer, and its mark.
_PARQUET_END = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeFile:
    """A file that is not cut. `url` is where it was copied from; `system` is that of rows which name none."""

    path: str
    url: str | None
    name: str | None
    system: str
    sha256: str

    def __str__(self) -> str:
        return str(self.name)

    def open(self, options: Mapping[str, Any]) -> Reader:
        """A reader of these rows alone."""
        form = FileFormat(options.get("delimiter"), options.get("encoding"), options.get("sheet"))
        is_here = self.url is None or os.path.exists(self.path)
        source = open_source(self.path if is_here else str(self.url), form)
        if hash_file(str(source.path)) != self.sha256:
            raise InputError(f"{self.name} changed while it was read", code="changed")
        return replace(read_records([], **options), sources=(replace(source, name=self.name, system=self.system),))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """So many rows of a file, after `first_row` others. They are in its bytes from `start` to `stop`. `url` is where
    the file was copied from. A checksum tells whether another machine has the same bytes."""

    path: str
    url: str | None
    name: str | None
    system: str
    start: int
    stop: int
    first_row: int
    rows: int
    checksum: int

    def open(self, options: Mapping[str, Any]) -> Reader:
        """A reader of these rows alone."""
        read = partial(self._read)
        source = RowSource(name=self.name, system=self.system, read=read, path=self.path, first_row=self.first_row)
        return replace(read_records([], **options), sources=(source,))

    def _read(self, wish: Wish | None = None) -> Iterator[tuple[int, Any]]:
        raise NotImplementedError

    def _read_blocks(self, *ranges: tuple[int, int]) -> Iterator[tuple[int, bytes]]:
        """The bytes of some ranges, block by block, with their offsets. An error in the end says that they are not
        those that were cut."""
        checksum = 0
        for start, stop in _cut_ranges(ranges):
            try:
                if self.url is not None and not os.path.exists(self.path):
                    store, place = open_store(self.url)
                    block = bytes(retry(partial(store.cat_file, place, start, stop)))
                else:
                    with open(self.path, "rb") as file:
                        file.seek(start)
                        block = file.read(stop - start)
            except Exception as error:  # Each store has exceptions of its own.
                raise InputError(f"{self.name}: cannot be read: {error}") from None
            checksum = zlib.crc32(block, checksum)
            yield start, block
        if checksum != self.checksum:
            raise InputError(f"{self.name} changed while it was read", code="changed")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSlice(FileSlice):
    """Lines of JSON; blank ones count as rows."""

    def __str__(self) -> str:
        return f"bytes {self.start:,} to {self.stop:,} of {self.name}"

    def _read(self, wish: Wish | None = None) -> Iterator[tuple[int, Any]]:
        data = b"".join(block for _, block in self._read_blocks((self.start, self.stop)))
        if self.start and data.startswith(BYTE_ORDER_MARK):
            raise InputError(f"{self.name}: a byte order mark in the middle")
        for number, row in json_line_rows(io.BytesIO(data), wish):
            yield self.first_row + number, row


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSlice(FileSlice):
    """Rows of some row groups of a Parquet file, without the first ones of these groups, which are `skipped`."""

    groups: range
    skipped: int
    footer: int
    size: int

    def __str__(self) -> str:
        return f"rows {self.first_row + 1:,} to {self.first_row + self.rows:,} of {self.name}"

    def _read(self, wish: Wish | None = None) -> Iterator[tuple[int, Any]]:
        del wish  # Rows of tables have one form.
        # A file in which the offsets of the footer hold: it takes no more room than the bytes that are written.
        with tempfile.TemporaryFile() as file:
            for start, block in self._read_blocks((self.start, self.stop), (self.footer, self.size)):
                file.seek(start)
                file.write(block)
            rows = read_parquet(file, str(self.name), self.groups, self.skipped)
            for number, row in islice(rows, self.rows):
                yield self.first_row - self.skipped + number, row


def _cut_ranges(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for start, stop in ranges:
        for at in range(start, stop, _BLOCK_BYTES):
            yield at, min(at + _BLOCK_BYTES, stop)


def cut_file(
    reader: Reader, number: int, size: int, sha256: str | None = None
) -> Sequence[FileSlice] | Sequence[WholeFile]:
    """Slices of about so many bytes of one of the reader's sources. Where its rows cannot be found without reading
    those before them (a quoted line break, a compressed stream, a JSON list, a layout that numbers its rows), it is the
    whole file, if its hash is given."""
    source = reader.sources[number]
    if source.path is None or not source.size:
        return []
    place: dict[str, Any] = {
        "path": source.path,
        "url": source.name if is_remote(source.name) else None,
        "name": source.name,
        "system": reader.default_systems[number],
    }
    kind = FORMATS.get(PurePath(source.path).suffix.lower())
    slices: Sequence[FileSlice] = []
    if kind in ("lines", "parquet") and not (reader.encoding or reader.has_layout(number)):
        with open(source.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            slices = _cut_lines(data, size, place) if kind == "lines" else _cut_parquet(data, size, place)
    return slices or ([WholeFile(sha256=sha256, **place)] if sha256 else [])


def _cut_lines(data: mmap.mmap, size: int, place: Mapping[str, Any]) -> list[LineSlice]:
    if data[:1] != b"{" or data[1:2] == b"\0":
        return []
    slices, start, line = list[LineSlice](), 0, 0
    while start < len(data):
        stop = data.find(b"\n", min(start + size, len(data)) - 1) + 1 or len(data)
        block = data[start:stop]
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        checksum = zlib.crc32(block)
        slices.append(LineSlice(start=start, stop=stop, first_row=line, rows=lines, checksum=checksum, **place))
        line, start = line + lines, stop
    return slices


def _cut_parquet(data: mmap.mmap, size: int, place: Mapping[str, Any]) -> list[ParquetSlice]:
    """Slices of one or several row groups. Those of large groups are cut once more: a group of pandas has a million
    rows, which one process would hold at once; each slice then decodes the columns up to its rows."""
    import pyarrow
    from pyarrow import parquet

    try:
        metadata = parquet.read_metadata(place["path"])
    except (pyarrow.ArrowException, OSError):
        return []
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    footer = len(data) - _PARQUET_END - int.from_bytes(data[-_PARQUET_END : 4 - _PARQUET_END], "little")
    starts = []
    for group in groups:
        # Where its bytes begin; some writers name no page of a dictionary, or one at 0.
        columns = [group.column(n) for n in range(group.num_columns)]
        offsets = [offset for c in columns for offset in (c.dictionary_page_offset, c.data_page_offset) if offset]
        starts.append(min(offsets, default=0))
    starts.append(footer)
    if not groups or any(one >= other for one, other in pairwise(starts)):
        return []
    slices, first, first_row = list[ParquetSlice](), 0, 0
    for last in range(1, len(groups) + 1):
        rows = sum(group.num_rows for group in groups[first:last])
        length = sum(group.total_byte_size for group in groups[first:last])
        if last < len(groups) and length < size and rows < _SLICE_ROWS:
            continue  # The next group goes with these.
        start, stop = starts[first], starts[last]
        checksum = 0
        for begin, end in _cut_ranges([(start, stop), (footer, len(data))]):
            checksum = zlib.crc32(data[begin:end], checksum)
        pieces = math.ceil(max(length / (2 * size), rows / _SLICE_ROWS))
        step = max(1, math.ceil(rows / max(1, pieces)))
        slices += [
            ParquetSlice(
                start=start,
                stop=stop,
                first_row=first_row + skipped,
                rows=min(step, rows - skipped),
                checksum=checksum,
                groups=range(first, last),
                skipped=skipped,
                footer=footer,
                size=len(data),
                **place,
            )
            for skipped in range(0, rows, step)
        ]
        first, first_row = last, first_row + rows
    return slices
