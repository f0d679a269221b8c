from __future__ import annotations

from collections import Counter
from statistics import mean, median, pstdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from error_codes import raises_code
from metrist.errors import RunError
from metrist.stats.gold import GOLDS, Ratings, leave_one_out, majority_gold, mean_gold, median_gold, rater_gold, z_gold
from metrist.stats.measures import measure

N = np.nan

#: Long-form ratings: which output of six, which rater of four, which level.
LONG = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 5)), max_size=24, unique_by=lambda row: row[:2]
)


def ratings(*rows: tuple[int, int, float], outputs: int | None = None) -> Ratings:
    output, rater, value = zip(*rows, strict=True) if rows else ((), (), ())
    return Ratings.of(np.array(output, np.intp), np.array(rater, np.intp), value, outputs)


def by_output(rows: list[tuple[int, int, int]], outputs: int) -> list[list[int]]:
    return [[value for at, _, value in rows if at == output] for output in range(outputs)]


def test_the_papers_vote_is_the_majority_or_2_if_all_differ() -> None:
    # Doostmohammadi et al. (2024), section 3.3.
    votes = [(1, 1, 3), (3, 2, 3), (1, 2, 3), (3, 1, 2), (2, 2, 2)]
    result = majority_gold(ratings(*[(o, r, v) for o, vote in enumerate(votes) for r, v in enumerate(vote)]))
    assert result.tolist() == [1, 3, 2, 2, 2]


def test_an_undecided_vote_falls_back_on_the_median() -> None:
    undecided = ratings((0, 0, 1), (0, 1, 4), (0, 2, 5), (1, 0, 4), (1, 1, 4), outputs=3)
    assert majority_gold(undecided).tolist()[:2] == [4, 4]
    assert np.isnan(majority_gold(undecided)[2])


@given(LONG)
def test_mean_median_and_majority_equal_the_standard_librarys(rows: list[tuple[int, int, int]]) -> None:
    long = ratings(*rows, outputs=6)
    for output, values in enumerate(by_output(rows, 6)):
        if not values:
            assert np.isnan([how(long)[output] for how in (mean_gold, median_gold, majority_gold)]).all()
            continue
        assert mean_gold(long)[output] == pytest.approx(mean(values))
        assert median_gold(long)[output] == median(values)
        top = Counter(values).most_common()
        alone = len(top) == 1 or top[0][1] > top[1][1]
        assert majority_gold(long)[output] == (top[0][0] if alone else median(values))


@given(LONG)
def test_z_gold_takes_out_each_raters_mean_and_spread(rows: list[tuple[int, int, int]]) -> None:
    own = {r: [v for _, rater, v in rows if rater == r] for r in range(4)}
    expected: list[list[float]] = [[] for _ in range(6)]
    for output, rater, value in rows:
        if len(set(own[rater])) > 1:
            expected[output].append((value - mean(own[rater])) / pstdev(own[rater]))
    result = z_gold(ratings(*rows, outputs=6))
    for value, values in zip(result, expected, strict=True):
        assert value == pytest.approx(mean(values)) if values else np.isnan(value)


def test_a_rater_who_gives_one_value_all_along_has_no_z_scores() -> None:
    # 0.1 + 0.1 + 0.1 divided by 3 is not 0.1: rounding must not become a spread.
    result = z_gold(ratings((0, 0, 0.1), (1, 0, 0.1), (2, 0, 0.1), (0, 1, 1), (1, 1, 3), outputs=3))
    assert result.tolist()[:2] == [-1, 1]
    assert np.isnan(result[2])


def test_one_rater_may_be_the_gold() -> None:
    result = rater_gold(ratings((0, 0, 1), (0, 7, 2), (2, 7, 5), outputs=3), 7)
    assert result.tolist()[::2] == [2, 5]
    with raises_code(RunError, "run_failed", 3):
        rater_gold(ratings((0, 0, 1)), 3)


