"""`prefer`: records and comparators in, choices between their outputs out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from metrist.errors import MetristError, RunError
from metrist.io import read_records
from metrist.io.reader import check_keywords
from metrist.llm.estimates import Estimate, estimating
from metrist.metrics.base import Metric
from metrist.metrics.comparator import Comparator, Judgment, comparator
from metrist.records import Pair
from metrist.run.executors.scoring import named
from metrist.run.needs import served
from metrist.run.pairing import Key, Which, pair_up
from metrist.run.preference_files import PreferenceTarget, StoredJudgments, preference_target
from metrist.run.preferred import Preferred
from metrist.run.scoring import Progress
from metrist.run.summary import failed_on_all
from metrist.run.surroundings import surroundings
from metrist.scores import FailureKind
from metrist.spec import Spec

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
    with estimating() as found:
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
    built: Mapping[str, Comparator] = {one.text: one for one in map(comparator, several)}
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
