"""Parallel work on all cores, for models and sums of draws: one thread per piece of work, and one core per matrix
product within it.

A third of a model's work lies between its matrix products, and the BLAS library (OpenBLAS in numpy's wheels)
parallelizes only the products. Its threads also wait for each other, which is slow on a busy machine.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from metrist.runtime import count_cores

_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")

#: Where numpy's wheels for Linux, Windows and macOS store their libraries, relative to numpy's folder.
_FOLDERS = ("../numpy.libs", ".dylibs")
_NAMES = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads")


class _BlasThreads(NamedTuple):
    """Get and set the BLAS library's number of threads; variables such as OMP_NUM_THREADS set its initial value."""

    get: Callable[[], int]
    set: Callable[[int], None]


@dataclass(eq=False)
class _Users:
    """How many calls of `parallel_map` are active, and the BLAS library's number of threads before the first."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0
    threads_before: int = 1


_users = _Users()


def thread_count(*, uses_blas: bool = True) -> int:
    """Return how many pieces of work run at once. Where the number of threads of the BLAS library cannot be set, work
    that uses the library runs alone, since each of its products may use all cores, and other work on all cores."""
    if (blas := _find_blas()) is None:
        return 1 if uses_blas else count_cores()
    with _users.lock:
        return _users.threads_before if _users.count else blas.get()


def parallel_map(
    work: Callable[[_Piece], _Result], pieces: Sequence[_Piece], *, uses_blas: bool = True
) -> list[_Result]:
    """Apply `work` to every piece; return the results in order. `uses_blas` says whether the work multiplies matrices
    with numpy."""
    count = min(thread_count(uses_blas=uses_blas), len(pieces))
    if count < 2:
        return [work(piece) for piece in pieces]
    if _find_blas() is None:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(work, pieces))
    with _single_threaded_blas(), ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, pieces))


@contextmanager
def _single_threaded_blas() -> Iterator[None]:
    """Compute matrix products on one core, in all threads; the last user to leave restores the setting."""
    blas = _find_blas()
    assert blas is not None
    with _users.lock:
        if not _users.count:
            _users.threads_before = blas.get()
            blas.set(1)
        _users.count += 1
    try:
        yield
    finally:
        with _users.lock:
            _users.count = max(0, _users.count - 1)
            if not _users.count:
                blas.set(_users.threads_before)


def _reset_after_fork() -> None:
    """Restore the setting in a forked process, which has none of the threads that would do it."""
    if _users.count and (blas := _find_blas()) is not None:
        _users.count = 0
        blas.set(_users.threads_before)
    _users.lock.release()


if hasattr(os, "register_at_fork"):
    # Hold the lock during a fork, so that no thread is entering or leaving.
    os.register_at_fork(
        before=_users.lock.acquire, after_in_parent=_users.lock.release, after_in_child=_reset_after_fork
    )


@cache
def _find_blas() -> _BlasThreads | None:
    """Return the controls of numpy's bundled OpenBLAS; None if numpy uses another library."""
    home = Path(np.__file__).parent
    for path in (path for folder in _FOLDERS for path in sorted((home / folder).glob("*openblas*"))):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for name in _NAMES:
            get, put = (getattr(library, name.format(verb), None) for verb in ("get", "set"))
            if get is not None and put is not None:
                return _BlasThreads(get, put)
    return None
