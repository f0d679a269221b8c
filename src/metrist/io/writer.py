"""Write files atomically: a file appears complete or not at all."""

from __future__ import annotations

import errno
import gzip
import io
import json
import lzma
import math
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO

from metrist.errors import InputError, RunError
from metrist.io.compression import detect_compression, display_name, uncompressed_name

_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}


def check_writable(path: Path) -> None:
    """Raise if a file cannot be written, before any work is done for it."""
    if path.is_dir():
        raise RunError(f"cannot write {path}: it is a folder", code="cannot_write")
    if not path.parent.is_dir():
        raise RunError(f"cannot write {path}: there is no folder {path.parent}", code="cannot_write")
    if not os.access(path.parent, os.W_OK):
        raise RunError(f"cannot write {path}: the folder {path.parent} is not writable", code="cannot_write")


def check_distinct(path: Path, inputs: Iterable[str | os.PathLike[str]], what: str = "the records are") -> None:
    """Raise if a file would be overwritten while it is read."""
    for name in inputs:
        if path.exists() and os.path.exists(name) and path.samefile(name):
            raise RunError(f"cannot write {path}: {what} read from it", code="cannot_write")


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Open a text file (UTF-8, newline line ends) that gets its name only when the block ends without an exception.

    A lone surrogate, which UTF-8 cannot encode, is written as `\\ud800`; inside a JSON string that reads back exactly.
    """
    with atomic_write_bytes(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="\n")
        try:
            yield text
        finally:
            # Otherwise the wrapper would close the file when it is garbage collected.
            text.detach()


@contextmanager
def atomic_write_bytes(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a binary file that gets its name only when the block ends without an exception; its suffix decides on
    compression.

    The same content gives the same bytes: archives contain no time and no name.
    """
    # A link is kept; the file that it points to is replaced. A pipe or a terminal can be written to, but not replaced.
    target = Path(os.path.realpath(path))
    is_replaced = not target.exists() or stat.S_ISREG(target.stat().st_mode)
    part = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.part") if is_replaced else target
    is_open = False
    try:
        with part.open("xb" if is_replaced else "wb") as raw:
            is_open = True
            with _open_compressor(raw, detect_compression(path) if is_replaced else "") as file:
                yield file
            if is_replaced:
                raw.flush()
                os.fsync(raw.fileno())
        is_open = False
        if is_replaced:
            if target.exists():
                part.chmod(stat.S_IMODE(target.stat().st_mode))
            os.replace(part, target)
            sync_folder(target.parent)
    except BaseException as error:
        if is_replaced:
            with suppress(OSError):
                part.unlink()
        # While the file is open, other errors may come from files that the block itself opens.
        if isinstance(error, OSError) and (not is_open or error.errno in _DISK_ERRORS):
            raise RunError(f"{display_name(path)}: cannot be written: {error.strerror}", code="cannot_write") from error
        raise


def sync_folder(folder: Path) -> None:
    """Make a new name survive a power cut; file systems that cannot guarantee this are accepted."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _open_compressor(raw: IO[bytes], suffix: str) -> Any:
    if suffix == ".gz":
        return gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0)
    if suffix == ".xz":
        return lzma.LZMAFile(raw, "wb", preset=6)
    if suffix == ".zst":
        import zstandard

        return zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False)
    return nullcontext(raw)


def write_rows(rows: Iterable[dict[str, Any]], out: str | os.PathLike[str]) -> int:
    """Write one JSON object per line, compressed according to the suffix, and return the number of rows."""
    if Path(uncompressed_name(out)).suffix not in (".jsonl", ".ndjson"):
        raise RunError(
            f"{out}: rows are written as JSON lines; name the file .jsonl, also .jsonl.gz, .xz or .zst",
            code="cannot_write",
        )
    count = 0
    with atomic_write(out) as file:
        for row in rows:
            file.write(f"{json_line(row)}\n")
            count += 1
    return count


_FORMULA = re.compile(r"'*[=+\-@\t\r＝＋－＠]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def escape_formula(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would run as a formula (`=cmd`, `@x`); numbers stay as they
    are. `unescape_formula` gives the text back."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def unescape_formula(text: str) -> str:
    """Return the text that `escape_formula` was given."""
    return text[1:] if text.startswith("'") and escape_formula(text[1:]) == text else text


# Python's own writer leaves a bare carriage return unquoted (before 3.13), and its reader then sees a new row.
_NEEDS_QUOTES = re.compile(r'[",\r\n]')


def csv_line(cells: Iterable[Any]) -> str:
    """A line of CSV in which no text is run as a formula."""
    return ",".join(map(_csv_cell, cells)) + "\n"


def _csv_cell(cell: Any) -> str:
    if cell is None:
        return ""
    text = escape_formula(cell) if isinstance(cell, str) else str(cell)
    return f'"{text.replace(chr(34), chr(34) * 2)}"' if _NEEDS_QUOTES.search(text) else text


def json_line(row: dict[str, Any]) -> str:
    """Format the row as standard JSON: the NaN that Python would write becomes null."""
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise InputError(
            f"the row of item {row.get('item')!r} is nested too deeply to be written", code="too_large"
        ) from None
    except ValueError:
        return json.dumps(_replace_nan(row), ensure_ascii=False)


def _replace_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replace_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def encodable(text: str) -> str:
    """The text for formats that hold only valid Unicode: a lone surrogate becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
