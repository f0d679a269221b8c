"""`rerank`: the best of several outputs of an item, by minimum Bayes risk, a metric, or a weighted sum of metrics."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from metrist.errors import RunError, format_count, unknown_name
from metrist.evaluate.plans import Pairing, RerankSettings
from metrist.evaluate.rerank.item_metrics import ComparisonWins, MinimumBayesRisk
from metrist.evaluate.rerank.items import COLUMN, Item, ItemReader, ScoreLog, make_row, open_writer, score_items
from metrist.io.json_rows import Row
from metrist.io.reader import check_keywords, read_records
from metrist.io.writer import check_distinct, check_writable
from metrist.llm.estimate import CallEstimate, estimate_calls
from metrist.metrics.base import Metric, Shard, calls_llm
from metrist.metrics.comparator import build_comparator
from metrist.metrics.llm_metric import describe_usage, merge_usage
from metrist.metrics.registry import MetricList, build, build_all
from metrist.records import Record
from metrist.report.progress import Progress, shows_progress
from metrist.report.scores import describe_failures, summarize_reasons
from metrist.report.tables import Column as TableColumn
from metrist.report.tables import Estimate, Table, name_columns
from metrist.run.scoring import writes_remotely
from metrist.run.tasks import Executor, score_shard
from metrist.runtime import Runtime
from metrist.scores import Column, Failure
from metrist.settings import LLMSettings, ModelSettings, checks_types, select_arguments
from metrist.stats.measures import divide
from metrist.stats.resampling import pooled_interval

#: Digits of scores, relative to the largest of the item, that tell outputs apart; those behind them are rounding.
_DIGITS = 12
#: How similar two outputs are, in the same way whichever is the reference.
_SIMILARITY = "chrf(beta=1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenOutput:
    """A chosen output: its rank from 1 among the `of` outputs of its item, and its scores by the metrics that chose.

    `score` is that of the metric, or the weighted sum of standardised scores of several. `lead` is by how much it is
    better than the best output that was not chosen; None if all were chosen. `row` is its row in the input, where it is
    to be written.
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


@dataclass(frozen=True, slots=True, eq=False)
class Ranker:
    """The metrics that choose, and their weights."""

    metrics: tuple[Metric, ...]
    weights: Column
    signs: Column

    @classmethod
    def of(
        cls,
        metrics: Sequence[Metric],
        utilities: Sequence[Metric],
        comparators: Sequence[Metric],
        settings: RerankSettings,
    ) -> Ranker:
        risks = [
            MinimumBayesRisk(utility, aggregate=settings.aggregate).named(utility.short_name) for utility in utilities
        ]
        wins = [
            ComparisonWins(comparator=build_comparator(each), pairing=settings.pairing).named(each.short_name)
            for each in comparators
        ]
        used = (*risks, *metrics, *wins)
        if not used:
            raise RunError(
                "nothing to choose by: name a metric, or one for `mbr`, such as 'chrf'", code="missing_value"
            )
        for metric in used:
            if metric.higher_is_better is None:
                hint = "choose by another metric, and name this one in `report`"
                raise RunError(f"{metric.label} describes outputs and does not judge them: {hint}", code="unsupported")
        # Utilities and comparators are known by their own names too, unless the metric itself also chooses.
        numbers = {own.label: number for number, own in enumerate((*utilities, *metrics, *comparators))}
        numbers |= {metric.label: number for number, metric in enumerate(used)}
        array = np.ones(len(used))
        for name, weight in settings.weights.items():
            if name not in numbers:
                raise unknown_name("metric that chooses", name, list(numbers))
            array[numbers[name]] = weight
        return cls(used, array, np.array([1.0 if metric.higher_is_better else -1.0 for metric in used]))

    def rank(self, values: Column) -> tuple[Column, list[int]]:
        """How good outputs are, by a row of scores each, and the positions of those with all scores, the best first. Of
        equally good outputs the earlier one is better."""
        goodness = values * self.signs
        if len(self.metrics) > 1:
            # In units of their standard deviations from their means; 0 where all outputs have the same value.
            scored = goodness[~np.isnan(goodness).any(axis=1)]
            if len(scored):
                means, deviations = scored.mean(axis=0), scored.std(axis=0)
                varied = deviations > 1e-12 * np.abs(means)
                goodness = (goodness - means) / np.where(varied, deviations, np.inf)
            goodness = goodness * self.weights
        goodness = goodness.sum(axis=1)
        scale = np.max(np.abs(goodness), initial=0.0, where=~np.isnan(goodness)) or 1.0
        order = np.argsort(-np.round(goodness / scale, _DIGITS), kind="stable").tolist()
        return goodness, [position for position in order if not np.isnan(goodness[position])]

    def describe(
        self, records: Sequence[Record], values: Column, goodness: Column, chosen: Sequence[int], order: Sequence[int]
    ) -> list[ChosenOutput]:
        """The choices at some positions of an item's outputs."""
        others = goodness[[position for position in order if position not in set(chosen)]]
        best = others.max() if len(others) else None
        # One metric's score is shown as it is.
        shown = goodness * self.signs[0] if len(self.metrics) == 1 else goodness
        return [
            ChosenOutput(
                record=records[position],
                rank=order.index(position) + 1,
                of=len(values),
                score=float(shown[position]),
                scores={
                    metric.label: float(value) for metric, value in zip(self.metrics, values[position], strict=True)
                },
                lead=None if best is None else float(goodness[position]) - float(best),
            )
            for position in chosen
        ]


