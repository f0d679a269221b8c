from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.meta.multiple import holm


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


def test_a_test_that_was_not_made_is_no_part_of_the_family() -> None:
    adjusted = holm([0.01, math.nan, 0.03])
    assert adjusted[[0, 2]] == pytest.approx([0.02, 0.03])
    assert np.isnan(adjusted[1])
