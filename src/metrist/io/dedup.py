"""Detect repeated (item, system) keys, and keys that come back with different texts, in about 24 bytes per key.

Only hashes are stored. They are Python's own: keyed, valid within one process, and many times faster than cryptographic
ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import agree
from metrist.records import COLUMN_NAMES, OPTIONAL_FIELDS, Record, RecordColumns

Numbers = NDArray[np.uint64]
_LINE_BITS = 40


def read_distinct_records(rows: Sequence[Any]) -> RecordColumns | None:
    """The columns of rows that are all well-formed Records with distinct keys, which is seen from whole columns. None
    means that the rows must be looked at one by one: some row is bad or repeated, or (very rarely) two keys have the
    same hash."""
    if set(map(type, rows)) != {Record}:
        return None
    columns = RecordColumns.of(rows)
    required = (columns.items, columns.systems, columns.outputs)
    others = [getattr(columns, COLUMN_NAMES[name]) for name in OPTIONAL_FIELDS]
    if not (
        all(set(map(type, texts)) == {str} for texts in required)
        and all(set(map(type, texts)) <= {str, type(None)} for texts in others)
        and set(map(type, columns.references)) == {tuple}
        and set(map(type, chain.from_iterable(columns.references))) <= {str}
    ):
        return None
    keys = set(map(hash, zip(columns.items, columns.systems, strict=True)))
    return columns if len(keys) == len(rows) else None


@dataclass(slots=True, eq=False)
class FirstKeys:
    """64-bit keys, with two numbers about the first occurrence of each: sorted arrays that are merged as they grow."""

    _levels: list[Numbers] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(level.shape[1] for level in self._levels)

    def find(self, keys: Numbers) -> tuple[NDArray[np.bool_], Numbers]:
        """Whether each key is known, and the two numbers of those that are."""
        known = np.zeros(len(keys), np.bool_)
        found = np.zeros((2, len(keys)), np.uint64)
        for level in self._levels:
            at = np.minimum(np.searchsorted(level[0], keys), level.shape[1] - 1)
            hits = level[0, at] == keys
            known |= hits
            found[:, hits] = level[1:, at[hits]]
        return known, found

    def add(self, keys: Numbers, values: Numbers, places: Numbers) -> None:
        """Add distinct keys that are not known."""
        level = np.stack([keys, values, places])[:, np.argsort(keys)]
        while self._levels and self._levels[-1].shape[1] < 2 * level.shape[1]:
            both = np.concatenate([self._levels.pop(), level], axis=1)
            level = both[:, np.argsort(both[0], kind="stable")]  # merges two sorted halves in linear time
        self._levels.append(level)

    def settle(self, keys: Numbers, values: Numbers) -> Numbers:
        """Add the keys that are new; return, for each, the value at its first occurrence."""
        distinct, first, which = np.unique(keys, return_index=True, return_inverse=True)
        known, found = self.find(distinct)
        settled = np.where(known, found[0], values[first])
        if not known.all():
            self.add(distinct[~known], settled[~known], np.zeros((~known).sum(), np.uint64))
        return settled[which]

    @property
    def values(self) -> Numbers:
        return np.concatenate([np.empty(0, np.uint64), *(level[1] for level in self._levels)])


def hash_all(values: Iterable[Hashable], count: int) -> Numbers:
    """Python's hashes of so many values."""
    return np.fromiter(map(hash, values), np.int64, count).view(np.uint64)


@dataclass(slots=True, eq=False)
class RecordKeys:
    """The (item, system) of all records so far, with their places and hashes of their contents."""

    _firsts: FirstKeys = field(default_factory=FirstKeys)

    def admit(
        self, records: RecordColumns, rows: Sequence[int], places: Numbers
    ) -> tuple[Sequence[int], Sequence[int], Sequence[tuple[int, int]]]:
        """Add records, and return the numbers of those that are new, that repeat an earlier one exactly, and that
        contradict an earlier one, with its place. `rows` has the number of each one's row: where one of a row
        contradicts an earlier record, none of the row is added."""
        count = len(records)
        keys = hash_all(zip(records.items, records.systems, strict=True), count)
        contents = _hash_contents(records)
        known, (values, earlier) = self._firsts.find(keys)
        if not known.any() and len(np.unique(keys)) == count:
            if count:
                self._firsts.add(keys, contents, places)
            return range(count), (), ()
        firsts = {key: (value, place) for key, value, place in np.stack([keys, values, earlier])[:, known].T.tolist()}
        numbers = list(zip(keys.tolist(), contents.tolist(), places.tolist(), strict=True))
        new = list[int]()
        repeated = list[int]()
        conflicts = list[tuple[int, int]]()
        for _, group in groupby(range(count), rows.__getitem__):
            row = list(group)
            clashes = [n for n in row if numbers[n][0] in firsts and firsts[numbers[n][0]][0] != numbers[n][1]]
            if clashes:
                conflicts.append((clashes[0], firsts[numbers[clashes[0]][0]][1]))
                continue
            for n in row:
                key, content, place = numbers[n]
                (repeated if key in firsts else new).append(n)
                firsts.setdefault(key, (content, place))
        if new:
            self._firsts.add(keys[new], contents[new], places[new])
        return new, repeated, conflicts


