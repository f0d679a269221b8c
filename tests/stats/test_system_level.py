"""System means and soft pairwise accuracy against brute force."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest
from metric_panels import make_sample

from error_codes import raises_code
from metrist.errors import RunError
from metrist.stats.estimation import system_level_values
from metrist.stats.measures import MEASURES
from metrist.stats.permutation import soft_agreement, soft_pairwise_accuracy, superiority_p_values, system_by_item
from metrist.stats.samples import Draws, Sample


def grid_sample(human: np.ndarray, metric: np.ndarray) -> Sample:
    system, item = np.nonzero(~np.isnan(human))
    return Sample(human=human[system, item], metric=metric[system, item], item=item, system=system)


@pytest.fixture
def grids() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    human = rng.integers(0, 5, (5, 8)) + np.arange(5)[:, None] / 2
    return human, human + rng.normal(size=human.shape)


def every_toss(items: int) -> np.ndarray:
    return np.array(list(product([0.0, 1.0], repeat=items)))


def exact_p(first: np.ndarray, second: np.ndarray) -> float:
    """The paired permutation test over all 2^n exchanges, ties half."""
    both = ~np.isnan(first) & ~np.isnan(second)
    gaps = (first - second)[both]
    excess = [math.fsum(signs * gaps) - math.fsum(gaps) for signs in product([1, -1], repeat=len(gaps))]
    return float(np.mean([0.5 if abs(more) <= 1e-9 else more > 0 for more in excess]))


def test_system_pair_accuracy_counts_signs_of_differences(grids) -> None:
    human, metric = grids
    x, y = human.mean(axis=1), metric.mean(axis=1)
    alike = [np.sign(x[a] - x[b]) == np.sign(y[a] - y[b]) for a, b in combinations(range(5), 2)]
    assert system_level_values(MEASURES["acc_eq"], grid_sample(human, metric)).tolist() == [np.mean(alike)]


def test_system_level_pearson_is_that_of_the_means(grids) -> None:
    human, metric = grids
    expected = np.corrcoef(human.mean(axis=1), metric.mean(axis=1))[0, 1]
    result = system_level_values(MEASURES["pearson"], grid_sample(human, metric))
    assert result.tolist() == [pytest.approx(expected, abs=1e-14)]


def test_systems_with_the_same_values_in_another_order_are_tied() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=50) * 10.0 ** rng.integers(-6, 6, 50)
    human = np.stack([values, rng.permutation(values)])
    assert system_level_values(MEASURES["acc_eq"], grid_sample(human, np.stack([values, values]))).tolist() == [1.0]


def test_a_system_that_was_not_drawn_takes_no_part(grids) -> None:
    human, metric = grids
    some = human.copy()
    some[0, 1:] = np.nan  # The first system answered the first item only.
    drawn = np.ones((2, 8))
    drawn[1, 0] = 0
    result = system_level_values(MEASURES["kendall_b"], grid_sample(some, metric), Draws(items=drawn))
    rest = system_level_values(MEASURES["kendall_b"], grid_sample(human[1:, 1:], metric[1:, 1:]))
    assert result[1] == rest[0]


def test_p_values_over_all_exchanges_are_exact(grids) -> None:
    human, _ = grids
    result = superiority_p_values(human, every_toss(8))
    for a, b in combinations(range(5), 2):
        assert result[a, b] == pytest.approx(exact_p(human[a], human[b]), abs=1e-12)
        assert result[a, b] + result[b, a] == pytest.approx(1.0)
    assert np.isnan(np.diagonal(result)).all()


def test_p_values_rest_on_shared_items(grids) -> None:
    human, _ = grids
    human = human.astype(float)
    human[0, :3], human[1, 5:], human[3, :] = np.nan, np.nan, [np.nan] * 3 + [1.5] * 5
    human[4, 3:] = np.nan
    result = superiority_p_values(human, every_toss(8))
    for a, b in combinations(range(5), 2):
        if {a, b} == {0, 4} or {a, b} == {3, 4}:
            assert math.isnan(result[a, b])  # No item in common.
        else:
            assert result[a, b] == pytest.approx(exact_p(human[a], human[b]), abs=1e-12)


def test_rounding_does_not_break_ties_of_exchanged_sums() -> None:
    # Ten items, of which the two systems differ in two only: a quarter of all exchanges give the observed difference.
    first = np.random.default_rng(2).normal(size=10) * 1e3
    second = first.copy()
    second[:2] -= 0.1
    result = superiority_p_values(np.stack([first, second]), every_toss(10))
    assert result[0, 1] == 1 / 8
    assert superiority_p_values(np.stack([first, first]), every_toss(10))[0, 1] == 0.5


def test_p_values_of_huge_values_are_those_of_small_ones(grids) -> None:
    human, _ = grids
    assert np.array_equal(
        superiority_p_values(human * 2.0**1010, every_toss(8)),
        superiority_p_values(human, every_toss(8)),
        equal_nan=True,
    )


def test_soft_pairwise_accuracy_is_one_minus_the_mean_gap_of_p_values(grids) -> None:
    human, metric = grids
    result = soft_pairwise_accuracy(grid_sample(human, metric), 20_000, np.random.default_rng(3))
    pairs = list(combinations(range(5), 2))
    gaps = [abs(exact_p(human[a], human[b]) - exact_p(metric[a], metric[b])) for a, b in pairs]
    assert result.value == pytest.approx(1 - np.mean(gaps), abs=0.01)
    chance = 1 - np.mean([abs(exact_p(human[a], human[b]) - 0.5) for a, b in pairs])
    assert result.chance == pytest.approx(chance, abs=0.01)


def test_soft_pairwise_accuracy_is_seeded_and_blind_to_the_order_of_systems(grids) -> None:
    human, metric = grids
    first, again, turned = (
        soft_pairwise_accuracy(grid_sample(a, b), 500, np.random.default_rng(4)).value
        for a, b in (grids, grids, (human[::-1], metric[::-1]))
    )
    assert first == again == pytest.approx(turned, abs=1e-12)


def test_a_single_system_has_no_soft_accuracy() -> None:
    alone = make_sample([1.0, 2.0], [1.0, 2.0], ["a", "b"], ["x", "x"])
    assert math.isnan(soft_pairwise_accuracy(alone, 10, np.random.default_rng(5)).value)


def test_an_output_given_twice_cannot_be_paired() -> None:
    twice = make_sample([1.0, 2.0], [1.0, 2.0], ["a", "a"], ["x", "x"])
    with raises_code(RunError, "run_failed"):
        system_by_item(twice, twice.human)


def test_strict_ties_are_those_of_mt_metrics_eval() -> None:
    """Its procedure, written out: p is the share of exchanges with at least the observed difference, for the earlier
    system of each pair. Whole numbers, so that many exchanges equal it."""
    rng = np.random.default_rng(11)
    human, metric = rng.integers(0, 3, size=(2, 4, 8)).astype(float)
    tosses = every_toss(8)
    signs = 1 - 2 * tosses

    def p_values(values):
        totals, exchanged = values.sum(axis=1), signs @ values.T
        table = np.full((4, 4), np.nan)
        for i in range(4):
            for j in range(i + 1, 4):
                table[i, j] = np.mean(exchanged[:, i] - exchanged[:, j] >= totals[i] - totals[j])
        return table

    upper = np.triu_indices(4, 1)
    ours = [superiority_p_values(values, tosses, "strict") for values in (human, metric)]
    for mine, values in zip(ours, (human, metric), strict=True):
        assert mine[upper] == pytest.approx(p_values(values)[upper])
    expected = 1 - np.mean(np.abs(p_values(human) - p_values(metric))[upper])
    assert soft_agreement(*ours) == pytest.approx(expected)
    assert (superiority_p_values(human, tosses)[upper] < ours[0][upper]).all()
