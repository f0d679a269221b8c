"""Scores of systems aligned by item, and which items of two systems are the same input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import agree, format_count
from metrist.grid import Grid
from metrist.io.dedup import OTHER_ITEMS
from metrist.metrics.base import Metric
from metrist.names import NameColumn, concatenate_names, encode_names, select_names, take_names
from metrist.scores import FailureKind, Scores, take_stats

if TYPE_CHECKING:
    from metrist.run.results import Results

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class PairFacts(NamedTuple):
    """How many items two systems are compared on, and how many items of either are missing or failed for one of them.
    `common` are the items that both have, scored or not.

    `different` are shared items with different sources: `separated` of them are left out, since sources tell that items
    were named wrongly; where it is 0, they are compared.
    """

    items: int
    common: int
    left_out: int
    different: int
    separated: int


@dataclass(frozen=True, slots=True, eq=False)
class AlignedScores:
    """A metric's grid of systems and items, with the statistics of each run's rows and the number of each cell's
    source, 0 if it has none."""

    grid: Grid
    stats: tuple[_RunStats, ...]
    sources: NDArray[np.intp]

    def pair(self, first: int, second: int) -> tuple[Mask, PairFacts]:
        """The items that both systems have a score for, without those that are surely not the same input, and how many
        there are.

        Items with different sources must not be paired where the sources of one system are, under other names, items of
        the other system. If they are not, each system may have sources of its own, such as the passages that it
        retrieved.
        """
        scored = ~(np.isnan(self.grid.values[first]) | np.isnan(self.grid.values[second]))
        one, other = self.sources[first], self.sources[second]
        differing = scored & (one != 0) & (other != 0) & (one != other)
        separated = differing.any() and (
            max(np.isin(one[differing], other).mean(), np.isin(other[differing], one).mean()) >= OTHER_ITEMS
        )
        shared: Mask = scored & ~differing if separated else scored
        present = self.grid.rows[[first, second]] >= 0
        items, different = int(np.count_nonzero(shared)), int(np.count_nonzero(differing))
        facts = PairFacts(
            items=items,
            common=int(np.count_nonzero(present.all(axis=0))),
            left_out=int(np.count_nonzero(present.any(axis=0))) - items,
            different=different,
            separated=different if separated else 0,
        )
        return shared, facts

    @property
    def width(self) -> int:
        """The number of statistics. A run in which every output failed does not know it."""
        return max(part.scores.width for part in self.stats)

    def rows(self, systems: Sequence[int], items: Mask) -> Floats:
        """Statistics (systems, items, k) of cells that all have a score."""
        return np.stack([self.read(system, items) for system in systems])

    def read(self, system: int, items: Mask) -> Floats:
        """Statistics (items, k) of one system's cells that all have a score."""
        cells = self.grid.rows[system, items]
        rows = np.zeros((len(cells), self.width))
        for part in self.stats:
            own = (cells >= part.start) & (cells < part.start + len(part.positions))
            at = part.positions[cells[own] - part.start]
            rows[own, : part.scores.width] = take_stats(part.scores, at)
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class _RunStats:
    """The scores of a run, the positions of the rows that were chosen, and the number of the first of them."""

    scores: Scores
    positions: NDArray[np.intp]
    start: int


def align_scores(metric: Metric, runs: Sequence[tuple[Results, Mapping[str, str]]]) -> AlignedScores:
    """Align the metric's scores in one or more runs by item; each run comes with labels for its systems to use."""
    chosen, stats, start = list[_ChosenRows](), list[_RunStats](), 0
    for results, names in runs:
        systems = encode_names(results.systems)
        rows = select_names(systems, names)
        scores = results[metric].scores
        values = np.asarray(scores.values[rows])
        if unfinished := find_unfinished(results, metric):
            values = np.where(np.isin(rows, select_names(systems, unfinished)), np.nan, values)
        labels = take_names(systems, rows)
        items = take_names(encode_names(results.items), rows)
        labels = NameColumn(labels.codes, tuple(names[system] for system in labels.names))
        sources = results.sources if len(results.sources) else NameColumn(np.zeros(len(results), np.intp), ("",))
        chosen.append(_ChosenRows(labels, items, values, take_names(encode_names(sources), rows)))
        stats.append(_RunStats(scores, rows, start))
        start += len(rows)
    labels, items = concatenate_names([one.labels for one in chosen]), concatenate_names([one.items for one in chosen])
    grid = Grid.of(metric.label, labels, items, np.concatenate([one.values for one in chosen]))
    sources = concatenate_names([one.sources for one in chosen])
    is_known = np.fromiter(map(bool, sources.names), np.bool_)
    by_cell = np.zeros(grid.rows.shape, np.intp)
    by_cell[labels.codes, items.codes] = np.where(is_known[sources.codes], sources.codes + 1, 0)
    return AlignedScores(grid, tuple(stats), by_cell)


class _ChosenRows(NamedTuple):
    labels: NameColumn
    items: NameColumn
    values: Floats
    #: Digests, empty for none.
    sources: NameColumn


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
