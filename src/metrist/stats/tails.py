"""Upper tails of the three distributions that the exact tests need: Student's t, the fair coin and the normal.

The first two are one function, the regularised incomplete beta. It keeps about twelve digits even for billions of
tosses: its leading factor is a binomial probability written with Stirling's remainder (Loader, 2000), where the
difference of three large log-gammas would leave none.
"""

from __future__ import annotations

import math
from statistics import NormalDist

_TINY = 1e-300
_CLOSE = 1e-14
#: Coefficients of Stirling's remainder, in odd powers of 1/z.
_REMAINDER = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_SERIES_FROM = 16.0


def student_t_tail(t: float, freedom: float) -> float:
    """P(T >= t) for Student's t with so many degrees of freedom."""
    if math.isnan(t) or not freedom > 0:
        return math.nan
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    square = t * t
    both = beta_share(freedom / 2, 0.5, freedom / (freedom + square), square / (freedom + square))
    return both / 2 if t >= 0 else 1 - both / 2


def coin_tail(heads: int, tosses: int) -> float:
    """P(at least so many heads in so many tosses of a fair coin)."""
    if heads <= 0:
        return 1.0
    if heads > tosses:
        return 0.0
    return beta_share(heads, tosses - heads + 1, 0.5, 0.5)


def normal_tail(z: float) -> float:
    """P(Z >= z) for the standard normal."""
    return math.erfc(z / math.sqrt(2)) / 2


def normal_quantile(share: float) -> float:
    """Below which value a standard normal lies with this probability, between 0 and 1."""
    return NormalDist().inv_cdf(share)


def beta_share(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function at x. `rest` is 1 - x, which the caller may know more digits of."""
    if x <= 0:
        return 0.0
    if rest <= 0:
        return 1.0
    factor = a * b / (a + b) * _binomial_density(a, b, x, rest)
    # The fraction converges quickly below the mean only; above it, the other tail is the small one.
    if x * (a + b + 2) <= a + 1:
        return factor * _fraction(a, b, x) / a
    return 1 - factor * _fraction(b, a, rest) / b


def _binomial_density(a: float, b: float, x: float, rest: float) -> float:
    """Gamma(a + b + 1) / (Gamma(a + 1) Gamma(b + 1)) * x^a * rest^b."""
    n = a + b
    exponent = _remainder(n) - _remainder(a) - _remainder(b) - _deviance(a, n * x) - _deviance(b, n * rest)
    return math.sqrt(n / (2 * math.pi * a * b)) * math.exp(exponent)


def _remainder(z: float) -> float:
    """log Gamma(z + 1) less Stirling's formula."""
    if z < _SERIES_FROM:
        return math.lgamma(z + 1) - (z + 0.5) * math.log(z) + z - 0.5 * math.log(2 * math.pi)
    return sum(c / z ** (2 * i + 1) for i, c in enumerate(_REMAINDER))


def _deviance(seen: float, expected: float) -> float:
    """seen * log(seen / expected) - (seen - expected), with what would cancel left out: both such terms of a density
    sum to its exponent, because what is seen and what is expected have the same total."""
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
    """The continued fraction of the incomplete beta function, by Lentz's method; about sqrt(a + b) steps."""
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
