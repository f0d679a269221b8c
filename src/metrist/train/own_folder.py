"""A training has its folder to itself: a second process in it would destroy the first one's checkpoints.

The lock is the operating system's, on a file of the folder. It ends with the process that holds it, however that ends,
so that a training which was killed leaves nothing in the way; the file itself says nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from metrist.errors import RunError
from metrist.train.ranks import Ranks

LOCK = "training.lock"


@contextmanager
def own_folder(path: Path, ranks: Ranks) -> Iterator[None]:
    """Hold the folder, which is made if need be. Of processes that train together the first one holds it for all."""
    with _held(path / LOCK, wanted=ranks.is_first) as is_mine:
        if ranks.any(not is_mine):
            raise RunError(f"another process is training in {path}; wait until it ends, or give another --out")
        yield


@contextmanager
def _held(path: Path, *, wanted: bool) -> Iterator[bool]:
    """Whether the lock on this file, if it is wanted at all, is held inside."""
    if not wanted:
        yield True
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(path)
    except OSError as fault:
        raise RunError(f"{path.parent}: cannot be written to: {fault.strerror}") from fault
    try:
        yield file is not None
    finally:
        if file is not None:
            with suppress(OSError):
                path.unlink()  # Before the lock ends: who opened the file in the meantime sees that it is gone.
            file.close()


def _locked(path: Path) -> IO[bytes] | None:
    """The file, locked; None where another process has the lock."""
    while True:
        file = path.open("ab")
        try:
            if not _lock(file):
                file.close()
                return None
            if _is_there(path, file):
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # Its last holder removed it between opening and locking.


def _lock(file: IO[bytes]) -> bool:
    try:
        fcntl: Any = import_module("fcntl")
    except ImportError:
        return True  # Windows has no such locks; there, people take care themselves.
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # Some network file systems have no locks.
    return True


def _is_there(path: Path, file: IO[bytes]) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False
