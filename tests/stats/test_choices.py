"""Choices and score reductions, counted by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import RunError
from metrist.stats import preferences
from metrist.stats.error_spans import reduction_shares
from metrist.stats.measures import measure
from metrist.stats.preferences import CHOICES, choose, confusion


def table(human: str, metric: str) -> np.ndarray:
    """A table from choices as letters: f, s, t."""
    code = {choice[0]: number for number, choice in enumerate(CHOICES)}
    return confusion(*(np.array([code[letter] for letter in side]) for side in (human, metric)))


def test_differences_up_to_the_threshold_are_ties() -> None:
    assert choose(np.array([0.2, 0.1, 0.0, -0.1, -0.2]), 0.1).tolist() == [0, 2, 2, 2, 1]
    assert choose(np.array([1e-300, 0.0, -1e-300])).tolist() == [0, 2, 1]


def test_a_table_has_human_choices_as_rows() -> None:
    assert table("fffst", "fssst").tolist() == [[1, 2, 0], [0, 1, 0], [0, 0, 1]]


def test_scores_of_a_small_table() -> None:
    small = table("fffst", "fssst")
    assert preferences.accuracy(small) == pytest.approx(3 / 5)
    # Precision and recall by hand: first 1/1 and 1/3, second 1/3 and 1/1, tie 1/1 and 1/1; so F1 is .5, .5 and 1.
    assert preferences.macro_f1(small) == pytest.approx(2 / 3)
    assert preferences.chance_accuracy(small) == pytest.approx(2 / 5)


def test_a_choice_that_does_not_occur_has_no_f1() -> None:
    assert preferences.macro_f1(table("ffs", "fss")) == pytest.approx((2 / 3 + 2 / 3) / 2)
    # A tie that only the metric chose has an F1 of 0: first is right once of twice and of once.
    assert preferences.macro_f1(table("ff", "ft")) == pytest.approx(2 / 3 / 2)


def test_no_choices_have_no_scores() -> None:
    nothing = confusion(np.array([], np.intp), np.array([], np.intp))
    for score in (preferences.accuracy, preferences.macro_f1, preferences.chance_accuracy):
        assert math.isnan(score(nothing))


def test_pairwise_measures_apply_to_preferences() -> None:
    counts = preferences.pair_counts(table("fffffsst", "fffstsft"))
    assert counts.tolist() == [4, 2, 0, 1, 1]
    assert measure("darr_wmt17").pool(counts) == pytest.approx((4 - 2 - 1) / 7)
    assert measure("darr_wmt14").pool(counts) == pytest.approx((4 - 2) / 7)
    assert measure("gamma").pool(counts) == pytest.approx((4 - 2) / 6)
    assert measure("acc_eq").pool(counts) == preferences.accuracy(table("fffffsst", "fffstsft")) == 5 / 8


def test_invalid_choices_are_refused() -> None:
    with raises_code(RunError, "invalid_value", -1):
        choose(np.zeros(1), -1)
    with raises_code(RunError, "run_failed", 1, 2):
        choose(np.array([0.0, np.nan]))


def test_reductions_are_shares_of_the_scored_references() -> None:
    result = reduction_shares([0.0, -0.5, -1.0, -1.5, -2.0, -4.5, float("nan")])
    assert (result.unreduced, result.above_minus_two, result.at_most_one) == (1 / 6, 4 / 6, 3 / 6)
    assert result.scored == 6


def test_no_scored_reference_has_no_shares() -> None:
    result = reduction_shares([float("nan")])
    assert math.isnan(result.unreduced)
    assert result.scored == 0
