"""Corrections for many tests against worked examples and brute force from their definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.stats.significance import adjust, benjamini_hochberg, holm


def test_holm_gives_the_values_of_a_worked_example() -> None:
    # Four hypotheses with p = .01, .04, .03, .005: the example of the Wikipedia article "Holm-Bonferroni method",
    # where H4 and H1 are rejected at .05 and H3 and H2 are not; adjusted by hand: 4 * .005, 3 * .01, 2 * .03, .06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_is_the_closed_test_over_all_families(p_values: list[float]) -> None:
    """Brute force from the closure principle: a hypothesis falls when every family that holds it falls under
    Bonferroni, so its adjusted value is the largest of those families' Bonferroni values."""
    count = len(p_values)
    families = [f for size in range(1, count + 1) for f in itertools.combinations(range(count), size)]
    expected = [
        max(min(1.0, len(family) * min(p_values[i] for i in family)) for family in families if number in family)
        for number in range(count)
    ]
    assert holm(p_values) == pytest.approx(expected)


def test_benjamini_and_hochberg_reject_as_in_their_paper() -> None:
    # Benjamini & Hochberg (1995), section 3.2: fifteen p-values of a trial on myocardial infarction. At .05 their
    # procedure rejects the four smallest hypotheses, Bonferroni's (and Hochberg's) three.
    small = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459]
    p = [*small, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]
    adjusted = benjamini_hochberg(p)
    assert (adjusted <= 0.05).sum() == 4
    assert (holm(p) <= 0.05).sum() == 3
    assert adjusted[3] == pytest.approx(0.0095 * 15 / 4)


@given(st.lists(st.floats(0, 1), max_size=8))
def test_benjamini_hochberg_is_the_smallest_level_that_rejects(p_values: list[float]) -> None:
    """Brute force from the definition: at level q, with k the largest number such that k p-values are at most
    k q / m, those are rejected; a test's adjusted value is the smallest q at which it falls."""
    count = len(p_values)
    # Only at these levels can the set of rejected tests change.
    levels = sorted({min(1.0, p * count / k) for p in p_values for k in range(1, count + 1)} | {1.0})

    def rejected(level: float) -> set[int]:
        reached = [k for k in range(1, count + 1) if sum(p <= k * level / count * (1 + 1e-12) for p in p_values) >= k]
        bound = max(reached, default=0) * level / count * (1 + 1e-12)
        return {i for i, p in enumerate(p_values) if reached and p <= bound}

    expected = [next(level for level in levels if i in rejected(level) or level == 1.0) for i in range(count)]
    assert benjamini_hochberg(p_values) == pytest.approx(expected)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_benjamini_hochberg_lies_between_the_plain_and_holms_values(p_values: list[float]) -> None:
    adjusted = benjamini_hochberg(p_values)
    assert (adjusted >= np.array(p_values) - 1e-15).all()
    assert (adjusted <= holm(p_values) + 1e-15).all()


@pytest.mark.parametrize("correction", [holm, benjamini_hochberg])
def test_a_test_that_was_not_made_is_no_part_of_the_family(correction) -> None:
    adjusted = correction([0.01, math.nan, 0.03])
    assert adjusted[[0, 2]] == pytest.approx(correction([0.01, 0.03]))
    assert np.isnan(adjusted[1])


def test_a_correction_is_chosen_by_name() -> None:
    p = [0.01, 0.04, 0.03, 0.005]
    assert (adjust(p, "holm") == holm(p)).all()
    assert (adjust(p, "benjamini-hochberg") == benjamini_hochberg(p)).all()
    assert adjust(p, "none").tolist() == p
