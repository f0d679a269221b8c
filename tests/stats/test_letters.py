"""Significance letters against brute force from their definition."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.stats.significance import letters


def symmetric(size: int, pairs: set[tuple[int, int]]) -> np.ndarray:
    matrix = np.zeros((size, size), dtype=np.bool_)
    for first, second in pairs:
        matrix[first, second] = matrix[second, first] = True
    return matrix


@st.composite
def comparisons(draw: st.DrawFn, most: int = 9) -> np.ndarray:
    size = draw(st.integers(1, most))
    every = list(combinations(range(size), 2))
    return symmetric(size, draw(st.sets(st.sampled_from(every))) if every else set())


@given(comparisons())
def test_two_share_a_letter_exactly_if_they_do_not_differ(different: np.ndarray) -> None:
    given_letters = letters(different)
    assert given_letters is not None
    assert all(given_letters)
    for first, second in combinations(range(len(different)), 2):
        assert bool(set(given_letters[first]) & set(given_letters[second])) is not bool(different[first, second])


@given(comparisons(most=6))
def test_no_letter_is_superfluous_and_none_could_be_in_one_more_place(different: np.ndarray) -> None:
    """Brute force: without any one letter some pair that does not differ would share none."""
    given_letters = letters(different) or []
    used = sorted(set("".join(given_letters)))
    assert used == [chr(ord("a") + number) for number in range(len(used))]
    assert "a" in given_letters[0]
    for letter in used:
        without = [set(text) - {letter} for text in given_letters]
        pairs = combinations(range(len(different)), 2)
        unshared = any(not different[i, j] and not without[i] & without[j] for i, j in pairs)
        assert unshared or not all(without)


@pytest.mark.parametrize(
    ("size", "pairs", "expected"),
    [
        # The example `dif3` of multcompLetters in the R package multcompView: only b and c differ.
        (3, {(1, 2)}, ["ab", "a", "b"]),
        (3, set(), ["a", "a", "a"]),
        (3, {(0, 1), (0, 2), (1, 2)}, ["a", "b", "c"]),
        # A chain: neighbours do not differ, all others do.
        (4, {(0, 2), (0, 3), (1, 3)}, ["a", "ab", "bc", "c"]),
        (1, set(), ["a"]),
        (0, set(), []),
    ],
)
def test_known_displays(size: int, pairs: set[tuple[int, int]], expected: list[str]) -> None:
    assert letters(symmetric(size, pairs)) == expected


def test_many_systems_that_all_differ_have_no_letters() -> None:
    assert letters(~np.eye(52, dtype=np.bool_)) is not None
    assert letters(~np.eye(53, dtype=np.bool_)) is None


def test_a_contrived_comparison_does_not_run_for_ever() -> None:
    # The complement of disjoint triangles has 3 ** 20 maximal groups.
    different = np.zeros((60, 60), dtype=np.bool_)
    for start in range(0, 60, 3):
        different[start : start + 3, start : start + 3] = ~np.eye(3, dtype=np.bool_)
    assert letters(different) is None
