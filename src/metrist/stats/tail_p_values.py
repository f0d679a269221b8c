"""p-values where draws alone say too little: far out in the tail, and from few units.

Exchanges: a correction for hundreds of pairs asks for p-values that a thousand draws cannot give. Where fewer than ten
draws are as extreme as what was observed, p is the tail of a normal distribution with the spread of the draws: sums
over many units come close to one. It is never taken below what the number of exchanges could give at least, nor above
what ten draws would.

Bootstrap: resampled differences are narrower than the truth is uncertain, the more so the fewer units were resampled
(five systems, say), and counting them would reject far too many true nulls. p is the tail of Student's t with one
degree of freedom less than there are units, at the difference over its standard error, which is widened for the same
reason; p is never below what counting gives as long as ten draws are as extreme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from metrist.stats.between import PermutationTest
from metrist.stats.certainty import Gap
from metrist.stats.resample import Floats
from metrist.stats.tails import normal_tail, student_t_tail

_FEW = 10
#: With fewer units than this, p-values and intervals from resamples of them are rough.
FEW_UNITS = 20


def exchange_p_values(tests: Sequence[PermutationTest]) -> Floats:
    """Two-sided p-values of exchanges of rows that add up."""
    return np.array([_exchange_p_value(test) for test in tests], dtype=np.float64)


def _exchange_p_value(test: PermutationTest) -> float:
    most = _FEW / (test.draws + 1)
    # What was not tested (NaN), or has no spread, stays as it was counted.
    if not test.p <= most or not test.spread > 0:
        return test.p
    tail = 2 * normal_tail(abs(test.difference) / test.spread)
    return min(max(tail, 2.0 ** (1 - test.differing)), most)


def bootstrap_p_values(gaps: Sequence[Gap], draws: int) -> Floats:
    """Two-sided p-values of paired bootstraps of so many draws."""
    return np.array([_bootstrap_p_value(gap, draws) for gap in gaps], dtype=np.float64)


def _bootstrap_p_value(gap: Gap, draws: int) -> float:
    if gap.units < 2 or math.isnan(gap.p):
        return math.nan
    least = 2.0 ** (1 - gap.units)
    if not gap.standard_error > 0:
        return max(gap.p, least)
    # A resample spreads by the share (n - 1) / n of the variance that n units speak for.
    widened = gap.standard_error * math.sqrt(gap.units / (gap.units - 1))
    tail = 2 * student_t_tail(abs(gap.value) / widened, gap.units - 1)
    return max(tail, gap.p) if gap.p > _FEW / (draws + 1) else tail
