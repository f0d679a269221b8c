"""Krippendorff's alpha: one minus observed over expected disagreement, for any number of raters and missing ratings.

The coincidences of two values c and k are the pairs of ratings within an output that have them, each output's pairs
divided by its number of ratings less one. With their totals n_c, alpha is

    1 - (n - 1) * sum over c < k of o_ck d(c, k) / sum over c < k of n_c n_k d(c, k)

where d is 1 (nominal), (c - k)^2 (interval), or the squared distance of mid-ranks among all ratings (ordinal). After K.
Krippendorff, Computing Krippendorff's Alpha-Reliability (2011).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from metrist.stats.raters import Codes, Floats, Ratings, divided
from metrist.stats.tallies import Runs, level_totals, pairable, runs

Scale = Literal["nominal", "ordinal", "interval"]
#: From weights (draws, outputs), how often each output was picked, to values (draws,).
Statistic = Callable[[Floats], Floats]


class Coincidences(NamedTuple):
    """Pairs of different values within an output: which output, both levels, and how much the pair counts."""

    output: Codes
    low: Codes
    high: Codes
    amount: Floats


def alpha(ratings: Ratings, scale: Scale) -> Statistic:
    """Alpha as a function of how often each output counts. It is NaN where all ratings that can be compared agree on
    one value: without variation there is nothing to be reliable about."""
    compared = pairable(ratings)
    values, level = np.unique(compared.value, return_inverse=True)
    level = level.reshape(-1)
    found = coincidences(runs(compared, level), compared.counts())

    def statistic(weights: Floats) -> Floats:
        totals = level_totals(weights, compared.output, level, len(values))
        match scale:
            case "nominal":
                apart = np.ones(len(found.amount))
                expected = (totals.sum(axis=1) ** 2 - (totals**2).sum(axis=1)) / 2
            case "interval":
                position = values - values.mean() if len(values) else values
                apart = (position[found.high] - position[found.low]) ** 2
                expected = _spread(totals, position)
            case "ordinal":
                position = np.cumsum(totals, axis=1) - totals / 2 - totals.sum(axis=1, keepdims=True) / 2
                apart = (position[:, found.high] - position[:, found.low]) ** 2
                expected = _spread(totals, position)
        observed = (weights[:, found.output] * (found.amount * apart)).sum(axis=1)
        return 1 - divided((totals.sum(axis=1) - 1) * observed, expected)

    return statistic


def coincidences(found: Runs, counts: Codes) -> Coincidences:
    """All pairs of runs that share an output."""
    most = int(np.bincount(found.output).max(initial=0))
    pairs = [np.empty((2, 0), dtype=np.intp)]
    for ahead in range(1, most):
        first = np.flatnonzero(found.output[ahead:] == found.output[:-ahead])
        pairs.append(np.stack([first, first + ahead]))
    low, high = np.concatenate(pairs, axis=1)
    output = found.output[low]
    amount = found.ratings[low] * found.ratings[high] / (counts[output] - 1)
    return Coincidences(output, found.level[low], found.level[high], amount)


def _spread(totals: Floats, position: Floats) -> Floats:
    """The squared distances of all pairs of ratings, summed."""
    square, linear = (totals * position**2).sum(axis=1), (totals * position).sum(axis=1)
    spread = totals.sum(axis=1) * square - linear**2
    # Ratings of a single level have no spread at all, whatever rounding makes of it.
    varied: Floats = np.where((totals > 0).sum(axis=1) > 1, spread, 0.0)
    return varied
