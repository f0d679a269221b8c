"""Lines of UTF-8 text out of a stream of bytes."""

from __future__ import annotations

from metrist.io.place import Fault

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OTHERS = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "a bzip2 archive",
    b"\x1f\x8b": "a gzip archive without its .gz suffix",
    b"\xfd7zXZ": "an xz archive without its .xz suffix",
    b"\x28\xb5\x2f\xfd": "a Zstandard archive without its .zst suffix",
    b"PAR1": "a Parquet file without its .parquet suffix",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


def decoded(line: bytes) -> str:
    """The line as text, or the fault that it is none."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Fault(_not_text(line, error)) from None


def _not_text(line: bytes, error: UnicodeDecodeError) -> str:
    looks = next((f"; it looks like {kind}" for magic, kind in _OTHERS.items() if line.startswith(magic)), "")
    return f"not UTF-8 text: byte 0x{line[error.start]:02x} at position {error.start + 1} of the line{looks}"
