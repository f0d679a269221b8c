"""How many items a difference needs, against the textbook formula and a simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from metrist.stats.resampling import coin_tosses
from metrist.stats.significance import adjust, estimate_power, strictest_level


def test_the_number_is_that_of_the_textbook() -> None:
    # Cohen (1988): a paired effect of d = .5 at alpha .05 and power .8 takes (1.960 + 0.842)^2 / .25 = 31.4 pairs
    # by the normal approximation.
    result = estimate_power(0.5, 1 / math.sqrt(100), 100)
    assert result.needed == 32
    assert str(result) == "the 100 items are enough to separate these two"


def test_the_number_of_items_is_rounded() -> None:
    result = estimate_power(0.1, 1 / math.sqrt(100), 100)
    assert result.needed == 785
    assert str(result) == "about 690 more items would separate these two"
    assert str(estimate_power(0.01, 0.1, 100)) == "about 79,000 more items would separate these two"


def test_the_sign_of_the_difference_does_not_matter() -> None:
    assert estimate_power(-0.1, 0.1, 100).needed == estimate_power(0.1, 0.1, 100).needed


def test_no_difference_takes_no_number_of_items() -> None:
    result = estimate_power(0.0, 0.1, 100)
    assert result.needed is None
    assert str(result) == "no number of items would separate these two: the observed difference is 0"
    hopeless = estimate_power(1e-9, 0.1, 100)
    assert hopeless.needed is None
    assert str(hopeless).startswith("no feasible number of items would separate these two")


def test_power_of_an_unknown_difference_or_spread_is_unknown() -> None:
    for result in (estimate_power(math.nan, 0.1, 9), estimate_power(0.3, math.nan, 1)):
        assert result.needed is None
        assert str(result) == "unknown: the difference or its standard error is undefined"


def test_a_difference_without_spread_needs_two_items() -> None:
    assert estimate_power(1.0, 0.0, 5).needed == 2


def test_the_message_names_the_resampled_units() -> None:
    assert str(estimate_power(0.1, 0.1, 10, over="systems")) == "about 69 more systems would separate these two"
    assert str(estimate_power(0.5, 0.1, 10, over="systems")) == "the 10 systems are enough to separate these two"
    assert str(estimate_power(0.0, 0.1, 10, over="systems")).startswith("no number of systems would separate these two")
    # (1.960 + 0.842)^2 = 7.85 times as many.
    assert (
        str(estimate_power(0.1, 0.1, 10, over="both"))
        == "about 7.9 times the items and the systems would separate these two"
    )
    assert str(estimate_power(0.5, 0.1, 10, over="both")) == "the items and systems are enough to separate these two"


@pytest.mark.parametrize(
    ("correction", "level"), [("holm", 0.05 / 6), ("benjamini-hochberg", 0.05 / 6), ("none", 0.05)]
)
def test_the_strictest_level_is_the_first_step_of_a_correction(correction, level: float) -> None:
    assert strictest_level(0.05, 6, correction) == pytest.approx(level)
    assert strictest_level(0.05, 0, correction) == 0.05
    # One test of six at just that level is significant after the correction, and a little above it is not.
    for p, significant in ((level * 0.999, True), (level * 1.001, False)):
        assert (adjust([p, *[0.9] * 5], correction)[0] <= 0.05) == significant


def test_the_estimated_number_of_items_reaches_the_power() -> None:
    """The true effect is .2 standard deviations: a randomisation test on the number of items that the formula asks
    for must find it in about 80 % of 2000 samples."""
    items = estimate_power(0.2, 1 / math.sqrt(50), 50).needed
    assert items == 197
    rng = np.random.default_rng(items)
    differences = rng.normal(0.2, 1.0, size=(2000, items))
    (signs,) = coin_tosses(items, 399, rng, 399)
    null = np.abs((1 - 2 * signs) @ differences.T)
    p = (1 + (null >= np.abs(differences.sum(axis=1))).sum(axis=0)) / 400
    assert np.mean(p <= 0.05) == pytest.approx(0.8, abs=0.03)
