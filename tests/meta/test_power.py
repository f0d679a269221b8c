"""How many items a difference needs, against the textbook formula and a simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from metrist.errors import RunError
from metrist.meta.power import power_at, power_of, power_of_draws, power_of_items
from metrist.meta.resample import coin_tosses


def test_the_number_is_that_of_the_textbook() -> None:
    # Cohen (1988): a paired effect of d = .5 at alpha .05 and power .8 takes (1.960 + 0.842)^2 / .25 = 31.4 pairs
    # by the normal approximation.
    found = power_of(0.5, 1 / math.sqrt(100), 100)
    assert found.needed == 32
    assert found.more == 0
    assert str(found) == "the 100 items are enough to separate these two"


def test_more_items_are_asked_for_in_round_numbers() -> None:
    found = power_of(0.1, 1 / math.sqrt(100), 100)
    assert found.needed == 785
    assert found.more == 685
    assert str(found) == "about 690 more items would separate these two"
    assert str(power_of(0.01, 0.1, 100)) == "about 79,000 more items would separate these two"


def test_the_sign_of_the_difference_does_not_matter() -> None:
    assert power_of(-0.1, 0.1, 100).needed == power_of(0.1, 0.1, 100).needed


def test_no_difference_takes_no_number_of_items() -> None:
    found = power_of(0.0, 0.1, 100)
    assert found.needed is None
    assert found.more is None
    assert str(found) == "no number of items would separate these two: the difference seen is 0"
    hopeless = power_of(1e-9, 0.1, 100)
    assert hopeless.needed is None
    assert str(hopeless).startswith("no number of items within reach would separate these two")


@pytest.mark.parametrize("values", [np.empty(0), np.array([0.3]), np.full(9, math.nan)])
def test_too_few_items_say_nothing(values) -> None:
    found = power_of_items(values, np.zeros(len(values)))
    assert found.needed is None
    assert str(found) == "too little is known of the difference to say how many items would separate these two"


def test_a_difference_without_spread_needs_two_items() -> None:
    assert power_of_items(np.full(5, 1.0), np.zeros(5)).needed == 2


def test_items_without_both_values_are_left_out() -> None:
    first, second = np.array([1.0, 2.0, math.nan, 4.0]), np.array([0.5, math.nan, 1.0, 1.0])
    found = power_of_items(first, second)
    assert found.items == 2
    assert found.difference == pytest.approx(1.75)


def test_draws_of_a_bootstrap_give_about_the_same_number() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.normal([[0.1], [0.0]], 1.0, size=(2, 300))
    resampled = np.array([(first - second)[rng.integers(0, 300, 300)].mean() for _ in range(2000)])
    exact, found = power_of_items(first, second), power_of_draws((first - second).mean(), resampled, 300)
    assert found.needed == pytest.approx(exact.needed, rel=0.15)


@pytest.mark.parametrize(("alpha", "power"), [(0.0, 0.8), (0.05, 1.0)])
def test_alpha_and_power_are_shares(alpha: float, power: float) -> None:
    with pytest.raises(RunError, match="alpha and power must lie between 0 and 1, got"):
        power_of(0.1, 0.1, 100, alpha, power)


def test_so_many_items_do_find_the_difference_as_often_as_promised() -> None:
    """The true effect is .2 standard deviations: a randomisation test on the number of items that the formula asks
    for must find it in about 80 % of 2000 samples, and half as many items in as many as `power_at` says."""
    pilot = power_of(0.2, 1 / math.sqrt(50), 50)
    assert pilot.needed == 197
    for items, expected in ((197, 0.8), (98, power_at(0.2, 1 / math.sqrt(50), 50, 98))):
        rng = np.random.default_rng(items)
        differences = rng.normal(0.2, 1.0, size=(2000, items))
        (signs,) = coin_tosses(items, 399, rng, 399)
        null = np.abs((1 - 2 * signs) @ differences.T)
        p = (1 + (null >= np.abs(differences.sum(axis=1))).sum(axis=0)) / 400
        assert np.mean(p <= 0.05) == pytest.approx(expected, abs=0.03)


def test_power_is_unknown_without_a_spread() -> None:
    assert math.isnan(power_at(0.1, 0.0, 100, 200))
    assert power_at(0.0, 0.1, 100, 200) == pytest.approx(0.05)
