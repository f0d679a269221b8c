from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from error_codes import raises_code
from metrist.errors import RunError
from metrist.stats.gold import Ratings, leave_one_out
from metrist.stats.measures import measure

Floats = NDArray[np.float64]
N = np.nan


def long(table: object) -> Ratings:
    cells = np.asarray(table, dtype=np.float64)
    rater, output = np.nonzero(~np.isnan(cells))
    return Ratings.of(output, rater, cells[rater, output], cells.shape[1])


def test_each_rater_is_judged_by_the_gold_of_the_others() -> None:
    table = [[1, 2, 3, N], [2, 4, N, 1], [3, N, 5, N]]
    item, system = np.array([4, 4, 7, 7]), np.array([0, 1, 0, 1])
    first, second, third = leave_one_out(long(table), item, system)
    assert (first.sample.metric.tolist(), first.sample.human.tolist()) == ([1, 2, 3], [2.5, 4, 5])
    # The fourth output has no rating but the second rater's.
    assert (second.sample.metric.tolist(), second.sample.human.tolist()) == ([2, 4], [2, 2])
    assert (third.sample.metric.tolist(), third.sample.human.tolist()) == ([3, 5], [1.5, 3])
    assert third.outputs.tolist() == [0, 2]
    assert third.sample.item.tolist() == [4, 7]
    assert third.sample.system.tolist() == [0, 0]
    assert [fold.rater for fold in (first, second, third)] == [0, 1, 2]


def test_the_gold_of_the_others_may_be_made_in_any_way() -> None:
    first, *_ = leave_one_out(long([[3, 1], [1, 2], [1, 3], [5, 5]]), np.zeros(2, np.intp), np.arange(2), "majority")
    assert first.sample.human.tolist() == [1, 3]


def test_each_rater_has_a_value_under_any_measure() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=60) + 0.5 * rng.normal(size=(4, 60))
    samples = leave_one_out(long(table), np.arange(60), np.zeros(60, np.intp))
    pearson = measure("pearson")
    values = [pearson.value(fold.sample.human, fold.sample.metric) for fold in samples]
    by_hand = [np.corrcoef(table[r], np.delete(table, r, axis=0).mean(axis=0))[0, 1] for r in range(4)]
    assert values == pytest.approx(by_hand)


def test_a_ceiling_needs_two_raters_with_names() -> None:
    codes = np.zeros(2, np.intp)
    with raises_code(RunError, "too_little_data", 1):
        leave_one_out(long([[1, 2]]), codes, codes)
    with raises_code(RunError, "run_failed", "2 of 2"):
        leave_one_out(Ratings.of([0, 0], [-1, -1], [1, 2]), codes, codes)
