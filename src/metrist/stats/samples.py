"""Samples: the outputs that humans and one or several metrics judged, and resamples of them.

Two metrics are compared on the outputs that both scored, and on no others. Pairs of metrics with the same such outputs
form a batch and share all work; usually there is one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.stats import Codes, Floats, Mask, Pool
from metrist.stats.measures import Measure

Grouping = Literal["none", "item", "system", "system-level"]
Average = Literal["macro", "micro"]
GROUPINGS: tuple[Grouping, ...] = ("none", "item", "system", "system-level")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CorpusStats:
    """What a system's score is made of where it is no mean of its outputs' scores (BLEU): one row of statistics per
    output, and the function that turns sums of rows into scores. Scores are multiplied by `sign`, so that larger is
    better."""

    rows: Floats
    pool: Pool
    sign: float = 1.0

    def take(self, selection: NDArray[np.intp] | NDArray[np.bool_]) -> CorpusStats:
        """Return the statistics of some of the outputs."""
        return replace(self, rows=self.rows[selection])

    def scores(self, sums: Floats) -> Floats:
        """Return the scores of sums of rows (..., k); NaN if nothing was summed."""
        with np.errstate(all="ignore"):
            scores: Floats = self.sign * self.pool(sums)
        return scores


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One entry per output with a human and a metric value, larger being better for both. Items and systems are numbers
    from 0; not all numbers need to occur. Between systems, `corpus` gives the metric's scores; without it, they are the
    means of its values. `weight` are whole numbers in proportion to how many outputs each of them stands for; None if
    all stand for equally many."""

    human: Floats
    metric: Floats
    item: Codes
    system: Codes
    corpus: CorpusStats | None = None
    weight: Floats | None = None

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in ("human", "metric", "item", "system")}
        if len(set(lengths.values())) > 1:
            raise RunError(f"a sample needs one entry per output in each column, got {lengths}", code="invalid_value")
        for name in ("human", "metric"):
            if not np.isfinite(getattr(self, name)).all():
                raise RunError(f"the {name} values of a sample must be finite numbers", code="invalid_value")

    def __len__(self) -> int:
        return len(self.human)

    def take(self, selection: NDArray[np.intp] | NDArray[np.bool_]) -> Sample:
        """Return some of the outputs, by position or mask; items and systems keep their numbers."""
        return Sample(
            human=self.human[selection],
            metric=self.metric[selection],
            item=self.item[selection],
            system=self.system[selection],
            corpus=self.corpus and self.corpus.take(selection),
            weight=None if self.weight is None else self.weight[selection],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws:
    """Resamples: how often each draw picked each item (draws, items), each system (draws, systems), or both. None for a
    side that was not resampled. Columns are the numbers of items and systems in a sample."""

    items: Floats | None = None
    systems: Floats | None = None


#: About what whole weights add up to: a resample that is many times as heavy stays below the 31 bits of the kernels,
#: and the pairs of a resample below the 63 bits of theirs.
_SUM_OF_WEIGHTS = 1 << 24
#: The largest weight where there are too many outputs for that sum.
_LARGEST_WEIGHT = 1000


def whole_weights(weights: Floats) -> Floats | None:
    """Return weights above 0 as whole numbers in about the same proportions; None if all are equal.

    The ranking kernels count in whole numbers. A weight of 1 / n of all n outputs is off by at most n / 2^25: 0.003 %
    among 1,000 outputs.
    """
    largest = weights.max(initial=0.0)
    if not len(weights) or (weights == largest).all():
        return None
    shares = weights / largest
    whole: Floats = np.maximum(1.0, np.rint(shares * max(_LARGEST_WEIGHT, _SUM_OF_WEIGHTS / shares.sum())))
    return whole


def sort_codes(codes: Codes) -> Codes | None:
    """Return the order that sorts codes and keeps equal ones as they come; None if they are sorted."""
    return None if (codes[1:] >= codes[:-1]).all() else np.argsort(codes, kind="stable")


def take_order(column: NDArray[Any], order: Codes | None) -> NDArray[Any]:
    """Return a column in this order; the column itself if that is None."""
    return column if order is None else column[order]


def number_groups(codes: Codes) -> tuple[int, Codes]:
    """Return how many distinct codes there are, and the codes renumbered from 0 without gaps, in their order. Codes
    without gaps are returned as they are: there may be very many."""
    if not len(codes):
        return 0, codes
    if codes.min() < 0 or codes.max() > 4 * len(codes):
        present, numbers = np.unique(codes, return_inverse=True)
        return len(present), numbers
    is_present = np.bincount(codes) > 0
    if is_present.all():
        return len(is_present), codes
    return int(np.count_nonzero(is_present)), (np.cumsum(is_present) - 1)[codes]


# ---- Panels


Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScorePanel:
    """One entry per output with a human value; `metrics` has a column for each metric, NaN for missing scores. Larger
    is better. `corpus` is empty or has an entry per metric, see `Sample` for it and for `weight`."""

    human: Floats
    metrics: Sequence[Floats]
    item: Codes
    system: Codes
    corpus: tuple[CorpusStats | None, ...] = ()
    weight: Floats | None = None

    def scored(self, metrics: Iterable[int]) -> Mask:
        """Return the outputs that all these metrics scored."""
        missing = np.zeros(len(self.human), np.bool_)
        for metric in metrics:
            missing |= np.isnan(self.metrics[metric])
        return ~missing

    def take(self, outputs: Mask, metrics: Sequence[int]) -> ScorePanel:
        """Return some outputs, and some metrics in the given order."""
        if list(metrics) == list(range(len(self.metrics))) and outputs.all():
            return self
        return ScorePanel(
            human=self.human[outputs],
            metrics=[self.metrics[metric][outputs] for metric in metrics],
            item=self.item[outputs],
            system=self.system[outputs],
            corpus=tuple(stats and stats.take(outputs) for stats in (self.corpus[m] for m in metrics if self.corpus)),
            weight=None if self.weight is None else self.weight[outputs],
        )

    def sample(self, metric: int) -> Sample:
        """Return the sample of one metric, which must have scored every output."""
        corpus = self.corpus[metric] if self.corpus else None
        return Sample(
            human=self.human,
            metric=self.metrics[metric],
            item=self.item,
            system=self.system,
            corpus=corpus,
            weight=self.weight,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetricSets:
    """Sets of metrics that scored the same outputs: these outputs, the metrics, their panel, the positions of the sets
    among all sets, and the sets as positions in the panel."""

    outputs: Mask
    metrics: list[int]
    panel: ScorePanel
    positions: list[int]
    sets: list[tuple[int, ...]]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return [(first, second) for first, second in self.sets]


def match_measures(measures: Measure | Sequence[Measure], panel: ScorePanel) -> Sequence[Measure]:
    """Return a measure per metric: the same for all, or one each (accuracies with their own thresholds)."""
    if isinstance(measures, Measure):
        return [measures] * len(panel.metrics)
    if len(measures) != len(panel.metrics):
        raise RunError(f"got {len(measures)} measures for {len(panel.metrics)} metrics", code="invalid_value")
    return measures


def batch_by_outputs(panel: ScorePanel, sets: Sequence[tuple[int, ...]]) -> Iterator[MetricSets]:
    """Group sets of metrics by the outputs that all metrics of a set scored."""
    positions_by_mask: dict[bytes, tuple[Mask, list[int]]] = {}
    for position, members in enumerate(sets):
        mask = panel.scored(members)
        positions_by_mask.setdefault(mask.tobytes(), (mask, []))[1].append(position)
    for mask, positions in positions_by_mask.values():
        metrics = sorted({metric for position in positions for metric in sets[position]})
        index = {metric: number for number, metric in enumerate(metrics)}
        yield MetricSets(
            outputs=mask,
            metrics=metrics,
            panel=panel.take(mask, metrics),
            positions=positions,
            sets=[tuple(index[metric] for metric in sets[position]) for position in positions],
        )


def take_grouping(grouping: Grouping | Codes, outputs: Mask) -> Grouping | Codes:
    """Return a grouping of some of the outputs: codes are selected, a name stays the same."""
    return grouping if isinstance(grouping, str) else grouping[outputs]
