"""Tails of distributions against fractions, published tables and numerical integration."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.stats.significance import beta_share, coin_tail, normal_quantile, normal_tail, student_t_tail


@given(st.integers(0, 400), st.data())
def test_coin_tails_equal_exact_fractions(tosses: int, data: st.DataObject) -> None:
    heads = data.draw(st.integers(-1, tosses + 1))
    exact = Fraction(sum(math.comb(tosses, i) for i in range(max(0, heads), tosses + 1)), 2**tosses)
    assert coin_tail(heads, tosses) == pytest.approx(float(exact), rel=1e-11, abs=0)


@pytest.mark.parametrize(("tosses", "heads"), [(10_000, 5_100), (10_000, 5_600), (10_000, 4_900), (30_001, 15_001)])
def test_the_coin_keeps_its_digits_for_many_tosses(tosses: int, heads: int) -> None:
    above = math.comb(tosses, heads)
    total = 0
    for i in range(heads, tosses + 1):
        total += above
        above = above * (tosses - i) // (i + 1)
    assert coin_tail(heads, tosses) == pytest.approx(float(Fraction(total, 2**tosses)), rel=1e-11)


@pytest.mark.parametrize("tosses", [1_000_000, 5_000_000_000])
def test_the_coin_nears_the_normal_for_very_many_tosses(tosses: int) -> None:
    for deviations in (0.0, 1.0, 2.5, 5.0):
        heads = round(tosses / 2 + deviations * math.sqrt(tosses) / 2)
        # Corrected for continuity, the normal is off by less than deviations^4 / tosses.
        expected = normal_tail((heads - 0.5 - tosses / 2) / (math.sqrt(tosses) / 2))
        assert coin_tail(heads, tosses) == pytest.approx(expected, rel=700 / tosses + 1e-9)


@pytest.mark.parametrize(
    ("freedom", "t", "tail"),
    [
        # The usual printed table of Student's t (for example NIST/SEMATECH e-Handbook, 1.3.6.7.2).
        (1, 3.078, 0.10), (1, 12.706, 0.025), (5, 2.015, 0.05), (10, 2.228, 0.025), (23, 2.500, 0.01),
        (30, 2.042, 0.025), (30, 3.385, 0.001), (100, 1.660, 0.05), (100, 3.174, 0.001),
    ],
)  # fmt: skip
def test_student_t_has_the_values_of_printed_tables(freedom: int, t: float, tail: float) -> None:
    assert student_t_tail(t, freedom) == pytest.approx(tail, rel=2e-3)
    assert student_t_tail(-t, freedom) == pytest.approx(1 - tail, rel=2e-3)


@pytest.mark.parametrize("freedom", [1, 2, 3.5, 17, 250])
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 2.7])
def test_student_t_is_the_integral_of_its_density(freedom: float, t: float) -> None:
    x = np.linspace(0, t, 20_001)
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    density = constant * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    assert student_t_tail(t, freedom) == pytest.approx(0.5 - np.trapezoid(density, x), abs=1e-8)


def test_student_t_at_its_edges() -> None:
    assert student_t_tail(0.0, 7) == 0.5
    assert (student_t_tail(math.inf, 7), student_t_tail(-math.inf, 7)) == (0.0, 1.0)
    assert math.isnan(student_t_tail(math.nan, 7))
    assert math.isnan(student_t_tail(1.0, 0))
    # With one degree of freedom it is Cauchy's: 1/2 - atan(t)/pi.
    assert student_t_tail(1e6, 1) == pytest.approx(1e-6 / math.pi, rel=1e-9)
    assert student_t_tail(1.96, 1e9) == pytest.approx(normal_tail(1.96), rel=1e-7)


def test_the_beta_function_at_its_edges_and_mirrored() -> None:
    assert (beta_share(2, 3, 0.0, 1.0), beta_share(2, 3, 1.0, 0.0)) == (0.0, 1.0)
    # I_x(2, 3) is a polynomial: 6 x^2 - 8 x^3 + 3 x^4.
    assert beta_share(2, 3, 0.3, 0.7) == pytest.approx(6 * 0.09 - 8 * 0.027 + 3 * 0.0081, rel=1e-13)
    assert beta_share(2.5, 40, 0.2, 0.8) == pytest.approx(1 - beta_share(40, 2.5, 0.8, 0.2), rel=1e-12)


def test_the_normal_and_its_quantile_undo_each_other() -> None:
    assert normal_quantile(0.975) == pytest.approx(1.959963984540054)
    assert normal_tail(normal_quantile(0.8)) == pytest.approx(0.2)
