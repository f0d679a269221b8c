"""Tasks: the units of work that executors carry, how one is performed, and how an input is cut into them.

A task holds consecutive records for metrics, or pairs for comparators, and names the metrics that are to see them. A
metric's answer is checked before it is used.
"""

from __future__ import annotations

import dataclasses
import pickle
import time
import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MetristError, NeedsError, RunError, SpecError, describe_exception, format_count, label_item
from metrist.io import Reader
from metrist.io.batches import BATCH_RECORDS
from metrist.io.fields import guess_column, name_field
from metrist.metrics.base import Metric, PairShard, Shard
from metrist.metrics.comparator import Comparator, Judgment
from metrist.records import Pair, Record, RecordColumns, Unit
from metrist.runtime import Runtime, loading_watchers
from metrist.scores import Failure, FailureKind, Scores

_T = TypeVar("_T")
#: What a metric or a comparator returns for a shard.
Block = Scores | list[Judgment]
SHARD_SIZE = 1024
#: Records that a metric with a model, or one that asks an LLM, gets at once: what a progress bar waits for.
SHARD_SIZE_WITH_MODEL = 256
#: A shard is closed early when its texts exceed this many characters, so that long texts do not fill the memory.
MAX_TEXT = 8 << 20
#: Records that are searched for one that a metric can score; fewer where their texts exceed `MAX_TEXT` characters. Both
#: are independent of the shard size, so that the same input is refused or scored whatever that is.
LOOK_AHEAD = 10_000
#: Seconds that a task of a run with a folder should take: what it computed is stored when it ends.
TASK_SECONDS = 2.5
#: Seconds that a task may take where an item would have to be divided otherwise.
MAX_TASK_SECONDS = 5.0
#: Characters of the first task, whose pace is not known: a few seconds for a model on a CPU.
_FIRST_TEXT = 5_000
#: How many times larger than the last task the next may be: the first ones say little about the rate.
_GROWTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Records or pairs to be scored, with the position of the first one in the input.

    `metrics` are the texts of the metrics that score them. `tokens` asks metrics for scores of single tokens.
    `runtime` is what they compute with; None: the environment's.
    """

    start: int
    units: Sequence[Unit]
    metrics: tuple[str, ...]
    tokens: bool = False
    runtime: Runtime | None = None

    def __str__(self) -> str:
        """The records as messages name them."""
        first, last = self.start + 1, self.start + len(self.units)
        return f"records {first:,} to {last:,} ({describe_record(self.units[0])} to {describe_record(self.units[-1])})"

    def run(self, metrics: Mapping[str, Metric]) -> TaskResult:
        """Perform the task as a job of a cluster, whose workers hold the metrics."""
        return perform(metrics, self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What one metric returned for a task, and the seconds it took, of which `loading` went into a model."""

    block: Block
    seconds: float
    loading: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskResult:
    """A finished task: its outcomes by the metric's text."""

    start: int
    outcomes: Mapping[str, Outcome]


class Executor(Protocol):
    """Performs tasks and yields their results in order, holding only a few tasks at a time."""

    def map(self, metrics: Sequence[Metric], tasks: Iterable[Task]) -> Iterator[TaskResult]: ...


@dataclass(frozen=True, slots=True)
class Serial:
    """Performs tasks one after another in this process; debuggers work here."""

    def map(self, metrics: Sequence[Metric], tasks: Iterable[Task]) -> Iterator[TaskResult]:
        """The results, task by task."""
        by_text = {metric.text: metric for metric in metrics}
        for task in tasks:
            yield perform(by_text, task)


def perform(metrics: Mapping[str, Metric], task: Task) -> TaskResult:
    judges_pairs = bool(task.units) and isinstance(task.units[0], Pair)
    shard: Any = (
        PairShard(task.units, runtime=task.runtime)  # type: ignore[arg-type]
        if judges_pairs
        else Shard(task.units, tokens=task.tokens, runtime=task.runtime)  # type: ignore[arg-type]
    )
    outcomes = {}
    for text in task.metrics:
        began = time.perf_counter()
        metric: Any = metrics[text]
        with shard.runtime.activate(), _time_loading() as loading:
            block: Block = judge_shard(metric, shard) if judges_pairs else score_shard(metric, shard)
        seconds = time.perf_counter() - began
        outcomes[text] = Outcome(block=block, seconds=seconds, loading=min(sum(loading), seconds))
    return TaskResult(start=task.start, outcomes=outcomes)


