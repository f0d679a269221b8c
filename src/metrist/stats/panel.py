"""Several metrics beside the same human values: what tests between metrics look at.

Two metrics are compared on the outputs that both have scored, and on no others. Pairs of metrics with the same such
outputs form a batch and share all work; usually there is one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.stats.grouping import Grouping
from metrist.stats.measures import Measure
from metrist.stats.resample import Floats
from metrist.stats.sample import Codes, Sample

Pairs = Sequence[tuple[int, int]]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Panel:
    """One entry per output with a human value: `metrics` (m, n) is NaN where a metric has none. Larger is better."""

    human: Floats
    metrics: Floats
    item: Codes
    system: Codes

    def __post_init__(self) -> None:
        if self.metrics.ndim != 2 or not self.metrics.shape[1] == len(self.human) == len(self.item) == len(self.system):
            raise RunError(
                "a panel needs one entry per output in each column and a row per metric, got "
                f"{len(self.human)} human values, {len(self.item)} items, {len(self.system)} systems and metric "
                f"values of shape {self.metrics.shape}"
            )
        if np.isnan(self.human).any() or np.isinf(self.metrics).any():
            raise RunError("a panel needs a human value for each output, and metric values that are finite or NaN")

    @staticmethod
    def of(samples: Sequence[Sample]) -> Panel:
        """Samples of the same outputs in the same order, one per metric."""
        first = samples[0]
        for number, sample in enumerate(samples):
            if not (np.array_equal(sample.item, first.item) and np.array_equal(sample.system, first.system)):
                raise RunError(f"sample {number} holds other outputs than sample 0, or in another order")
        return Panel(
            human=first.human, metrics=np.stack([s.metric for s in samples]), item=first.item, system=first.system
        )

    def scored(self, metrics: Iterable[int]) -> Mask:
        """The outputs that all these metrics have scored."""
        return np.logical_not(np.isnan(self.metrics[list(metrics)]).any(axis=0))

    def take(self, outputs: Mask, metrics: Sequence[int]) -> Panel:
        """Some outputs, and some metrics in the order given."""
        return Panel(
            human=self.human[outputs],
            metrics=self.metrics[list(metrics)][:, outputs],
            item=self.item[outputs],
            system=self.system[outputs],
        )

    def sample(self, metric: int) -> Sample:
        """One metric; it must have scored every output."""
        return Sample(human=self.human, metric=self.metrics[metric], item=self.item, system=self.system)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Sets of metrics that have scored the same outputs: which outputs, which metrics, the panel of just these, the
    sets' positions among all sets, and the sets by places in that panel."""

    outputs: Mask
    metrics: list[int]
    panel: Panel
    positions: list[int]
    sets: list[tuple[int, ...]]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return [(first, second) for first, second in self.sets]


def one_each(measures: Measure | Sequence[Measure], panel: Panel) -> Sequence[Measure]:
    """A measure per metric: the same for all, or their own (accuracies with thresholds of their own)."""
    if isinstance(measures, Measure):
        return [measures] * len(panel.metrics)
    if len(measures) != len(panel.metrics):
        raise RunError(f"one measure for all metrics or one for each, got {len(measures)} for {len(panel.metrics)}")
    return measures


def all_pairs(panel: Panel) -> list[tuple[int, int]]:
    return list(combinations(range(len(panel.metrics)), 2))


def batches(panel: Panel, sets: Sequence[tuple[int, ...]]) -> Iterator[Batch]:
    """The sets of metrics, by the outputs that all metrics of a set have scored."""
    found: dict[bytes, tuple[Mask, list[int]]] = {}
    for position, members in enumerate(sets):
        mask = panel.scored(members)
        found.setdefault(mask.tobytes(), (mask, []))[1].append(position)
    for mask, positions in found.values():
        metrics = sorted({metric for position in positions for metric in sets[position]})
        place = {metric: number for number, metric in enumerate(metrics)}
        yield Batch(
            outputs=mask,
            metrics=metrics,
            panel=panel.take(mask, metrics),
            positions=positions,
            sets=[tuple(place[metric] for metric in sets[position]) for position in positions],
        )


def grouped(grouping: Grouping | Codes, outputs: Mask) -> Grouping | Codes:
    """A grouping of some of the outputs: a column is cut with them, a name stays what it is."""
    return grouping if isinstance(grouping, str) else grouping[outputs]
