"""Locks on files and folders that end with the process that holds them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any


def lock(file: Any, *, wait: bool) -> bool:
    """Lock a file for this process alone until it is closed; False if another has it. Where the system has no such
    locks, nobody is ever alone, and two writers at once are not told apart."""
    try:
        import fcntl
    except ImportError:
        return wait
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        if wait:
            raise
        fcntl.flock(file, fcntl.LOCK_SH)
        return False
    return True


def try_lock(file: Any) -> bool | None:
    """Lock a file or folder for this process alone until it is closed; False if another has it, None where the system
    cannot tell: NFS locks no folder that is open for reading."""
    if file is None:
        return None
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def is_at(file: Any, path: Path) -> bool:
    """Whether an open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def share(file: Any) -> None:
    """Let other writers in, none of which is then alone."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_SH)
