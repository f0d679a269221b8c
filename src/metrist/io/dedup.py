"""Detect repeated (item, system) keys, and keys that come back with different texts, in about 20 bytes per key.

Only digests of texts are stored. They are Python's string hashes: keyed, valid within one process, and many times
faster than cryptographic ones. A key's digest has 128 bits and a text's has 32, so one in four billion changed texts
under a known key goes unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from struct import Struct
from typing import IO, Any
from weakref import finalize

from metrist.errors import InputError, agree
from metrist.records import Record

_FIELDS = ("output", "source", "references", "instruction")
_DIGESTS = len(_FIELDS) + 1
_MASK = 0xFFFF_FFFF
_LINE_BITS = 40
_SMALLEST = 1 << 10
_FREE = -1


@dataclass(slots=True, eq=False)
class DigestIndex:
    """Number distinct 128-bit digests 0, 1, 2 … in order of arrival: a hash table in flat arrays, which takes a third
    of the memory of a dict."""

    _slots: array[int] = field(default_factory=lambda: array("i", [_FREE]) * _SMALLEST)
    _mask: int = _SMALLEST - 1
    _low: array[int] = field(default_factory=lambda: array("q"))
    _high: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self._low)

    def number(self, low: int, high: int) -> int:
        """Return the digest's number; it is new if that equals the length before the call."""
        slots, mask, lows = self._slots, self._mask, self._low
        slot = low & mask
        while (entry := slots[slot]) != _FREE:
            if lows[entry] == low and self._high[entry] == high:
                return entry
            slot = (slot + 1) & mask
        number = len(lows)
        slots[slot] = number
        lows.append(low)
        self._high.append(high)
        # Above two thirds full, searches take too many steps.
        if 3 * number > 2 * mask:
            self._grow()
        return number

    def __contains__(self, digest: tuple[int, int]) -> bool:
        slot = digest[0] & self._mask
        while (entry := self._slots[slot]) != _FREE:
            if (self._low[entry], self._high[entry]) == digest:
                return True
            slot = (slot + 1) & self._mask
        return False

    def _grow(self) -> None:
        self._mask, self._slots = _rehash(self._low, 2 * len(self._slots))


def _rehash(digests: array[int], size: int) -> tuple[int, array[int]]:
    """Place digests in so many slots; in each round, entries whose slot is occupied move one slot on."""
    import numpy as np

    mask = size - 1
    table = array("i", [_FREE]) * size
    slots = np.frombuffer(table, dtype=np.int32)
    waiting = np.arange(len(digests), dtype=np.int32)
    target = np.frombuffer(digests, dtype=np.int64) & mask
    while len(waiting):
        free = slots[target] == _FREE
        slots[target[free]] = waiting[free]
        blocked = slots[target] != waiting
        waiting, target = waiting[blocked], (target[blocked] + 1) & mask
    return mask, table


@dataclass(slots=True, eq=False)
class HalfIndex:
    """Number 64-bit digests 0, 1, 2 … in order of arrival. Two of them may be equal: whoever asks compares the rest."""

    _slots: array[int] = field(default_factory=lambda: array("i", [_FREE]) * _SMALLEST)
    _mask: int = _SMALLEST - 1
    _digests: array[int] = field(default_factory=lambda: array("q"))

    def find(self, digest: int) -> list[int]:
        """Return the numbers of equal digests."""
        slots, mask, digests = self._slots, self._mask, self._digests
        slot, found = digest & mask, list[int]()
        while (entry := slots[slot]) != _FREE:
            if digests[entry] == digest:
                found.append(entry)
            slot = (slot + 1) & mask
        return found

    def add(self, digest: int) -> None:
        """Give the digest the next number."""
        slots, mask = self._slots, self._mask
        slot, number = digest & mask, len(self._digests)
        while slots[slot] != _FREE:
            slot = (slot + 1) & mask
        slots[slot] = number
        self._digests.append(digest)
        # Above two thirds full, searches take too many steps.
        if 3 * number > 2 * mask:
            self._mask, self._slots = _rehash(self._digests, 2 * len(slots))


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
    """A key occurs again with different content in `field`, which is "" for columns that are not texts."""

    def __init__(self, record: Record, field: str, file: int, line: int) -> None:
        super().__init__(record, field, file, line)
        self.record, self.field, self.file, self.line = record, field, file, line


#: Of each key: the second half of its digest, its location, and the digests of its texts.
_ROW = Struct(f"<qQ{_DIGESTS}I")
#: Rows that are kept in memory before they go to disk.
_BUFFERED = 1 << 16


