"""`rerank`: the best of several outputs of an item, by minimum Bayes risk, a metric, or a weighted sum of metrics."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from metrist.errors import RunError, format_count, unknown_name
from metrist.evaluate.plans import RerankSettings
from metrist.evaluate.rerank.gains import Gain, ItemMeans, describe_gains
from metrist.evaluate.rerank.mbr import MinimumBayesRisk
from metrist.evaluate.rerank.rows import COLUMN, Item, make_row, open_writer, read_items
from metrist.io.json_rows import Row
from metrist.io.reader import check_keywords, read_records
from metrist.io.writer import check_distinct, check_writable
from metrist.metrics.base import Metric, is_resident
from metrist.metrics.registry import MetricList, build_all
from metrist.records import Record, RecordColumns
from metrist.report.progress import Progress, shows_progress
from metrist.report.scores import describe_failures, summarize_reasons
from metrist.report.tables import Column as TableColumn
from metrist.report.tables import Estimate, Table, name_columns
from metrist.run.executors import choose_executor
from metrist.run.scoring import writes_remotely
from metrist.run.tasks import SHARD_SIZE, SHARD_SIZE_WITH_MODEL, Executor, NeedsCheck, Task
from metrist.runtime import Runtime
from metrist.scores import Column, Failure, Scores
from metrist.settings import LLMSettings, ModelSettings, checks_types, select_arguments

#: Digits of scores, relative to the largest of the item, that tell outputs apart; those behind them are rounding.
_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenOutput:
    """A chosen output: its rank from 1 among the `of` outputs of its item, and its scores by the metrics that chose.

    `score` is that of the metric, or the weighted sum of standardised scores of several. `lead` is by how much it is
    better than the best output that was not chosen; None if all were chosen.
    """

    record: Record
    rank: int
    of: int
    score: float
    scores: Mapping[str, float]
    lead: float | None
    row: Row = field(repr=False, compare=False, default_factory=dict)

    def to_row(self) -> Row:
        """The output's row with the choice in the column `rerank`."""
        told = {"rank": self.rank, "of": self.of, "score": self.score, "scores": self.scores, "lead": self.lead}
        return {**(self.row or make_row(self.record)), COLUMN: told}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reranked:
    """The choices, item by item in the order of their ranks, and what was gained. `choices` are empty where they were
    written to a file."""

    choices: Sequence[ChosenOutput]
    gains: tuple[Gain, ...]
    items: int
    outputs: int
    chosen: int
    settings: RerankSettings
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.chosen

    def __iter__(self) -> Iterator[ChosenOutput]:
        return iter(self.choices)

    def __repr__(self) -> str:
        outputs = format_count(self.outputs, "output")
        return f"Reranked({self.chosen:,} of {outputs} of {format_count(self.items, 'item')})"

    def rows(self) -> Iterator[Row]:
        """The rows of the chosen outputs."""
        return (choice.to_row() for choice in self.choices)

    def table(self) -> Table:
        """What was gained by each metric."""
        settings = self.settings
        rows = [
            [
                gain.metric,
                "yes" if gain.used else "no",
                Estimate(gain.before),
                Estimate(gain.after),
                Estimate(gain.difference, gain.low, gain.high),
            ]
            for gain in self.gains
        ]
        lower = [gain.metric for gain in self.gains if gain.higher_is_better is False]
        chosen, outputs, items = self.chosen, format_count(self.outputs, "output"), format_count(self.items, "item")
        notes = [
            f"{chosen:,} of {outputs} of {items} chosen",
            "all: the mean score of an item's outputs, which is what a random choice gives; chosen: that of the best",
            *([f"Lower is better: {', '.join(lower)}"] if lower else []),
            f"{settings.confidence:.0%} intervals: {settings.draws:,} bootstrap resamples of the items, seed "
            f"{settings.seed}",
        ]
        columns = [TableColumn("metric"), TableColumn("chose"), *name_columns(right=("all", "chosen", "gain"))]
        return Table(title="Gains", columns=columns, rows=rows, notes=notes, remarks=list(self.notes))

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


