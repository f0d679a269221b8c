"""p-values far out in the tail, which a correction for hundreds of pairs asks for and a thousand draws cannot give.

Where fewer than ten draws are as extreme as what was observed, their number says little. There p is the tail of a
normal distribution with the spread of the draws: sums over many items come close to one. It is never taken below what
the number of exchanges could give at least, nor above what ten draws would.
"""

from __future__ import annotations

import numpy as np

from metrist.meta.panel import Pairs
from metrist.meta.resample import Pool, count_extreme, exchanged_differences, p_values, pooled, slack_of
from metrist.meta.tails import normal_tail
from metrist.studies.meta.judged import Floats

_FEW = 10


def exchange_p_values(rows: Floats, pairs: Pairs, pool: Pool, draws: int, rng: np.random.Generator) -> Floats:
    """The p-value of each pair of metrics, rows (metrics, items, k): items change hands by the toss of a coin."""
    first, second = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    values = pooled(rows, pool)
    observed, slack = values[first] - values[second], slack_of(values[first], values[second])
    extreme, squares = np.zeros(len(pairs), dtype=np.intp), np.zeros(len(pairs))
    for null in exchanged_differences(rows, pairs, pool, draws, rng):
        extreme += count_extreme(null, observed, "two-sided", slack)
        squares += np.nansum(null**2, axis=0)
    counted = p_values(extreme, draws, observed, rows.shape[1])
    spread = np.sqrt(squares / max(draws, 1))
    z = np.divide(np.abs(observed), spread, out=np.full(len(pairs), np.nan), where=spread > 0)
    differing = (rows[first] != rows[second]).any(axis=-1).sum(axis=1)
    return with_tails(counted, z, draws, least=2.0 ** (1.0 - differing))


def with_tails(counted: Floats, z: Floats, draws: int, least: Floats | float = 0.0) -> Floats:
    """p-values counted in draws, where they rest on fewer than ten replaced by the tail of |z| (two-sided)."""
    tails = np.array([2 * normal_tail(abs(one)) for one in z])
    bounded = np.clip(tails, least, _FEW / (draws + 1))
    # A comparison with NaN is false: what was not tested, or has no spread, stays as it was counted.
    far = (counted <= _FEW / (draws + 1)) & ~np.isnan(bounded)
    return np.where(far, bounded, counted)
