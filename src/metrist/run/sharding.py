"""How an input is cut: into shards of a fixed size, and into tasks that take a few seconds each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import Any

from metrist.errors import NeedsError, SpecError
from metrist.io.fields import guess_column, quote_flag
from metrist.metrics.base import Metric
from metrist.records import Pair, Record
from metrist.run.shard_file import Unit
from metrist.run.tasks import describe_missing, find_scorable

SHARD_SIZE = 1024
#: Records that a metric with a model, or one that asks an LLM, gets at once: what a progress bar waits for.
SHARD_SIZE_WITH_MODEL = 256
#: A shard is closed early when its texts exceed this many characters, so that long texts do not fill the memory.
MAX_TEXT = 8 << 20
#: Records whose characters are counted at once.
_STEP = 64
#: Records that are searched for one that a metric can score; fewer where their texts exceed `MAX_TEXT` characters. Both
#: are independent of the shard size, so that the same input is refused or scored whatever that is.
LOOK_AHEAD = 10_000
#: Seconds that a task of a run with a folder should take: what it computed is stored when it ends.
TASK_SECONDS = 2.0
#: How many times larger than the last task the next may be: the first ones say little about the rate.
_GROWTH = 4


def cut_shards(units: Iterable[Unit], size: int) -> Iterator[tuple[int, tuple[Unit, ...]]]:
    """Consecutive records or pairs, each group with the position of its first, the same whenever the same input is
    read. The pairs of an item stay together, since they share outputs."""
    remaining = iter(units)
    first = list(islice(remaining, 1))
    remaining = chain(first, remaining)
    by_item = groupby(remaining, key=_item) if first and isinstance(first[0], Pair) else None
    start, text = 0, 0
    shard: list[Unit] = []
    while True:
        # Counting the characters of a few records at once is much faster than of one at a time.
        few = next(by_item, ("", ()))[1] if by_item else islice(remaining, min(_STEP, size - len(shard)))
        block = list(few)
        if not block:
            break
        parts = [(block, count_characters(block))]
        if text + parts[0][1] > MAX_TEXT and not by_item:
            parts = [([record], count_characters([record])) for record in block]
        for part, count in parts:
            shard += part
            text += count
            if len(shard) >= size or text > MAX_TEXT:
                yield start, tuple(shard)
                start, text, shard = start + len(shard), 0, []
    if shard:
        yield start, tuple(shard)


def _item(unit: Unit) -> str:
    return unit.first.item if isinstance(unit, Pair) else unit.item


def count_characters(units: Sequence[Unit]) -> int:
    """The characters of all texts that metrics see."""
    records: Sequence[Any] = units
    if units and isinstance(units[0], Pair):
        records = [record for pair in units for record in (pair.first, pair.second)]  # type: ignore[union-attr]
    total = sum(map(len, [record.output for record in records]))
    total += sum(map(len, chain.from_iterable([record.references for record in records])))
    total += sum(map(len, filter(None, [record.source for record in records])))
    return total + sum(map(len, filter(None, [record.instruction for record in records])))


def _suggest_column(metric: Metric, unit: Unit) -> str:
    """Suggest the column that may hold what a metric needs and a record lacks."""
    record = unit.first if isinstance(unit, Pair) else unit
    need = next((need for need in metric.needs if record.lacks(need)), None)
    column = guess_column(need, record.extra) if need and record.extra else None
    return f"; use --field {quote_flag(need, column)} if {column!r} holds that" if need and column else ""


def check_needs(metrics: Iterable[Metric], units: Iterable[Unit]) -> Iterator[Unit]:
    """The same records or pairs. A metric that can score none of the first ones is refused; mostly a look at one
    record decides, and no more are held than were looked at."""
    remaining, seen, text = iter(units), list[Unit](), 0
    unserved = [metric for metric in metrics if metric.needs]
    fields = {field.name for field in dataclasses.fields(Record)}
    for metric in unserved:
        needs: Any = metric.needs
        if isinstance(needs, str) or not fields.issuperset(needs):
            raise SpecError(
                f"{metric.text}: needs must be a tuple of fields of a record, such as ('references',), got {needs!r}"
            )
    while unserved and len(seen) < LOOK_AHEAD and text <= MAX_TEXT and (unit := next(remaining, None)):
        seen.append(unit)
        text += count_characters([unit])
        unserved = [metric for metric in unserved if not find_scorable(metric, [unit])]
    if unserved and seen:
        what = "pairs" if isinstance(seen[0], Pair) else "records"
        others = f"; none of the first {len(seen):,} {what} can be scored by it" if len(seen) > 1 else ""
        raise NeedsError(f"{describe_missing(unserved[0], seen[0])}{others}{_suggest_column(unserved[0], seen[0])}")
    return chain(seen, remaining)


class Pace:
    """Decides how many units the next task holds, so that it takes about `TASK_SECONDS`."""

    def __init__(self) -> None:
        self._seconds_per_character = 0.0
        self._limit = 1

    def measure(self, units: Sequence[Unit], seconds: float) -> None:
        """Learn from a finished task."""
        self._seconds_per_character = seconds / (len(units) + count_characters(units))
        self._limit = _GROWTH * len(units)

    def cut(self, units: Sequence[Unit]) -> int:
        """How many of these units, the next to be scored, go into one task."""
        size = min(len(units), self._limit)
        seconds = self._seconds_per_character * (size + count_characters(units[:size]))
        if seconds > TASK_SECONDS:
            size = max(1, int(size * TASK_SECONDS / seconds))
        if isinstance(units[0], Pair):  # The pairs of an item stay together, since they share outputs.
            while size < len(units) and _item(units[size]) == _item(units[size - 1]):
                size += 1
        return size
