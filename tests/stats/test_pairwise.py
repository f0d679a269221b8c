from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from metrist.stats.resampling import pair_tests, paired_bootstrap, paired_randomisation

Floats = NDArray[np.float64]


def mean(sums: Floats) -> Floats:
    return sums[..., 0] / sums[..., 1]


@pytest.fixture
def stats() -> Floats:
    values = np.random.default_rng(1).normal([[0.4], [0.0], [0.1]], 1.0, size=(3, 50))
    return np.stack([values, np.ones_like(values)], axis=-1)


def test_many_pairs_at_once_give_what_each_gives_alone(stats: Floats) -> None:
    pairs = [(0, 1), (0, 2), (1, 2)]
    together = pair_tests(stats, pairs, mean, 300, np.random.default_rng(5))
    for found, (a, b) in zip(together, pairs, strict=True):
        for_resamples, for_tosses = np.random.default_rng(5).spawn(2)
        bootstrap = paired_bootstrap(stats[a], stats[b], mean, 300, for_resamples)
        assert (found.difference, found.low, found.high, found.p["bootstrap"]) == bootstrap
        assert found.p["randomisation"] == paired_randomisation(stats[a], stats[b], mean, 300, for_tosses)
        assert found.first == pytest.approx(stats[a, :, 0].mean())
        assert found.second == pytest.approx(stats[b, :, 0].mean())


def test_only_the_tests_asked_for_are_made(stats: Floats) -> None:
    (found,) = pair_tests(stats, [(0, 1)], mean, 50, np.random.default_rng(5), ("randomisation",))
    assert set(found.p) == {"randomisation"}
    (found,) = pair_tests(stats, [(0, 1)], mean, 50, np.random.default_rng(5), ("bootstrap",))
    assert set(found.p) == {"bootstrap"}