@checks_types
@writes_remotely
@shows_progress("reranking", "outputs")
def rerank(
    records: Any,
    metrics: MetricList = (),
    *,
    mbr: MetricList = (),
    weights: Mapping[str, float] | None = None,
    k: int = 1,
    report: MetricList = (),
    out: str | os.PathLike[str] | None = None,
    draws: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
    executor: str | Executor | None = None,
    progress: Progress | bool | None = None,
    runtime: Runtime | None = None,
    device: str | None = None,
    batch_tokens: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    max_cost: float | None = None,
    concurrency: int | None = None,
    rpm: int | None = None,
    tpm: int | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    **reading: Any,
) -> Reranked:
    """Choose the `k` best of the outputs of each item.

    `records`, `reading`, `executor` and the arguments from `runtime` to `retry_failed` are as for `score`, but a system
    may have several outputs of an item. `metrics` score each output. `mbr` are reference-based metrics by which an
    output is scored against all outputs of its item (minimum Bayes risk). Several metrics choose by the sum of their
    scores, standardised within the item, with `weights` by name (default 1). `report` are metrics that only tell what
    was gained. `out` is a file for the rows of the chosen outputs, .jsonl, .csv or .tsv; the choices are then not kept.
    """
    if reading:
        check_keywords(rerank, reading)
    weights = weights or {}
    settings = RerankSettings(**select_arguments(RerankSettings, locals()))
    runtime = (runtime or Runtime.current()).override(
        **select_arguments(ModelSettings, locals()), **select_arguments(LLMSettings, locals())
    )
    ranker = _Ranker.of(build_all(metrics), build_all(mbr), settings.weights)
    used = len(ranker.metrics)
    names = {metric.label for metric in ranker.metrics}
    judges = [*ranker.metrics, *(metric for metric in build_all(report) if metric.label not in names)]
    reader = read_records(records, **reading)
    path = None if out is None else Path(out)
    if path is not None:
        check_writable(path)
        check_distinct(path, reader.names)
    means = ItemMeans(len(judges))
    choices, failures = list[ChosenOutput](), list[Failure]()
    items = outputs = chosen = 0
    with open_writer(path) if path else nullcontext() as write:
        for item, scores in _score_items(read_items(reader, keep_rows=path is not None), judges, executor, runtime):
            values = np.column_stack([block.values for block in scores])
            best, order = ranker.choose(item, values[:, :used], settings.k)
            if best:
                means.add(values, order[: len(best)])
            else:
                failures.append(Failure.combine(block.failures[0] for block in scores[:used] if block.failures))
            if write is None:
                choices += best
            else:
                for choice in best:
                    write(choice.to_row())
            items, outputs, chosen = items + 1, outputs + len(item.records), chosen + len(best)
            if progress:
                progress(outputs, None)  # type: ignore[operator]
    if not chosen:
        raise RunError(describe_failures(", ".join(names), "items", failures, ()), code="metric_failed")
    gains = means.estimate(judges, used, settings.draws, settings.seed, settings.confidence)
    notes = [*reader.remarks, *reader.skipped.describe(), *describe_gains(gains)]
    if failures:
        notes.append(f"no output of {format_count(len(failures), 'item')} was chosen, {summarize_reasons(failures)}")
    if outputs == items:
        notes.append(
            "every item has one output, so that there was nothing to choose from: name the column that the outputs of "
            "an item share, `fields={'item': 'COLUMN'}`, or give `item_key='source'`"
        )
    return Reranked(
        choices=choices,
        gains=gains,
        items=items,
        outputs=outputs,
        chosen=chosen,
        settings=settings,
        notes=tuple(dict.fromkeys(notes)),
    )


