"""Every measure against brute force on repeated arrays, and at the edges where it is undefined or could overflow."""

from __future__ import annotations

import math
from itertools import pairwise, permutations

import brute_force
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from error_codes import raises_code
from metrist.errors import ErrorCode, RunError, SpecError
from metrist.stats.measures import MEASURES, accuracy_at, comoments, correlation, group_means, group_sums, measure
from metrist.stats.samples import Sample

EACH = pytest.mark.parametrize("name", MEASURES)


@st.composite
def judged(draw, max_size: int = 10):
    size = draw(st.integers(0, max_size))
    # Squares of numbers under 1e-150 vanish, for the brute force as well: no honest expectation is left for them.
    wide = st.floats(-1e6, 1e6).map(lambda value: value if abs(value) > 1e-100 else 0.0)
    values = draw(st.sampled_from([st.integers(0, 3).map(float), wide]))
    columns = [np.array(draw(st.lists(values, min_size=size, max_size=size)), np.float64) for _ in range(2)]
    row = st.lists(st.integers(0, 4), min_size=size, max_size=size)
    weights = np.array([draw(row), [1] * size, draw(row)], np.float64).reshape(3, size)
    return *columns, weights


@EACH
@given(case=judged())
def test_a_weighted_measure_is_the_plain_one_on_repeated_outputs_that_are_not_paired_with_their_copies(
    name: str, case
) -> None:
    human, metric, weights = case
    result = MEASURES[name].pool(MEASURES[name].rows(human, metric, weights))
    for value, row in zip(result, weights, strict=True):
        x, y = brute_force.repeated(human, row), brute_force.repeated(metric, row)
        target = brute_force.value(name, x, y, brute_force.repeated(np.arange(len(human)), row))
        assert value == pytest.approx(target, abs=2e-12, nan_ok=True)
        assert math.isnan(value) or -1 <= value <= 1


def test_copies_of_an_output_are_no_pair() -> None:
    human, scores, twice = np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 3.0]), np.array([[2.0, 1.0, 1.0]])
    # Pairs: (1, 2) twice wrong, (1, 3) twice right, (2, 3) right.
    assert accuracy_at().pool(accuracy_at().rows(human, scores, twice)).tolist() == [3 / 5]


@EACH
def test_perfect_agreement_is_exactly_the_upper_bound(name: str) -> None:
    values = np.random.default_rng(1).normal(size=50)
    assert MEASURES[name].value(values, values) == pytest.approx(1.0, abs=1e-15)
    assert MEASURES[name].value(values, values * 3 + 1) == pytest.approx(1.0, abs=1e-15)


@EACH
def test_fewer_than_two_outputs_have_no_measure(name: str) -> None:
    assert math.isnan(MEASURES[name].value([], []))
    assert math.isnan(MEASURES[name].value([1.0], [2.0]))
    nothing_drawn = MEASURES[name].rows([1.0, 2.0], [1.0, 2.0], np.zeros((1, 2)))
    assert np.isnan(MEASURES[name].pool(nothing_drawn)).all()


@pytest.mark.parametrize("name", ["pearson", "spearman", "kendall_b", "kendall_c", "gamma"])
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e200, -7.3])
def test_a_constant_column_correlates_with_nothing(name: str, constant: float) -> None:
    varied, same = np.array([0.3, 0.1, 0.7]), np.full(3, constant)
    assert math.isnan(MEASURES[name].value(varied, same))
    assert math.isnan(MEASURES[name].value(same, varied))


def test_a_resample_without_variety_is_nan_though_the_data_vary() -> None:
    # Far from the mean of all outputs, where naive moments leave a rounding error in place of the missing variance.
    human, metric = np.array([0.1, 0.1, 0.1, 1e10]), np.array([0.7, 0.2, 0.3, -5.0])
    result = correlation(comoments(human, metric, np.array([[1, 2, 1, 0], [0, 0, 0, 4.0]]), np.array([0, 4])))
    assert np.isnan(result).all()


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-150, 1e150, 1e200, 1e307])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_pearson_neither_overflows_nor_underflows(scale: float, shift: float) -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(2, 40))
    target = brute_force.pearson((x + shift) * scale, y)
    assert MEASURES["pearson"].value((x + shift) * scale, y) == pytest.approx(target, abs=1e-14)
    assert MEASURES["pearson"].value(y, (x + shift) * scale) == pytest.approx(target, abs=1e-14)


