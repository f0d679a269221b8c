"""Tests of one pair of systems alone: what `pair_tests` must give for each of many pairs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from metrist.stats import Floats
from metrist.stats.resampling import (
    Alternative,
    Pool,
    bootstrap_scores,
    count_extreme,
    exchanged_differences,
    interval,
    p_values,
    pool_rows,
    rounding_slack,
)


class Difference(NamedTuple):
    """The difference of two systems (first minus second), with its interval and p-value."""

    value: float
    low: float
    high: float
    p: float


def paired_bootstrap(
    first: Floats,
    second: Floats,
    pool: Pool,
    draws: int,
    rng: np.random.Generator,
    alternative: Alternative = "two-sided",
    confidence: float = 0.95,
) -> Difference:
    """Compare two systems on the same items, rows (n, k) each.

    The resampled differences, centred on zero, represent the null hypothesis.
    """
    stats = np.stack([first, second])
    scores = pool_rows(stats, pool)
    resampled = bootstrap_scores(stats, pool, draws, rng)
    differences, observed = resampled[:, :1] - resampled[:, 1:], scores[:1] - scores[1:]
    low, high = interval(differences[:, 0], confidence, len(first), float(observed[0]))
    extreme = count_extreme(differences - observed, observed, alternative, rounding_slack(scores[:1], scores[1:]))
    return Difference(float(observed[0]), low, high, float(p_values(extreme, draws, observed, len(first))[0]))


def paired_randomisation(
    first: Floats,
    second: Floats,
    pool: Pool,
    draws: int,
    rng: np.random.Generator,
    alternative: Alternative = "two-sided",
) -> float:
    """Return the p-value of approximate randomisation: how often would outputs that are exchanged at random, item by
    item, differ as much?"""
    stats = np.stack([first, second])
    scores = pool_rows(stats, pool)
    observed, slack = scores[:1] - scores[1:], rounding_slack(scores[:1], scores[1:])
    chunks = exchanged_differences(stats, [(0, 1)], pool, draws, rng)
    extreme = np.sum([count_extreme(null, observed, alternative, slack) for null in chunks], axis=0)
    return float(p_values(extreme, draws, observed, len(first))[0])
