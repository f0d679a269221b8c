"""Significance: tails of distributions, corrections for many tests, clusters of metrics, and power."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from metrist.stats import Floats
from metrist.stats.measures import mean_of_known
from metrist.stats.resampling import Over

# ---- Upper tails of Student's t, the fair coin and the normal
#
# The first two are one function, the regularised incomplete beta. It keeps about twelve digits even for billions of
# tosses: its leading factor is a binomial probability written with Stirling's remainder (Loader, 2000), because the
# difference of three large log-gammas would cancel all digits.

_TINY = 1e-300
_CLOSE = 1e-14
#: Coefficients of Stirling's remainder, in odd powers of 1/z.
_REMAINDER = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_SERIES_FROM = 16.0


def student_t_tail(t: float, freedom: float) -> float:
    """Return P(T >= t) for Student's t."""
    if math.isnan(t) or not freedom > 0:
        return math.nan
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    square = t * t
    both = beta_share(freedom / 2, 0.5, freedom / (freedom + square), square / (freedom + square))
    return both / 2 if t >= 0 else 1 - both / 2


def coin_tail(heads: int, tosses: int) -> float:
    """Return P(at least `heads` heads in `tosses` tosses of a fair coin)."""
    if heads <= 0:
        return 1.0
    if heads > tosses:
        return 0.0
    return beta_share(heads, tosses - heads + 1, 0.5, 0.5)


def normal_tail(z: float) -> float:
    """Return P(Z >= z) for the standard normal."""
    return math.erfc(z / math.sqrt(2)) / 2


def beta_share(a: float, b: float, x: float, rest: float) -> float:
    """Return the regularised incomplete beta function at x. `rest` is 1 - x, given separately for its digits."""
    if x <= 0:
        return 0.0
    if rest <= 0:
        return 1.0
    # Gamma(n + 1) / (Gamma(a + 1) Gamma(b + 1)) * x^a * rest^b, with n = a + b.
    n = a + b
    exponent = _remainder(n) - _remainder(a) - _remainder(b) - _deviance(a, n * x) - _deviance(b, n * rest)
    density = math.sqrt(n / (2 * math.pi * a * b)) * math.exp(exponent)
    factor = a * b / n * density
    # The fraction converges quickly only below the mean; above it, use the other tail.
    if x * (n + 2) <= a + 1:
        return factor * _fraction(a, b, x) / a
    return 1 - factor * _fraction(b, a, rest) / b


def _remainder(z: float) -> float:
    """Return log Gamma(z + 1) minus Stirling's formula."""
    if z < _SERIES_FROM:
        return math.lgamma(z + 1) - (z + 0.5) * math.log(z) + z - 0.5 * math.log(2 * math.pi)
    return sum(c / z ** (2 * i + 1) for i, c in enumerate(_REMAINDER))


def _deviance(seen: float, expected: float) -> float:
    """Return seen * log(seen / expected) - (seen - expected) without cancellation. Both such terms of a density sum to
    its exponent, because seen and expected have the same total."""
    gap = (seen - expected) / expected
    if abs(gap) > 0.1:
        return seen * math.log(seen / expected) - (seen - expected)
    # (1 + g) log(1 + g) - g = g^2/2 - g^3/6 + g^4/12 - ..., free of the cancellation near g = 0.
    total, power, order = 0.0, gap * gap, 2
    while True:
        term = power / (order * (order - 1))
        total += term
        if abs(term) <= _CLOSE * abs(total):
            return expected * total
        power, order = -power * gap, order + 1


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function by Lentz's method, in about sqrt(a + b) steps."""
    above, below = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value, m = below, 0
    while True:
        m += 1
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            below = 1 / _away_from_zero(1 + step * below)
            above = _away_from_zero(1 + step / above)
            value *= above * below
        if abs(above * below - 1) < _CLOSE:
            return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


# ---- Corrections for many tests. A NaN is a test that was not made: it stays NaN and does not count.


Correction = Literal["holm", "benjamini-hochberg", "none"]


def adjust(p_values: Sequence[float] | NDArray[np.float64], correction: Correction) -> NDArray[np.float64]:
    """Adjust p-values of a family of tests by the named correction."""
    match correction:
        case "holm":
            return holm(p_values)
        case "benjamini-hochberg":
            return benjamini_hochberg(p_values)
        case "none":
            return np.array(p_values, dtype=np.float64)


