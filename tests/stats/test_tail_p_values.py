"""p-values beyond the reach of draws, and from few units, against counting more of them and true nulls."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from metrist.stats.estimation import Gap, bootstrap_gaps, bootstrap_p_values
from metrist.stats.measures import MEASURES, accuracy_at
from metrist.stats.permutation import PermutationTest, exchange_p_values, exchange_rows
from metrist.stats.samples import ScorePanel

Floats = NDArray[np.float64]


def mean(sums: Floats) -> Floats:
    return sums[..., 0] / sums[..., 1]


def rows_of(differences: Floats) -> Floats:
    """Two metrics, the second 0 on every item."""
    values = np.stack([differences, np.zeros_like(differences)])
    return np.stack([values, np.ones_like(values)], axis=-1)


def exchanged(differences: Floats, draws: int, seed: int) -> float:
    tests = exchange_rows(rows_of(differences), mean, [(0, 1)], draws=draws, rng=np.random.default_rng(seed))
    return float(exchange_p_values(tests)[0])


def test_a_tail_is_close_to_the_share_of_many_draws() -> None:
    rng = np.random.default_rng(0)
    differences = rng.normal(0.3, 1, 120)
    signs = np.random.default_rng(2).choice([-1.0, 1.0], size=(100_000, 120))
    counted = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9)
    assert counted < 0.01
    assert exchanged(differences, 500, 1) == pytest.approx(counted, rel=0.35)


def test_a_p_value_that_many_draws_reach_is_left_alone() -> None:
    far = PermutationTest(difference=9.0, p=0.5, draws=1000, spread=1.0, differing=50)
    tests = [far, far._replace(p=0.02), far._replace(p=math.nan), far._replace(p=0.001, spread=math.nan)]
    np.testing.assert_array_equal(exchange_p_values(tests), [0.5, 0.02, math.nan, 0.001])
    assert exchange_p_values([far._replace(p=0.001)])[0] < 1e-10


def test_few_items_bound_a_p_value_from_below() -> None:
    # Six items that all differ alike: of 64 exchanges two are as extreme.
    assert exchanged(np.full(6, 1.0), 2000, 0) == pytest.approx(2 / 64, rel=0.3)


# The bootstrap

GAP = Gap(value=0.2, p=0.04, standard_error=0.1, units=10)


def test_a_bootstrap_p_value_is_the_tail_of_students_t() -> None:
    # t = 2 / sqrt(10 / 9) = 1.8974 with 9 degrees of freedom: tables of Student's t put p between .05 (2.262) and .1
    # (1.833); numerical integration of the density gives .0903.
    grid = np.linspace(0.2 / (0.1 * math.sqrt(10 / 9)), 400, 2_000_001)
    density = (1 + grid**2 / 9) ** -5 * math.gamma(5) / (math.sqrt(9 * math.pi) * math.gamma(4.5))
    integral = 2 * float(((density[1:] + density[:-1]) / 2 * np.diff(grid)).sum())
    assert bootstrap_p_values([GAP], 1000)[0] == pytest.approx(integral, abs=1e-5)
    assert 0.05 < integral < 0.1


def test_a_bootstrap_p_value_is_neither_below_the_count_nor_limited_by_the_draws() -> None:
    assert bootstrap_p_values([replace(GAP, p=0.3)], 1000)[0] == 0.3
    beyond = replace(GAP, p=1 / 1001, value=2.0, units=100)
    assert bootstrap_p_values([beyond], 1000)[0] < 1e-10


def test_a_gap_without_spread_or_units_claims_nothing_beyond_its_units() -> None:
    assert bootstrap_p_values([replace(GAP, p=1 / 1001, standard_error=0.0, units=4)], 1000)[0] == 1 / 8
    assert bootstrap_p_values([replace(GAP, p=0.2, standard_error=math.nan)], 1000)[0] == 0.2
    assert np.isnan(bootstrap_p_values([replace(GAP, units=1), replace(GAP, p=math.nan)], 1000)).all()
    assert bootstrap_p_values([], 1000).shape == (0,)


def alike(rng: np.random.Generator, systems: int, items: int = 20) -> ScorePanel:
    """Two metrics with noise of the same kind, a part of which the outputs of a system share."""
    place = np.arange(items * systems)
    item, system = place // systems, place % systems
    human = rng.normal(size=systems)[system] + rng.normal(size=len(place))
    shared = 0.7 * rng.normal(size=(2, systems))[:, system]
    return ScorePanel(human=human, metrics=human + shared + rng.normal(size=(2, len(place))), item=item, system=system)


@pytest.mark.parametrize("systems", [5, 12])
@pytest.mark.parametrize("measure", [MEASURES["pearson"], accuracy_at(0.3)], ids=["pearson", "acc_eq"])
def test_few_systems_do_not_reject_a_true_null_too_often(systems: int, measure) -> None:
    """Counting resampled differences rejects in 8 to 11 % of all true nulls here."""
    trials, counted, result = 300, 0, 0
    for trial in range(trials):
        panel = alike(np.random.default_rng(trial), systems)
        gaps = bootstrap_gaps(measure, panel, [(0, 1)], over="systems", draws=99, rng=np.random.default_rng(trial))
        counted += gaps[0].p <= 0.05
        result += bootstrap_p_values(gaps, 99)[0] <= 0.05
    assert result / trials <= 0.055 < counted / trials


def test_many_items_still_reject_a_true_null_about_as_often_as_they_say() -> None:
    result = 0
    for trial in range(500):
        rng = np.random.default_rng(5000 + trial)
        human = rng.normal(size=100)
        metrics = human + rng.normal(size=(2, 100))
        panel = ScorePanel(human=human, metrics=metrics, item=np.arange(100), system=np.zeros(100, np.intp))
        gaps = bootstrap_gaps(MEASURES["pearson"], panel, [(0, 1)], draws=199, rng=np.random.default_rng(trial))
        result += bootstrap_p_values(gaps, 199)[0] <= 0.05
    assert 0.03 <= result / 500 <= 0.06