@contextmanager
def _time_loading() -> Iterator[list[float]]:
    """Collect the seconds of the model loads inside the block."""
    seconds, began = list[float](), 0.0

    def watch(model: str | None) -> None:
        nonlocal began
        now = time.perf_counter()
        if model is None:
            seconds.append(now - began)
        else:
            began = now

    loading_watchers.append(watch)
    try:
        yield seconds
    finally:
        loading_watchers.remove(watch)


def score_shard(metric: Metric, shard: Shard) -> Scores:
    """One metric's scores. Records that lack a field it needs get a failure instead."""
    able = shard.once(("able", metric.needs), lambda: find_scorable(metric, shard.records))
    if len(able) == len(shard):
        return _checked_scores(metric, shard)
    failures = _missing_inputs(metric, shard.records, able)
    if not able:
        return Scores.of([]).spread(len(shard), able, failures)

    def part() -> Shard:
        records = shard.records
        chosen = records.take(able) if isinstance(records, RecordColumns) else [records[i] for i in able]
        return shard.part(chosen)

    # Metrics with the same needs share the smaller shard, and with it the tokenised texts.
    return _checked_scores(metric, shard.once(("shard", metric.needs), part)).spread(len(shard), able, failures)


def judge_shard(comparator: Comparator, shard: PairShard) -> list[Judgment]:
    """One comparator's judgments. Pairs that lack a field it needs get a failure instead."""
    able = find_scorable(comparator, shard.pairs)
    pairs = shard if len(able) == len(shard) else PairShard([shard.pairs[i] for i in able], runtime=shard.runtime)
    judgments = _call(comparator, pairs, "prefer")
    if not isinstance(judgments, list) or len(judgments) != len(able):
        raise RunError(
            f"{comparator.text} must return a list of {format_count(len(able), 'judgment')}, one per pair in order",
            code="invalid_value",
        )
    failures = _missing_inputs(comparator, shard.pairs, able)
    by_position = dict(zip(able, judgments, strict=True))
    return [by_position.get(i) or Judgment.failed(failures[i]) for i in range(len(shard))]


def describe_missing(metric: Metric, unit: Unit, *, named: bool = False) -> str | None:
    """Which field the metric needs and the record, or a record of the pair, lacks; None if nothing is missing. With
    the record's name, where that is not known from the place of the message."""
    for need in metric.needs:
        for record in list_records(unit):
            if getattr(record, need) in (None, ()):
                place = describe_record(record) if named else "the record"
                return f"{metric.text} needs {need}, but {place} has none"
    return None


def describe_record(unit: Unit) -> str:
    """A record, or the first record of a pair, as messages name it."""
    record = list_records(unit)[0]
    return f"item {label_item(record.item)!r} of system {record.system!r}"


def find_scorable(metric: Metric, units: Sequence[Unit]) -> list[int]:
    """The positions of the records or pairs that have all fields which the metric needs."""
    if isinstance(units, RecordColumns):
        by_need = {"source": units.sources, "references": units.references, "instruction": units.instructions}
        lacking = [n for need in metric.needs for n, value in enumerate(by_need[need]) if value is None or value == ()]
        return sorted(set(range(len(units))) - set(lacking)) if lacking else list(range(len(units)))
    return [i for i, unit in enumerate(units) if describe_missing(metric, unit) is None]


def _missing_inputs(metric: Metric, units: Sequence[Unit], able: Sequence[int]) -> dict[int, Failure]:
    lacking = sorted(set(range(len(units))) - set(able))
    return {i: Failure(FailureKind.missing_input, describe_missing(metric, units[i]) or "") for i in lacking}


