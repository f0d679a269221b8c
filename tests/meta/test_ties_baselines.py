"""What takes no knowledge to reach, and the curve of accuracies."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from brute_ties import accuracy

from metrist.errors import RunError
from metrist.meta.baselines import chance, shuffled_accuracies
from metrist.meta.calibration import accuracy_at, calibrated
from metrist.meta.sample import Sample
from metrist.meta.tie_curve import tie_curve
from metrist.meta.ties import pairing


def sample_of(human, metric) -> Sample:
    count = len(human)
    return Sample.of(human, metric, range(count), ["s"] * count)


def test_same_ties_is_the_mean_over_all_ways_to_shuffle_the_scores():
    human, metric = [1.0, 1.0, 2.0, 3.0, 3.0, 1.0], [0.0, 0.1, 0.5, 0.5, 0.9, 1.3]
    shuffled = [accuracy(human, list(order), [0] * 6, 0.4, "micro") for order in permutations(metric)]
    expected = float(sum(shuffled) / len(shuffled))
    assert accuracy_at(sample_of(human, metric), 0.4).baselines.same_ties == pytest.approx(expected)


@pytest.mark.parametrize(("ties", "expected"), [(0.0, 0.5), (0.2, 0.4), (1 / 3, 1 / 3), (0.7, 0.7), (1.0, 1.0)])
def test_chance_ties_everything_or_nothing(ties, expected):
    assert chance(ties) == pytest.approx(expected)


def test_a_scorer_that_knows_nothing_reaches_chance():
    rng = np.random.default_rng(1)
    human = rng.choice([0.0, 1.0, 2.0], p=[0.7, 0.2, 0.1], size=800)
    sample = sample_of(human, rng.normal(size=800))
    found = calibrated(sample)
    shuffled = shuffled_accuracies(sample, draws=20, rng=np.random.default_rng(2))
    assert found.baselines.chance == found.baselines.all_ties == pytest.approx(0.54, abs=0.03)
    assert shuffled.mean() == pytest.approx(found.baselines.chance, abs=0.01)
    assert found.value == pytest.approx(found.baselines.chance, abs=0.01)


def test_shuffles_stay_within_groups():
    # In each group the metric has one score for what humans tell apart: only a shuffle across groups could be right.
    sample = Sample.of([1, 2, 1, 2], [5, 5, 6, 6], ["a", "a", "b", "b"], ["x", "y", "x", "y"])
    assert shuffled_accuracies(sample, "item", draws=9, rng=np.random.default_rng(0)).tolist() == [0.0] * 9


def test_nearly_constant_ratings_are_warned_of():
    constant = calibrated(sample_of([3.0] * 10, list(range(10)))).baselines
    assert constant.all_ties == constant.chance == 1.0
    assert constant.warning is not None
    assert constant.warning.startswith("ratings are nearly constant: humans tie 100.0% of the pairs, so a metric that")
    assert calibrated(sample_of([3.0] * 5 + [1.0] * 5, list(range(10)))).baselines.warning is None
    # The rule's measure: nine outputs in ten on one level.
    assert calibrated(sample_of([3.0] * 18 + [1.0, 1.0], list(range(20)))).baselines.warning is not None


def test_no_pair_has_no_baseline_and_no_warning():
    found = calibrated(sample_of([1.0], [1.0])).baselines
    assert math.isnan(found.chance)
    assert math.isnan(found.same_ties)
    assert found.warning is None


def test_a_curve_with_few_gaps_has_them_all():
    human, metric = [1.0, 1.0, 2.0, 3.0, 3.0], [0.0, 0.25, 0.5, 1.0, 2.0]
    curve = tie_curve(pairing(human, metric))
    assert curve.epsilons.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 1.75, 2.0]
    assert curve.accuracies.tolist() == [float(accuracy(human, metric, [0] * 5, e, "micro")) for e in curve.epsilons]
    assert curve.tie_shares.tolist() == [0.0, 0.2, 0.4, 0.5, 0.7, 0.8, 0.9, 1.0]


def test_a_thinned_curve_keeps_its_ends_and_its_top():
    rng = np.random.default_rng(4)
    human = rng.integers(0, 3, 400).astype(float)
    paired = pairing(human, human / 2 + rng.normal(size=400))
    curve = tie_curve(paired, points=30)
    best = calibrated(sample_of(human, paired.ranked.scores[np.argsort(paired.order)]))
    assert 25 <= len(curve.epsilons) <= 30
    assert (np.diff(curve.epsilons) > 0).all()
    assert (curve.epsilons[0], curve.tie_shares[-1]) == (0.0, 1.0)
    assert curve.accuracies.max() == pytest.approx(best.value)
    assert curve.accuracies[-1] == paired.human_tie_share()
    for epsilon, value in zip(curve.epsilons, curve.accuracies, strict=True):
        assert value == paired.accuracy(epsilon)


def test_a_curve_of_two_points_is_refused():
    with pytest.raises(RunError, match="needs at least 3 points, got 2"):
        tie_curve(pairing([1, 2], [1, 2]), points=2)


def test_a_curve_without_pairs_is_empty():
    assert len(tie_curve(pairing([1], [1])).epsilons) == 0
