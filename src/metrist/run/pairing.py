"""Which outputs are set against each other: all of an item, those against a baseline, or those that the data pair."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from metrist.errors import RunError, did_you_mean
from metrist.io import Reader
from metrist.metrics.comparator import TURNED
from metrist.ratings import Choice, Preference
from metrist.records import Pair, Record

Which = Literal["given", "all"]
#: An item and two of its systems.
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Paired:
    """Pairs in the order of their items and systems in the data. `human` has, per aspect, what most people chose of
    each pair: a tie where they are undecided, None where nobody was asked."""

    pairs: tuple[Pair, ...]
    human: Mapping[str, tuple[Choice | None, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def pair_up(
    reader: Reader, which: Which | None = None, baseline: str | None = None, limit_per_item: int | None = None
) -> Paired:
    """The pairs that the data hold. `which` is 'given' for the rows of two outputs, 'all' for all systems of an item;
    by default those given, where there are any and no baseline is named."""
    read = _Read(reader)
    keys = read.given if _takes_given(which, baseline, read) else read.combined(baseline)
    limited = _limited(keys, limit_per_item)
    pairs = tuple(Pair(first=read.records[i, a], second=read.records[i, b]) for i, a, b in limited)
    if not pairs:
        raise RunError("there is nothing to compare: no item has outputs of two systems")
    human = {aspect: tuple(map(votes.choice, limited)) for aspect, votes in read.votes.items()}
    told = {aspect: choices for aspect, choices in human.items() if any(choices)}
    return Paired(pairs=pairs, human=told, notes=(*read.notes(), *_limit_note(len(keys), len(limited))))


class Votes:
    """What people chose by one aspect."""

    def __init__(self) -> None:
        self._of: dict[Key, Counter[Choice]] = {}

    def add(self, preference: Preference) -> None:
        key = (preference.item, preference.first, preference.second)
        self._of.setdefault(key, Counter())[preference.choice] += 1

    def choice(self, key: Key) -> Choice | None:
        """What most chose, whichever of the two they were shown first."""
        item, first, second = key
        turned = self._of.get((item, second, first), Counter[Choice]())
        votes = self._of.get(key, Counter[Choice]()) + Counter({TURNED[one]: n for one, n in turned.items()})
        ranked = votes.most_common(2)
        if not ranked:
            return None
        return "tie" if len(ranked) == 2 and ranked[0][1] == ranked[1][1] else ranked[0][0]


class _Read:
    """All rows of the input, in memory: the outputs of an item may stand far apart."""

    def __init__(self, reader: Reader) -> None:
        self.records: dict[tuple[str, str], Record] = {}
        self.votes: dict[str, Votes] = {}
        shown: list[Key] = []
        for entry in reader.entries():
            self.records.update({(record.item, record.system): record for record in entry.new})
            if len(entry.keys) == 2:
                (item, first), (_, second) = entry.keys
                shown.append((item, first, second))
            for preference in entry.preferences:
                self.votes.setdefault(preference.aspect, Votes()).add(preference)
        if not self.records:
            raise RunError(f"{', '.join(reader.names) or 'the input'}: none of the rows has an output")
        self.given = [key for key in _distinct(shown) if self._has_texts(key)]
        self._by_item: dict[str, list[str]] = {}
        order = {system: i for i, system in enumerate(dict.fromkeys(system for _, system in self.records))}
        for item, system in self.records:
            self._by_item.setdefault(item, []).append(system)
        for systems in self._by_item.values():
            systems.sort(key=order.__getitem__)
        self._systems = tuple(order)
        self._remarks = reader.remarks

    def combined(self, baseline: str | None) -> list[Key]:
        """All pairs of each item's systems, or those with the baseline, which then comes first."""
        if baseline is None:
            return [(item, *two) for item, systems in self._by_item.items() for two in combinations(systems, 2)]
        if baseline not in self._systems:
            known = ", ".join(self._systems[:10])
            raise RunError(f"no system named {baseline!r}{did_you_mean(baseline, self._systems)} (there are {known})")
        met = {item: systems for item, systems in self._by_item.items() if baseline in systems}
        return [(item, baseline, one) for item, systems in met.items() for one in systems if one != baseline]

    def notes(self) -> list[str]:
        """How many items have nothing to compare."""
        alone = sum(len(systems) < 2 for systems in self._by_item.values())
        lone = [f"{alone:,} of {len(self._by_item):,} items have an output of one system only, and no pair"]
        return [*self._remarks, *(lone if alone else ())]

    def _has_texts(self, key: Key) -> bool:
        item, first, second = key
        return (item, first) in self.records and (item, second) in self.records


def _takes_given(which: Which | None, baseline: str | None, read: _Read) -> bool:
    if which not in (None, "given", "all"):
        raise RunError(f"pairs must be 'given' or 'all', got {which!r}")
    if which == "given" and baseline is not None:
        raise RunError("the pairs given in the data have no baseline: ask for --pairs all, or leave --baseline out")
    if which == "given" and not read.given:
        raise RunError("the data give no pairs: rows with 'systems' and 'outputs' of two, or --pairs all")
    return which == "given" or (which is None and baseline is None and bool(read.given))


def _distinct(keys: Iterable[Key]) -> list[Key]:
    """Each pair once, turned as it was first shown."""
    met: dict[tuple[str, frozenset[str]], Key] = {}
    for key in keys:
        met.setdefault((key[0], frozenset(key[1:])), key)
    return list(met.values())


def _limited(keys: Sequence[Key], limit: int | None) -> list[Key]:
    """At most so many pairs of an item. A hash of their names picks them, so that no system is always among them, and
    the same ones are picked every time."""
    if limit is None:
        return list(keys)
    if limit < 1:
        raise RunError(f"limit_per_item must be at least 1, got {limit}")
    by_item: dict[str, list[Key]] = {}
    for key in sorted(keys, key=_lot):
        by_item.setdefault(key[0], []).append(key)
    kept = {key for of_item in by_item.values() for key in of_item[:limit]}
    return [key for key in keys if key in kept]


def _lot(key: Key) -> bytes:
    return hashlib.sha256("\0".join(key).encode("utf-8", "surrogatepass")).digest()


def _limit_note(there: int, taken: int) -> list[str]:
    return [f"{taken:,} of {there:,} pairs were compared, as --limit-per-item asks"] if taken < there else []
