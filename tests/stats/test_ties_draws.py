"""Thresholds chosen anew in resamples, against the resampled data laid out and searched; intervals that cover."""

from __future__ import annotations

import math
from statistics import NormalDist
from unittest import mock

import numpy as np
import pytest
from metric_panels import make_sample

from metrist import kernels
from metrist.kernels import reference
from metrist.stats import tie_thresholds as module
from metrist.stats.estimation import draw_resamples, estimate
from metrist.stats.measures import accuracy_at
from metrist.stats.resampling import interval, resample_counts
from metrist.stats.samples import Draws, Sample
from metrist.stats.tie_thresholds import ThresholdChoice, best_threshold, calibrated_interval, optimism
from metrist.stats.ties import pairing


@pytest.fixture
def sample() -> Sample:
    rng = np.random.default_rng(5)
    # Some items lack some systems, one has a single output: as ragged as real data.
    item, system = np.divmod(np.delete(np.arange(48), [1, 2, 3, 10, 25, 46]), 4)
    human = rng.integers(0, 3, len(item)).astype(float)
    return Sample(human=human, metric=np.round(human / 4 + rng.normal(size=len(item)), 1), item=item, system=system)


def counts(size: int, draws: int = 25, seed: int = 0) -> np.ndarray:
    return np.concatenate(list(resample_counts(size, draws, np.random.default_rng(seed), draws)))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("average", ["macro", "micro"])
def test_an_item_drawn_twice_is_two_groups(sample, average, compiled):
    items = counts(12)
    choice = ThresholdChoice(sample=sample, groups=sample.item, average=average)
    chosen = kernels if compiled else reference
    with mock.patch.multiple(kernels, best_prefixes=chosen.best_prefixes, beyond_counts=chosen.beyond_counts):
        result = choice.choose_again(Draws(items=items))
    assert result is not None
    for draw, times in enumerate(items):
        copies = np.repeat(np.arange(12), times.astype(int))
        rows = [np.flatnonzero(sample.item == item) for item in copies]
        groups = np.repeat(np.arange(len(copies)), [len(row) for row in rows])
        laid_out = sample.take(np.concatenate(rows))
        assert result[draw] == best_threshold(pairing(laid_out.human, laid_out.metric, groups, average=average)).epsilon


@pytest.mark.parametrize("average", ["macro", "micro"])
@pytest.mark.parametrize("side", ["none", "system"])
def test_an_output_drawn_twice_within_its_group_counts_twice(sample, side, average):
    items = counts(12)
    groups = sample.system if side == "system" else np.zeros(len(sample), np.intp)
    result = ThresholdChoice(sample=sample, groups=groups, average=average).choose_again(Draws(items=items))
    assert result is not None
    for draw, times in enumerate(items):
        paired = pairing(sample.human, sample.metric, groups, average=average, weights=times[sample.item])
        assert result[draw] == best_threshold(paired).epsilon


def test_items_and_systems_are_drawn_together(sample):
    items, systems = counts(12), counts(4, seed=1)
    result = ThresholdChoice(sample=sample, groups=sample.item).choose_again(Draws(items=items, systems=systems))
    assert result is not None
    for draw, (of_items, of_systems) in enumerate(zip(items, systems, strict=True)):
        copies = np.repeat(np.arange(12), of_items.astype(int))
        rows = [np.flatnonzero(sample.item == item) for item in copies]
        groups = np.repeat(np.arange(len(copies)), [len(row) for row in rows])
        laid_out = sample.take(np.concatenate(rows))
        paired = pairing(laid_out.human, laid_out.metric, groups, weights=of_systems[laid_out.system])
        assert result[draw] == best_threshold(paired).epsilon


def test_a_draw_without_a_pair_has_no_threshold():
    sample = make_sample([1, 2, 3], [1, 2, 3], ["a", "a", "b"], ["x", "y", "x"])
    result = ThresholdChoice(sample=sample, groups=sample.item).choose_again(
        Draws(items=np.array([[0.0, 2.0], [1.0, 1.0]]))
    )
    assert result is not None
    assert math.isnan(result[0])
    assert result[1] == 0


def test_optimism_is_how_far_resamples_lie_above_all_data_at_thresholds_of_their_own(sample):
    items = counts(12)
    draws = Draws(items=items)
    choice, paired = (
        ThresholdChoice(sample=sample, groups=sample.item),
        pairing(sample.human, sample.metric, sample.item),
    )

    def above(epsilon: float, draw: int) -> float:
        result = estimate(accuracy_at(epsilon), sample, "item", Draws(items=items[[draw]])).values[0]
        return float(result) - paired.accuracy(epsilon)

    gained = [
        above(epsilon, draw) - above(choice.best(), draw) for draw, epsilon in enumerate(choice.choose_again(draws))
    ]
    assert optimism(choice, sample, "item", draws) == pytest.approx(np.mean(gained))
    assert min(gained) >= 0
    assert max(gained) > 0


