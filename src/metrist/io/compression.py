"""Open plain, .gz, .xz and .zst files as streams of bytes; all kinds of damage raise `InputError`."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO, Any

from metrist.errors import InputError
from metrist.io.row_model import RowError

STANDARD_INPUT = "-"
_CHUNK = 1 << 18
_MAGIC = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\x00": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
_KINDS = {".gz": "gzip", ".xz": "xz", ".zst": "Zstandard"}
_MAGIC_LENGTH = max(map(len, _MAGIC))
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: First bytes of files that are often mistaken for text, with their descriptions.
_BINARY_KINDS = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "a bzip2 archive",
    b"\x1f\x8b": "a gzip archive without its .gz suffix",
    b"\xfd7zXZ": "an xz archive without its .xz suffix",
    b"\x28\xb5\x2f\xfd": "a Zstandard archive without its .zst suffix",
    b"PAR1": "a Parquet file without its .parquet suffix",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


def detect_compression(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a compressed file: `.gz`, `.xz` or `.zst`; empty for a plain one."""
    suffix = PurePath(path).suffix.lower()
    return suffix if suffix in _KINDS else ""


def uncompressed_name(path: str | os.PathLike[str]) -> str:
    """Return the file's name without the suffix of its compression: `data.jsonl` for `folder/data.jsonl.xz`."""
    name = PurePath(path).name
    return name[: len(name) - len(detect_compression(path))]


def display_name(path: str | os.PathLike[str]) -> str:
    """Return the path for messages; bytes that are not UTF-8 are escaped, so that it can always be printed."""
    if os.fspath(path) == STANDARD_INPUT:
        return "standard input"
    return os.fspath(path).encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(slots=True)
class Meter:
    """Counts the bytes of a file, as stored, that were read."""

    read: int = 0


def open_bytes(path: str | os.PathLike[str], meter: Meter | None = None) -> io.BufferedReader:
    """Open a file and decompress it. `-` is standard input, whose first bytes show how it is compressed."""
    name = display_name(path)
    stream: Any
    if os.fspath(path) == STANDARD_INPUT:
        head = sys.stdin.buffer.read(_MAGIC_LENGTH)
        suffix = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
        raw: IO[bytes] = io.BufferedReader(_Prefixed(head, sys.stdin.buffer))
        meter = None
    else:
        suffix = detect_compression(path)
        try:
            raw = open(path, "rb", buffering=_CHUNK)  # noqa: SIM115
        except OSError as error:
            raise InputError(f"{name}: cannot be read: {error.strerror}") from error
        except ValueError as error:  # a NUL in the name
            raise InputError(f"{name!r}: cannot be read: {error}") from error
    if suffix == ".gz":
        stream = gzip.GzipFile(fileobj=raw, mode="rb")
    elif suffix == ".xz":
        stream = lzma.LZMAFile(raw, "rb")  # noqa: SIM115
    else:
        stream = _Zstandard(raw) if suffix == ".zst" else raw
    return io.BufferedReader(_CheckedStream(stream, raw, name, suffix, meter), _CHUNK)


class _CheckedStream(io.RawIOBase):
    """Reads decompressed bytes, turns errors into `InputError`s that name the file, and updates the meter."""

    def __init__(self, stream: Any, raw: IO[bytes], name: str, suffix: str, meter: Meter | None) -> None:
        self._stream, self._raw, self._name, self._suffix, self._meter = stream, raw, name, suffix, meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count = int(self._stream.readinto(buffer))
            if self._meter:
                self._meter.read = self._raw.tell()
            return count
        except EOFError as error:
            kind = _KINDS[self._suffix]
            raise InputError(f"{self._name}: the {kind} archive is cut short: its end is missing") from error
        except (zlib.error, lzma.LZMAError, gzip.BadGzipFile, _DamagedZstandard) as error:
            kind = _KINDS[self._suffix]
            raise InputError(f"{self._name}: not a {kind} archive, or a damaged one: {error}") from error
        except OSError as error:
            raise InputError(f"{self._name}: cannot be read: {error.strerror or error}") from error

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            self._raw.close()
        super().close()


class _DamagedZstandard(Exception):
    pass


class _Zstandard(io.RawIOBase):
    """Read all frames of a .zst file. The package's own reader does not notice that a file ends within a frame."""

    def __init__(self, raw: IO[bytes]) -> None:
        import zstandard

        self._raw = raw
        self._package = zstandard
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._buffer = b""
        self._inside_frame = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._buffer:
            chunk = self._raw.read(_CHUNK // 8)
            if not chunk:
                if self._inside_frame:
                    raise EOFError
                return 0
            self._buffer = self._feed(chunk)
        count = min(len(buffer), len(self._buffer))
        buffer[:count] = self._buffer[:count]
        self._buffer = self._buffer[count:]
        return count

    def _feed(self, chunk: bytes) -> bytes:
        parts = []
        while chunk:
            self._inside_frame = True
            try:
                parts.append(self._frame.decompress(chunk))
            except self._package.ZstdError as error:
                raise _DamagedZstandard(error) from error
            chunk = b""
            if self._frame.eof:
                chunk = self._frame.unused_data
                self._frame = self._package.ZstdDecompressor().decompressobj()
                self._inside_frame = False
        return b"".join(parts)


class _Prefixed(io.RawIOBase):
    """A stream whose first bytes were already read."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._head[: len(buffer)]
        self._head = self._head[len(data) :]
        # read1 returns what a pipe has available; read would wait until the buffer is full.
        data = data or getattr(self._rest, "read1", self._rest.read)(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def decode_line(line: bytes) -> str:
    """Decode a line of UTF-8 text, or raise a `RowError`."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise undecodable(line, error) from None


def undecodable(line: bytes, error: UnicodeDecodeError) -> RowError:
    """The error of a line that is not UTF-8 text, with a guess at what it is."""
    kind = next((f"; it looks like {kind}" for magic, kind in _BINARY_KINDS.items() if line.startswith(magic)), "")
    byte, position = line[error.start], error.start + 1
    return RowError(f"not UTF-8 text: byte 0x{byte:02x} at position {position} of the line{kind}")
