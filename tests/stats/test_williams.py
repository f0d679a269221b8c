"""Williams' test against worked examples and a simulation with a known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from metrist.stats.analytic_tests import williams, williams_from_values


def test_williams_gives_a_textbook_example() -> None:
    # Howell, Statistical Methods for Psychology (6th ed., p. 262): r = .80 and .72, .89 between the two, 26 cases.
    # Weaver's SPSS program Williams1959.sps prints t = 1.361, df = 23, p = .187 for it.
    result = williams(0.80, 0.72, 0.89, 26)
    assert result.t == pytest.approx(1.361, abs=5e-4)
    assert result.freedom == 23
    assert result.p == pytest.approx(0.187, abs=5e-4)


def test_williams_is_the_formula_worked_by_hand() -> None:
    # r = .5 and .3, .4 between, 103 cases: |R| = 1 - .25 - .09 - .16 + 2 * .06 = .62;
    # t = .2 * sqrt(102 * 1.4 / (2 * 102/100 * .62 + .16 * .216)).
    assert williams(0.5, 0.3, 0.4, 103).t == pytest.approx(0.2 * math.sqrt(142.8 / (1.2648 + 0.03456)), rel=1e-12)


def test_one_sided_tests_split_the_two_sided_one() -> None:
    greater, less = williams(0.6, 0.5, 0.3, 80, "greater"), williams(0.6, 0.5, 0.3, 80, "less")
    assert greater.p + less.p == pytest.approx(1)
    assert williams(0.6, 0.5, 0.3, 80).p == pytest.approx(2 * greater.p)
    assert williams(0.5, 0.6, 0.3, 80, "less").p == pytest.approx(greater.p)


def test_williams_on_values_uses_their_correlations() -> None:
    rng = np.random.default_rng(4)
    human, first, second = rng.normal(size=(3, 50)) + rng.normal(size=50)
    r = np.corrcoef([human, first, second])
    assert williams_from_values(human, first, second) == pytest.approx(williams(r[0, 1], r[0, 2], r[1, 2], 50))


@pytest.mark.parametrize("outputs", [0, 1, 2, 3])
def test_fewer_than_four_outputs_have_no_test(outputs: int) -> None:
    values = np.arange(float(outputs))
    assert math.isnan(williams_from_values(values, values, values).p)
    assert math.isnan(williams(0.5, 0.4, 0.3, outputs).p)


def test_a_constant_metric_has_no_test() -> None:
    values = np.random.default_rng(1).normal(size=20)
    result = williams_from_values(values, np.full(20, 0.1), values)
    assert math.isnan(result.t)
    assert math.isnan(result.p)


def test_a_metric_is_not_separated_from_itself() -> None:
    human, metric = np.random.default_rng(2).normal(size=(2, 30))
    assert williams_from_values(human, metric, metric)[::2] == (0.0, 1.0)
    assert williams(1.0, -1.0, -1.0, 30).p == 0.0


def test_williams_rejects_a_true_null_as_often_as_it_says() -> None:
    """4000 samples of 60 outputs, two metrics that correlate .6 with humans and .5 with each other."""
    rng = np.random.default_rng(8)
    cholesky = np.linalg.cholesky(np.array([[1, 0.6, 0.6], [0.6, 1, 0.5], [0.6, 0.5, 1]]))
    samples = cholesky @ rng.normal(size=(4000, 3, 60))
    p = np.array([williams_from_values(*sample).p for sample in samples])
    assert 0.04 <= np.mean(p <= 0.05) <= 0.06