def test_large_samples_are_taken_as_not_flattered(sample):
    choice, draws = ThresholdChoice(sample=sample, groups=np.zeros(len(sample), np.intp)), Draws(items=counts(12))
    with mock.patch.multiple(module, MAX_OUTPUTS=10):
        assert choice.choose_again(draws) is None
        assert optimism(choice, sample, "none", draws) == 0


def test_an_interval_is_moved_and_widened_for_few_units():
    # Student's t has the quantile 2.776 at 4 degrees of freedom (any table).
    wider = math.sqrt(5 / 4) * 2.776445 / NormalDist().inv_cdf(0.975)
    low, high = calibrated_interval(0.6, 0.55, 0.64, optimism=0.0, units=5, confidence=0.95)
    assert (low, high) == (pytest.approx(0.6 - 0.05 * wider, abs=1e-6), pytest.approx(0.6 + 0.04 * wider, abs=1e-6))
    low, high = calibrated_interval(0.6, 0.55, 0.65, optimism=0.02, units=100_000, confidence=0.95)
    wider = math.hypot(1, 0.01 / (0.05 / NormalDist().inv_cdf(0.975)))
    assert (low, high) == (pytest.approx(0.58 - 0.05 * wider, abs=1e-5), pytest.approx(0.58 + 0.05 * wider, abs=1e-5))
    low, high = calibrated_interval(0.6, 0.55, 0.64, optimism=0.0, units=100_000, confidence=0.95)
    assert (low, high) == (pytest.approx(0.55, abs=1e-5), pytest.approx(0.64, abs=1e-5))
    assert calibrated_interval(0.98, 0.96, 1.0, optimism=0.0, units=5, confidence=0.95)[1] == 1
    assert all(map(math.isnan, calibrated_interval(0.6, 0.6, 0.6, optimism=0.0, units=1, confidence=0.95)))


def test_an_interval_contains_its_value_though_it_is_moved():
    # All resamples agree with the value, and only the optimism is in doubt; Student's t has 3.182 at 3 degrees.
    low, high = calibrated_interval(1.0, 1.0, 1.0, optimism=0.1, units=4, confidence=0.95)
    assert (low, high) == (pytest.approx(0.9 - math.sqrt(4 / 3) * 3.182446 * 0.05, abs=1e-6), 1.0)
    # The shift exceeds the upper half.
    assert calibrated_interval(0.7, 0.6, 0.705, optimism=0.05, units=1000, confidence=0.95)[1] == 0.7
    assert calibrated_interval(0.7, 0.7, 0.7, optimism=-0.05, units=1000, confidence=0.95)[0] == 0.7


def rated_sample(items: int, rng: np.random.Generator, systems: int = 4) -> Sample:
    """Ratings from 1 to 5 of a quality that differs by item, and a metric that sees it with noise."""
    quality = rng.normal(size=(items, systems)) + rng.normal(size=(items, 1)) / 2
    item, system = np.divmod(np.arange(items * systems), systems)
    human, metric = np.clip(np.rint(quality * 1.2 + 3), 1, 5), quality + rng.normal(size=quality.shape)
    return Sample(human=human.ravel(), metric=metric.ravel(), item=item, system=system)


@pytest.fixture(scope="module")
def truth() -> float:
    """The accuracy at the best threshold of so many items that choosing it no longer matters."""
    endless = rated_sample(30_000, np.random.default_rng(99))
    paired = pairing(endless.human, endless.metric, endless.item)
    return paired.share(best_threshold(paired).right)


@pytest.mark.parametrize("items", [60, pytest.param(150, marks=pytest.mark.torture)])
def test_intervals_cover_the_truth_though_the_threshold_is_chosen_on_the_same_data(items, truth):
    covered, flattered, runs = 0, [], 300
    for run in range(runs):
        rng = np.random.default_rng([run, items])
        sample = rated_sample(items, rng)
        choice = ThresholdChoice(sample=sample, groups=sample.item)
        (draws,) = draw_resamples(sample.item, sample.system, "items", 200, rng, 200)
        fixed = accuracy_at(choice.best())
        value = float(estimate(fixed, sample, "item").values[0])
        low, high = interval(estimate(fixed, sample, "item", draws).values, 0.95, items, value)
        assert draws.items is not None
        gained = optimism(choice, sample, "item", Draws(items=draws.items[:25]))
        low, high = calibrated_interval(value, low, high, optimism=gained, units=items, confidence=0.95)
        covered += low <= truth <= high
        flattered.append(value - truth)
    # Accuracies are too good, by about a hundredth for 60 items: intervals around them would cover too seldom.
    assert np.mean(flattered) > 0.003
    assert 0.93 <= covered / runs <= 0.97