@dataclass(slots=True, weakref_slot=True, eq=False)
class RecordKeys:
    """The (item, system) of all records so far, with their locations and the digests of their texts.

    In memory each takes about 20 bytes, for half of the digest of its key. The rest is in a file without a name, which
    is read where a key comes again.
    """

    _numbers: HalfIndex = field(default_factory=HalfIndex)
    _buffer: bytearray = field(default_factory=bytearray)
    _file: IO[bytes] | None = None
    _stored: int = 0

    def admit(self, records: tuple[Record, ...], file: int, line: int) -> tuple[Record, ...]:
        """Return the records that are new. A known key with the same texts is not new; with different texts it raises
        `Conflict`, and none of the row's records is added."""
        keys = [(hash((r.item, r.system)), hash(f"{r.system}\0{r.item}")) for r in records]
        if len(records) > 1:
            # A conflict of any record must be found before one of them is added.
            for record, key in zip(records, keys, strict=True):
                if (known := self._find(key)) is not None:
                    _compare(record, known)
        new = []
        for record, key in zip(records, keys, strict=True):
            if (known := self._find(key)) is not None:
                _compare(record, known)
                continue
            self._numbers.add(key[0])
            self._buffer += _ROW.pack(key[1], file << _LINE_BITS | line, *_digests(record))
            if len(self._buffer) >= _BUFFERED * _ROW.size:
                self._flush()
            new.append(record)
        return tuple(new)

    def _find(self, key: tuple[int, int]) -> tuple[int, ...] | None:
        """Return the row of a known key."""
        for number in self._numbers.find(key[0]):
            row = self._read(number)
            if row[0] == key[1]:
                return row
        return None

    def _read(self, number: int) -> tuple[int, ...]:
        if number >= self._stored:
            return _ROW.unpack_from(self._buffer, (number - self._stored) * _ROW.size)
        assert self._file is not None
        self._file.seek(number * _ROW.size)
        return _ROW.unpack(self._file.read(_ROW.size))

    def _flush(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115
                finalize(self, self._file.close)
            self._file.seek(0, os.SEEK_END)
            self._file.write(self._buffer)
            self._file.flush()
        except OSError as error:
            if self._file is not None:
                with suppress(OSError):  # It would try once more to write.
                    self._file.close()
            # Without a name, there is no folder that can be written to, and the error says where Python looked.
            folder = f"{tempfile.tempdir}, the folder for temporary files: " if tempfile.tempdir else ""
            raise InputError(
                f"cannot notice repeated items on disk: {folder}{error.strerror or error}; free space, or set TMPDIR "
                "to another folder"
            ) from error
        self._stored += len(self._buffer) // _ROW.size
        self._buffer.clear()


def _compare(record: Record, row: tuple[int, ...]) -> None:
    _, place, *before = row
    differs = [new != old for new, old in zip(_digests(record), before, strict=True)]
    if any(differs):
        first = differs.index(True)
        field = _FIELDS[first] if first < len(_FIELDS) else ""
        raise Conflict(record, field, place >> _LINE_BITS, place & ((1 << _LINE_BITS) - 1))


#: Share of differing sources that are those of other items, from which on sources tell items apart and items were
#: named wrongly. Below, each system may have sources of its own, such as the passages that it retrieved.
OTHER_ITEMS = 0.1


def digest_source(source: str | None) -> str:
    """A short hash of a source, whatever its white space, by which some corpora differ; empty if there is none."""
    text = " ".join(source.split()) if source else ""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16] if text else ""


@dataclass(slots=True)
class SourceCheck:
    """Count records whose source, by its digest, differs from that of an earlier record of the same item."""

    _items: DigestIndex = field(default_factory=DigestIndex)
    _sources: array[int] = field(default_factory=lambda: array("q"))
    #: The sources of the records that differ.
    _others: array[int] = field(default_factory=lambda: array("q"))

    def add(self, item: str, source: str) -> None:
        """Add a record; those without a source are ignored."""
        if not source:
            return
        digest = hash(source)
        number = self._items.number(hash(item), hash(f"\0{item}"))
        if number == len(self._sources):
            self._sources.append(digest)
        elif self._sources[number] != digest:
            self._others.append(digest)

    def describe(self) -> list[str]:
        """A note for the user; none where all records of an item have one source."""
        if not (mixed := len(self._others)):
            return []
        known = set(self._sources)
        what = f"{agree(mixed, '1 record has', f'{mixed:,} records have')} a different source than an earlier record"
        if sum(source in known for source in self._others) >= OTHER_ITEMS * mixed:
            where = agree(mixed, "that source belongs to another item", "those sources belong to other items")
            return [
                f"{what} of the same item, and {where}: the files do not number or name their items alike, so that "
                "outputs of different inputs would be compared. Score all of the files with --item-key source (in "
                "Python item_key='source'), in a new folder, to pair outputs by their source"
            ]
        return [
            f"{what} of the same item: if the files use the same numbers for different inputs, use --item-key (such as "
            "language+item, or source where the same source is the same item; in Python item_key='language+item') to "
            "tell them apart"
        ]


@dataclass(slots=True)
class ItemCheck:
    """Whether there are several systems and no item has outputs of two of them. `is_needed` is set where the items were
    not named `item`."""

    is_needed: bool = False
    _systems: set[str] = field(default_factory=set)
    _items: DigestIndex = field(default_factory=DigestIndex)
    _first_systems: array[int] = field(default_factory=lambda: array("q"))
    _shared: bool = False

    def add(self, record: Record) -> None:
        if self._shared:
            return
        if len(self._systems) < 2:
            self._systems.add(record.system)
        system = hash(record.system)
        number = self._items.number(hash(record.item), hash(f"\0{record.item}"))
        if number == len(self._first_systems):
            self._first_systems.append(system)
        elif self._first_systems[number] != system:
            self._shared = True

    @property
    def disjoint(self) -> bool:
        return len(self._systems) > 1 and not self._shared


def _digests(record: Record) -> tuple[int, ...]:
    extra = _canonical_extra(record) if record.extra else ""
    return (
        hash(record.output) & _MASK,
        hash(record.source) & _MASK,
        hash(record.references) & _MASK,
        hash(record.instruction) & _MASK,
        hash((record.task, record.language, extra)) & _MASK,
    )


def _canonical_extra(record: Record) -> str:
    """Return the extra columns as text that does not depend on their order."""
    try:
        return json.dumps(dict(record.extra), sort_keys=True, default=repr)
    except (TypeError, ValueError):  # keys of several types, or a structure that contains itself
        return repr(record.extra)
    except RecursionError:  # nested too deeply
        return ""
