"""Which (item, system) were seen, and whether they come back with other texts, in about 60 bytes each.

Texts are remembered by digest only. Digests are Python's own string hashes: keyed, good within one process, which is
as long as they are kept, and many times faster than a cryptographic one. A key's digest has 128 bits; a text's has 32,
so that of four billion changed texts under an old key one passes unseen.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

from metrist.records import Record

_FIELDS = ("output", "source", "references", "instruction")
_DIGESTS = len(_FIELDS) + 1
_MASK = 0xFFFF_FFFF
_LINE_BITS = 40
_SMALLEST = 1 << 10
_FREE = -1


class Numbering:
    """Numbers distinct 128-bit digests 0, 1, 2 … in the order they come: a hash table in flat arrays, because a
    dict takes three times the memory."""

    def __init__(self) -> None:
        self._slots = array("i", [_FREE]) * _SMALLEST
        self._mask = _SMALLEST - 1
        self._low = array("q")
        self._high = array("q")

    def __len__(self) -> int:
        return len(self._low)

    def number(self, low: int, high: int) -> int:
        """The digest's number; that it is new shows by its being the length before the call."""
        slots, mask, lows = self._slots, self._mask, self._low
        slot = low & mask
        while (found := slots[slot]) != _FREE:
            if lows[found] == low and self._high[found] == high:
                return found
            slot = (slot + 1) & mask
        number = len(lows)
        slots[slot] = number
        lows.append(low)
        self._high.append(high)
        # Beyond two thirds full, a search meets too many strangers.
        if 3 * number > 2 * mask:
            self._grow()
        return number

    def __contains__(self, digest: tuple[int, int]) -> bool:
        slot = digest[0] & self._mask
        while (found := self._slots[slot]) != _FREE:
            if (self._low[found], self._high[found]) == digest:
                return True
            slot = (slot + 1) & self._mask
        return False

    def _grow(self) -> None:
        """Lay all numbers out anew in twice the slots: round by round, those whose slot is taken go one further."""
        import numpy as np

        size = 2 * len(self._slots)
        self._mask = size - 1
        self._slots = array("i", [_FREE]) * size
        slots = np.frombuffer(self._slots, dtype=np.int32)
        waiting = np.arange(len(self._low), dtype=np.int32)
        wanted = np.frombuffer(self._low, dtype=np.int64) & self._mask
        while len(waiting):
            free = slots[wanted] == _FREE
            slots[wanted[free]] = waiting[free]
            left = slots[wanted] != waiting
            waiting, wanted = waiting[left], (wanted[left] + 1) & self._mask


def are_distinct_records(rows: Sequence[Any]) -> bool:
    """Whether all rows are well-formed Records with distinct keys, so that they need not be checked one by one.

    This looks at whole columns and is many times faster than `Keys`. False means that the rows must be checked one by
    one: some row is bad or repeated, or (very rarely) two keys have the same hash.
    """
    if {type(row) for row in rows} != {Record}:
        return False
    optional = {str, type(None)}
    if not (
        {type(row.item) for row in rows} == {type(row.system) for row in rows} == {str}
        and {type(row.output) for row in rows} == {str}
        and {type(row.source) for row in rows} <= optional
        and {type(row.instruction) for row in rows} <= optional
        and {type(row.task) for row in rows} <= optional
        and {type(row.language) for row in rows} <= optional
        and {type(row.references) for row in rows} == {tuple}
        and set(map(type, chain.from_iterable([row.references for row in rows]))) <= {str}
    ):
        return False
    return len({hash((row.item, row.system)) for row in rows}) == len(rows)


class Conflict(Exception):
    """A key came back with another text: in which field ("" for columns that are no texts), and where it was first."""

    def __init__(self, record: Record, field: str, file: int, line: int) -> None:
        super().__init__(record, field, file, line)
        self.record, self.field, self.file, self.line = record, field, file, line


class Keys:
    """The (item, system) of all records so far, each with its place and the digests of its texts."""

    def __init__(self) -> None:
        self._numbers = Numbering()
        self._digests = array("I")
        self._places = array("Q")

    def __len__(self) -> int:
        return len(self._numbers)

    def admit(self, records: tuple[Record, ...], file: int, line: int) -> tuple[Record, ...]:
        """The records that are new. One that was there with the same texts is not; with others it is a `Conflict`,
        and then none of the row's records is taken in."""
        place = file << _LINE_BITS | line
        if len(records) == 1:
            return records if self._admit(records[0], place) else ()
        for record in records:
            key = _key(record)
            if key in self._numbers:
                self._compare(record, self._numbers.number(*key))
        return tuple(record for record in records if self._admit(record, place))

    def _admit(self, record: Record, place: int) -> bool:
        low, high = _key(record)
        number = self._numbers.number(low, high)
        if number < len(self._places):
            self._compare(record, number)
            return False
        self._digests.extend(_digests(record))
        self._places.append(place)
        return True

    def _compare(self, record: Record, number: int) -> None:
        before = self._digests[number * _DIGESTS : (number + 1) * _DIGESTS]
        differs = [new != old for new, old in zip(_digests(record), before, strict=True)]
        if any(differs):
            first = differs.index(True)
            place = self._places[number]
            field = _FIELDS[first] if first < len(_FIELDS) else ""
            raise Conflict(record, field, place >> _LINE_BITS, place & ((1 << _LINE_BITS) - 1))


class Inputs:
    """Whether an item means the same input wherever it stands: counts the records of items whose source is another one
    in another file. Some corpora do differ by a space, so this is for telling, not for refusing."""

    def __init__(self) -> None:
        self.mixed = 0
        self._items = Numbering()
        self._sources = array("q")

    def see(self, record: Record) -> None:
        """Take a record in; those without a source say nothing."""
        if record.source is None:
            return
        source = hash(record.source)
        number = self._items.number(hash(record.item), hash(f"\0{record.item}"))
        if number == len(self._sources):
            self._sources.append(source)
        elif self._sources[number] != source:
            self.mixed += 1


def _key(record: Record) -> tuple[int, int]:
    return hash((record.item, record.system)), hash(f"{record.system}\0{record.item}")


def _digests(record: Record) -> tuple[int, ...]:
    extra = _steady(record) if record.extra else ""
    return (
        hash(record.output) & _MASK,
        hash(record.source) & _MASK,
        hash(record.references) & _MASK,
        hash(record.instruction) & _MASK,
        hash((record.task, record.language, extra)) & _MASK,
    )


def _steady(record: Record) -> str:
    """The extra columns as text that does not depend on their order."""
    try:
        return json.dumps(dict(record.extra), sort_keys=True, default=repr)
    except (TypeError, ValueError):  # names of several types, a structure that holds itself
        return repr(record.extra)
    except RecursionError:  # nested so deeply that nothing can look at it
        return ""
