"""Scoring one shard: needs are checked first, and what a metric returns is checked after."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

from metrist.errors import MetristError, RunError
from metrist.metrics.base import Metric
from metrist.metrics.shard import Shard
from metrist.records import Need, Record
from metrist.run.shard_file import Header, encode
from metrist.scores import Failure, FailureKind, Scores


def score_one(metric: Metric, shard: Shard) -> Scores:
    """One metric's scores; records that lack what it needs are failed scores that say so."""
    able = shard.once(("able", metric.needs), lambda: _able(metric, shard))
    if len(able) == len(shard):
        return _scored(metric, shard)
    missing = FailureKind.missing_input
    failures = {i: Failure(missing, f"{lack(metric, shard.records[i])}") for i in set(range(len(shard))) - set(able)}
    if not able:
        return Scores.of([]).spread(len(shard), able, failures)
    # Metrics with the same needs share the smaller shard, and with it the tokenised texts.
    smaller = shard.once(("shard", metric.needs), lambda: _part(shard, able))
    return _scored(metric, smaller).spread(len(shard), able, failures)


def _part(shard: Shard, positions: list[int]) -> Shard:
    return Shard([shard.records[i] for i in positions], tokens=shard.tokens, runtime=shard.runtime)


def lack(metric: Metric, record: Record) -> str | None:
    """What the metric misses in the record, in words."""
    for need in metric.needs:
        if record.lacks(need):
            return f"{metric.text} needs {need}, but {named(record)} has none"
    return None


def _able(metric: Metric, shard: Shard) -> list[int]:
    records = shard.records
    if all(_serves(records, need) for need in metric.needs):
        return list(range(len(records)))
    return [i for i, record in enumerate(records) if not any(map(record.lacks, metric.needs))]


def _serves(records: Sequence[Record], need: Need) -> bool:
    """Whether every record has the field."""
    values = map(attrgetter(need), records)
    return all(values) if need == "references" else None not in values


def named(record: Record) -> str:
    """A record as messages call it."""
    return f"item {record.item!r} of system {record.system!r}"


def _scored(metric: Metric, shard: Shard) -> Scores:
    try:
        scores: Any = metric.score(shard)
    except MetristError:
        raise
    except Exception as fault:
        first = named(shard.records[0])
        raise RunError(
            f"{metric.text} failed on {len(shard):,} records (the first is {first}): {type(fault).__name__}: {fault}"
        ) from fault
    if not isinstance(scores, Scores):
        raise RunError(f"{metric.text} must return Scores (see Scores.of), got {type(scores).__name__}")
    if len(scores) != len(shard):
        raise RunError(
            f"{metric.text} returned {len(scores):,} scores for {len(shard):,} records (the first is "
            f"{named(shard.records[0])}): wanted one score per record, in order"
        )
    doubles = _as_doubles(scores)
    _check_finite(metric, shard, doubles)
    return doubles


def _check_finite(metric: Metric, shard: Shard, scores: Scores) -> None:
    """Refuse what could not be pooled: an infinite value, or statistics of a scored record that are no numbers."""
    odd = np.isinf(scores.values) | (~np.isnan(scores.values) & ~np.isfinite(scores.stats).all(axis=1))
    if odd.any():
        first = int(np.argmax(odd))
        raise RunError(
            f"{metric.text} gave {named(shard.records[first])} the value {scores.values[first]} with the statistics "
            f"{scores.stats[first].tolist()}: wanted finite numbers, or a failure that says why there is none"
        )


def _as_doubles(scores: Scores) -> Scores:
    """Numbers in the one type that is written and read back, whatever a metric counted in."""
    columns = (scores.values, scores.stats, *scores.parts.values())
    if all(column.dtype == np.float64 for column in columns):
        return scores
    return replace(
        scores,
        values=scores.values.astype(np.float64),
        parts={name: column.astype(np.float64) for name, column in scores.parts.items()},
        stats=scores.stats.astype(np.float64),
    )


# What executors carry: a task goes out, what was done comes back.


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Records to be scored, with the position of the first in the input. `wanted` names the metrics by their text, each
    with the first line of its shard file, or None where no file is asked for. `tokens` asks for what metrics found at
    single tokens."""

    start: int
    records: tuple[Record, ...]
    wanted: Mapping[str, Header | None]
    tokens: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """One metric's scores of a task, the bytes of their shard file if asked for, and the seconds that it took."""

    scores: Scores
    file: bytes | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Done:
    """A finished task: outcomes by the metric's text."""

    start: int
    outcomes: Mapping[str, Outcome]


class Executor(Protocol):
    """Performs tasks and gives back what was done in the order of the tasks, holding only few of them at a time."""

    def map(self, metrics: Sequence[Metric], tasks: Iterable[Task]) -> Iterator[Done]: ...


def perform(metrics: Mapping[str, Metric], task: Task) -> Done:
    """Score a task's records, here and now."""
    shard = Shard(task.records, tokens=task.tokens)
    outcomes = {text: _outcome(metrics[text], shard, header) for text, header in task.wanted.items()}
    return Done(start=task.start, outcomes=outcomes)


def _outcome(metric: Metric, shard: Shard, header: Header | None) -> Outcome:
    began = time.perf_counter()
    scores = score_one(metric, shard)
    file = encode(header, shard.records, scores) if header else None
    return Outcome(scores=scores, file=file, seconds=time.perf_counter() - began)


# One shard after another, in this process.


@dataclass(frozen=True, slots=True)
class Serial:
    """Scores in this process; what a debugger wants."""

    def map(self, metrics: Sequence[Metric], tasks: Iterable[Task]) -> Iterator[Done]:
        """What was done, task by task."""
        by_text = {metric.text: metric for metric in metrics}
        for task in tasks:
            yield perform(by_text, task)
