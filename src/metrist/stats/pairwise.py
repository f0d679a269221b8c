"""Many systems on the same items, tested two by two with one set of draws."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from metrist.stats.resample import (
    Alternative,
    Floats,
    Pool,
    bootstrap_scores,
    count_extreme,
    exchanged_differences,
    interval,
    p_values,
    pooled,
    slack_of,
)

Test = Literal["bootstrap", "randomisation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTest:
    """Two systems' scores, their difference (first minus second) with its interval, and a p-value per test made."""

    first: float
    second: float
    difference: float
    low: float
    high: float
    p: dict[Test, float]


def pair_tests(
    stats: Floats,
    pairs: Sequence[tuple[int, int]],
    pool: Pool,
    draws: int,
    rng: np.random.Generator,
    tests: Collection[Test] = ("bootstrap", "randomisation"),
    alternative: Alternative = "two-sided",
    confidence: float = 0.95,
) -> list[PairTest]:
    """Each pair of systems on the items that all share, rows (systems, items, k).

    The draws are common to all pairs, so that a pair's numbers do not depend on which others are tested beside it.
    """
    for_resamples, for_tosses = rng.spawn(2)
    items = int(stats.shape[1])
    first, second = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    scores = pooled(stats, pool)
    observed, slack = scores[first] - scores[second], slack_of(scores[first], scores[second])

    resampled = bootstrap_scores(stats, pool, draws, for_resamples)
    spreads = [interval(resampled[:, a] - resampled[:, b], confidence, items) for a, b in pairs]
    p: dict[Test, Floats] = {}
    if "bootstrap" in tests:
        nulls = (resampled[:, a] - resampled[:, b] - observed[i] for i, (a, b) in enumerate(pairs))
        counts = [count_extreme(null, observed[i], alternative, slack[i]) for i, null in enumerate(nulls)]
        p["bootstrap"] = p_values(np.array(counts), draws, observed, items)
    if "randomisation" in tests:
        chunks = exchanged_differences(stats, pairs, pool, draws, for_tosses)
        extreme = np.sum([count_extreme(null, observed, alternative, slack) for null in chunks], axis=0)
        p["randomisation"] = p_values(extreme, draws, observed, items)
    return [
        PairTest(
            first=float(scores[a]),
            second=float(scores[b]),
            difference=float(observed[i]),
            low=spreads[i][0],
            high=spreads[i][1],
            p={test: float(found[i]) for test, found in p.items()},
        )
        for i, (a, b) in enumerate(pairs)
    ]