class Selector:
    """Takes the best outputs of one item after another that pass the filters."""

    def __init__(self, settings: RerankSettings, sign: float) -> None:
        self._settings = settings
        self._least = None if settings.minimum is None else settings.minimum * sign
        self._seen: set[bytes] = set()
        self._similarity = build(_SIMILARITY)

    def select(self, item: Item, goodness: Column, order: Sequence[int]) -> list[int]:
        """The positions of the chosen outputs, the best first."""
        chosen: list[int] = []
        for position in order:
            if len(chosen) == self._settings.k or (self._least is not None and goodness[position] < self._least):
                break
            if self._is_new(item, position, chosen):
                chosen.append(position)
        return chosen

    def _is_new(self, item: Item, position: int, chosen: Sequence[int]) -> bool:
        text = item.records[position].output
        limit = self._settings.diverse
        if limit is not None and chosen:
            pairs = [Record(item="", system="", output=text, references=(item.records[n].output,)) for n in chosen]
            if self._similarity.score(Shard(pairs)).values.max() > 100 * limit:
                return False
        if self._settings.dedupe:
            # Equal but for white space and case.
            digest = hashlib.sha256(" ".join(text.casefold().split()).encode("utf-8", "surrogatepass")).digest()[:16]
            if digest in self._seen:
                return False
            self._seen.add(digest)
        return True


