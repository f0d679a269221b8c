"""One metric's scores of several systems, laid side by side by item and ready for a paired test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from metrist.grid import Grid
from metrist.metrics.base import Metric

if TYPE_CHECKING:
    from metrist.run.results import Results

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A metric's grid of systems and items, with the statistics behind each cell."""

    metric: Metric
    grid: Grid
    stats: Floats

    def shared(self, first: int, second: int) -> Mask:
        """The items that both systems have a score for."""
        failed: Mask = np.isnan(self.grid.values[first]) | np.isnan(self.grid.values[second])
        return ~failed

    def left_out(self, first: int, second: int) -> int:
        """How many items of either system are missing or failed for one of them."""
        given = (self.grid.rows[[first, second]] >= 0).any(axis=0)
        return int(np.count_nonzero(given)) - int(np.count_nonzero(self.shared(first, second)))

    def rows(self, systems: Sequence[int], items: Mask) -> Floats:
        """Statistics (systems, items, k) of cells that all have a score."""
        cells = self.grid.rows[np.asarray(systems, dtype=np.intp)][:, items]
        rows: Floats = self.stats[cells]
        return rows


def block(metric: Metric, parts: Sequence[tuple[Results, Mapping[str, str]]]) -> Block:
    """The metric's scores in one or more runs; each part says which of its systems take part and under what name."""
    labels: list[str] = []
    items: list[str] = []
    values, stats = [], []
    for results, names in parts:
        at = [row for row, system in enumerate(results.systems) if system in names]
        scores = results.scores[metric.text]
        labels += [names[results.systems[row]] for row in at]
        items += [results.items[row] for row in at]
        values.append(scores.values[at])
        stats.append(scores.stats[at])
    grid = Grid.of(metric.text, labels, items, np.concatenate(values))
    return Block(metric, grid, _stacked(stats))


def _stacked(stats: Sequence[Floats]) -> Floats:
    # A run in which every output failed cannot know how wide the metric's rows are: its zeros are widened.
    width = max(block.shape[1] for block in stats)
    return np.concatenate([np.pad(block, ((0, 0), (0, width - block.shape[1]))) for block in stats])
