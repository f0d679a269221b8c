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


def test_an_affine_copy_of_a_metric_is_never_separated_from_it() -> None:
    """The two correlations differ in their last bits, and the determinant of all three is rounding error."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        human, metric = rng.normal(size=(2, int(rng.integers(4, 60))))
        scale, shift = 10.0 ** rng.integers(-3, 4), rng.normal() * 10
        assert williams_from_values(human, metric, scale * metric + shift)[::2] == (0.0, 1.0)


def test_williams_gives_the_p_values_of_nlpstats() -> None:
    # nlpstats' williams_test.py, checked there against r.test of R's psych; it takes correlations without their sign.
    np.random.seed(12)
    first, second, human = (np.random.random((9, 5)).ravel() for _ in range(3))
    r = np.abs(np.corrcoef([human, first, second]))
    assert williams(r[0, 1], r[0, 2], r[1, 2], 45, "greater").p == pytest.approx(0.2716978, abs=1e-7)
    assert williams(r[0, 1], r[0, 2], r[1, 2], 45, "less").p == pytest.approx(1 - 0.2716978, abs=1e-7)
    assert williams(r[0, 1], r[0, 2], r[1, 2], 45).p == pytest.approx(0.5433956, abs=1e-7)


@pytest.mark.parametrize("r", [0.3, 0.9])
def test_a_mirrored_metric_is_tested_as_its_correlation_against_zero(r: float) -> None:
    # With second = -first, t is that of one correlation: r sqrt(df / (1 - r^2)), with one degree less.
    exact, near = williams(r, -r, -1.0, 30), williams(r, -r, -1.0 + 1e-7, 30)
    assert exact.t == pytest.approx(r * math.sqrt(27 / (1 - r * r)))
    assert near.t == pytest.approx(exact.t, rel=1e-5)


def test_a_test_without_spread_says_so() -> None:
    # The human values are the difference of two metrics that correlate .2: r and -r, with r^2 = (1 - .2) / 2.
    half = math.sqrt((1 - 0.2) / 2)
    result = williams(half, -half, 0.2, 40)
    assert math.isnan(result.p)
    assert "determine the human values" in result.reason
    assert "at least 4 outputs" in williams(0.5, 0.4, 0.3, 3).reason


def test_williams_is_blind_to_the_unit_of_a_metric() -> None:
    human, first, second = np.random.default_rng(6).normal(size=(3, 20))
    expected = williams_from_values(human, first, second).p
    assert williams_from_values(human, first * 2.0**900, second * 2.0**-900).p == pytest.approx(expected)


def test_williams_within_groups_is_the_test_of_partial_correlations() -> None:
    """Regressing on the groups' indicators and correlating the residuals, with one output less per further group."""
    rng = np.random.default_rng(7)
    groups = np.repeat(np.arange(12), 5)
    rows = rng.normal(size=(3, 60)) + rng.normal(size=60) + 3 * rng.normal(size=(3, 12))[:, groups]
    indicators = np.eye(12)[groups]
    residuals = rows - (indicators @ np.linalg.lstsq(indicators, rows.T, rcond=None)[0]).T
    r = np.asarray(np.corrcoef(residuals))
    expected = williams(r[0, 1], r[0, 2], r[1, 2], 60 - 11)
    assert williams_from_values(rows[0], rows[1], rows[2], groups=groups)[:3] == pytest.approx(expected[:3])
    constant = np.arange(12.0)[groups]
    assert math.isnan(williams_from_values(rows[0], constant, rows[1], groups=groups).p)


@pytest.mark.parametrize(("items", "systems"), [(40, 3), (20, 12)])
def test_williams_within_items_rejects_a_true_null_as_often_as_it_says(items: int, systems: int) -> None:
    rng = np.random.default_rng(9)
    cholesky = np.linalg.cholesky(np.array([[1, 0.5, 0.5], [0.5, 1, 0.4], [0.5, 0.4, 1]]))
    groups = np.repeat(np.arange(items), systems)
    p = []
    for _ in range(2000):
        values = cholesky @ rng.normal(size=(3, items * systems)) + 2 * rng.normal(size=(3, items))[:, groups]
        p.append(williams_from_values(values[0], values[1], values[2], groups=groups).p)
    assert 0.04 <= np.mean(np.array(p) <= 0.05) <= 0.06
