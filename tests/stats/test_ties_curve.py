"""The curve of accuracies over thresholds."""

from __future__ import annotations

import numpy as np
from brute_ties import accuracy

from error_codes import raises_code
from metrist.errors import RunError
from metrist.stats.tie_thresholds import best_threshold, tie_curve
from metrist.stats.ties import pairing


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
    assert 25 <= len(curve.epsilons) <= 30
    assert (np.diff(curve.epsilons) > 0).all()
    assert (curve.epsilons[0], curve.tie_shares[-1]) == (0.0, 1.0)
    assert curve.accuracies.max() == paired.accuracy(best_threshold(paired).epsilon)
    assert curve.accuracies[-1] == paired.accuracy(np.inf)
    for epsilon, value in zip(curve.epsilons, curve.accuracies, strict=True):
        assert value == paired.accuracy(epsilon)


def test_a_curve_of_two_points_is_refused():
    with raises_code(RunError, "invalid_value", 3, 2):
        tie_curve(pairing([1, 2], [1, 2]), points=2)


def test_a_curve_without_pairs_is_empty():
    assert len(tie_curve(pairing([1], [1])).epsilons) == 0