@dataclass(frozen=True, slots=True, eq=False)
class _Selection:
    """An item's choices with their positions, and the scores of all of its outputs by all metrics."""

    choices: list[ChosenOutput]
    positions: list[int]
    values: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The mean over items of the mean score of all outputs (`before`) and of the chosen ones (`after`), and the
    difference with its interval over items; `used` says whether the metric took part in the choice."""

    metric: str
    used: bool
    higher_is_better: bool | None
    items: int
    before: float
    after: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def is_better(self) -> bool:
        """Whether the whole interval is on the better side of 0."""
        return self.low > 0 if self.higher_is_better else self.high < 0


def _estimate_gains(
    item_means: array[float], metrics: Sequence[Metric], used: int, settings: RerankSettings
) -> tuple[Gain, ...]:
    """The gain by each metric, of which the first `used` chose, from the means of each item, one metric after the
    other: of all outputs, then of the chosen ones."""
    means = np.array(item_means).reshape(-1, 2, len(metrics))
    gains = []
    for number, metric in enumerate(metrics):
        before, after = means[~np.isnan(means[:, :, number]).any(axis=1), :, number].T
        rows = np.column_stack([after - before, np.ones(len(before))])
        rng = np.random.default_rng(settings.seed)
        low, high = pooled_interval(rows, _mean, settings.draws, rng, settings.confidence)
        gains.append(
            Gain(
                metric=metric.label,
                used=number < used,
                higher_is_better=metric.higher_is_better,
                items=len(before),
                before=float(_average(before)),
                after=float(_average(after)),
                low=low,
                high=high,
            )
        )
    return tuple(gains)


def _mean(sums: Column) -> Column:
    return divide(sums[..., 0], sums[..., 1])


def _average(rows: Column) -> Column:
    """The means over the first axis of what is not NaN, also where the sum is too large for a number."""
    counts = np.count_nonzero(~np.isnan(rows), axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        means: Column = np.nansum(rows, axis=0) / counts
        return np.nansum(rows / counts, axis=0) if np.isinf(means).any() else means


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
        left_out = self.items - max((gain.items for gain in self.gains), default=0)
        chosen, outputs, items = self.chosen, format_count(self.outputs, "output"), format_count(self.items, "item")
        notes = [
            f"{chosen:,} of {outputs} of {items} chosen",
            "all: the mean score of an item's outputs, which is what a random choice gives; chosen: that of the best",
            *([f"Means are over items with a chosen output; {left_out:,} of {items} have none"] if left_out else []),
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
    aggregate: bool = False,
    comparators: MetricList = (),
    pairing: Pairing = "all",
    weights: Mapping[str, float] | None = None,
    k: int = 1,
    minimum: float | None = None,
    keep: str | None = None,
    dedupe: bool = False,
    diverse: float | None = None,
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
    output is scored against all outputs of its item (minimum Bayes risk); with `aggregate` chrF is scored against the
    mean of their n-gram counts, an approximation that is linear in the outputs. `comparators` choose between two
    outputs: by `pairing`, 'all' compares each two of an item, and 'knockout' those that have won so far; a metric
    prefers the better score. Several metrics choose by the sum of their scores, standardised within the item, with
    `weights` by name (default 1). `report` are metrics that only tell what was gained.

    `minimum` leaves out outputs with a worse score, `dedupe` those that repeat an output chosen before but for white
    space and case, and `diverse` those whose chrF (F1) with a better chosen output of the item is above so many
    hundredths; the next best ones take their places. `keep`, such as "20%" or "5000", then keeps the best of the chosen
    outputs of all items.

    `out` is a file for the rows of the chosen outputs, .jsonl, .csv or .tsv; the choices are then not kept in memory.
    A call that was stopped goes on from its last task when it is repeated.
    """
    if reading:
        check_keywords(rerank, reading)
    weights = weights or {}
    settings = RerankSettings(**select_arguments(RerankSettings, locals()))
    runtime = (runtime or Runtime.current()).override(
        **select_arguments(ModelSettings, locals()), **select_arguments(LLMSettings, locals())
    )
    ranker = Ranker.of(build_all(metrics), build_all(mbr), build_all(comparators), settings)
    used = len(ranker.metrics)
    if used > 1 and (settings.keep or settings.minimum is not None):
        raise RunError(
            "`keep` and `minimum` need one metric that chooses: sums of scores standardised within an item say nothing "
            "between items",
            code="conflict",
        )
    texts = {metric.text for metric in ranker.metrics}
    judges = [*ranker.metrics, *(metric for metric in build_all(report) if metric.text not in texts)]
    reader = read_records(records, **reading)
    path = None if out is None else Path(out)
    if path is not None:
        check_writable(path)
        check_distinct(path, reader.names)
    items = ItemReader(reader, keep_rows=path is not None)
    counts = Counter[str]()
    usages: list[dict[str, Any]] = [{} for _ in judges]
    failures, choices = list[Failure](), list[ChosenOutput]()
    means = array("d")

    def select(log: ScoreLog | None) -> Iterator[_Selection]:
        selector = Selector(settings, float(ranker.signs[0]))
        for item, scores in score_items(items, judges, executor, runtime, log):
            values = np.column_stack([block.values for block in scores])
            goodness, order = ranker.rank(values[:, :used])
            positions = selector.select(item, goodness, order)
            counts.update(items=1, outputs=len(values))
            for number, block in enumerate(scores):
                if block.usages:
                    usages[number] = merge_usage([usages[number], *block.usages.values()])
            if not order:
                failures.append(next(failure for block in scores[:used] for failure in block.failures.values()))
            choices = ranker.describe(item.records, values[:, :used], goodness, positions, order)
            if item.rows:
                choices = [replace(choice, row=item.rows[n]) for choice, n in zip(choices, positions, strict=True)]
            yield _Selection(choices, positions, values)
            if callable(progress):
                progress(counts["outputs"], None)

    with (
        ScoreLog(path, judges) if path else nullcontext() as log,
        open_writer(path) if path else nullcontext() as write,
    ):
        selections: Iterable[_Selection] = select(log)
        if settings.keep:
            selections = _keep_best(list(selections), settings, float(ranker.signs[0]))
        for selection in selections:
            counts["chosen"] += len(selection.choices)
            if selection.choices:
                # Only outputs that a metric scored count.
                means.extend(_average(selection.values))
                means.extend(_average(selection.values[selection.positions]))
            if write is None:
                choices += selection.choices
            else:
                for choice in selection.choices:
                    write(choice.to_row())
        if len(failures) == counts["items"]:  # Before the file is written: there may be one of an earlier call.
            raise RunError(
                describe_failures(", ".join(metric.label for metric in ranker.metrics), "items", failures, ()),
                code="metric_failed",
            )
    gains = _estimate_gains(means, judges, used, settings)
    notes = [*items.notes, *_describe_gains(gains)]
    for metric, usage in zip(judges, usages, strict=True):
        notes += describe_usage(metric.label, usage, metric)
    if failures:
        notes.append(f"no output of {format_count(len(failures), 'item')} has a score, {summarize_reasons(failures)}")
    return Reranked(
        choices=choices,
        gains=gains,
        items=counts["items"],
        outputs=counts["outputs"],
        chosen=counts["chosen"],
        settings=settings,
        notes=tuple(dict.fromkeys(notes)),
    )


