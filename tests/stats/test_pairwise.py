from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from error_codes import raises_code
from metrist.errors import RunError
from metrist.stats.resampling import Contestants, ExactSums, PairTest, Test, find_origin, pair_tests
from paired_tests import paired_bootstrap, paired_randomisation

Floats = NDArray[np.float64]


def mean(sums: Floats) -> Floats:
    return sums[..., 0] / sums[..., 1]


def run_tests(
    stats: Floats,
    pairs: Sequence[tuple[int, int]],
    draws: int,
    tests: Collection[Test] = ("bootstrap", "randomisation"),
) -> list[PairTest]:
    (results,) = pair_tests([Contestants(ExactSums.of(stats), pairs, mean)], draws, np.random.default_rng(5), tests)
    return results


@pytest.fixture
def stats() -> Floats:
    values = np.random.default_rng(1).normal([[0.4], [0.0], [0.1]], 1.0, size=(3, 50))
    return np.stack([values, np.ones_like(values)], axis=-1)


def test_pairs_do_not_depend_on_each_other(stats: Floats) -> None:
    pairs = [(0, 1), (0, 2), (1, 2)]
    together = run_tests(stats, pairs, 300)
    for result, (a, b) in zip(together, pairs, strict=True):
        for_resamples, for_tosses = np.random.default_rng(5).spawn(2)
        bootstrap = paired_bootstrap(stats[a], stats[b], mean, 300, for_resamples)
        assert (result.difference, result.low, result.high, result.p["bootstrap"]) == bootstrap
        assert result.p["randomisation"] == paired_randomisation(stats[a], stats[b], mean, 300, for_tosses)
        assert result.first == pytest.approx(stats[a, :, 0].mean())
        assert result.second == pytest.approx(stats[b, :, 0].mean())


def test_only_the_requested_tests_are_run(stats: Floats) -> None:
    (result,) = run_tests(stats, [(0, 1)], 50, ("randomisation",))
    assert set(result.p) == {"randomisation"}
    (result,) = run_tests(stats, [(0, 1)], 50, ("bootstrap",))
    assert set(result.p) == {"bootstrap"}


@pytest.mark.parametrize(
    ("values", "origin"),
    [([0.1, 0.9], 0.0), ([1e12, 1e12 + 1], 1e12), ([-1e12, -1e12 - 1], -1e12 - 1), ([3.0, 3.0], 0.0), ([], 0.0)],
)
def test_only_scores_that_lie_close_together_far_from_0_have_an_origin(values: list[float], origin: float) -> None:
    assert find_origin(np.array(values)) == origin


def test_scores_whose_sum_is_no_number_are_refused() -> None:
    with raises_code(RunError, "invalid_value", "4 ", "1e+308"):
        ExactSums.of(np.full((1, 4, 1), -1e308))
