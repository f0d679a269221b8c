"""Columns of names as codes into the distinct ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class NameColumn(Sequence[str]):
    """Names as codes into the distinct ones, which are in the order of their first use."""

    codes: Codes
    names: tuple[str, ...]

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.names[code] for code in self.codes[index].tolist()]
        return self.names[self.codes[index]]

    def __iter__(self) -> Iterator[str]:
        return map(self.names.__getitem__, self.codes.tolist())

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NameColumn):
            return self.names == other.names and bool(np.array_equal(self.codes, other.codes))
        if not isinstance(other, Sequence) or isinstance(other, str) or len(self) != len(other):
            return False
        return all(one == another for one, another in zip(self, other, strict=True))


def encode_names(names: Sequence[str]) -> NameColumn:
    """The names as codes, in the order of their first use."""
    if isinstance(names, NameColumn):
        return names
    number: dict[str, int] = {}
    codes = np.fromiter((number.setdefault(name, len(number)) for name in names), np.intp, count=len(names))
    return NameColumn(codes, tuple(number))


def take_names(column: NameColumn, positions: NDArray[np.intp] | slice) -> NameColumn:
    """The names at some positions, with only those that occur there as distinct names."""
    codes = column.codes[positions]
    newest = np.maximum.accumulate(codes)
    if len(codes) and codes[0] == 0 and newest[-1] == len(column.names) - 1 and (np.diff(newest) <= 1).all():
        return NameColumn(codes, column.names)  # All names occur, in their order.
    first = np.full(len(column.names), len(codes), np.intp)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    order = np.argsort(first, kind="stable")[: int(np.count_nonzero(first < len(codes)))]
    number = np.empty(len(first), np.intp)
    number[order] = np.arange(len(order))
    return NameColumn(number[codes], tuple(column.names[code] for code in order.tolist()))


def concatenate_names(columns: Sequence[NameColumn]) -> NameColumn:
    """Columns one after another, names that several have once."""
    if len(columns) == 1:
        return columns[0]
    number: dict[str, int] = {}
    codes = []
    for column in columns:
        own = np.fromiter((number.setdefault(name, len(number)) for name in column.names), np.intp)
        codes.append(own[column.codes])
    return NameColumn(np.concatenate(codes), tuple(number))


def split_positions(column: NameColumn) -> list[NDArray[np.intp]]:
    """The positions of each distinct name, in the order of the names."""
    order = np.argsort(column.codes, kind="stable")
    ends = np.cumsum(np.bincount(column.codes, minlength=len(column.names)))
    return np.split(order, ends[:-1]) if len(column.names) else []


def list_distinct(names: Sequence[str]) -> list[str]:
    """The distinct names in the order of their first use."""
    return list(names.names) if isinstance(names, NameColumn) else list(dict.fromkeys(names))


def select_names(column: NameColumn, chosen: Mapping[str, Any] | set[str]) -> NDArray[np.intp]:
    """The positions whose name is one of the chosen ones. There must not be many distinct names."""
    wanted = np.fromiter((name in chosen for name in column.names), np.bool_, count=len(column.names))
    return np.flatnonzero(wanted[column.codes])


def find_names(names: Sequence[str], known: Sequence[str]) -> NDArray[np.intp]:
    """The position of each name among known ones, all of which differ; -1 where it is none of them."""
    if names == known:
        return np.arange(len(names))
    number = {name: n for n, name in enumerate(known)}
    return np.fromiter((number.get(name, -1) for name in names), np.intp, count=len(names))


def find_outputs(
    items: Sequence[str], systems: Sequence[str], known_items: Sequence[str], known_systems: Sequence[str]
) -> NDArray[np.intp]:
    """The position of each output among known ones, by its item and system; -1 where it is none of them."""
    wanted, known = (
        (encode_names(items), encode_names(systems)),
        (encode_names(known_items), encode_names(known_systems)),
    )
    width = max(1, len(known[1].names))
    item, system = (find_names(one.names, other.names)[one.codes] for one, other in zip(wanted, known, strict=True))
    keys = np.where((item >= 0) & (system >= 0), item * width + system, -1)
    known_keys = known[0].codes.astype(np.intp) * width + known[1].codes
    if np.array_equal(keys, known_keys):
        return np.arange(len(keys))
    if not len(known_keys):
        return np.full(len(keys), -1)
    order = np.argsort(known_keys, kind="stable")
    at = np.minimum(np.searchsorted(known_keys[order], keys), len(order) - 1)
    return np.where(known_keys[order[at]] == keys, order[at], -1)