def _call(metric: Metric, shard: Shard | PairShard, method: str) -> Any:
    """Call `score` or `prefer`. An exception that is not metrist's own is reported with the metric and the records."""
    units: Sequence[Unit] = shard.records if isinstance(shard, Shard) else shard.pairs
    try:
        return getattr(metric, method)(shard)
    except MetristError:
        raise
    except NotImplementedError as error:
        raise RunError(f"{metric.text}: {error}", code="metric_failed") from error
    except Exception as error:
        what = f"{len(units):,} {'records' if isinstance(shard, Shard) else 'pairs'}"
        first = f" (the first is {describe_record(units[0])})" if units else ""
        raise RunError(
            f"{metric.text} failed on a shard of {what}{first}: {describe_exception(error)}", code="metric_failed"
        ) from error


def _checked_scores(metric: Metric, shard: Shard) -> Scores:
    scores = _call(metric, shard, "score")
    if not isinstance(scores, Scores):
        raise RunError(
            f"{metric.text}: score(shard) must return Scores, got {type(scores).__name__}; return Scores.of(numbers), "
            "or define score_record(record) instead, which returns one number",
            code="invalid_value",
        )
    if len(scores) != len(shard):
        raise RunError(
            f"{metric.text} returned {format_count(len(scores), 'score')} for "
            f"{format_count(len(shard), 'record')} (the first is "
            f"{describe_record(shard.records[0])}): expected one score per record, in order",
            code="metric_failed",
        )
    if any(column.dtype != np.float64 for column in (scores.values, scores.stats, *scores.parts.values())):
        # Shard files hold doubles, so a result must not depend on whether it was read back.
        scores = replace(
            scores,
            values=scores.values.astype(np.float64),
            parts={name: column.astype(np.float64) for name, column in scores.parts.items()},
            stats=scores.stats.astype(np.float64),
        )
    unusable = np.isinf(scores.values) | (~np.isnan(scores.values) & ~np.isfinite(scores.stats).all(axis=1))
    if unusable.any():
        first = int(np.argmax(unusable))
        raise RunError(
            f"{metric.text} gave {describe_record(shard.records[first])} the value {scores.values[first]} with the "
            f"statistics {scores.stats[first].tolist()}: expected finite numbers, or a failure that says why",
            code="metric_failed",
        )
    return scores


def attempt(work: Callable[[], _T]) -> _T | MetristError:
    """The result of a piece of work, or the error that ended it, as it can be sent."""
    try:
        return work()
    except MetristError as error:
        if error.__cause__ is not None:
            # A cause is not pickled with an exception; as a note, its traceback is.
            error.add_note("".join(traceback.format_exception(error.__cause__)))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # An exception with a constructor of its own often cannot be unpickled.
            return RunError(f"{type(error).__name__}: {error}")
        return error


# ---- How an input is cut ----


