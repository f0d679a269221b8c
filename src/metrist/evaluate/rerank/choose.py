"""The order of an item's outputs, and which of them are chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from metrist.errors import RunError, unknown_name
from metrist.evaluate.plans import RerankSettings
from metrist.evaluate.rerank.mbr import MinimumBayesRisk
from metrist.evaluate.rerank.rows import COLUMN, Item, make_row
from metrist.evaluate.rerank.wins import ComparisonWins
from metrist.io.json_rows import Row
from metrist.metrics.base import Metric, Shard
from metrist.metrics.comparator import build_comparator
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.scores import Column

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
            goodness = _standardise(goodness) * self.weights
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


def _standardise(values: Column) -> Column:
    """Columns less their means in units of their standard deviations; 0 where all outputs have the same value."""
    scored = values[~np.isnan(values).any(axis=1)]
    if not len(scored):
        return values
    means, deviations = scored.mean(axis=0), scored.std(axis=0)
    standardised: Column = (values - means) / np.where(deviations > 1e-12 * np.abs(means), deviations, np.inf)
    return standardised


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
