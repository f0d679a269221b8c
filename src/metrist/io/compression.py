"""Open plain, .gz, .xz and .zst files in any encoding as streams of UTF-8. Files that are
damaged, or unpack to far more than their size, raise `InputError`."""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import PurePath
from typing import IO, Any

from metrist.errors import InputError
from metrist.io.row_model import RowError

STANDARD_INPUT = "-"
_CHUNK = 1 << 18
_MAGIC = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\x00": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
_KINDS = {".gz": "gzip", ".xz": "xz", ".zst": "Zstandard"}
#: Bytes of spaces and line ends in a row that no compressed file of records has.
_LARGEST_GAP = 1 << 18
_MAGIC_LENGTH = max(map(len, _MAGIC))
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: Times by which a file unpacks to more than its own size where it is damaged, or made to fill the memory. Texts that
#: people write reach a tenth of that.
HIGHEST_RATIO = 200
#: Bytes of a row, and of what a file unpacks to. Users set other limits by environment variables.
_LARGEST_ROW, _LARGEST_FILE = 1 << 26, 1 << 30


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


@dataclass(slots=True)
class FileFormat:
    """How a file is written, where the user says so, and in `notes` what was recognised in it. `tool` is the one of
    `metrist.io.tools` that wrote the file."""

    delimiter: str | None = None
    encoding: str | None = None
    sheet: str | None = None
    notes: list[str] = field(default_factory=list)
    tool: str = ""

    def check(self) -> None:
        """Check the settings, and replace names of delimiters (`tab`) by the characters."""
        if self.delimiter is not None:
            self.delimiter = _DELIMITER_NAMES.get(self.delimiter.lower(), self.delimiter)
            if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
                raise InputError(
                    f"the delimiter must be one character, such as ';' or '\\t' (or tab), got {self.delimiter!r}",
                    code="invalid_value",
                )
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
                "".encode(self.encoding)
            except (LookupError, ValueError):
                raise InputError(
                    f"no text encoding is called {self.encoding!r}; common ones are utf-8, cp1252 (Windows), latin-1 "
                    "and utf-16",
                    code="unknown_name",
                ) from None