def _score_items(
    items: Iterable[Item], metrics: Sequence[Metric], executor: str | Executor | None, runtime: Runtime
) -> Iterator[tuple[Item, list[Scores]]]:
    """Yield each item with the scores of its outputs by each metric; the outputs of an item are in one task."""
    size = SHARD_SIZE_WITH_MODEL if any(map(is_resident, metrics)) else SHARD_SIZE
    needs = NeedsCheck(metrics)
    waiting: deque[list[Item]] = deque()

    def tasks() -> Iterator[Task]:
        start = 0
        for block in _gather(items, size):
            records = RecordColumns.of([record for item in block for record in item.records])
            needs.add(records)
            waiting.append(block)
            yield Task(start=start, units=records, metrics=tuple(metric.text for metric in metrics), runtime=runtime)
            start += len(records)
        needs.finish()

    chosen, _ = choose_executor(executor, metrics, runtime)
    for result in chosen.map(metrics, tasks()):
        blocks: list[Any] = [result.outcomes[metric.text].block for metric in metrics]
        start = 0
        for item in waiting.popleft():
            stop = start + len(item.records)
            yield item, [block.block(start, stop) for block in blocks]
            start = stop


def _gather(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield items together, with about `size` outputs."""
    block, count = list[Item](), 0
    for item in items:
        block.append(item)
        count += len(item.records)
        if count >= size:
            yield block
            block, count = [], 0
    if block:
        yield block


@dataclass(frozen=True, slots=True, eq=False)
class _Ranker:
    """The metrics that choose, and their weights."""

    metrics: tuple[Metric, ...]
    weights: Column

    @classmethod
    def of(cls, metrics: Sequence[Metric], utilities: Sequence[Metric], weights: Mapping[str, float]) -> _Ranker:
        risks = [MinimumBayesRisk(utility).named(utility.short_name) for utility in utilities]
        used = (*risks, *metrics)
        if not used:
            raise RunError(
                "nothing to choose by: name a metric, or one for `mbr`, such as 'chrf'", code="missing_value"
            )
        for metric in used:
            if metric.higher_is_better is None:
                raise RunError(f"{metric.label} describes outputs and does not judge them", code="unsupported")
        # A utility is known by its own name too, unless the metric itself also chooses.
        numbers = {utility.label: number for number, utility in enumerate(utilities)}
        numbers |= {metric.label: number for number, metric in enumerate(used)}
        array = np.ones(len(used))
        for name, weight in weights.items():
            if name not in numbers:
                raise unknown_name("metric that chooses", name, list(numbers))
            array[numbers[name]] = weight
        return cls(used, array)

    def choose(self, item: Item, values: Column, k: int) -> tuple[list[ChosenOutput], list[int]]:
        """Return the k best outputs, and the positions of all that are scored, the best first. Of equally good outputs
        the earlier one is better."""
        signs = np.array([1.0 if metric.higher_is_better else -1.0 for metric in self.metrics])
        goodness = values * signs
        if len(self.metrics) > 1:
            goodness = _standardise(goodness) @ self.weights
        goodness = goodness.reshape(-1)
        order = _sort_down(goodness)
        # One metric's score is shown as it is.
        shown = values[:, 0] if len(self.metrics) == 1 else goodness
        best = [
            ChosenOutput(
                record=item.records[position],
                rank=rank,
                of=len(values),
                score=float(shown[position]),
                scores={
                    metric.label: float(value) for metric, value in zip(self.metrics, values[position], strict=True)
                },
                lead=float(goodness[position] - goodness[order[k]]) if len(order) > k else None,
                row=item.rows[position] if item.rows else {},
            )
            for rank, position in enumerate(order[:k], 1)
        ]
        return best, order


def _standardise(values: Column) -> Column:
    """Columns less their means in units of their standard deviations; 0 where all outputs have the same value."""
    scored = values[~np.isnan(values).any(axis=1)]
    if not len(scored):
        return values
    means, deviations = scored.mean(axis=0), scored.std(axis=0)
    standardised: Column = (values - means) / np.where(deviations > 1e-12 * np.abs(means), deviations, np.inf)
    return standardised


def _sort_down(values: Column) -> list[int]:
    """The positions of the values that are not NaN, in descending order; those that only rounding tells apart stay in
    theirs."""
    scale = np.nanmax(np.abs(values), initial=0.0) or 1.0
    order = np.argsort(-np.round(values / scale, _DIGITS), kind="stable").tolist()
    return [position for position in order if not np.isnan(values[position])]
