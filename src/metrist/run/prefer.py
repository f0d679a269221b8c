"""Which outputs are set against each other: all of an item, those against a baseline, or those that the data pair."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from metrist.errors import MetristError, RunError, did_you_mean
from metrist.io import Reader, read_records
from metrist.io.reader import check_keywords
from metrist.llm.budget import Estimate, estimate_calls
from metrist.metrics.base import Metric
from metrist.metrics.comparator import REVERSED, Comparator, Judgment, build_comparator
from metrist.ratings import Choice, Preference
from metrist.records import Pair, Record
from metrist.run.pipeline import Progress, served
from metrist.run.preference_results import Key, PreferenceTarget, Preferred, StoredJudgments, preference_target
from metrist.run.results import failed_on_all
from metrist.run.surroundings import surroundings
from metrist.run.tasks import named
from metrist.scores import FailureKind
from metrist.spec import Spec

Which = Literal["given", "all"]


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
        votes = self._of.get(key, Counter[Choice]()) + Counter({REVERSED[one]: n for one, n in turned.items()})
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


# `prefer`: records and comparators in, choices between their outputs out.


#: Pairs that a comparator gets at once, or a few more: the pairs of an item stay together, since they share outputs.
CHUNK = 1024


def prefer(
    records: Any,
    comparators: str | Spec | Metric | Iterable[str | Spec | Metric],
    *,
    pairs: Which | None = None,
    baseline: str | None = None,
    limit_per_item: int | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    device: str | None = None,
    batch_tokens: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    max_cost: float | None = None,
    concurrency: int | None = None,
    rpm: int | None = None,
    tpm: int | None = None,
    **reading: Any,
) -> Preferred:
    """Choose between two outputs of an item with comparators: `judge_pair(llm=…)`, or any metric, whose better score
    wins.

    `records`, `reading` and what changes no answer (`device` to `tpm`) are as for `score`. `pairs` is 'given' (the rows
    of two outputs) or 'all' (each two systems of an item); by default those given, where there are any. `baseline` sets
    every other system against this one. `out` is a .jsonl file, which appears whole or not at all, or a folder, where
    what is there already is not asked again.
    """
    check_keywords(prefer, reading)
    limits = {"concurrency": concurrency, "rpm": rpm, "tpm": tpm}
    with surroundings(device=device, batch_tokens=batch_tokens, cache=cache, max_cost=max_cost, **limits):
        asked = _asked(comparators)
        reader = read_records(records, **reading)
        target = preference_target(out, reader.names)
        paired = pair_up(reader, pairs, baseline, limit_per_item)
        signatures = {one.text: one.signature for one in asked}
        bar = _Bar(progress, len(paired.pairs) * len(asked))
        found = {one.text: _judgments(one, signatures[one.text], paired.pairs, target, bar) for one in asked}
        preferred = Preferred(
            keys=[_key(pair) for pair in paired.pairs],
            comparators=asked,
            judgments=found,
            signatures=signatures,
            human=paired.human,
            notes=paired.notes,
        )
        if target.file:
            preferred.write(target.file)
        for one in asked:
            _check_failures(one, found[one.text], target.file or target.folder)
        return preferred


def estimate_preferences(
    records: Any,
    comparators: Iterable[str | Spec | Metric],
    *,
    pairs: Which | None = None,
    baseline: str | None = None,
    limit_per_item: int | None = None,
    **reading: Any,
) -> Estimate:
    """The questions that `prefer` with the same arguments would ask. Nothing is sent and nothing written; comparators
    without an LLM are left out."""
    asking = [one for one in _asked(comparators) if one.extra == "llm"]
    paired = pair_up(read_records(records, **reading), pairs, baseline, limit_per_item)
    with estimate_calls() as found:
        for one in asking:
            for chunk in _chunks(paired.pairs):
                _preferred(one, chunk)
    return found


class _Bar:
    """Counts the pairs that are done."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def advance(self, count: int) -> None:
        self._done += count
        if self._progress:
            self._progress(self._done, self._total)


def _asked(comparators: str | Spec | Metric | Iterable[str | Spec | Metric]) -> tuple[Comparator, ...]:
    several = (comparators,) if isinstance(comparators, str | Spec | Metric) else comparators
    built: Mapping[str, Comparator] = {one.text: one for one in map(build_comparator, several)}
    if not built:
        raise RunError("no comparator was asked for: name at least one, such as 'judge_pair(llm=…)' or 'chrf'")
    return tuple(built.values())


def _judgments(
    one: Comparator, signature: str, pairs: Sequence[Pair], target: PreferenceTarget, bar: _Bar
) -> list[Judgment]:
    stored = StoredJudgments(target.folder, one, signature, pairs) if target.folder else None
    if stored and (before := stored.read()) is not None:
        bar.advance(len(before))
        return before
    # A comparator that the input cannot serve is refused before anything is asked.
    served([one], (record for pair in pairs for record in (pair.first, pair.second)))
    found: list[Judgment] = []
    for chunk in _chunks(pairs):
        found += _preferred(one, chunk)
        bar.advance(len(chunk))
    if stored:
        stored.write([_key(pair) for pair in pairs], found)
    return found


def _preferred(one: Comparator, pairs: Sequence[Pair]) -> list[Judgment]:
    able = [i for i, pair in enumerate(pairs) if not _lacks(one, pair)]
    try:
        found: Any = one.prefer([pairs[i] for i in able])
    except MetristError:
        raise
    except Exception as fault:
        first = named(pairs[0].first)
        raise RunError(
            f"{one.text} failed on {len(pairs):,} pairs (the first has {first}): {type(fault).__name__}: {fault}"
        ) from fault
    if not isinstance(found, list) or len(found) != len(able):
        raise RunError(f"{one.text} must return a list of {len(able):,} judgments, one per pair in order")
    judged = dict(zip(able, found, strict=True))
    return [
        judged.get(i) or Judgment.failed(_lacks(one, pair) or "", FailureKind.missing_input)
        for i, pair in enumerate(pairs)
    ]


def _lacks(one: Comparator, pair: Pair) -> str | None:
    """What the comparator misses, in words; the two outputs of an item mostly have or lack it together."""
    for need in one.needs:
        for record in (pair.first, pair.second):
            if record.lacks(need):
                return f"{one.text} needs {need}, but {named(record)} has none"
    return None


def _chunks(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    held: list[Pair] = []
    for pair in pairs:
        if len(held) >= CHUNK and pair.first.item != held[-1].first.item:
            yield held
            held = []
        held.append(pair)
    yield held


def _check_failures(one: Comparator, found: Sequence[Judgment], written: Path | None) -> None:
    """A comparator that never chose is a fault of the run. What there is has been written: it shows the reasons."""
    reasons = [judgment.failure for judgment in found if judgment.failure is not None]
    if 1 < len(found) == len(reasons):
        said = failed_on_all(one.text, "pairs", reasons, (raw for judgment in found for raw in judgment.raws))
        raise RunError(f"{said}{f' (all of it is in {written})' if written else ''}")


def _key(pair: Pair) -> Key:
    return pair.first.item, pair.first.system, pair.second.system