_DELIMITER_NAMES = {"\\t": "\t", "tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}


def decode_stream(stream: io.BufferedReader, name: str, form: FileFormat) -> io.BufferedReader:
    """Return the stream as UTF-8. UTF-16 and UTF-32 are recognised by their first bytes."""
    head = stream.peek(1)
    encoding = form.encoding
    if encoding is None:
        encoding = _detect_encoding(head)
        if encoding:
            form.notes.append(f"{encoding.upper()[:6]} text")
        elif head.startswith(BYTE_ORDER_MARK):
            form.notes.append("UTF-8 text with a byte order mark")
    is_utf8 = encoding is None or codecs.lookup(encoding).name in ("utf-8", "ascii")
    has_old_ends = is_utf8 and b"\r" in head and b"\n" not in head and len(head) > head.index(b"\r") + 1
    if is_utf8 and not has_old_ends:
        return stream
    return io.BufferedReader(_Chunks(_transcode(stream, encoding or "utf-8", name), stream), _CHUNK)


def _detect_encoding(head: bytes) -> str | None:
    """Return the encoding of a text that is not in bytes of ASCII. Its first characters are: a header, or `{`."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = head[:64]
    even = sample[::2]
    odd = sample[1::2]
    enough = len(sample) // 2 * 0.4
    if odd.startswith(b"\0\0\0") and odd.count(0) > enough and 0 not in even:
        return "utf-16-le"
    if even.startswith(b"\0\0\0") and even.count(0) > enough and 0 not in odd:
        return "utf-16-be"
    return None


def _read_chunks(stream: Any) -> Iterator[bytes]:
    """Yield what a stream has available, as a pipe does; reading whole chunks would wait until there is one."""
    return iter(partial(stream.read1, _CHUNK), b"")


def _transcode(stream: io.BufferedReader, encoding: str, name: str) -> Iterator[bytes]:
    """Yield text in another encoding as UTF-8; lines may end as on old Macs (CR)."""
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    try:
        for text in codecs.iterdecode(_read_chunks(stream), encoding):
            yield newlines.decode(text).encode("utf-8", "surrogatepass")
    except UnicodeError as error:
        raise InputError(f"{name}: not {encoding} text: {error}; name its encoding with `encoding`") from None
    yield newlines.decode("", final=True).encode()


class _Chunks(io.RawIOBase):
    """A stream of chunks of bytes that come from another one. It cannot seek, and knows how many bytes were read."""

    def __init__(self, chunks: Iterable[bytes], source: IO[bytes]) -> None:
        self._chunks = filter(None, chunks)
        self._source = source
        self._chunk = b""
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._chunk = self._chunk or next(self._chunks, b"")
        count = min(len(buffer), len(self._chunk))
        buffer[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        self._read += count
        return count

    def tell(self) -> int:
        return self._read

    def close(self) -> None:
        if not self.closed and self._source is not sys.stdin.buffer:
            self._source.close()
        super().close()


def open_bytes(path: str | os.PathLike[str], meter: Meter | None = None) -> io.BufferedReader:
    """Open a file and decompress it. `-` is standard input, whose first bytes show how it is compressed."""
    name = display_name(path)
    stream: Any
    if os.fspath(path) == STANDARD_INPUT:
        head = sys.stdin.buffer.read(_MAGIC_LENGTH)
        suffix = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
        chunks = chain([head], _read_chunks(sys.stdin.buffer))
        raw: IO[bytes] = io.BufferedReader(_Chunks(chunks, sys.stdin.buffer), _CHUNK)
        meter = None
    else:
        suffix = detect_compression(path)
        try:
            raw = open(path, "rb", buffering=_CHUNK)  # noqa: SIM115
        except OSError as error:
            raise InputError(f"{name}: cannot be read: {error.strerror}") from error
        except ValueError as error:  # a NUL in the name
            raise InputError(f"{name!r}: cannot be read: {error}") from error
        if not raw.seekable():  # A named pipe.
            raw = io.BufferedReader(_Chunks(_read_chunks(raw), raw), _CHUNK)
    if suffix == ".gz":
        stream = gzip.GzipFile(fileobj=raw, mode="rb")
    elif suffix == ".xz":
        stream = lzma.LZMAFile(raw, "rb")  # noqa: SIM115
    elif suffix == ".zst":
        # Arrow's reader notices that a file ends within a frame; that of the package `zstandard` does not.
        import pyarrow as pa

        stream = pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")
    else:
        stream = raw
    return io.BufferedReader(CheckedStream(stream, raw, name, suffix, meter), _CHUNK)


def largest_row() -> int:
    """Bytes of a row: `METRIST_MAX_ROW`, or 64 MiB."""
    return _read_limit("METRIST_MAX_ROW", _LARGEST_ROW)


def check_unpacked(name: str, unpacked: int, packed: int) -> None:
    """Refuse a file that unpacks to more than `METRIST_MAX_UNPACKED` bytes, or 1 GiB, and far more than its size."""
    if unpacked > HIGHEST_RATIO * packed and unpacked > (limit := _read_limit("METRIST_MAX_UNPACKED", _LARGEST_FILE)):
        raise InputError(
            f"{name}: {packed:,} bytes unpack to more than {limit:,}: it is damaged, or made to fill the memory; "
            "METRIST_MAX_UNPACKED sets another limit",
            code="too_large",
        )


def _read_limit(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or not int(text):
        raise InputError(f"{variable} must be a number of bytes, got {text!r}", code="invalid_value")
    return int(text)


class CheckedStream(io.RawIOBase):
    """Reads decompressed bytes, turns errors into `InputError`s that name the file, and updates the meter."""

    def __init__(self, stream: Any, raw: IO[bytes], name: str, suffix: str, meter: Meter | None) -> None:
        self._stream = stream
        self._raw = raw
        self._name = name
        self._suffix = suffix
        self._meter = meter
        #: Whether each row is in a line of its own.
        self.has_lines = False
        self._unpacked = 0
        self._line = 0  # Bytes since the last end of a line.
        self._gap = 0  # Bytes since the last visible character.

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count = int(self._stream.readinto(buffer))
            if self._meter:
                self._meter.read = self._raw.tell()
            self._check_size(bytes(memoryview(buffer)[:count]))
            return count
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            kind = _KINDS.get(self._suffix)
            # Arrow has no class of its own for a stream that is cut.
            if isinstance(error, EOFError) or "Truncated compressed stream" in str(error):
                raise InputError(f"{self._name}: the {kind} archive is cut short: its end is missing") from error
            if kind and getattr(error, "errno", None) is None:
                raise InputError(
                    f"{self._name}: not a {kind} archive, or a damaged one: {error}", code="damaged"
                ) from error
            raise InputError(f"{self._name}: cannot be read: {getattr(error, 'strerror', None) or error}") from error

    def _check_size(self, data: bytes) -> None:
        """Refuse a line that no row is, and an archive of a few bytes that unpacks to gigabytes or to blank lines."""
        end = data.rfind(b"\n")
        self._line = self._line + len(data) if end < 0 else len(data) - end - 1
        if self.has_lines and self._line > (limit := largest_row()):
            raise InputError(
                f"{self._name}: a line of more than {limit:,} bytes; METRIST_MAX_ROW sets another limit",
                code="too_large",
            )
        if self._suffix:
            self._unpacked += len(data)
            self._gap = 0 if data.strip(b" \t\r\n\0") else self._gap + len(data)
            if self._gap > _LARGEST_GAP:
                raise InputError(f"{self._name}: more than {_LARGEST_GAP:,} bytes without a character", code="damaged")
            check_unpacked(self._name, self._unpacked, self._raw.tell())

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            self._raw.close()
        super().close()


def decode_line(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise undecodable(line, error) from None


def undecodable(line: bytes, error: UnicodeDecodeError) -> RowError:
    """The error of a line that is not UTF-8 text."""
    return RowError(
        f"not UTF-8 text: byte {line[error.start]:#04x} at position {error.start + 1} of the line; use `encoding` to "
        "name the file's encoding, such as cp1252 or utf-16"
    )


#: Bytes that text in Windows-1252 rarely has on its own: undefined ones, Â, Ã and ÿ, which damaged UTF-8 looks like.
_DOUBTFUL = frozenset(b"\x81\x8d\x8f\x90\x9d\xc2\xc3\xff")


def looks_like_windows_1252(line: bytes) -> bool:
    """Whether a line that is not UTF-8 may be text in Windows-1252 (or Latin-1, which is the same but for quotes)."""
    high = [byte for byte in line if byte >= 0x80]
    return not _DOUBTFUL.intersection(high) and all(byte >= 0x20 or byte in b"\t\r\n" for byte in line)