def estimate_reranking(
    records: Any,
    metrics: MetricList = (),
    *,
    mbr: MetricList = (),
    comparators: MetricList = (),
    pairing: Pairing = "all",
    report: MetricList = (),
    **reading: Any,
) -> CallEstimate:
    """The LLM requests that `rerank` with the same arguments would make. Nothing is sent and nothing written."""
    settings = RerankSettings(pairing=pairing)
    ranker = Ranker.of(build_all(metrics), build_all(mbr), build_all(comparators), settings)
    asking = [metric for metric in (*ranker.metrics, *build_all(report)) if calls_llm(metric)]
    with estimate_calls() as result:
        for item in ItemReader(read_records(records, **reading), keep_rows=False) if asking else ():
            for metric in asking:
                result.metric = metric.label
                score_shard(metric, Shard(item.records))
    return result


def _keep_best(selections: Sequence[_Selection], settings: RerankSettings, sign: float) -> Iterator[_Selection]:
    """Yield the selections with the best choices of all; of equally good ones the earlier."""
    goodness = sign * np.array([choice.score for selection in selections for choice in selection.choices])
    kept = np.zeros(len(goodness), np.bool_)
    kept[np.argsort(-goodness, kind="stable")[: settings.count_kept(len(goodness))]] = True
    start = 0
    for selection in selections:
        stop = start + len(selection.choices)
        chosen = np.flatnonzero(kept[start:stop]).tolist()
        yield replace(
            selection,
            choices=[selection.choices[n] for n in chosen],
            positions=[selection.positions[n] for n in chosen],
        )
        start = stop


def _describe_gains(gains: Sequence[Gain]) -> list[str]:
    """A warning where only the metrics that chose say that the chosen outputs are better."""
    used = [gain for gain in gains if gain.used and gain.is_better]
    others = [gain for gain in gains if not gain.used and gain.higher_is_better is not None and gain.items]
    if not used or not others or any(gain.is_better for gain in others):
        return []
    names = ", ".join(gain.metric for gain in others)
    chosen = ", ".join(gain.metric for gain in used)
    return [
        f"only {chosen}, which chose, surely rises, and {names} does not: the choice may have found what the metric "
        "overrates"
    ]
