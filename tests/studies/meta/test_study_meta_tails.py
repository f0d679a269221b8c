"""p-values beyond the reach of draws, and resamples without pairs of copies."""

from __future__ import annotations

import numpy as np
import pytest

from metrist.meta.measures import acc_eq, measure
from metrist.studies.meta.distinct import distinct
from metrist.studies.meta.tail_p_values import exchange_p_values, with_tails


def mean(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def rows_of(differences: np.ndarray) -> np.ndarray:
    """Two metrics, the second 0 on every item."""
    values = np.stack([differences, np.zeros_like(differences)])
    return np.stack([values, np.ones_like(values)], axis=-1)


def test_a_tail_comes_close_to_what_many_draws_count() -> None:
    rng = np.random.default_rng(0)
    differences = rng.normal(0.3, 1, 120)
    few = exchange_p_values(rows_of(differences), [(0, 1)], mean, 500, np.random.default_rng(1))[0]
    signs = np.random.default_rng(2).choice([-1.0, 1.0], size=(100_000, 120))
    counted = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9)
    assert counted < 0.01
    assert few == pytest.approx(counted, rel=0.35)


def test_a_p_value_that_many_draws_reach_is_left_alone() -> None:
    counted = np.array([0.5, 0.02, np.nan])
    assert with_tails(counted, np.array([9.0, 9.0, 9.0]), 1000).tolist()[:2] == [0.5, 0.02]
    assert np.isnan(with_tails(counted, np.array([9.0, 9.0, 9.0]), 1000)[2])
    assert with_tails(np.array([0.001]), np.array([np.nan]), 1000).tolist() == [0.001]


def test_few_items_bound_a_p_value_from_below() -> None:
    # Six items that all differ alike: of 64 exchanges two are as extreme.
    found = exchange_p_values(rows_of(np.full(6, 1.0)), [(0, 1)], mean, 2000, np.random.default_rng(0))[0]
    assert found == pytest.approx(2 / 64, rel=0.3)


def test_copies_of_an_output_are_no_pair() -> None:
    human, scores = np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 3.0])
    twice = np.array([[2.0, 1.0, 1.0]])
    # Pairs: (1, 2) twice wrong, (1, 3) twice right, (2, 3) right.
    assert distinct(acc_eq()).pool(distinct(acc_eq()).rows(human, scores, twice))[0] == pytest.approx(3 / 5)
    assert distinct(acc_eq()).value(human, scores) == acc_eq().value(human, scores)
    assert distinct(measure("pearson")).value(human, scores) == measure("pearson").value(human, scores)
