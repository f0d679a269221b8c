"""Columns of names, hashes and sparse values over arrays, which may be mapped from files: sequences and mappings that
make a Python object only of what is asked for."""

from __future__ import annotations

import math
import mmap
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from tempfile import TemporaryFile
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

_T = TypeVar("_T")
#: The type of an array's entries.
Number = TypeVar("Number", bound=np.generic)
Codes = NDArray[np.integer[Any]]
#: Entries that are decoded at a time when a column is iterated over.
CHUNK = 1 << 16
#: Bytes from which on an array that is rarely read is kept in a file.
_LARGE = 1 << 25


class _Column(Sequence[str]):
    """A sequence of texts that decodes ranges of them."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def _decode(self, start: int, stop: int) -> list[str]:
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self._decode(start, stop) if step == 1 else [self[i] for i in range(start, stop, step)]
        position = range(len(self))[index]
        return self._decode(position, position + 1)[0]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), CHUNK):
            yield from self._decode(start, min(start + CHUNK, len(self)))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Sequence) or isinstance(other, str) or len(self) != len(other):
            return False
        return all(one == another for one, another in zip(self, other, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn(_Column):
    """Texts one after another in an array of bytes; `ends` has the end of each."""

    data: NDArray[np.uint8]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def _decode(self, start: int, stop: int) -> list[str]:
        if stop <= start:
            return []
        first = int(self.ends[start - 1]) if start else 0
        ends = [0, *(np.asarray(self.ends[start:stop]) - first).tolist()]
        data = self.data[first : first + ends[-1]].tobytes()
        return [data[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(ends)]


@dataclass(frozen=True, slots=True, eq=False)
class NameColumn(_Column):
    """Names as codes into the distinct ones, which are in the order of their first use."""

    codes: Codes
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)

    def _decode(self, start: int, stop: int) -> list[str]:
        codes = self.codes[start:stop]
        if isinstance(self.names, tuple | list):
            return list(map(self.names.__getitem__, codes.tolist()))
        distinct, places = np.unique(codes, return_inverse=True)
        # Neighbours mostly have neighbouring names: those in between are decoded at once.
        low, high = (int(distinct[0]), int(distinct[-1]) + 1) if len(distinct) else (0, 0)
        if high - low <= 4 * len(distinct):
            found = self.names[low:high]
            return [found[code - low] for code in codes.tolist()]
        texts = [self.names[code] for code in distinct.tolist()]
        return [texts[place] for place in places.reshape(-1).tolist()]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __reduce__(self) -> tuple[Any, ...]:
        return NameColumn, (np.array(self.codes), tuple(self.names))


@dataclass(frozen=True, slots=True, eq=False)
class HashColumn(_Column):
    """Hashes as rows of bytes (n, width), read as hexadecimal digits; a row of zeros is the empty text."""

    rows: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.rows)

    def _decode(self, start: int, stop: int) -> list[str]:
        size = 2 * self.rows.shape[1]
        digits = self.rows[start:stop].tobytes().hex()
        texts = [digits[n : n + size] for n in range(0, len(digits), size)]
        return ["" if text.count("0") == size else text for text in texts]

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, HashColumn):
            return self is other or bool(np.array_equal(self.rows, other.rows))
        return _Column.__eq__(self, other)

    def __reduce__(self) -> tuple[Any, ...]:
        return HashColumn, (np.array(self.rows),)


def encode_names(names: Sequence[str]) -> NameColumn:
    """The names as codes, in the order of their first use."""
    if isinstance(names, NameColumn):
        return names
    number: dict[str, int] = {}
    codes = np.fromiter((number.setdefault(name, len(number)) for name in names), np.intp, count=len(names))
    return NameColumn(codes, tuple(number))


def take_names(column: NameColumn, positions: NDArray[np.intp]) -> NameColumn:
    """The names at some positions, with only those that occur there as distinct names."""
    codes = column.codes[positions]
    first = np.full(len(column.names), len(codes), np.intp)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    order = np.argsort(first, kind="stable")[: int(np.count_nonzero(first < len(codes)))]
    if len(order) == len(first) and (order == np.arange(len(order))).all():
        return NameColumn(codes, column.names)
    number = np.empty(len(first), np.intp)
    number[order] = np.arange(len(order))
    names = column.names
    kept = tuple(names[code] for code in order.tolist()) if isinstance(names, tuple) else NameColumn(order, names)
    return NameColumn(number[codes], kept)


def list_distinct(names: Sequence[str]) -> list[str]:
    """The distinct names in the order of their first use."""
    return list(names.names) if isinstance(names, NameColumn) else list(dict.fromkeys(names))


def select_names(column: NameColumn, chosen: Mapping[str, Any] | set[str]) -> NDArray[np.intp]:
    """The positions whose name is one of the chosen ones. There must not be many distinct names."""
    wanted = np.fromiter((name in chosen for name in column.names), np.bool_, count=len(column.names))
    return np.flatnonzero(wanted[column.codes])


@dataclass(frozen=True, slots=True, eq=False)
class SparseColumn(Mapping[int, _T], Generic[_T]):
    """Values of some positions, which ascend; `read` decodes the nth of them."""

    positions: NDArray[np.int64]
    read: Callable[[int], _T]

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self.positions), CHUNK):
            yield from self.positions[start : start + CHUNK].tolist()

    def __getitem__(self, position: int) -> _T:
        number = bisect_left(self.positions, position)
        if number == len(self.positions) or self.positions[number] != position:
            raise KeyError(position)
        return self.read(number)

    def __contains__(self, position: object) -> bool:
        number = bisect_left(self.positions, position)
        return number < len(self.positions) and bool(self.positions[number] == position)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


@dataclass(frozen=True, slots=True, eq=False)
class NarrowRows:
    """Rows of numbers stored in a narrower type. What is taken from them are rows of doubles."""

    rows: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape

    @property
    def size(self) -> int:
        return self.rows.size

    @property
    def dtype(self) -> np.dtype[np.float64]:
        return np.dtype(np.float64)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> NDArray[np.float64]:
        return np.asarray(self.rows[index], np.float64)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.rows, dtype or np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class MeanRows:
    """The rows (value, 1) of scores that pool to their mean, or (0, 0) where there is no score, made when asked for."""

    values: NDArray[np.float64]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.values), 2

    @property
    def size(self) -> int:
        return 2 * len(self.values)

    @property
    def dtype(self) -> np.dtype[np.float64]:
        return np.dtype(np.float64)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> NDArray[np.float64]:
        values = np.asarray(self.values[index])
        scored = ~np.isnan(values)
        return np.stack([np.where(scored, values, 0.0), scored.astype(np.float64)], axis=-1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or np.float64, copy=False)


def move_to_disk(array: NDArray[Number]) -> NDArray[Number]:
    """The same array, but a large one is mapped from a file without a name, so that `release_pages` can give its memory
    back. It stays in memory where there is no room for the file."""
    mapped = _map_rows(lambda: iter([array]), array.shape, array.dtype)
    return array if mapped is None else mapped


def stack_rows(
    make_rows: Callable[[], Iterator[NDArray[Number]]], shape: tuple[int, ...], dtype: np.dtype[Number]
) -> NDArray[Number]:
    """An array of this shape from its parts along the first axis, which must not be empty; a large one is mapped, see
    `move_to_disk`."""
    mapped = _map_rows(make_rows, shape, dtype)
    if mapped is not None:
        return mapped
    stacked, at = np.empty(shape, dtype), 0
    for rows in make_rows():
        stacked[at : at + len(rows)] = rows
        at += len(rows)
    return stacked


def _map_rows(
    make_rows: Callable[[], Iterator[NDArray[Number]]], shape: tuple[int, ...], dtype: np.dtype[Number]
) -> NDArray[Number] | None:
    """The rows in a file without a name, mapped; None if they are few, or if there is no room for the file."""
    if dtype.itemsize * math.prod(shape) < _LARGE:
        return None
    with suppress(OSError), TemporaryFile() as file:
        for rows in make_rows():
            file.write(np.ascontiguousarray(rows, dtype).data.cast("B"))
        file.flush()
        return np.asarray(np.memmap(file, dtype, "r", shape=shape))
    return None


def take_rows(array: Any, positions: NDArray[np.intp]) -> NDArray[Any]:
    """The rows at these positions. Those of a mapped array are read a few at a time, so that its pages, most of which
    may be touched, do not fill the memory. Narrow rows stay narrow."""
    array = array.rows if isinstance(array, NarrowRows) else array
    if len(positions) <= CHUNK:
        return np.asarray(array[positions])
    rows = np.empty((len(positions), *array.shape[1:]), array.dtype)
    for start in range(0, len(positions), CHUNK):
        rows[start : start + CHUNK] = array[positions[start : start + CHUNK]]
        release_pages(array)
    return rows


def release_pages(*arrays: Any) -> None:
    """Give the memory of mapped arrays back to the system; what is needed again is read from their files.

    Arrays that may be written to keep theirs, since changes of a private mapping are in no file.
    """
    for array in arrays:
        base = array.rows if isinstance(array, NarrowRows) else array.values if isinstance(array, MeanRows) else array
        writable = True
        while base is not None and not isinstance(base, mmap.mmap):
            # That of the last array, which is the mapping's own: the others are views of it.
            writable = base.flags.writeable if isinstance(base, np.ndarray) else writable
            base = getattr(base, "base", None)
        if base is not None and not writable and hasattr(mmap, "MADV_DONTNEED"):
            base.madvise(mmap.MADV_DONTNEED)
