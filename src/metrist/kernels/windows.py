"""Pairs of scored outputs, told apart by the gap between their scores: counted, never listed as a whole.

Outputs come group by group (`starts`: group g is `starts[g]:starts[g + 1]`, none empty), in a group by ascending score
and, of equal scores, by descending human level (from 0 in each group). Only outputs of one group are paired. An output
of weight w stands for w copies, which are not paired with each other here. Compiled where the extension was built.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.kernels import have_compiled
from metrist.kernels.twin import windows as twin
from metrist.kernels.twin.windows import Counts, Floats, Levels

if have_compiled:
    from metrist.kernels import _native


class Ranked(NamedTuple):
    """The columns that all functions here look at."""

    scores: Floats
    levels: Levels
    weights: Counts
    starts: Counts


class Stretch(NamedTuple):
    """Gaps above `low` and up to `high`. One falls into bucket (gap - origin) * scale, or into the last; the origin is
    at least 0 and at most `low`."""

    low: float
    high: float
    origin: float
    scale: float

    def buckets_of(self, gaps: Floats, buckets: int) -> NDArray[np.intp]:
        return twin.buckets_of(gaps, self.origin, self.scale, buckets)


def beyond_counts(ranked: Ranked, epsilons: Floats) -> Counts:
    """Pairs whose gap is above epsilon, per threshold and group: tied by humans, concordant, and all of them."""
    if not have_compiled:
        return twin.beyond_counts(*ranked, epsilons)
    counts = np.zeros((len(epsilons), len(ranked.starts) - 1, 3), np.int64)
    _native.beyond_counts(*ranked, np.ascontiguousarray(epsilons), counts)
    return counts


def gap_histogram(ranked: Ranked, units: Counts, stretch: Stretch, buckets: int) -> Counts:
    """The pairs of a stretch by bucket, in units of their group times both weights: tied by humans, concordant,
    discordant."""
    if not have_compiled:
        return twin.gap_histogram(*ranked, units, *stretch, buckets)
    table = np.zeros((buckets, 3), np.int64)
    _native.gap_histogram(*ranked, units, *stretch, table)
    return table


def gaps_kept(
    ranked: Ranked, units: Counts, stretch: Stretch, keep: NDArray[np.bool_], room: int
) -> tuple[Floats, Counts] | None:
    """The gaps, in no order, of pairs in kept buckets that are not discordant, and their units: negative where
    concordant. Equal gaps may come as one. None where they would be more than `room`."""
    if not have_compiled:
        return twin.gaps_kept(*ranked, units, *stretch, keep, room)
    gaps, gains = np.empty(room), np.empty(room, np.int64)
    found = _native.gaps_kept(*ranked, units, *stretch, np.ascontiguousarray(keep), gaps, gains)
    return (gaps[:found], gains[:found]) if found <= room else None


def best_prefixes(
    gains: Floats, groups: NDArray[np.int32], lasts: Counts, weights: Floats
) -> tuple[Floats, NDArray[np.int64]]:
    """For each row of group weights: the greatest weighted sum of gains from the first up to one of `lasts`, and which
    of `lasts` is the first to reach it; 0 and -1 where none is above 0."""
    if not have_compiled:
        return twin.best_prefixes(gains, groups, lasts, weights)
    best, at = np.empty(len(weights)), np.empty(len(weights), np.int64)
    _native.best_prefixes(gains, groups, lasts, np.ascontiguousarray(weights), best, at)
    return best, at
