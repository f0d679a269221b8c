"""What choosing gained: the mean score of the chosen outputs against that of all, by each metric, used or not."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from metrist.metrics.base import Metric
from metrist.scores import Column
from metrist.stats.resampling import pooled_interval


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


@dataclass(slots=True)
class ItemMeans:
    """The means of each item, one metric after the other: of all outputs, and of the chosen ones."""

    metrics: int
    _means: array[float] = field(default_factory=lambda: array("d"))

    def add(self, values: Column, chosen: Sequence[int]) -> None:
        """Add an item's scores, a row per output; only outputs that a metric scored count."""
        for rows in (values, values[chosen]):
            self._means.extend(_average(rows))

    def estimate(
        self, metrics: Sequence[Metric], used: int, draws: int, seed: int, confidence: float
    ) -> tuple[Gain, ...]:
        """The gain by each metric, of which the first `used` chose."""
        means = np.array(self._means).reshape(-1, 2, self.metrics)
        gains = []
        for number, metric in enumerate(metrics):
            before, after = means[~np.isnan(means[:, :, number]).any(axis=1), :, number].T
            rows = np.column_stack([after - before, np.ones(len(before))])
            low, high = pooled_interval(rows, _mean, draws, np.random.default_rng(seed), confidence)
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


def _average(rows: Column) -> Column:
    """The means over the first axis of what is not NaN, also where the sum is too large for a number."""
    counts = np.count_nonzero(~np.isnan(rows), axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        means: Column = np.nansum(rows, axis=0) / counts
        return np.nansum(rows / counts, axis=0) if np.isinf(means).any() else means


def _mean(sums: Column) -> Column:
    with np.errstate(invalid="ignore"):
        mean: Column = sums[..., 0] / sums[..., 1]
    return mean


def describe_gains(gains: Sequence[Gain]) -> list[str]:
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
