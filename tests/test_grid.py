"""Grids: the one join and the one sign flip."""

from __future__ import annotations

import numpy as np

from error_codes import raises_code
from metrist.errors import RunError
from metrist.grid import Grid


def test_long_columns_become_system_by_item_with_nan_where_missing() -> None:
    grid = Grid.of("chrf", ["a", "b", "a"], ["1", "1", "2"], np.array([10.0, 20.0, 30.0]))
    assert (grid.systems, grid.items) == (("a", "b"), ("1", "2"))
    np.testing.assert_array_equal(grid.values, [[10.0, 30.0], [20.0, np.nan]])
    np.testing.assert_array_equal(grid.rows, [[0, 2], [1, -1]])


def test_values_of_a_metric_where_lower_is_better_are_negated() -> None:
    grid = Grid.of("ter", ["a", "b"], ["1", "1"], np.array([10.0, 20.0]), higher_is_better=False)
    assert grid.values.tolist() == [[-10.0], [-20.0]]


def test_a_key_scored_twice_is_refused_by_name() -> None:
    with raises_code(RunError, "run_failed", "'1'", "'a'"):
        Grid.of("chrf", ["a", "b", "a"], ["1", "1", "1"], np.zeros(3))