@pytest.mark.parametrize("offset", [1e3, 1e8, -1e15])
def test_pearson_keeps_its_digits_when_values_are_nearly_constant(offset: float) -> None:
    x = offset + np.array([0.0, 1.0, 0.0, 2.0, 5.0])
    y = np.array([0.2, 0.1, 0.4, 0.3, 0.8])
    assert MEASURES["pearson"].value(x, y) == pytest.approx(brute_force.pearson(x, y), abs=1e-14)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=6), st.integers(0, 99))
def test_pearson_of_any_finite_numbers_is_right_or_undefined(values: list[float], seed: int) -> None:
    x, y = np.array(values), np.random.default_rng(seed).normal(size=len(values))
    target, result = brute_force.pearson(x, y), MEASURES["pearson"].value(x, y)
    # Only what differs by less than a 10^-300th of the largest value may be taken for constant.
    assume(math.isnan(target) or np.ptp(x / np.abs(x).max()) > 1e-290)
    assert result == pytest.approx(target, abs=1e-10, nan_ok=True)


def test_results_do_not_depend_on_how_draws_are_cut() -> None:
    rng = np.random.default_rng(3)
    human, metric = rng.normal(size=(2, 301))
    weights = rng.integers(0, 4, (37, 301)).astype(np.float64)
    starts = np.array([0, 5, 5, 120, 301])
    for entry in MEASURES.values():
        at_once = entry.pool(entry.grouped_rows(human, metric, weights, starts))
        cut = [entry.pool(entry.grouped_rows(human, metric, weights[i : i + 1], starts)) for i in range(37)]
        assert np.array_equal(at_once, np.concatenate(cut), equal_nan=True)


def test_grouped_rows_are_the_rows_of_each_group() -> None:
    rng = np.random.default_rng(4)
    human, metric = rng.integers(0, 5, 60) * 1.0, rng.normal(size=60)
    weights = rng.integers(0, 3, (5, 60)).astype(np.float64)
    starts = np.array([0, 1, 20, 20, 60])
    for entry in MEASURES.values():
        result = entry.pool(entry.grouped_rows(human, metric, weights, starts))
        for group, (a, b) in enumerate(pairwise(starts)):
            alone = entry.pool(entry.rows(human[a:b], metric[a:b], weights[:, a:b]))
            assert np.allclose(result[:, group], alone, rtol=0, atol=1e-14, equal_nan=True)


def test_group_sums_are_the_same_in_any_order() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(size=500) * 10.0 ** rng.integers(-8, 8, 500)
    order = rng.permutation(500)
    weights, ends = np.ones((1, 500)), np.array([0, 500])
    for some in (values, values[order]):
        assert group_sums(some[:, None], weights, ends).item() == math.fsum(values)


def test_group_means_of_huge_values_stay_finite() -> None:
    huge, small = np.array([1.7e308, 1.7e308, -1.0]), np.array([0.1, 0.3, 0.2])
    means, sizes = group_means((huge, small), np.array([[1.0, 1.0, 0.0]]), np.array([0, 2, 3]))
    assert means.tolist() == [[[1.7e308, 0.2], [0.0, 0.0]]]
    assert sizes.tolist() == [[2.0, 0.0]]


@pytest.mark.parametrize("shared", [7, 1000])
def test_outputs_may_share_weights(shared: int) -> None:
    rng = np.random.default_rng(7)
    columns, starts = rng.normal(size=(20, 2)), np.array([0, 8, 8, 20])
    weights, at = rng.integers(0, 3, (4, shared)) * 1.0, rng.integers(0, shared, 20)
    assert np.array_equal(group_sums(columns, weights, starts, at), group_sums(columns, weights[:, at], starts))


