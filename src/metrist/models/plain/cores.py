"""Pieces of work on all cores: a thread for each piece, and one core for each product within it.

What a model does between its products is a third of its work, and the library that computes products (OpenBLAS, where
numpy came as a wheel) shares out nothing else. Its threads wait for each other besides: slow on a busy machine.
"""

from __future__ import annotations

import ctypes
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


def threads() -> int:
    """How many pieces are worked on at once."""
    return found.get() if (found := _products()) else 1


def each(work: Callable[[_Piece], _Found], pieces: Sequence[_Piece]) -> list[_Found]:
    """What the work makes of every piece, in order."""
    count = min(threads(), len(pieces))
    if count < 2:
        return [work(piece) for piece in pieces]
    with _single(), ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, pieces))


@contextmanager
def _single() -> Iterator[None]:
    """Products are computed on one core inside, whichever thread asks for them."""
    found = _products()
    assert found is not None
    before = found.get()
    found.set(1)
    try:
        yield
    finally:
        found.set(before)


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