def place_of(file: int, lines: Sequence[int]) -> Numbers:
    return np.array(lines, np.uint64) | np.uint64(file << _LINE_BITS)


def split_place(place: int) -> tuple[int, int]:
    return place >> _LINE_BITS, place & ((1 << _LINE_BITS) - 1)


#: Share of differing sources that are those of other items, from which on sources tell items apart and items were
#: named wrongly. Below, each system may have sources of its own, such as the passages that it retrieved.
OTHER_ITEMS = 0.1


def digest_source(source: str | None) -> str:
    """A short hash of a source, whatever its white space, by which some corpora differ; empty if there is none."""
    text = " ".join(source.split()) if source else ""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16] if text else ""


@dataclass(slots=True)
class SourceCheck:
    """Count records whose source differs from that of an earlier record of the same item."""

    _firsts: FirstKeys = field(default_factory=FirstKeys)
    #: The sources of the records that differ.
    _others: list[Numbers] = field(default_factory=list)

    def add(self, items: Sequence[str], sources: Sequence[str]) -> None:
        """Add records; those whose source is empty are ignored."""
        pairs = [pair for pair in zip(items, sources, strict=True) if pair[1]]
        known_items = hash_all((item for item, _ in pairs), len(pairs))
        self.add_hashes(known_items, hash_all((source for _, source in pairs), len(pairs)))

    def add_hashes(self, items: Numbers, sources: Numbers) -> None:
        """Add records by hashes that are the same wherever they were computed."""
        firsts = self._firsts.settle(items, sources)
        others = sources[firsts != sources]
        if others.size:
            self._others.append(others)

    def describe(self) -> list[str]:
        """A note for the user; none where all records of an item have one source."""
        if not self._others:
            return []
        others = np.concatenate(self._others)
        mixed = len(others)
        what = f"{agree(mixed, '1 record has', f'{mixed:,} records have')} a different source than an earlier record"
        if np.isin(others, self._firsts.values).sum() >= OTHER_ITEMS * mixed:
            where = agree(mixed, "that source belongs to another item", "those sources belong to other items")
            return [
                f"{what} of the same item, and {where}: the files do not number or name their items alike, so that "
                "outputs of different inputs would be compared. Score all of the files with `item_key='source'`, in a "
                "new folder, to pair outputs by their source"
            ]
        return [
            f"{what} of the same item: if the files use the same numbers for different inputs, tell them apart by "
            "`item_key`, such as language+item, or source where the same source is the same item"
        ]


@dataclass(slots=True)
class ItemCheck:
    """Whether there are several systems and no item has outputs of two of them. `is_needed` is set where the items were
    not named `item`."""

    is_needed: bool = False
    _systems: set[int] = field(default_factory=set)
    _firsts: FirstKeys = field(default_factory=FirstKeys)
    _shared: bool = False

    def add(self, records: RecordColumns) -> None:
        if not self._shared:
            self.add_hashes(*(hash_all(names, len(records)) for names in (records.items, records.systems)))

    def add_hashes(self, items: Numbers, systems: Numbers) -> None:
        """Add records by hashes that are the same wherever they were computed."""
        if len(self._systems) < 2:
            self._systems.update(np.unique(systems).tolist())
        self._shared |= bool((self._firsts.settle(items, systems) != systems).any())

    @property
    def disjoint(self) -> bool:
        return len(self._systems) > 1 and not self._shared


def _hash_contents(records: RecordColumns) -> Numbers:
    """A hash of each record without its key."""
    r = records
    extras: list[str | None] = [None] * len(r)
    for n, extra in enumerate(r.extras or ()):
        if extra:
            try:  # Their order does not count.
                extras[n] = json.dumps(dict(extra), sort_keys=True, default=repr)
            except (TypeError, ValueError, RecursionError):  # Keys of several types, or nested without end.
                extras[n] = ""
    columns = [getattr(r, COLUMN_NAMES[name]) for name in OPTIONAL_FIELDS]
    return hash_all(zip(r.outputs, r.references, *columns, extras, strict=True), len(r))
