"""Standings of systems: the range of a system's rank, and how many votes would tell two systems apart."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from metrist.stats import Floats
from metrist.stats.preferences import BradleyTerry

#: Strengths that differ by less are equal but for rounding.
_EQUAL = 1e-9


def rank_ranges(resampled: Floats, confidence: float) -> Floats:
    """Return the best and the worst rank (2, systems) of each system in resamples of their strengths (draws, systems),
    between the quantiles of its ranks; NaN without resamples that determine the strengths."""
    known = resampled[~np.isnan(resampled).any(axis=1)]
    if not len(known):
        return np.full((2, resampled.shape[1]), np.nan)
    ranks = 1 + np.argsort(np.argsort(-known, axis=1, kind="stable"), axis=1)
    tail = (1 - confidence) / 2
    ranges: Floats = np.quantile(ranks, [tail, 1 - tail], axis=0, method="closest_observation").astype(np.float64)
    return ranges


def votes_needed(fitted: BradleyTerry, resampled: Floats, first: int, second: int, confidence: float) -> float:
    """Return how many more votes between two systems make the interval of the difference of their strengths exclude 0,
    if the difference stays as it is: 0 where it does so now, infinity where there is no difference.

    A vote adds the information of one choice between them. Votes on the same item repeat each other in part: by as much
    as the variance between resamples of items exceeds that of the model.
    """
    gap = float(fitted.strength[first] - fitted.strength[second])
    known = resampled[~np.isnan(resampled).any(axis=1)]
    variance = float((known[:, first] - known[:, second]).var(ddof=1)) if len(known) > 1 else math.nan
    of_model = float(fitted.covariance[[first, second], [first, second]].sum() - 2 * fitted.covariance[first, second])
    if not variance > 0 or not of_model > 0:
        return math.nan
    if abs(gap) < _EQUAL:
        return math.inf
    missing = (NormalDist().inv_cdf((1 + confidence) / 2) / gap) ** 2 - 1 / variance
    win, tie = math.exp(gap / 2), fitted.tie
    total = win + 1 / win + tie
    points = (win + tie / 2) / total
    information = (win + tie / 4) / total - points**2
    return math.ceil(max(missing, 0.0) * max(variance / of_model, 1.0) / information)
