"""Pieces of work on all cores: a thread for each piece, and one core for each product within it.

What a model does between its products is a third of its work, and the library that computes products (OpenBLAS, where
numpy came as a wheel) shares out nothing else. Its threads wait for each other besides: slow on a busy machine.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

_Piece = TypeVar("_Piece")
_Found = TypeVar("_Found")

#: Where numpy's wheels for Linux, Windows and macOS keep their libraries, seen from numpy's own folder.
_FOLDERS = ("../numpy.libs", ".dylibs")
_NAMES = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads")


class _Products(NamedTuple):
    """How many threads a product is computed with; environment variables such as OMP_NUM_THREADS set it first."""

    get: Callable[[], int]
    set: Callable[[int], None]


class _Inside:
    """How many are at work in threads of their own now, and what the first of them found the products set to."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.before = 1


_inside = _Inside()


def thread_count() -> int:
    """How many pieces are worked on at once."""
    if (found := _products()) is None:
        return 1
    with _inside.lock:
        return _inside.before if _inside.count else found.get()


def parallel_map(work: Callable[[_Piece], _Found], pieces: Sequence[_Piece]) -> list[_Found]:
    """What the work makes of every piece, in order."""
    count = min(thread_count(), len(pieces))
    if count < 2:
        return [work(piece) for piece in pieces]
    with _single(), ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, pieces))


@contextmanager
def _single() -> Iterator[None]:
    """Products are computed on one core inside, whichever thread asks for them; the last one to leave sets all back."""
    found = _products()
    assert found is not None
    with _inside.lock:
        if not _inside.count:
            _inside.before = found.get()
            found.set(1)
        _inside.count += 1
    try:
        yield
    finally:
        with _inside.lock:
            _inside.count = max(0, _inside.count - 1)
            if not _inside.count:
                found.set(_inside.before)


def _forget() -> None:
    """A forked process has none of the threads that were at work: nobody else would set it back."""
    if _inside.count and (found := _products()) is not None:
        _inside.count = 0
        found.set(_inside.before)
    _inside.lock.release()


if hasattr(os, "register_at_fork"):
    # Nobody is half-way in or out while a process is forked.
    os.register_at_fork(before=_inside.lock.acquire, after_in_parent=_inside.lock.release, after_in_child=_forget)


@cache
def _products() -> _Products | None:
    """Those of the library that numpy brought along; None where it uses another."""
    home = Path(np.__file__).parent
    for path in (one for folder in _FOLDERS for one in sorted((home / folder).glob("*openblas*"))):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for name in _NAMES:
            get, put = (getattr(library, name.format(verb), None) for verb in ("get", "set"))
            if get is not None and put is not None:
                return _Products(get, put)
    return None