def test_the_epsilon_of_acc_eq_ties_near_scores() -> None:
    human, metric = np.array([1.0, 1.0, 2.0]), np.array([0.1, 0.15, 0.5])
    assert MEASURES["acc_eq"].value(human, metric) == pytest.approx(2 / 3)
    assert accuracy_at(0.1).value(human, metric) == 1.0
    assert accuracy_at(1).value(human, metric) == pytest.approx(1 / 3)


def test_chance_and_all_ties_of_the_pairwise_accuracies() -> None:
    human, metric = np.array([1.0, 1.0, 2.0, 3.0]), np.array([0.4, 0.1, 0.2, 0.2])
    # Six pairs, one of them a human tie.
    expected = {
        "acc_eq": (2.5 / 6, 1 / 6),
        "pair_accuracy": (0.5, 0.0),
        "concordance": (0.5, 0.5),
        "kendall_a": (0.0, 0.0),
        "darr_wmt14": (0.0, 0.0),
        "darr_wmt17": (0.0, -1.0),
    }
    for name, (chance, ties) in expected.items():
        assert MEASURES[name].at_chance().value(human, metric) == pytest.approx(chance)
        assert MEASURES[name].at_all_ties().value(human, metric) == pytest.approx(ties)
        assert MEASURES[name].at_all_ties().value(human, metric) == MEASURES[name].value(human, np.zeros(4))


def test_chance_is_the_mean_over_all_orders() -> None:
    human = np.array([1.0, 1.0, 2.0, 3.0, 3.0])
    orders = np.array(list(permutations(range(5))), np.float64)
    ends = np.arange(len(orders) + 1) * 5
    for entry in MEASURES.values():
        rows = entry.grouped_rows(np.tile(human, len(orders)), orders.ravel(), np.ones((1, orders.size)), ends)
        assert entry.at_chance().value(human, np.arange(5)) == pytest.approx(entry.pool(rows).mean(), abs=1e-14)


def test_a_correlation_of_all_ties_is_undefined() -> None:
    with raises_code(SpecError, "too_little_data", "pearson"):
        MEASURES["pearson"].at_all_ties()


def test_a_measure_is_built_from_its_text() -> None:
    for name in MEASURES:
        assert measure(name) is MEASURES[name]
        assert MEASURES[name].name == name
    assert measure("acc_eq(epsilon=0.25)").name == "acc_eq(epsilon=0.25)"
    assert measure("acc_eq(epsilon=0)").name == "acc_eq"


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("kendal_b", "unknown_name", ["'kendal_b'", "'kendall_b'"]),
        ("zzz", "unknown_name", ["'zzz'", "pearson, spearman"]),
        ("pearson(epsilon=1)", "unknown_name", ["pearson", "'epsilon'"]),
        ("acc_eq(eps=1)", "unknown_name", ["acc_eq", "'eps'"]),
        ("acc_eq(epsilon=-1)", "invalid_value", ["epsilon", "-1"]),
        ("acc_eq(epsilon='a')", "invalid_value", ["epsilon", "'a'"]),
    ],
)
def test_an_unknown_measure_or_setting_is_refused(text: str, code: ErrorCode, values: list[str]) -> None:
    with raises_code(SpecError, code, *values):
        measure(text)


@pytest.mark.parametrize("changed", [{"metric": [1.0, np.inf]}, {"human": [np.nan, 1.0]}, {"human": [1.0]}])
def test_a_sample_refuses_values_that_do_not_fit(changed) -> None:
    columns = {"human": [1.0, 2.0], "metric": [1.0, 2.0], "item": [0, 1], "system": [0, 0], **changed}
    with raises_code(RunError, "invalid_value", *changed):
        Sample(**{name: np.array(column) for name, column in columns.items()})
