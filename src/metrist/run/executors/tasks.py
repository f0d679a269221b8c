"""What executors carry: a task goes out, what was done comes back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from metrist.metrics.base import Metric
from metrist.metrics.shard import Shard
from metrist.records import Record
from metrist.run.executors.scoring import score_one
from metrist.run.store.shards import Header, encode
from metrist.scores import Scores


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
