"""Pairs of scored outputs, told apart by the gap between their scores: counted, never listed as a whole.

Outputs come group by group (`starts`: group g is `starts[g]:starts[g + 1]`, none empty), in a group by ascending score
and, of equal scores, by descending human level. Only outputs of one group are paired. An output of weight w stands for
w copies, which are not paired with each other here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from metrist.kernels.twin import windows as _twin

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Levels = NDArray[np.int32]


def window_counts(scores: Floats, levels: Levels, weights: Counts, starts: Counts, epsilons: Floats) -> Counts:
    """Pairs whose gap is at most epsilon, per threshold and group: tied by humans, concordant, all of them."""
    return _twin.window_counts(scores, levels, weights, starts, epsilons)


def gap_histogram(
    scores: Floats,
    levels: Levels,
    weights: Counts,
    starts: Counts,
    units: Counts,
    low: float,
    high: float,
    scale: float,
    buckets: int,
) -> Counts:
    """Pairs with a gap above `low` and at most `high`, by bucket (gap - low) * scale: units (per group, times both
    weights) that humans tie, units that are concordant, and the number of both. Discordant pairs are left out."""
    return _twin.gap_histogram(scores, levels, weights, starts, units, low, high, scale, buckets)


def gaps_kept(
    scores: Floats,
    levels: Levels,
    weights: Counts,
    starts: Counts,
    units: Counts,
    low: float,
    high: float,
    scale: float,
    keep: NDArray[np.bool_],
) -> tuple[Floats, Counts]:
    """The gaps of those pairs whose bucket is kept, in no order, and their units: negative where concordant."""
    return _twin.gaps_kept(scores, levels, weights, starts, units, low, high, scale, keep)


def best_prefixes(
    gains: Floats, groups: NDArray[np.int32], lasts: NDArray[np.intp], weights: Floats
) -> tuple[Floats, NDArray[np.intp]]:
    """For each row of group weights: the greatest weighted sum of gains from the first up to one of `lasts`, and the
    first of `lasts` that reaches it; 0 and -1 where none is above 0."""
    return _twin.best_prefixes(gains, groups, lasts, weights)
