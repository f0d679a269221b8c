"""How often values tie: the share of all pairs of outputs whose values differ by no more than a threshold."""

from __future__ import annotations

import numpy as np

from metrist.errors import RunError
from metrist.stats.raters import Codes, Floats, divided


def tie_share(values: Floats, epsilon: float = 0.0) -> float:
    """The share of pairs of outputs that tie; NaN values take no part, and fewer than two outputs have no pair."""
    given = values[~np.isnan(values)]
    return float(tie_shares(given, np.ones((1, len(given))), epsilon)[0])


def tie_shares(values: Floats, weights: Floats, epsilon: float = 0.0) -> Floats:
    """Shares (draws,) under weights (draws, n), how often each output was picked.

    An output that was picked twice is not paired with itself: such pairs would all tie, and resamples would show more
    ties than the data they are drawn from.
    """
    if epsilon < 0:
        raise RunError(f"a tie's threshold must be at least 0, got {epsilon}")
    order = np.argsort(values, kind="stable")
    sorted_values, picked = values[order], weights[:, order]
    below = np.concatenate([np.zeros((len(weights), 1)), np.cumsum(picked, axis=1)], axis=1)
    within = below[:, last_ties(sorted_values, epsilon)] - below[:, 1:]
    pairs = (picked.sum(axis=1) ** 2 - (picked**2).sum(axis=1)) / 2
    return divided((picked * within).sum(axis=1), pairs)


def last_ties(values: Floats, epsilon: float) -> Codes:
    """For each of the ascending values, where those end that differ from it by epsilon at most.

    Differences are what is compared, as they are elsewhere: value + epsilon would round otherwise.
    """
    low, high = np.arange(1, len(values) + 1), np.full(len(values), len(values))
    while np.any(open_ := low < high):
        middle = np.minimum((low + high) // 2, len(values) - 1)
        near = values[middle] - values <= epsilon
        low = np.where(open_ & near, middle + 1, low)
        high = np.where(open_ & ~near, middle, high)
    return low