def test_gold_of_named_raters_is_refused_where_raters_are_unknown() -> None:
    unnamed = ratings((0, -1, 1), (0, 2, 3), (1, -1, 2))
    for attempt in (z_gold, lambda some: rater_gold(some, 2)):
        with raises_code(RunError, "run_failed", "2 of 3"):
            attempt(unnamed)
    assert mean_gold(unnamed).tolist() == [2, 2]


def test_a_rater_who_rates_an_output_twice_is_refused() -> None:
    with raises_code(RunError, "run_failed", "1 of 3"):
        z_gold(ratings((0, 0, 1), (0, 0, 3), (1, 0, 2)))


def test_a_nan_is_no_rating() -> None:
    result = mean_gold(ratings((0, 0, np.nan), (0, 1, 4), (1, 0, np.nan)))
    assert result[0] == 4
    assert np.isnan(result[1])


@pytest.mark.parametrize("how", ["mean", "median", "majority"])
def test_ratings_near_the_largest_float_have_a_finite_gold(how: str) -> None:
    large = ratings((0, 0, 1.6e308), (0, 1, 1.6e308), (1, 0, -1.6e308), (1, 1, -1.2e308), (2, 0, 3.0), outputs=4)
    value = GOLDS[how](large)
    assert value[0] == 1.6e308
    assert value[1] == pytest.approx(-1.4e308)
    assert value[2] == 3.0
    assert np.isnan(value[3])


def test_z_scores_of_large_ratings_are_those_of_small_ones() -> None:
    rows = [(output, rater, float(output * 2 + rater)) for output in range(5) for rater in range(2)]
    small, large = (z_gold(ratings(*((o, r, v * unit) for o, r, v in rows))) for unit in (1.0, 2.0**1015))
    assert large.tolist() == small.tolist()


# The human ceiling


def long(table: object) -> Ratings:
    cells = np.asarray(table, dtype=np.float64)
    rater, output = np.nonzero(~np.isnan(cells))
    return Ratings.of(output, rater, cells[rater, output], cells.shape[1])


def test_each_rater_is_judged_by_the_gold_of_the_others() -> None:
    table = [[1, 2, 3, N], [2, 4, N, 1], [3, N, 5, N]]
    item, system = np.array([4, 4, 7, 7]), np.array([0, 1, 0, 1])
    first, second, third = leave_one_out(long(table), item, system)
    assert (first.sample.metric.tolist(), first.sample.human.tolist()) == ([1, 2, 3], [2.5, 4, 5])
    # The fourth output has no rating but the second rater's.
    assert (second.sample.metric.tolist(), second.sample.human.tolist()) == ([2, 4], [2, 2])
    assert (third.sample.metric.tolist(), third.sample.human.tolist()) == ([3, 5], [1.5, 3])
    assert third.outputs.tolist() == [0, 2]
    assert third.sample.item.tolist() == [4, 7]
    assert third.sample.system.tolist() == [0, 0]
    assert [fold.rater for fold in (first, second, third)] == [0, 1, 2]


def test_the_gold_of_the_others_may_be_made_in_any_way() -> None:
    first, *_ = leave_one_out(long([[3, 1], [1, 2], [1, 3], [5, 5]]), np.zeros(2, np.intp), np.arange(2), "majority")
    assert first.sample.human.tolist() == [1, 3]


def test_each_rater_has_a_value_under_any_measure() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=60) + 0.5 * rng.normal(size=(4, 60))
    samples = leave_one_out(long(table), np.arange(60), np.zeros(60, np.intp))
    pearson = measure("pearson")
    values = [pearson.value(fold.sample.human, fold.sample.metric) for fold in samples]
    by_hand = [np.corrcoef(table[r], np.delete(table, r, axis=0).mean(axis=0))[0, 1] for r in range(4)]
    assert values == pytest.approx(by_hand)


def test_a_ceiling_needs_two_raters_with_names() -> None:
    codes = np.zeros(2, np.intp)
    with raises_code(RunError, "too_little_data", 1):
        leave_one_out(long([[1, 2]]), codes, codes)
    with raises_code(RunError, "run_failed", "2 of 2"):
        leave_one_out(Ratings.of([0, 0], [-1, -1], [1, 2]), codes, codes)
