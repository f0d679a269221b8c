"""Expected numbers come from plain loops over the records."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.metrics.base import best_pairs, mean_rows, reduce_references

groups = st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=4), max_size=6)


def laid_out(records: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    values = np.array([value for record in records for value in record], np.float64)
    return values, np.cumsum([0, *map(len, records)], dtype=np.int64)


@given(groups)
def test_the_best_pair_is_the_first_of_the_best(records):
    values, starts = laid_out(records)
    highest = [start + r.index(max(r)) for start, r in zip(starts, records, strict=False)]
    lowest = [start + r.index(min(r)) for start, r in zip(starts, records, strict=False)]
    assert best_pairs(values, starts).tolist() == highest
    assert best_pairs(values, starts, "lowest").tolist() == lowest


@given(groups)
def test_the_mean_is_taken_record_by_record(records):
    values, starts = laid_out(records)
    expected = [sum(record) / len(record) for record in records]
    assert mean_rows(values, starts).tolist() == pytest.approx(expected)
    assert mean_rows(np.stack([values, values], axis=1), starts).tolist() == [pytest.approx([e, e]) for e in expected]


def test_rows_follow_their_best_value_or_are_averaged():
    rows, starts = np.array([[1.0, 5.0], [3.0, 7.0], [2.0, 9.0]]), np.array([0, 2, 3])
    assert reduce_references(rows, rows[:, 0], starts, "max").tolist() == [[3, 7], [2, 9]]
    assert reduce_references(rows, rows[:, 0], starts, "native", "lowest").tolist() == [[1, 5], [2, 9]]
    assert reduce_references(rows, rows[:, 0], starts, "mean").tolist() == [[2, 6], [2, 9]]
