"""Panels: which metrics are compared on which outputs."""

from __future__ import annotations

import math

import numpy as np

from metrist.stats.measures import cut_groups
from metrist.stats.samples import (
    ScorePanel,
    batch_by_outputs,
    number_groups,
    take_grouping,
)


def panel(metrics: list[list[float]]) -> ScorePanel:
    n = len(metrics[0])
    return ScorePanel(
        human=np.arange(float(n)), metrics=np.array(metrics), item=np.arange(n), system=np.zeros(n, np.intp)
    )


def test_sets_of_metrics_that_scored_the_same_outputs_form_a_batch() -> None:
    result = list(batch_by_outputs(panel([[1, 2, 3], [4, math.nan, 6], [7, 8, 9]]), [(0, 1), (2, 0), (1, 2)]))
    assert [(batch.positions, batch.metrics, batch.sets) for batch in result] == [
        ([0, 2], [0, 1, 2], [(0, 1), (1, 2)]),
        ([1], [0, 2], [(1, 0)]),
    ]
    assert np.array(result[0].panel.metrics).tolist() == [[1, 3], [4, 6], [7, 9]]
    assert result[0].panel.item.tolist() == [0, 2]
    assert np.array(result[1].panel.metrics).tolist() == [[1, 2, 3], [7, 8, 9]]


def test_a_column_to_group_by_is_cut_with_the_outputs() -> None:
    assert take_grouping("item", np.array([True, False])) == "item"
    assert np.asarray(take_grouping(np.array([4, 5, 6]), np.array([True, False, True]))).tolist() == [4, 6]


def test_codes_are_renumbered_without_gaps_as_by_numpy() -> None:
    rng = np.random.default_rng(0)
    for codes in ([], [0], [2, 0, 2], [5, 5], [-1, 3], [0, 1_000_000], rng.integers(0, 30, 50), rng.integers(0, 5, 50)):
        expected, numbers = np.unique(np.array(codes, np.intp), return_inverse=True)
        count, renumbered = number_groups(np.array(codes, np.intp))
        assert count == len(expected)
        assert renumbered.tolist() == numbers.reshape(-1).tolist()


def test_groups_are_cut_into_ranges_of_about_so_many_outputs() -> None:
    assert list(cut_groups(np.array([0, 2, 4, 9, 9, 10]), 4)) == [(0, 2), (2, 3), (3, 5)]
    assert list(cut_groups(np.array([0, 3]), 1)) == [(0, 1)]
    assert list(cut_groups(np.array([0]), 1)) == []
