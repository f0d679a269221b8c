"""Williams' test: do two metrics correlate differently with the same human values? (Williams 1959; Steiger 1980)

It is a formula, not a simulation, and holds for Pearson's correlation of normal values. The metrics' correlation with
each other is part of it: the more alike two metrics are, the smaller a difference it can tell from chance.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from metrist.stats.resample import Alternative, Floats
from metrist.stats.tails import student_t_tail


class Williams(NamedTuple):
    """The test's statistic with its degrees of freedom, and the p-value; NaN where it is not defined."""

    t: float
    freedom: int
    p: float


def williams(
    first: float, second: float, between: float, outputs: int, alternative: Alternative = "two-sided"
) -> Williams:
    """`first` and `second` are the metrics' correlations with the human values, `between` that of one metric with the
    other. "greater" asks whether the first is the larger. Not defined for fewer than four outputs."""
    freedom = outputs - 3
    if freedom < 1 or math.isnan(first + second + between):
        return Williams(math.nan, freedom, math.nan)
    t = _statistic(first, second, between, outputs)
    match alternative:
        case "two-sided":
            return Williams(t, freedom, 2 * student_t_tail(abs(t), freedom))
        case "greater":
            return Williams(t, freedom, student_t_tail(t, freedom))
        case "less":
            return Williams(t, freedom, student_t_tail(-t, freedom))


def _statistic(first: float, second: float, between: float, outputs: int) -> float:
    if first == second:
        return 0.0
    determinant = 1 - first**2 - second**2 - between**2 + 2 * first * second * between
    mean = (first + second) / 2
    # Rounding may leave a determinant that is zero in truth a little below it.
    spread = 2 * (outputs - 1) / (outputs - 3) * max(determinant, 0.0) + mean**2 * (1 - between) ** 3
    if spread <= 0:
        return math.copysign(math.inf, first - second)
    return (first - second) * math.sqrt((outputs - 1) * max(1 + between, 0.0) / spread)


def williams_of(human: Floats, first: Floats, second: Floats, alternative: Alternative = "two-sided") -> Williams:
    """The test on values: one per output from the humans and from either metric."""
    between_all = _correlations(np.stack([human, first, second]))
    return williams(between_all[0, 1], between_all[0, 2], between_all[1, 2], len(human), alternative)


def _correlations(rows: Floats) -> Floats:
    """Pearson's correlation of each row with each; NaN with a constant row."""
    if rows.shape[1] < 2:
        return np.full((len(rows), len(rows)), np.nan)
    constant = np.ptp(rows, axis=1) == 0
    centred = rows - rows.mean(axis=1, keepdims=True)
    length = np.where(constant, np.nan, np.sqrt((centred**2).sum(axis=1)))
    unit = centred / length[:, None]
    found: Floats = np.clip(unit @ unit.T, -1.0, 1.0)
    return found
