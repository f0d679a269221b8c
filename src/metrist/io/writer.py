"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import gzip
import io
import json
import lzma
import math
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO, cast

from metrist.errors import RunError
from metrist.io.compression import detect_compression, display_name, uncompressed_name

_DISK_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written in the end, before any work is done for it."""
    if path.is_dir():
        raise RunError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise RunError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise RunError(f"cannot write {path}: the folder {path.parent} may not be written to")


def check_distinct(path: Path, inputs: Iterable[str | os.PathLike[str]], what: str = "the records are") -> None:
    """Refuse to write over a file that is being read."""
    for name in inputs:
        if path.exists() and os.path.exists(name) and path.samefile(name):
            raise RunError(f"cannot write {path}: {what} read from it")


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """A text file (UTF-8, lines end in a bare newline) that takes its name only when the block ends well.

    A lone surrogate, which UTF-8 cannot hold, is written as `\\ud800`: inside a JSON string that reads back exactly.
    """
    with atomic_write_bytes(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="\n")
        try:
            yield text
        finally:
            # Left attached, the wrapper would close the file when it is collected.
            text.detach()


@contextmanager
def atomic_write_bytes(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file that takes its name only when the block ends well; compressed when its suffix says so.

    The same content gives the same bytes: no archive carries a time or a name.
    """
    # A link keeps pointing where it points: the file behind it is the one that is replaced.
    target = Path(os.path.realpath(path))
    with _telling_disk_faults(path):
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            with _device(target) as file:
                yield file
            return
        with _replacing(target) as raw, _compressed(raw, detect_compression(path)) as file:
            yield file


@contextmanager
def _telling_disk_faults(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except _NotWritten as error:
        cause = cast(OSError, error.__cause__)
        raise RunError(f"{display_name(path)}: cannot be written: {cause.strerror}") from cause
    except OSError as error:
        # What the block itself does with other files is not this file's fault.
        if error.errno not in _DISK_FAULTS:
            raise
        raise RunError(f"{display_name(path)}: cannot be written: {error.strerror}") from error


class _NotWritten(Exception):
    pass


@contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    part = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.part")
    try:
        raw = part.open("xb")
    except OSError as error:
        raise _NotWritten from error
    try:
        with raw:
            yield raw
            raw.flush()
            os.fsync(raw.fileno())
        _rename(part, target)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def _rename(part: Path, target: Path) -> None:
    try:
        if target.exists():
            part.chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(part, target)
    except OSError as error:
        raise _NotWritten from error
    # The new name itself must survive a power cut; some file systems cannot promise that, and need not.
    with suppress(OSError):
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _device(target: Path) -> Iterator[BinaryIO]:
    """A pipe or a terminal cannot be replaced, only written to."""
    try:
        file = target.open("wb")
    except OSError as error:
        raise _NotWritten from error
    with file:
        yield file


@contextmanager
def _compressed(raw: IO[bytes], suffix: str) -> Iterator[BinaryIO]:
    packed = _packer(raw, suffix)
    if packed is None:
        yield cast(BinaryIO, raw)
        return
    with packed:
        yield packed


def _packer(raw: IO[bytes], suffix: str) -> Any:
    if suffix == ".gz":
        return gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0)
    if suffix == ".xz":
        return lzma.LZMAFile(raw, "wb", preset=6)
    if suffix == ".zst":
        import zstandard

        return zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False)
    return None


# Rows into a file, which appears complete or not at all.


def write_rows(rows: Iterable[dict[str, Any]], out: str | os.PathLike[str]) -> int:
    """Write one JSON object a line, compressed as the name's ending says, and return how many there were."""
    if Path(uncompressed_name(out)).suffix not in (".jsonl", ".ndjson"):
        raise RunError(f"{out}: rows are written as JSON lines; name the file .jsonl, also .jsonl.gz, .xz or .zst")
    count = 0
    with atomic_write(out) as file:
        for row in rows:
            file.write(f"{json_line(row)}\n")
            count += 1
    return count


def json_line(row: dict[str, Any]) -> str:
    """The row as JSON that every reader takes: the NaN that Python would write is no JSON, and means "missing"."""
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(row), ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
