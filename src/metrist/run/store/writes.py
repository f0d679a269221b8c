"""Writing one object of a run folder whole, without a rename: the way that object stores work too."""

from __future__ import annotations

import os
from pathlib import Path

from metrist.errors import RunError


def write_object(path: Path, data: bytes) -> None:
    """Make the file hold exactly these bytes.

    The file is not emptied first: where another process has written the same bytes already, no moment exists
    in which they are gone.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        with os.fdopen(handle, "wb", buffering=0) as file:
            _write_all(file.fileno(), data)
            file.truncate(len(data))
    except OSError as fault:
        raise RunError(f"cannot write {path}: {fault.strerror}; what was done before is kept") from fault


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
