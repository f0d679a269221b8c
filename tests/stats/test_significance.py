"""Tails, corrections, clusters, letters and power, against fractions, tables, worked examples and brute force."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from itertools import combinations
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from metrist.stats.resampling import coin_tosses
from metrist.stats.significance import (
    adjust,
    average_ranks,
    benjamini_hochberg,
    best_first,
    beta_share,
    clusters,
    coin_tail,
    estimate_power,
    holm,
    letters,
    marks,
    normal_tail,
    ranks,
    strictest_level,
    student_t_tail,
    wins,
)

# Tails of distributions, against fractions, published tables and numerical integration


@given(st.integers(0, 400), st.data())
def test_coin_tails_equal_exact_fractions(tosses: int, data: st.DataObject) -> None:
    heads = data.draw(st.integers(-1, tosses + 1))
    exact = Fraction(sum(math.comb(tosses, i) for i in range(max(0, heads), tosses + 1)), 2**tosses)
    assert coin_tail(heads, tosses) == pytest.approx(float(exact), rel=1e-11, abs=0)


@pytest.mark.parametrize(("tosses", "heads"), [(10_000, 5_100), (10_000, 5_600), (10_000, 4_900), (30_001, 15_001)])
def test_the_coin_keeps_its_digits_for_many_tosses(tosses: int, heads: int) -> None:
    above = math.comb(tosses, heads)
    total = 0
    for i in range(heads, tosses + 1):
        total += above
        above = above * (tosses - i) // (i + 1)
    assert coin_tail(heads, tosses) == pytest.approx(float(Fraction(total, 2**tosses)), rel=1e-11)


@pytest.mark.parametrize("tosses", [1_000_000, 5_000_000_000])
def test_the_coin_nears_the_normal_for_very_many_tosses(tosses: int) -> None:
    for deviations in (0.0, 1.0, 2.5, 5.0):
        heads = round(tosses / 2 + deviations * math.sqrt(tosses) / 2)
        # Corrected for continuity, the normal is off by less than deviations^4 / tosses.
        expected = normal_tail((heads - 0.5 - tosses / 2) / (math.sqrt(tosses) / 2))
        assert coin_tail(heads, tosses) == pytest.approx(expected, rel=700 / tosses + 1e-9)


@pytest.mark.parametrize(
    ("freedom", "t", "tail"),
    [
        # The usual printed table of Student's t (for example NIST/SEMATECH e-Handbook, 1.3.6.7.2).
        (1, 3.078, 0.10), (1, 12.706, 0.025), (5, 2.015, 0.05), (10, 2.228, 0.025), (23, 2.500, 0.01),
        (30, 2.042, 0.025), (30, 3.385, 0.001), (100, 1.660, 0.05), (100, 3.174, 0.001),
    ],
)  # fmt: skip
def test_student_t_has_the_values_of_printed_tables(freedom: int, t: float, tail: float) -> None:
    assert student_t_tail(t, freedom) == pytest.approx(tail, rel=2e-3)
    assert student_t_tail(-t, freedom) == pytest.approx(1 - tail, rel=2e-3)


@pytest.mark.parametrize("freedom", [1, 2, 3.5, 17, 250])
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 2.7])
def test_student_t_is_the_integral_of_its_density(freedom: float, t: float) -> None:
    x = np.linspace(0, t, 20_001)
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    density = constant * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    assert student_t_tail(t, freedom) == pytest.approx(0.5 - np.trapezoid(density, x), abs=1e-8)


def test_student_t_at_its_edges() -> None:
    assert student_t_tail(0.0, 7) == 0.5
    assert (student_t_tail(math.inf, 7), student_t_tail(-math.inf, 7)) == (0.0, 1.0)
    assert math.isnan(student_t_tail(math.nan, 7))
    assert math.isnan(student_t_tail(1.0, 0))
    # With one degree of freedom it is Cauchy's: 1/2 - atan(t)/pi.
    assert student_t_tail(1e6, 1) == pytest.approx(1e-6 / math.pi, rel=1e-9)
    assert student_t_tail(1.96, 1e9) == pytest.approx(normal_tail(1.96), rel=1e-7)


def test_the_beta_function_at_its_edges_and_mirrored() -> None:
    assert (beta_share(2, 3, 0.0, 1.0), beta_share(2, 3, 1.0, 0.0)) == (0.0, 1.0)
    # I_x(2, 3) is a polynomial: 6 x^2 - 8 x^3 + 3 x^4.
    assert beta_share(2, 3, 0.3, 0.7) == pytest.approx(6 * 0.09 - 8 * 0.027 + 3 * 0.0081, rel=1e-13)
    assert beta_share(2.5, 40, 0.2, 0.8) == pytest.approx(1 - beta_share(40, 2.5, 0.8, 0.2), rel=1e-12)


def test_the_normal_undoes_its_quantile() -> None:
    assert normal_tail(NormalDist().inv_cdf(0.8)) == pytest.approx(0.2)


# Corrections for many tests, against worked examples and brute force from their definitions


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


# Clusters, ranks and marks, from hand-made values and p-values, and against their definitions


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


# Letters, against brute force from their definition


def differing(size: int, pairs: set[tuple[int, int]]) -> np.ndarray:
    matrix = np.zeros((size, size), dtype=np.bool_)
    for first, second in pairs:
        matrix[first, second] = matrix[second, first] = True
    return matrix


@st.composite
def comparisons(draw: st.DrawFn, most: int = 9) -> np.ndarray:
    size = draw(st.integers(1, most))
    every = list(combinations(range(size), 2))
    return differing(size, draw(st.sets(st.sampled_from(every))) if every else set())


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
    assert letters(differing(size, pairs)) == expected


def test_many_systems_that_all_differ_have_no_letters() -> None:
    assert letters(~np.eye(52, dtype=np.bool_)) is not None
    assert letters(~np.eye(53, dtype=np.bool_)) is None


def test_a_contrived_comparison_does_not_run_for_ever() -> None:
    # The complement of disjoint triangles has 3 ** 20 maximal groups.
    different = np.zeros((60, 60), dtype=np.bool_)
    for start in range(0, 60, 3):
        different[start : start + 3, start : start + 3] = ~np.eye(3, dtype=np.bool_)
    assert letters(different) is None


# How many items a difference needs, against the textbook formula and a simulation


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
