"""Estimates from samples with known probabilities: textbook formulas, and the mean over many samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from metrist.stats import Floats
from metrist.stats.survey import (
    Design,
    draw_priorities,
    estimate_means,
    predict_residuals,
    probabilities_before,
    standardize_columns,
    weigh_phases,
)

NO_SCORES = np.empty((2, 0))


def plain_design(population: int, size: int, before: float = 1.0) -> Design:
    (weight, variance), _ = weigh_phases(population, size, np.empty(0))
    return Design.of(np.full(size, weight), np.full(size, variance), np.full(size, before))


def test_plain_samples_have_the_interval_of_cochran() -> None:
    """Cochran, Sampling Techniques, 1977, equation 2.21: s² / n (1 - n / N), with Student's t."""
    values = np.array([3.0, 5, 4, 4, 1, 2, 5, 3])
    group = np.array([0, 0, 0, 0, 0, 0, 0, 0])
    means = estimate_means(values, group, plain_design(20, 8), np.empty((8, 0)), NO_SCORES[:1])
    error = math.sqrt(values.var(ddof=1) / 8 * (1 - 8 / 20))
    half = stats.t.ppf(0.975, 7) * error
    found = (means.value[0], means.low[0], means.high[0], means.worth[0])
    assert found == pytest.approx((values.mean(), values.mean() - half, values.mean() + half, 8))
    # A population that was drawn from 40 others, all of it rated, is such a sample, too.
    drawn = estimate_means(values, group, plain_design(8, 8, before=5.0), np.empty((8, 0)), NO_SCORES[:1])
    error = math.sqrt(values.var(ddof=1) / 8 * (1 - 8 / 40))
    assert drawn.high[0] - drawn.value[0] == pytest.approx(stats.t.ppf(0.975, 7) * error)


def test_a_drawn_population_of_which_some_is_rated_is_one_sample() -> None:
    values = np.array([3.0, 5, 4, 4, 1, 2, 5, 3])
    both, one = (
        estimate_means(values, np.zeros(8, np.intp), design, np.empty((8, 0)), NO_SCORES[:1])
        for design in (plain_design(16, 8, before=3.0), plain_design(48, 8))
    )
    assert (both.low, both.high, both.worth) == (
        pytest.approx(one.low),
        pytest.approx(one.high),
        pytest.approx(one.worth),
    )


def test_groups_without_values_and_with_one_have_no_interval() -> None:
    means = estimate_means(np.array([3.0]), np.array([1]), plain_design(10, 1), np.empty((1, 0)), NO_SCORES)
    assert np.isnan(means.value[0])
    assert means.value[1] == 3
    assert np.isnan(means.low).all()


def test_everything_rated_leaves_nothing_open() -> None:
    values = np.array([1.0, 2, 4, 4])
    means = estimate_means(
        values, np.zeros(4, np.intp), plain_design(4, 4), standardize_columns(values[:, None]), np.zeros((1, 1))
    )
    assert (means.value[0], means.low[0], means.high[0], means.worth[0]) == pytest.approx((2.75, 2.75, 2.75, 4))


def make_population(rng: np.random.Generator, size: int = 400) -> tuple[Floats, Floats]:
    """Values that spread the more the lower they are, as error counts do, and a score that predicts them."""
    score = rng.normal(size=size)
    values = score + rng.normal(size=size) * np.exp(-score) / 2
    return values, standardize_columns(score[:, None])