def holm(p_values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's step-down adjustment, in the order given: reject where the adjusted value is at most alpha, and the chance
    of even one false finding in the family is at most alpha, however the tests depend on each other.
    """
    raw = np.asarray(p_values, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(raw))
    order = tested[np.argsort(raw[tested], kind="stable")]
    stepped = raw[order] * np.arange(len(order), 0, -1)
    adjusted = np.full(raw.shape, np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return adjusted


def benjamini_hochberg(p_values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Benjamini and Hochberg's step-up adjustment, in the order given: reject where the adjusted value is at most
    alpha, and of all that is rejected a share of at most alpha is expected to be false.

    It holds for independent tests and for those that err in the same direction (1995; Benjamini & Yekutieli 2001).
    """
    raw = np.asarray(p_values, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(raw))
    order = tested[np.argsort(raw[tested], kind="stable")]
    stepped = raw[order] * len(order) / np.arange(1, len(order) + 1)
    adjusted = np.full(raw.shape, np.nan)
    adjusted[order] = np.minimum(np.minimum.accumulate(stepped[::-1])[::-1], 1.0)
    return adjusted


# ---- Clusters and ranks
#
# A larger value is better, and `p[i, j]` is the two-sided p-value of the difference between i and j, already adjusted
# for many tests if necessary. NaN marks a test that was not made and supports no conclusion.


Mark = Literal["", "†", "‡"]


def wins(values: Floats, p: Floats, alpha: float = 0.05, differences: Floats | None = None) -> NDArray[np.bool_]:
    """Return wins[i, j]: i is significantly better than j, that is, larger with p of at most alpha.

    `differences[i, j]` (i minus j) are those that were tested, if each pair was compared on outputs of its own; by
    default the differences of the values.
    """
    with np.errstate(invalid="ignore"):
        lead = values[:, None] - values[None, :] if differences is None else differences
        return (lead > 0) & (p <= alpha)


def clusters(values: Floats, p: Floats, alpha: float = 0.05, differences: Floats | None = None) -> NDArray[np.intp]:
    """Return the cluster of each metric, 1 for the best; 0 for a metric without a value.

    The rule of the WMT metrics tasks and of mt-metrics-eval: from the best value down, a metric that is significantly
    worse than *any* member of the current cluster starts the next one. So no member of a cluster beats another member
    of it, but two metrics in different clusters need not differ significantly.

    If values are on different outputs, their order may contradict the tests. A metric then waits until those that beat
    it are placed.
    """
    beaten = wins(values, p, alpha, differences)
    numbers = np.zeros(len(values), dtype=np.intp)
    members: list[int] = []
    current, waiting = 1, best_first(values)
    while waiting:
        # If each pair shares other outputs, metrics may beat each other in a circle: there the best value comes next.
        metric = next((metric for metric in waiting if not beaten[waiting, metric].any()), waiting[0])
        waiting.remove(metric)
        if beaten[members, metric].any():
            current, members = current + 1, []
        members.append(metric)
        numbers[metric] = current
    return numbers


#: More groups than this cannot be told apart by a letter, and no reader could follow them.
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: The search for groups stops here: there are contrived comparisons with more groups than can be listed.
_MAX_GROUPS = 512


def letters(different: NDArray[np.bool_]) -> list[str] | None:
    """Return the letters of a compact letter display: two have a letter in common exactly if they do not differ.

    `different[i, j]` says whether two differ significantly, from the best to the worst: the letter a is in the group of
    the first. None if letters do not suffice.

    Insert and absorb (Piepho, 2004): all start in one group; a group with two that differ is replaced by two groups,
    each without one of them, and a group inside another is dropped. At last, groups go whose pairs are all in others.
    """
    size = len(different)
    groups = [(1 << size) - 1]
    for first, second in zip(*np.nonzero(np.triu(different, 1)), strict=True):
        both = (1 << int(first)) | (1 << int(second))
        kept = [group for group in groups if group & both != both]
        split = {group & ~(1 << int(member)) for group in groups if group & both == both for member in (first, second)}
        for group in sorted(split, key=int.bit_count, reverse=True):
            if not any(group & other == group for other in kept):
                kept.append(group)
        groups = kept
        if len(groups) > _MAX_GROUPS:
            return None
    members = sorted([i for i in range(size) if group >> i & 1] for group in groups)
    times = np.zeros((size, size), dtype=np.int64)
    for alike in members:
        times[np.ix_(alike, alike)] += 1
    for alike in sorted(members, key=len):
        block = np.ix_(alike, alike)
        if (times[block] > 1).all():  # All of its pairs, and members, are in other groups as well.
            times[block] -= 1
            members.remove(alike)
    if len(members) > len(_LETTERS):
        return None
    lettered = list(zip(_LETTERS, members, strict=False))
    return ["".join(letter for letter, group in lettered if i in group) for i in range(size)]


def best_first(values: Floats) -> list[int]:
    """Return positions from the best value to the worst; equals keep their order, NaN is left out."""
    defined = np.flatnonzero(~np.isnan(values))
    order: list[int] = defined[np.argsort(-values[defined], kind="stable")].tolist()
    return order


def ranks(values: Floats) -> Floats:
    """Return ranks along the last axis, 1 for the largest; equals share their mean rank, NaN stays NaN."""
    with np.errstate(invalid="ignore"):
        larger = (values[..., None, :] > values[..., :, None]).sum(axis=-1)
        equal = (values[..., None, :] == values[..., :, None]).sum(axis=-1)
    return np.where(np.isnan(values), np.nan, larger + (equal + 1) / 2)


def average_ranks(values: Floats) -> Floats:
    """Return the mean rank of each metric (columns) over the slices (rows) where it has a value; NaN without any."""
    return mean_of_known(ranks(values).T)


def marks(
    values: Floats,
    p: Floats,
    families: Sequence[str],
    marked: Collection[str],
    alpha: float = 0.05,
    differences: Floats | None = None,
) -> list[Mark]:
    """Return the marks of the BARTScore paper ("Significance Tests") for the metrics of the marked families.

    † : significantly better than every metric outside its own family; ‡ : than every other metric, including its own
    family's variants.

    The paper lists unsupervised metrics only, and so should the caller. Without competitors there is no mark.
    """
    better = wins(values, p, alpha, differences)
    kin = np.array([[a == b for b in families] for a in families], dtype=np.bool_).reshape(len(values), len(values))
    marked_as: list[Mark] = []
    for metric, family in enumerate(families):
        others, strangers = np.arange(len(values)) != metric, ~kin[metric]
        mark: Mark = ""
        if family in marked and others.any() and better[metric, others].all():
            mark = "‡"
        elif family in marked and strangers.any() and better[metric, strangers].all():
            mark = "†"
        marked_as.append(mark)
    return marked_as


# ---- Power: how many more items (or systems) would separate two metrics.
#
# A normal approximation. The standard error of a difference shrinks with the square root of the number of units; a
# two-sided test at alpha detects a true difference d with probability `power` once d is (z[1 - alpha/2] + z[power])
# standard errors. The observed difference is taken as the true one, so the number is a guide to the next study and not
# part of a test: an observed difference that is too large by chance suggests too few items.


#: A difference this many times smaller than its standard error would need a million times the units.
_MAX_RATIO = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """`needed` units in total would separate the two, of which there are `units`; None if no number of them would, or
    too little is known (`reason`). For both items and systems, the factor applies to each."""

    units: int
    over: Over
    needed: int | None
    reason: str = ""

    def __str__(self) -> str:
        if self.needed is None:
            return self.reason
        more = max(0, self.needed - self.units)
        if self.over == "both":
            times = math.ceil(10 * self.needed / self.units) / 10
            enough = "the items and systems are enough to separate these two"
            return f"about {times:g} times the items and the systems would separate these two" if more else enough
        if not more:
            return f"the {self.units:,} {self.over} are enough to separate these two"
        # Two digits, rounded up; more would suggest a precision that the approximation does not have.
        size = 10 ** (len(str(more)) - 2) if more >= 10 else 1
        return f"about {math.ceil(more / size) * size:,} more {self.over} would separate these two"


def estimate_power(
    difference: float,
    standard_error: float,
    units: int,
    alpha: float = 0.05,
    power: float = 0.8,
    *,
    over: Over = "items",
) -> Power:
    """Estimate power from a difference and its standard error over `units` items, systems, or (the fewer of) both."""
    needed, reason = None, ""
    name = {"items": "items", "systems": "systems", "both": "items and systems"}[over]
    normal = NormalDist()
    reach = normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(power)
    if math.isnan(difference) or math.isnan(standard_error):
        reason = "unknown: the difference or its standard error is undefined"
    elif difference == 0:
        reason = f"no number of {name} would separate these two: the observed difference is 0"
    elif (ratio := reach * standard_error / abs(difference)) > _MAX_RATIO:
        reason = f"no feasible number of {name} would separate these two: the observed difference is too close to 0"
    else:
        needed = max(2, math.ceil(units * ratio**2))  # There is no test with fewer than two units.
    return Power(units=units, over=over, needed=needed, reason=reason)


def strictest_level(alpha: float, tests: int, correction: Correction) -> float:
    """Return the level that one of so many tests must reach in the worst case to be significant at alpha after the
    correction: the first step of Holm, and of Benjamini and Hochberg."""
    return alpha if correction == "none" else alpha / max(1, tests)
