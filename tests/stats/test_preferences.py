from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from error_codes import raises_code
from metrist.errors import RunError
from metrist.stats.preferences import (
    BradleyTerry,
    Preferences,
    bootstrap_standings,
    bradley_terry,
    shares_won,
    win_rates,
)

Floats = NDArray[np.float64]
#: (item, first, second, choice) among three systems.
Row = tuple[int, int, int, int]
ROWS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([(0, 1), (1, 2), (2, 0), (1, 0)]), st.sampled_from([1, -1, 0])).map(
        lambda row: (row[0], *row[1], row[2])
    ),
    min_size=1,
    max_size=30,
)

# Games won in the American League's eastern division, 1987; A. Agresti, Categorical Data Analysis (1990), section 10.6.
TEAMS = ("Milwaukee", "Detroit", "Toronto", "New York", "Boston", "Cleveland", "Baltimore")
WON = [
    [0, 7, 9, 7, 7, 9, 11],
    [6, 0, 7, 5, 11, 9, 9],
    [4, 6, 0, 7, 7, 8, 12],
    [6, 8, 6, 0, 6, 7, 10],
    [6, 2, 6, 7, 0, 7, 12],
    [4, 4, 5, 6, 6, 0, 6],
    [2, 4, 1, 3, 1, 7, 0],
]


def preferences(rows: Sequence[Row], systems: int = 3) -> Preferences:
    item, first, second, choice = np.array(rows, np.intp).reshape(-1, 4).T
    return Preferences.of(item, first, second, choice, systems)


def repeated(*counted: tuple[int, int, int, int]) -> list[Row]:
    """Rows of (how often, first, second, choice), each an item of its own."""
    rows = [(f, s, c) for times, f, s, c in counted for _ in range(times)]
    return [(item, *row) for item, row in enumerate(rows)]


def likelihood(rows: Sequence[Row], strengths: Sequence[float], tie: float) -> float:
    """Davidson's model, one kind of preference at a time."""
    total = 0.0
    for (first, second, choice), times in Counter(row[1:] for row in rows).items():
        first_worth, second_worth = math.exp(strengths[first]), math.exp(strengths[second])
        both = tie * math.sqrt(first_worth * second_worth)
        total += times * math.log(
            {1: first_worth, -1: second_worth, 0: both}[choice] / (first_worth + second_worth + both)
        )
    return total


#: All ways to go from a place in three dimensions, along axes and diagonals.
WAYS = [np.array(way) for way in product((1.0, 0.0, -1.0), repeat=3) if any(way)]


def rises_for_ever(rows: Sequence[Row]) -> bool:
    """Whether there is a way to move strengths and tie parameter along which each choice made gets no less likely than
    the two not made, and some get likelier: by trying all ways that three systems can need."""
    for *moves, tie in product(range(5), range(5), range(5), (0, 1)):
        gains = []
        for _, first, second, choice in rows:
            value = {1: moves[first], -1: moves[second], 0: (moves[first] + moves[second]) / 2 + tie}
            gains += [value[choice] - value[other] for other in value]
        if min(gains) >= 0 and max(gains) > 0:
            return True
    return False


def test_a_win_rate_counts_a_tie_as_half_a_win() -> None:
    some = preferences([(0, 0, 1, 1), (0, 1, 0, 1), (1, 0, 1, 0), (1, 0, 2, 1)], systems=4)
    result = win_rates(some, 200, np.random.default_rng(0))
    assert result.value[:3].tolist() == [2.5 / 4, 1.5 / 3, 0]
    assert np.isnan(result.value[3])
    assert result.games.tolist() == [4, 3, 1, 0]
    assert (result.low[:2] <= result.value[:2]).all()
    assert (result.value[:2] <= result.high[:2]).all()


@given(ROWS)
def test_win_rates_equal_those_by_counting(rows: list[Row]) -> None:
    points, games = [0.0] * 3, [0] * 3
    for _, first, second, choice in rows:
        points[first] += {1: 1, 0: 0.5, -1: 0}[choice]
        points[second] += {1: 0, 0: 0.5, -1: 1}[choice]
        games[first] += 1
        games[second] += 1
    result = win_rates(preferences(rows), 0, np.random.default_rng(0))
    for system in range(3):
        expected = points[system] / games[system] if games[system] else math.nan
        assert result.value[system] == pytest.approx(expected, nan_ok=True)


def test_shares_won_are_the_win_rates_of_any_codes() -> None:
    result = shares_won([0, 0, 2], [1, 2, 1], [1, 0, -1], 4)
    assert result.tolist()[:3] == [0.75, 0.5, 0.25]
    assert math.isnan(result[3])


def test_without_ties_the_strengths_are_agrestis_baseball_teams() -> None:
    rows = repeated(*((WON[i][j], i, j, 1) for i in range(7) for j in range(7)))
    result = bradley_terry(preferences(rows, 7), names=TEAMS)
    # Estimates relative to Baltimore, as the book and the documentation of R's BradleyTerry2 print them.
    relative = result.strength - result.strength[-1]
    assert relative == pytest.approx([1.5814, 1.4364, 1.2945, 1.2476, 1.1077, 0.6839, 0.0], abs=6e-5)
    # The standard error of a difference to Baltimore, from the same page.
    error = math.sqrt(result.covariance[0, 0] + result.covariance[6, 6] - 2 * result.covariance[0, 6])
    assert error == pytest.approx(0.3433, abs=6e-5)
    assert result.tie == 0


