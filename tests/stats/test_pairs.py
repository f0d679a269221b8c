"""Counted pairs and ranks, compiled and plain, against every pair looked at."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType

import brute_force
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist import kernels
from metrist.kernels import reference

KERNELS = [pytest.param(kernels, id="chosen"), pytest.param(reference, id="twin")]
coarse = st.integers(0, 5).map(lambda number: number / 4)
fine = st.floats(-1e300, 1e300)


@st.composite
def weighted(draw):
    """Two columns, draws of weights, cuts into groups and a threshold."""
    size = draw(st.integers(0, 12))
    values = draw(st.sampled_from([coarse, fine]))
    human, metric = (np.array(draw(st.lists(values, min_size=size, max_size=size)), np.float64) for _ in range(2))
    draws = draw(st.sampled_from([1, 3, 17]))
    row = st.lists(st.integers(0, 3), min_size=size, max_size=size)
    weights = np.array([draw(row) for _ in range(draws)], np.float64).reshape(draws, size)
    cuts = sorted(draw(st.lists(st.integers(0, size), max_size=2)))
    return human, metric, weights, np.array([0, *cuts, size]), draw(st.sampled_from([0.0, 0.25, 0.3, 1e299]))


def groups_of(human, metric, weights, starts):
    for draw, row in enumerate(weights):
        for group, (a, b) in enumerate(pairwise(starts)):
            yield draw, group, *(brute_force.repeated(column[a:b], row[a:b]) for column in (human, metric))


@pytest.mark.parametrize("of", KERNELS)
@given(case=weighted())
def test_weighted_counts_are_those_of_every_pair_of_the_repeated_arrays(of: ModuleType, case) -> None:
    human, metric, weights, starts, epsilon = case
    result = of.pair_counts_grouped(human, metric, weights, starts, epsilon)
    assert result.shape == (len(weights), len(starts) - 1, 5)
    for draw, group, some_human, some_metric in groups_of(human, metric, weights, starts):
        assert result[draw, group].tolist() == brute_force.pair_counts(some_human, some_metric, epsilon)


@given(case=weighted())
def test_rank_comoments_are_the_same_compiled_and_plain(case) -> None:
    *columns, _ = case
    assert np.array_equal(kernels.rank_comoments_grouped(*columns), reference.rank_comoments_grouped(*columns))


@pytest.mark.parametrize("of", KERNELS)
def test_rank_comoments_are_those_of_midranks_in_half_ranks(of: ModuleType) -> None:
    human, metric = np.array([1.0, 1.0, 3.0, 2.0]), np.array([0.5, 0.1, 0.1, 0.9])
    weights = np.array([[1, 1, 1, 1], [2, 0, 1, 3]], np.float64)
    result = of.rank_comoments_grouped(human, metric, weights, np.array([0, 4]))
    for row, weight in zip(result[:, 0], weights, strict=True):
        x, y = (brute_force.repeated(column, weight) for column in (human, metric))
        rx, ry = (2 * (ranks - ranks.mean()) for ranks in map(brute_force.midranks, (x, y)))
        assert row.tolist() == [rx @ rx, ry @ ry, rx @ ry, len(set(x)), len(set(y))]


@pytest.mark.parametrize("of", KERNELS)
def test_counts_of_many_outputs_are_exact(of: ModuleType) -> None:
    size, copies = 100_000, 3
    rising, ends = np.arange(size, dtype=np.float64), np.array([0, size])
    weights = np.full((1, size), float(copies))
    every = copies * size * (copies * size - 1) // 2
    both = size * copies * (copies - 1) // 2
    assert every > 2**32
    alike = of.pair_counts_grouped(rising, rising, weights, ends)[0, 0]
    assert alike.tolist() == [every - both, 0, 0, 0, both]
    in_tens = size // 10 * (10 * 9 // 2) * copies**2
    opposed = of.pair_counts_grouped(rising, -(rising // 10), weights, ends)[0, 0]
    assert opposed.tolist() == [0, every - in_tens - both, 0, in_tens, both]


@pytest.mark.parametrize("of", KERNELS)
def test_a_threshold_ties_by_the_difference_as_it_is_rounded(of: ModuleType) -> None:
    # In doubles, 0.3 - 0.2 is less than 0.1, but 0.4 - 0.3 is more.
    metric = np.array([0.2, 0.3, 0.4])
    result = of.pair_counts_grouped(np.arange(3.0), metric, np.ones((1, 3)), np.array([0, 3]), 0.1)[0, 0]
    assert result.tolist() == brute_force.pair_counts(np.arange(3.0), metric, 0.1) == [2, 0, 0, 1, 0]


@pytest.mark.parametrize("of", KERNELS)
@pytest.mark.parametrize("weights", [[[0.5, 1.0]], [[-1.0, 1.0]], [[np.nan, 1.0]], [[2.0**31, 0.0]], [[2.0**30] * 2]])
def test_weights_that_count_no_outputs_are_refused(of: ModuleType, weights) -> None:
    with pytest.raises(ValueError, match="whole numbers, none negative, that add up to less than"):
        of.pair_counts_grouped(np.zeros(2), np.zeros(2), np.array(weights), np.array([0, 2]))


@pytest.mark.parametrize("of", KERNELS)
@pytest.mark.parametrize(
    ("human", "metric", "weights", "starts", "epsilon", "message"),
    [
        ([0, np.inf], [0, 0], [[1, 1]], [0, 2], 0, "must be finite"),
        ([0, 0], [np.nan, 0], [[1, 1]], [0, 2], 0, "must be finite"),
        ([0, 0], [0], [[1, 1]], [0, 2], 0, "one human and one metric value per output"),
        ([0, 0], [0, 0], [[1]], [0, 2], 0, "a row per draw and a column per output"),
        ([0, 0], [0, 0], [1, 1], [0, 2], 0, "a row per draw and a column per output"),
        ([0, 0], [0, 0], [[1, 1]], [0, 1], 0, "starts must go from 0 to the number of outputs"),
        ([0, 0], [0, 0], [[1, 1]], [0, 2, 1, 2], 0, "never down"),
        ([0, 0], [0, 0], [[1, 1]], [0, 2], -0.1, "threshold must be 0 or more"),
        ([0, 0], [0, 0], [[1, 1]], [0, 2], np.nan, "threshold must be 0 or more"),
    ],
)
def test_columns_that_do_not_fit_are_refused(of, human, metric, weights, starts, epsilon, message) -> None:
    columns = (np.array(column, np.float64) for column in (human, metric, weights))
    with pytest.raises(ValueError, match=message):
        of.pair_counts_grouped(*columns, np.array(starts), epsilon)