def sample_twice(
    values: Floats, scores: Floats, first: int, second: int, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Sample at random, then what tells most; return the positions, weights and variances."""
    order = rng.permutation(len(values))
    known = np.full(len(values), np.nan)
    known[order[:first]] = values[order[:first]]
    rest = order[first:]
    sizes = predict_residuals(known, scores)[rest]
    priorities = draw_priorities(sizes, rng)
    ranked = np.argsort(priorities)
    chosen = ranked[:second]
    probability = probabilities_before(priorities[ranked[second]], sizes[chosen])
    (weight, variance), (weights, variances) = weigh_phases(len(values), first, probability)
    return (
        np.concatenate([order[:first], rest[chosen]]),
        np.concatenate([np.full(first, weight), weights]),
        np.concatenate([np.full(first, variance), variances]),
    )


def test_weighted_totals_after_both_phases_are_unbiased() -> None:
    """Over many samples, the mean of the totals is that of the population, and their variance that of the formula."""
    rng = np.random.default_rng(0)
    values, scores = make_population(rng)
    totals, variances = [], []
    for _ in range(1000):
        at, weight, variance = sample_twice(values, scores, 30, 50, rng)
        totals.append(weight @ values[at])
        variances.append(variance @ values[at] ** 2)
    error = np.std(totals) / math.sqrt(len(totals))
    assert abs(np.mean(totals) - values.sum()) < 4 * error
    # The first phase is a sample without replacement, of fixed size: the formula, which leaves both out, is larger.
    assert 0.9 < np.mean(variances) / np.var(totals) < 1.3


def test_what_tells_most_narrows_the_interval_which_still_covers_the_mean() -> None:
    rng = np.random.default_rng(1)
    values, scores = make_population(rng, 2000)
    group = np.zeros(150, np.intp)
    population = scores.mean(axis=0, keepdims=True)
    squares, covered, worth = np.zeros(2), np.zeros(2), np.zeros(2)
    draws = 300
    for _ in range(draws):
        at, weight, variance = sample_twice(values, scores, 50, 100, rng)
        informative = Design.of(weight, variance, np.ones(150))
        plain = rng.permutation(2000)[:150]
        for number, (rows, design) in enumerate(((plain, plain_design(2000, 150)), (at, informative))):
            means = estimate_means(values[rows], group, design, scores[rows], population)
            squares[number] += (means.value[0] - values.mean()) ** 2
            covered[number] += means.low[0] <= values.mean() <= means.high[0]
            worth[number] += means.worth[0]
    assert squares[1] < 0.8 * squares[0]
    assert (covered / draws > 0.88).all()
    assert worth[1] > worth[0] > 150 * draws


def test_priorities_give_each_entry_its_probability() -> None:
    """Given the priority of the first entry left out, as Duffield, Lund and Thorup (2007) estimate totals."""
    rng = np.random.default_rng(2)
    sizes = np.array([0.5, 1.0, 1.0, 2.0, 4.0])
    sums = np.zeros(5)
    draws = 5000
    for _ in range(draws):
        priorities = draw_priorities(sizes, rng)
        order = np.argsort(priorities)
        sums[order[:2]] += 1 / probabilities_before(priorities[order[2]], sizes[order[:2]])
    # A weight of 1 / p has a standard deviation of at most 3 here.
    assert np.abs(sums / draws - 1).max() < 4 * 3 / math.sqrt(draws)


def test_sizes_follow_the_spread_of_what_is_known() -> None:
    rng = np.random.default_rng(3)
    values, scores = make_population(rng)
    known = np.where(np.arange(400) < 100, values, np.nan)
    sizes = predict_residuals(known, scores)
    low, high = scores[:, 0] < -1, scores[:, 0] > 1
    assert sizes[low].mean() > 2 * sizes[high].mean()
    # Choices spread alike on both sides.
    mirrored = predict_residuals(np.concatenate([known, -known]), np.concatenate([scores, -scores]), signed=True)
    assert mirrored[:400] == pytest.approx(mirrored[400:])
    # Nothing to learn: equal sizes.
    assert (predict_residuals(np.where(np.arange(400) < 100, 3.0, np.nan), scores) == 1).all()
    assert (predict_residuals(known, np.empty((400, 0))) == 1).all()


def test_standard_scores_take_missing_ones_as_the_mean() -> None:
    scores = standardize_columns(np.array([[1.0, 7], [np.nan, 7], [3.0, 7]]))
    assert scores.tolist() == [[-1, 0], [0, 0], [1, 0]]
