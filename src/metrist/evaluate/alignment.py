"""Scores of systems aligned by item, and which items of two systems are the same input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from metrist.errors import agree, format_count
from metrist.grid import Grid
from metrist.io.dedup import OTHER_ITEMS
from metrist.metrics.base import Metric
from metrist.scores import FailureKind

if TYPE_CHECKING:
    from metrist.run.results import Results

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class AlignedScores:
    """A metric's grid of systems and items, with the statistics of each cell and the number of its source, 0 if it has
    none."""

    metric: Metric
    grid: Grid
    stats: Floats
    sources: NDArray[np.intp]

    def shared(self, first: int, second: int) -> Mask:
        """The items that both systems have a score for, without those that are surely not the same input."""
        return self._scored(first, second) & ~self.separate(first, second)

    def _scored(self, first: int, second: int) -> Mask:
        failed: Mask = np.isnan(self.grid.values[first]) | np.isnan(self.grid.values[second])
        return ~failed

    def differing(self, first: int, second: int) -> Mask:
        """The items that both systems have a score for, with different sources."""
        one, other = self.sources[first], self.sources[second]
        differ: Mask = self._scored(first, second) & (one > 0) & (other > 0) & (one != other)
        return differ

    def separate(self, first: int, second: int) -> Mask:
        """Of the items with different sources, those that must not be paired. That is all of them where the sources of
        one system are, under other names, items of the other system. If they are not, each system may have sources of
        its own, such as the passages that it retrieved."""
        differing = self.differing(first, second)
        one, other = self.sources[first], self.sources[second]
        if differing.any() and max(np.isin(one[differing], other).mean(), np.isin(other[differing], one).mean()) < (
            OTHER_ITEMS
        ):
            return np.zeros_like(differing)
        return differing

    def left_out(self, first: int, second: int) -> int:
        """How many items of either system are missing or failed for one of them."""
        present = (self.grid.rows[[first, second]] >= 0).any(axis=0)
        return int(np.count_nonzero(present)) - int(np.count_nonzero(self.shared(first, second)))

    def rows(self, systems: Sequence[int], items: Mask) -> Floats:
        """Statistics (systems, items, k) of cells that all have a score."""
        cells = self.grid.rows[np.asarray(systems, dtype=np.intp)][:, items]
        rows: Floats = self.stats[cells]
        return rows


def align_scores(metric: Metric, runs: Sequence[tuple[Results, Mapping[str, str]]]) -> AlignedScores:
    """Align the metric's scores in one or more runs by item; each run comes with labels for its systems to use."""
    labels: list[str] = []
    items: list[str] = []
    values, stats = [], []
    sources, numbers = list[int](), {"": 0}
    for results, names in runs:
        rows = [row for row, system in enumerate(results.systems) if system in names]
        scores = results[metric].scores
        labels += [names[results.systems[row]] for row in rows]
        items += [results.items[row] for row in rows]
        unfinished = find_unfinished(results, metric)
        values.append(np.where([results.systems[row] in unfinished for row in rows], np.nan, scores.values[rows]))
        stats.append(scores.stats[rows])
        digests = [results.sources[row] for row in rows] if results.sources else [""] * len(rows)
        sources += [numbers.setdefault(digest, len(numbers)) for digest in digests]
    # A run in which every output failed does not know the number of statistics: pad its zeros.
    width = max(part.shape[1] for part in stats)
    padded = [np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in stats]
    grid = Grid.of(metric.label, labels, items, np.concatenate(values))
    by_cell = np.where(grid.rows >= 0, np.array(sources, np.intp)[grid.rows], 0)
    return AlignedScores(metric, grid, np.concatenate(padded), by_cell)


def find_unfinished(run: Results, metric: Metric) -> dict[str, int]:
    """The systems of which the metric has not scored all outputs yet, and how many it has not. A mean over the others
    is not the system's score, so they are compared by this metric only once it is finished."""
    failures = run[metric].scores.failures
    return Counter(run.systems[row] for row, failure in failures.items() if failure.kind is FailureKind.pending)


def describe_sources(pairs: Mapping[tuple[str, str], tuple[int, int]]) -> list[str]:
    """Notes on the pairs of systems with items of different sources: how many there are, and how many of them were left
    out."""
    remarks = []
    for is_separated in (True, False):
        counts = {pair: different for pair, (different, separated) in pairs.items() if bool(separated) is is_separated}
        if not counts:
            continue
        (first, second), count = max(counts.items(), key=lambda entry: entry[1])
        others = f" (and {format_count(len(counts) - 1, 'other pair')})" if len(counts) > 1 else ""
        items = agree(count, "1 item of the same name has", f"{count:,} items of the same names have")
        what = f"{first} and {second}{others}: {items} different sources in the two"
        if is_separated:
            remarks.append(
                f"{what}, and were left out: their sources are those of other items, so these are not the same inputs. "
                "Score all files with --item-key source, in a new folder, to pair outputs by their source."
            )
        else:
            remarks.append(
                f"{what}, and were compared all the same: right if each system has sources of its own, such as the "
                "passages that it retrieved; wrong if the files use the same names for different inputs (--item-key)."
            )
    return remarks
