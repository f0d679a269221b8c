"""Slices of files of JSON lines, which several processes read on their own."""

from __future__ import annotations

import io
import mmap
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Any

from metrist.errors import InputError
from metrist.io.compression import BYTE_ORDER_MARK
from metrist.io.json_rows import Wish, json_line_rows
from metrist.io.reader import Reader, read_records
from metrist.io.remote import is_remote, open_store, retry
from metrist.io.rows import FORMATS, RowSource


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """So many lines of a file, its bytes from `start` to `stop`, after `first_line` others. `url` is where the file was
    copied from. A checksum tells whether another machine has the same bytes."""

    path: str
    url: str | None
    name: str | None
    system: str
    start: int
    stop: int
    first_line: int
    lines: int
    checksum: int

    def open(self, options: Mapping[str, Any]) -> Reader:
        read = partial(self._read)
        source = RowSource(name=self.name, system=self.system, read=read, path=self.path, first_row=self.first_line)
        return replace(read_records([], **options), sources=(source,))

    def _read(self, wish: Wish | None = None) -> Iterator[tuple[int, Any]]:
        data = self._read_bytes()
        if zlib.crc32(data) != self.checksum or (self.start and data.startswith(BYTE_ORDER_MARK)):
            raise InputError(f"{self.name} changed while it was read")
        for number, row in json_line_rows(io.BytesIO(data), wish):
            yield self.first_line + number, row

    def _read_bytes(self) -> bytes:
        try:
            if self.url is not None and not os.path.exists(self.path):
                store, place = open_store(self.url)
                return bytes(retry(partial(store.cat_file, place, self.start, self.stop)))
            with open(self.path, "rb") as file:
                file.seek(self.start)
                return file.read(self.stop - self.start)
        except Exception as error:  # Each store has exceptions of its own.
            raise InputError(f"{self.name}: cannot be read: {error}") from None


def cut_file(reader: Reader, number: int, size: int) -> list[FileSlice]:
    """Slices of about so many bytes of one of the reader's sources; none where it is not a file of JSON lines."""
    source = reader.sources[number]
    path = source.path
    if path is None or FORMATS.get(PurePath(path).suffix.lower()) != "lines" or reader.encoding or not source.size:
        return []
    system = reader.default_systems[number]
    url = source.name if is_remote(source.name) else None
    slices, start, line = list[FileSlice](), 0, 0
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:1] != b"{" or data[1:2] == b"\0":
            return []
        while start < len(data):
            stop = data.find(b"\n", min(start + size, len(data)) - 1) + 1 or len(data)
            block = data[start:stop]
            lines = block.count(b"\n") + (not block.endswith(b"\n"))
            slices.append(
                FileSlice(
                    path=path,
                    url=url,
                    name=source.name,
                    system=system,
                    start=start,
                    stop=stop,
                    first_line=line,
                    lines=lines,
                    checksum=zlib.crc32(block),
                )
            )
            line, start = line + lines, stop
    return slices