def read_shards(
    metrics: Iterable[Metric], units: Reader | Iterable[Unit], size: int
) -> Iterator[tuple[int, Sequence[Any]]]:
    """Consecutive records, as columns, or pairs, with the position of the first, the same whenever the same input is
    read. A metric that can score none of the first ones is refused."""
    needs = NeedsCheck(metrics)
    start = 0
    waiting: list[Sequence[Any]] = []
    blocks: Iterable[Sequence[Any]] = (
        (batch.records for batch in units.batches(size * max(1, BATCH_RECORDS // size), judgments=False))
        if isinstance(units, Reader)
        else cut_pairs(units, size)
    )
    for block in blocks:
        waiting.append(block)
        if not needs.add(block):  # More units decide whether a metric can score any.
            continue
        for units in waiting:
            for shard in cut_columns(units, size) if isinstance(units, RecordColumns) else (units,):
                yield start, shard
                start += len(shard)
        waiting.clear()
    needs.finish()


def cut_pairs(pairs: Iterable[Any], size: int) -> Iterator[list[Pair]]:
    """Consecutive pairs. Those of an item stay together, since they share outputs."""
    shard, text = list[Pair](), 0
    for _, group in groupby(pairs, key=attrgetter("first.item")):
        block = list(group)
        shard += block
        text += count_characters(block)
        if len(shard) >= size or text > MAX_TEXT:
            yield shard
            shard, text = [], 0
    if shard:
        yield shard


def cut_columns(records: RecordColumns, size: int) -> Iterator[RecordColumns]:
    """Consecutive records, at most `size` and about `MAX_TEXT` characters of texts together."""
    start = 0
    while start < len(records):
        shard = records[start : start + size]
        while len(shard) > 1 and count_characters(shard) > MAX_TEXT:
            shard = shard[: len(shard) // 2]
        yield shard
        start += len(shard)


def join_blocks(blocks: Sequence[Block]) -> Block:
    if isinstance(blocks[0], Scores):
        return Scores.join(blocks)  # type: ignore[arg-type]
    return [judgment for block in blocks for judgment in block]  # type: ignore[misc]


def list_records(unit: Unit) -> tuple[Record, ...]:
    """The record, or both records of a pair."""
    return (unit.first, unit.second) if isinstance(unit, Pair) else (unit,)


def count_characters(units: Sequence[Unit]) -> int:
    """The characters of all texts that metrics see."""
    if isinstance(units, RecordColumns):
        total = sum(map(len, chain(units.outputs, chain.from_iterable(units.references))))
        return total + sum(map(len, filter(None, (*units.sources, *units.instructions))))
    total = 0
    for record in chain.from_iterable(map(list_records, units)):
        total += len(record.output) + sum(map(len, record.references))
        total += len(record.source or "") + len(record.instruction or "")
    return total


class NeedsCheck:
    """Refuses a metric that can score none of the first records or pairs; mostly a look at one record decides."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._unserved = [metric for metric in metrics if metric.needs]
        self._first: Unit | None = None
        self._seen = self._text = 0
        fields = {field.name for field in dataclasses.fields(Record)}
        for metric in self._unserved:
            needs: Any = metric.needs
            if isinstance(needs, str) or not fields.issuperset(needs):
                raise SpecError(
                    f"{metric.text}: needs must be a tuple of fields of a record, such as ('references',), got "
                    f"{needs!r}"
                )

    def add(self, units: Iterable[Unit]) -> bool:
        """Look at units until all metrics can score one, and return whether they can. After very many, it is an
        error."""
        for unit in units:
            if not self._unserved:
                return True
            self._first = self._first or unit
            self._seen += 1
            self._text += count_characters([unit])
            self._unserved = [metric for metric in self._unserved if not find_scorable(metric, [unit])]
            if self._unserved and (self._seen >= LOOK_AHEAD or self._text > MAX_TEXT):
                self.finish()
        return not self._unserved

    def finish(self) -> None:
        """Raise an error if a metric can score no unit."""
        if not self._unserved or self._first is None:
            return
        what = "pairs" if isinstance(self._first, Pair) else "records"
        others = f"; none of the first {self._seen:,} {what} can be scored by it" if self._seen > 1 else ""
        metric, first = self._unserved[0], self._first
        record = list_records(first)[0]
        need = next((need for need in metric.needs if record.lacks(need)), None)
        column = guess_column(need, record.extra) if need and record.extra else None
        hint = f"; use {name_field(need, column)} if {column!r} holds that" if need and column else ""
        raise NeedsError(f"{describe_missing(metric, first, named=True)}{others}{hint}")


@dataclass(eq=False)
class TaskSize:
    """Decides how many units the next task holds, so that it takes about `TASK_SECONDS`.

    Seconds are taken to grow with the characters of a task. What the outputs of an item share, as their source, counts
    once: models read it once per task. `references` says whether the metrics read those: as many of them as a record
    may have, they say nothing about the seconds of the others.
    """

    references: bool = True
    _seconds_per_character: float = field(default=0.0, init=False)
    _last_rate: float = field(default=0.0, init=False)
    _limit: int = field(default=0, init=False)

    def measure(self, units: Sequence[Unit], seconds: float) -> None:
        rate = seconds / self._count(units)[-1]
        # Items differ, so the slower of two tasks counts. A much smaller one says little: much of it is fixed cost.
        is_similar = self._limit <= 2 * _GROWTH * len(units) and 2 * self._limit >= _GROWTH * len(units)
        self._seconds_per_character = max(rate, self._last_rate) if is_similar else rate
        self._last_rate, self._limit = rate, _GROWTH * len(units)

    def cut(self, units: Sequence[Unit]) -> int:
        """How many of these units, the next to be scored, go into one task. Where it can, a task ends with an item, so
        that no source is read again for the next one. The pairs of an item always stay together."""
        items = [list_records(unit)[0].item for unit in units]
        characters = self._count(units)
        if not self._limit:  # Nothing is known yet: the first item, or as much of it as is not extreme.
            end = _find_end(items, 1)
            return end if isinstance(units[0], Pair) else max(1, min(end, bisect_right(characters, _FIRST_TEXT)))
        seconds = [self._seconds_per_character * count for count in characters]
        limit = min(len(units), self._limit)
        size = bisect_right(seconds, TASK_SECONDS, hi=limit)
        if size < limit and (size == 0 or seconds[size] - TASK_SECONDS < TASK_SECONDS - seconds[size - 1]):
            size += 1
        end = _find_end(items, size)
        # Where a single record takes that long, the outputs that share its source cost little more.
        most = max(MAX_TASK_SECONDS, 1.25 * seconds[0])
        if isinstance(units[0], Pair) or (end <= limit and seconds[end - 1] <= most):
            return end
        first = size - 1
        while first and items[first - 1] == items[first]:
            first -= 1
        alone = self._seconds_per_character * self._count(units[first:end])[-1]
        if first >= size / 2 or (first and alone <= MAX_TASK_SECONDS):
            return first
        # The item is divided, and each part reads its source again: as few parts as can be.
        return bisect_right(seconds, most, hi=limit)

    def _count(self, units: Sequence[Unit]) -> list[int]:
        """The characters of the first unit, of the first two and so on, with one more for each unit."""
        counts, total = list[int](), 0
        seen: set[tuple[str, str]] = set()
        for unit in units:
            total += 1
            for record in list_records(unit):
                total += len(record.output)
                for text in (record.source, record.instruction, *(record.references if self.references else ())):
                    if text and (record.item, text) not in seen:
                        seen.add((record.item, text))
                        total += len(text)
            counts.append(total)
        return counts


@dataclass(eq=False, kw_only=True)
class SliceSize:
    """Decides how many rows the next slice has, so that it takes about `TASK_SECONDS`. Without a limit it stays as it
    is."""

    rows: int
    limit: int | None = None
    rates: list[float] = field(default_factory=list)

    def measure(self, rows: int, seconds: float) -> None:
        # The slower of two counts: texts differ.
        self.rates = [*self.rates[-1:], seconds / rows]
        if self.limit is not None:
            wanted = int(TASK_SECONDS / max(*self.rates, 1e-9))
            self.rows = max(1, min(self.limit, wanted, _GROWTH * self.rows))

    def cut(self, rows: NDArray[np.int64], items: NDArray[Any]) -> Iterator[NDArray[np.int64] | range]:
        """Cut rows of a part into slices. One ends with an item where that does not halve it, and leaves no small
        rest."""
        while len(rows):
            count = size = self.rows
            if len(rows) <= 1.5 * size:
                count = len(rows)
            else:
                ends = np.flatnonzero(items[rows[1 : size + 1]] != items[rows[:size]])
                if len(ends) and 2 * ends[-1] > size:
                    count = int(ends[-1]) + 1
            chosen, rows = rows[:count], rows[count:]
            first, last = int(chosen[0]), int(chosen[-1])
            yield range(first, last + 1) if last - first + 1 == count else chosen


def _find_end(items: Sequence[str], size: int) -> int:
    """Where the item of the last of so many units ends."""
    end = size
    while end < len(items) and items[end] == items[end - 1]:
        end += 1
    return end
