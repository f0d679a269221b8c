"""Clusters, ranks and marks from hand-made values and p-values, and against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from metrist.stats.significance import average_ranks, best_first, clusters, marks, ranks, wins


def symmetric(size: int, significant: list[tuple[int, int]]) -> NDArray[np.float64]:
    p = np.full((size, size), 0.5)
    for i, j in significant:
        p[i, j] = p[j, i] = 0.01
    return p


def test_a_metric_beaten_by_any_member_opens_the_next_cluster() -> None:
    values = np.array([0.9, 0.8, 0.7, 0.6])
    # The third is beaten by the first, though not by the second beside it; the fourth by no one in its cluster.
    assert clusters(values, symmetric(4, [(0, 2), (0, 3)])).tolist() == [1, 1, 2, 2]
    assert clusters(values, symmetric(4, [(0, 2), (0, 3), (2, 3)])).tolist() == [1, 1, 2, 3]
    assert clusters(values, symmetric(4, [])).tolist() == [1, 1, 1, 1]


def test_clusters_follow_the_values_not_the_order_given() -> None:
    assert clusters(np.array([0.6, 0.9, math.nan, 0.7]), symmetric(4, [(1, 3), (1, 0)])).tolist() == [2, 1, 0, 2]


def test_a_test_that_was_not_made_separates_no_one() -> None:
    assert clusters(np.array([0.9, 0.1]), np.full((2, 2), math.nan)).tolist() == [1, 1]


def leads(size: int, better: dict[tuple[int, int], float]) -> NDArray[np.float64]:
    result = np.full((size, size), math.nan)
    for (i, j), lead in better.items():
        result[i, j], result[j, i] = lead, -lead
    return result


def test_who_wins_is_decided_by_the_outputs_that_two_share() -> None:
    # The first has the larger value, on other outputs; where both were scored, the second is better.
    values, p = np.array([0.9, 0.5]), symmetric(2, [(0, 1)])
    shared = leads(2, {(1, 0): 0.3})
    assert wins(values, p).tolist() == [[False, True], [False, False]]
    assert wins(values, p, differences=shared).tolist() == [[False, False], [True, False]]
    assert clusters(values, p, differences=shared).tolist() == [2, 1]
    assert marks(values, p, ["a", "b"], {"a", "b"}, differences=shared) == ["", "‡"]


def test_metrics_that_beat_each_other_in_a_circle_go_by_their_values() -> None:
    values, p = np.array([0.7, 0.9, 0.8]), symmetric(3, [(0, 1), (1, 2), (0, 2)])
    circle = leads(3, {(0, 1): 0.1, (1, 2): 0.1, (2, 0): 0.1})
    assert clusters(values, p, differences=circle).tolist() == [3, 1, 2]


@given(st.integers(0, 10_000), st.integers(1, 9))
def test_no_metric_is_ranked_above_one_that_beats_it(seed: int, size: int) -> None:
    """Whatever the values say, as long as the wins run in no circle: here they follow another order."""
    rng = np.random.default_rng(seed)
    values, truth = rng.integers(0, 6, size) / 10, rng.normal(size=size)
    p = rng.choice([0.01, 0.2], size=(size, size))
    p = np.minimum(p, p.T)
    differences = truth[:, None] - truth[None, :]
    result, beaten = clusters(values, p, differences=differences), wins(values, p, differences=differences)
    for better, worse in np.argwhere(beaten):
        assert result[better] < result[worse]


@given(st.integers(0, 10_000), st.integers(1, 9))
def test_clusters_keep_their_definition(seed: int, size: int) -> None:
    """No member of a cluster beats another of it; whoever opens one is beaten by a member of the cluster above."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 6, size) / 10
    p = rng.choice([0.01, 0.2], size=(size, size))
    p = np.minimum(p, p.T)
    result, beaten = clusters(values, p), wins(values, p)
    for cluster in range(1, result.max() + 1):
        members = np.flatnonzero(result == cluster)
        assert not beaten[np.ix_(members, members)].any()
        if cluster > 1:
            opener = min(members, key=best_first(values).index)
            assert beaten[result == cluster - 1, opener].any()
    assert (np.diff(result[best_first(values)]) >= 0).all()


def test_equal_values_share_the_mean_of_their_places() -> None:
    assert ranks(np.array([0.2, 0.9, 0.2, 0.5])).tolist() == [3.5, 1.0, 3.5, 2.0]
    np.testing.assert_array_equal(ranks(np.array([0.2, math.nan, 0.3])), [2.0, math.nan, 1.0])


def test_average_ranks_leave_out_missing_values() -> None:
    table = np.array([[0.9, 0.8, math.nan, math.nan], [0.1, 0.3, 0.2, math.nan]])
    np.testing.assert_array_equal(average_ranks(table), [2.0, 1.5, 2.0, math.nan])


FAMILIES = ["rouge", "bertscore", "bartscore", "bartscore"]


@pytest.mark.parametrize(
    ("significant", "expected"),
    [
        ([], ["", "", "", ""]),
        # Better than each metric outside its family.
        ([(3, 0), (3, 1)], ["", "", "", "†"]),
        ([(3, 0)], ["", "", "", ""]),
        # Better than its own variant too.
        ([(3, 0), (3, 1), (3, 2), (2, 0), (2, 1)], ["", "", "†", "‡"]),
    ],
)
def test_marks_are_those_of_the_paper(significant: list[tuple[int, int]], expected: list[str]) -> None:
    values = np.array([0.2, 0.3, 0.4, 0.5])
    assert marks(values, symmetric(4, significant), FAMILIES, {"bartscore"}) == expected


def test_only_marked_families_are_marked_and_a_lower_value_never_is() -> None:
    everything = symmetric(4, [(i, j) for i in range(4) for j in range(i)])
    values = np.array([0.9, 0.3, 0.4, 0.5])
    assert marks(values, everything, FAMILIES, {"bartscore"}) == ["", "", "", ""]
    assert marks(values, everything, FAMILIES, {"rouge"}) == ["‡", "", "", ""]


def test_who_has_no_one_to_beat_gets_no_mark() -> None:
    assert marks(np.array([0.9]), np.ones((1, 1)), ["bartscore"], {"bartscore"}) == [""]
    assert marks(np.empty(0), np.empty((0, 0)), [], {"bartscore"}) == []
