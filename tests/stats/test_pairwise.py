from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from metrist.stats.resampling import pair_tests
from paired_tests import paired_bootstrap, paired_randomisation

Floats = NDArray[np.float64]


def mean(sums: Floats) -> Floats:
    return sums[..., 0] / sums[..., 1]


@pytest.fixture
def stats() -> Floats:
    values = np.random.default_rng(1).normal([[0.4], [0.0], [0.1]], 1.0, size=(3, 50))
    return np.stack([values, np.ones_like(values)], axis=-1)


def test_pairs_do_not_depend_on_each_other(stats: Floats) -> None:
    pairs = [(0, 1), (0, 2), (1, 2)]
    together = pair_tests(stats, pairs, mean, 300, np.random.default_rng(5))
    for result, (a, b) in zip(together, pairs, strict=True):
        for_resamples, for_tosses = np.random.default_rng(5).spawn(2)
        bootstrap = paired_bootstrap(stats[a], stats[b], mean, 300, for_resamples)
        assert (result.difference, result.low, result.high, result.p["bootstrap"]) == bootstrap
        assert result.p["randomisation"] == paired_randomisation(stats[a], stats[b], mean, 300, for_tosses)
        assert result.first == pytest.approx(stats[a, :, 0].mean())
        assert result.second == pytest.approx(stats[b, :, 0].mean())


def test_only_the_requested_tests_are_run(stats: Floats) -> None:
    (result,) = pair_tests(stats, [(0, 1)], mean, 50, np.random.default_rng(5), ("randomisation",))
    assert set(result.p) == {"randomisation"}
    (result,) = pair_tests(stats, [(0, 1)], mean, 50, np.random.default_rng(5), ("bootstrap",))
    assert set(result.p) == {"bootstrap"}