@settings(max_examples=30)
@given(ROWS)
def test_strengths_and_errors_are_those_of_brute_force(rows: list[Row]) -> None:
    assume(any(choice == 0 for *_, choice in rows) and {system for row in rows for system in row[1:3]} == {0, 1, 2})

    def height(at: Floats) -> float:
        return likelihood(rows, [at[0], at[1], 0.0], math.exp(at[2]))

    try:
        result = bradley_terry(preferences(rows))
    except RunError:
        assert rises_for_ever(rows) or all(choice == 0 for *_, choice in rows)
        return
    assert not rises_for_ever(rows)
    # The hill is concave: a place from which no small step leads up is its top.
    top = np.array([*(result.strength[:2] - result.strength[2]), math.log(result.tie)])
    assert all(height(top + step * way) < height(top) for step in (1, 0.1, 0.01, 0.001) for way in WAYS)
    assert result.error == pytest.approx(_errors_by_differences(rows, result), rel=1e-3)


def _errors_by_differences(rows: Sequence[Row], result: BradleyTerry) -> list[float]:
    """Standard errors from the curvature of the likelihood, by second differences."""
    top = np.array([*(result.strength[:2] - result.strength[2]), math.log(result.tie)])
    h = 1e-3

    def height(at: Floats) -> float:
        return likelihood(rows, [at[0], at[1], 0.0], math.exp(at[2]))

    unit = np.eye(3) * h
    curvature = np.array(
        [
            [
                sum(s * t * height(top + s * unit[i] + t * unit[j]) for s in (1, -1) for t in (1, -1)) / (4 * h * h)
                for j in range(3)
            ]
            for i in range(3)
        ]
    )
    free = np.linalg.inv(-curvature)[:2, :2]
    spread = np.array([[1, 0], [0, 1], [0, 0]]) - 1 / 3
    return np.sqrt(np.diagonal(spread @ free @ spread.T)).tolist()


def test_undefeated_systems_are_named() -> None:
    rows = repeated((3, 0, 1, 1), (2, 1, 2, 1), (2, 2, 1, 1), (1, 1, 2, 0))
    with raises_code(RunError, "run_failed", "{best} {b, c}"):
        bradley_terry(preferences(rows), names=("best", "b", "c"))
    with raises_code(RunError, "run_failed", "{0} {1, 2}"):
        bradley_terry(preferences(rows))


def test_systems_that_were_never_compared_are_named() -> None:
    rows = repeated((2, 0, 1, 1), (2, 1, 0, 1), (1, 2, 3, 1), (1, 3, 2, 1))
    with raises_code(RunError, "run_failed", "{0, 1} {2, 3}; rank one group at a time"):
        bradley_terry(preferences(rows, 4))
    with raises_code(RunError, "run_failed", "{0} {1}; add votes"):
        bradley_terry(preferences(repeated((3, 0, 1, 1)), 2))


def test_ties_alone_or_ties_that_strength_explains_determine_nothing() -> None:
    for rows in (repeated((3, 0, 1, 0), (1, 1, 2, 0)), []):
        with raises_code(RunError, "run_failed"):
            bradley_terry(preferences(rows))
    # One win and one tie: the likelihood xv / (x + 1/x + v)^2 only rises as x = v grows.
    with raises_code(RunError, "run_failed", "strength alone"):
        bradley_terry(preferences(repeated((1, 0, 1, 1), (1, 0, 1, 0)), 2))


def test_resampled_strengths_spread_as_the_standard_errors() -> None:
    rng = np.random.default_rng(3)
    truth = np.array([0.6, 0.0, -0.6])
    rows = []
    for item in range(600):
        first, second = rng.choice(3, 2, replace=False)
        first_worth, second_worth = np.exp(truth[[first, second]])
        both = 0.8 * np.sqrt(first_worth * second_worth)
        choice = rng.choice(
            [1, -1, 0], p=np.array([first_worth, second_worth, both]) / (first_worth + second_worth + both)
        )
        rows.append((item, first, second, int(choice)))
    result = bradley_terry(preferences(rows))
    assert np.all(np.abs(result.strength - truth) < 3 * result.error)
    drawn = bootstrap_standings(preferences(rows), 300, np.random.default_rng(0))[0]
    assert drawn.std(axis=0) == pytest.approx(result.error, rel=0.2)
    assert (drawn == bootstrap_standings(preferences(rows), 300, np.random.default_rng(0))[0]).all()


def test_item_codes_without_preferences_change_nothing() -> None:
    rows = repeated((6, 0, 1, 1), (5, 1, 0, 1), (4, 0, 1, 0))
    spaced = [(7 * item, *rest) for item, *rest in rows]
    near, far = (win_rates(preferences(some, 2), 80, np.random.default_rng(0)) for some in (rows, spaced))
    assert near.low.tolist() == far.low.tolist()
    drawn = [bootstrap_standings(preferences(some, 2), 20, np.random.default_rng(0))[0] for some in (rows, spaced)]
    assert (drawn[0] == drawn[1]).all()


def test_a_resample_that_determines_nothing_is_nan() -> None:
    rows = repeated((1, 0, 1, 1), (1, 1, 0, 1))
    drawn = bootstrap_standings(preferences(rows, 2), 50, np.random.default_rng(0))[0]
    assert 0 < np.isnan(drawn).all(axis=1).sum() < 50
    assert np.nanmax(np.abs(drawn)) < 1e-9


def test_a_preference_of_a_system_over_itself_is_refused() -> None:
    with raises_code(RunError, "run_failed", 1):
        preferences([(0, 1, 1, 0)])
