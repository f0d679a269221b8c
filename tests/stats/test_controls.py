"""Strengths at equal covariates, compared with a fit by scipy's BFGS that knows nothing of metrist's, and with what
votes were simulated from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from error_codes import raises_code
from metrist.errors import RunError
from metrist.stats.controls import fit_controlled
from metrist.stats.preferences import Preferences, bradley_terry, shares_won

Floats = NDArray[np.float64]


def simulate(
    strengths: Sequence[float], effects: Sequence[float], votes: int, *, baseline: bool = False, seed: int = 0
) -> tuple[Preferences, Floats]:
    """Votes by Davidson's model and their covariates. The first system tends to have more of the first covariate, and
    is in every vote if it is the baseline; items then differ in ease."""
    rng = np.random.default_rng(seed)
    size = len(strengths)
    if baseline:
        first = 1 + np.arange(votes) % (size - 1)
        second = np.zeros(votes, np.intp)
        item = np.arange(votes) // (size - 1)
    else:
        first, second = np.array([rng.choice(size, 2, replace=False) for _ in range(votes)]).T
        item = np.arange(votes) * 2 // 5
    covariates = rng.normal(size=(votes, len(effects)))
    covariates[:, 0] += (first == 0).astype(float) - (second == 0)
    eases = rng.normal(size=item.max() + 1) * baseline
    worth = np.asarray(strengths)
    at = worth[first] - worth[second] + scale(covariates) @ effects + eases[item]
    parts = np.stack([np.exp(at / 2), np.exp(-at / 2), np.full(votes, 0.5)])
    drawn = rng.random(votes) * parts.sum(axis=0)
    choice = np.where(drawn < parts[0], 1, np.where(drawn < parts[0] + parts[1], -1, 0))
    return Preferences.of(item, first, second, choice, size), covariates


def scale(covariates: Floats) -> Floats:
    return np.tanh(covariates / np.sqrt((covariates**2).mean(axis=0)))


def fit_by_scipy(preferences: Preferences, covariates: Floats, *, eases: bool) -> tuple[Floats, Floats, Floats]:
    """Strengths, coefficients and win rates at equal covariates."""
    size, controls = preferences.systems, covariates.shape[1]
    scaled = scale(covariates)
    first, second, choice = preferences.first, preferences.second, preferences.choice

    def differ(at: Floats, equal: bool = False) -> Floats:
        strengths = np.append(0.0, at[: size - 1])
        gap = strengths[first] - strengths[second]
        if not equal:
            gap = gap + scaled @ at[size : size + controls]
        return gap + at[size + controls :][preferences.item] if eases else gap

    def cost(at: Floats) -> float:
        half, log_tie = differ(at) / 2, at[size - 1]
        whole = np.logaddexp(np.logaddexp(half, -half), log_tie)
        penalty = (at[size + controls :] ** 2).sum() / 2
        return float((whole - np.where(choice == 0, log_tie, choice * half)).sum() + penalty)

    items = preferences.items if eases else 0
    found = minimize(cost, np.zeros(size + controls + items), method="BFGS", options={"gtol": 1e-6}).x
    strengths = np.append(0.0, found[: size - 1])
    half, tie = differ(found, equal=True) / 2, np.exp(found[size - 1])
    points = (np.exp(half) + tie / 2) / (np.exp(half) + np.exp(-half) + tie)
    rates = [np.concatenate([points[first == own], 1 - points[second == own]]).mean() for own in range(size)]
    return strengths - strengths.mean(), found[size : size + controls], np.array(rates)


@pytest.mark.parametrize("baseline", [False, True])
def test_strengths_coefficients_and_win_rates_are_those_of_scipy(baseline: bool) -> None:
    votes, covariates = simulate([0.6, 0.0, -0.2, -1.0], [0.9, -0.4], 90, baseline=baseline)
    fit = fit_controlled(votes, covariates)
    strengths, coefficients, rates = fit_by_scipy(votes, covariates, eases=baseline)
    assert fit.fitted.strength == pytest.approx(strengths, abs=1e-4)
    assert fit.coefficients == pytest.approx(coefficients, abs=1e-4)
    assert fit.win_rates == pytest.approx(rates, abs=1e-4)


def test_a_known_bias_is_recovered() -> None:
    """The first system wins by its length alone: without a control it is ahead of the second, with one behind it."""
    truth = np.array([-0.3, 0.3, 0.0, -0.6])
    votes, covariates = simulate(truth, [1.5, 0.0], 12_000)
    fit = fit_controlled(votes, covariates)
    estimates = np.concatenate([fit.fitted.strength, fit.coefficients])
    error = np.sqrt(np.delete(np.diagonal(fit.covariance), slice(4, 8)))
    assert (np.abs(estimates - [*(truth - truth.mean()), 1.5, 0.0]) < 3 * error).all()
    assert error.max() < 0.06
    uncontrolled = bradley_terry(votes).strength
    assert uncontrolled[0] > uncontrolled[1]


def test_a_known_bias_against_a_baseline_is_recovered() -> None:
    """Win rates at equal length are near those of votes simulated from the same items without the bias."""
    truth, bias = np.linspace(-1, 1, 25), 1.5
    votes, covariates = simulate(truth, [bias], 24_000, baseline=True, seed=2)
    fair, _ = simulate(truth, [0.0], 24_000, baseline=True, seed=2)
    fit = fit_controlled(votes, covariates)
    expected, uncontrolled = (shares_won(own.first, own.second, own.choice, 25) for own in (fair, votes))
    # The baseline's outputs are longer.
    assert np.abs(uncontrolled - expected)[1:].mean() > 0.1
    assert np.abs(fit.win_rates - expected).max() < 0.03
    assert fit.coefficients[0] == pytest.approx(bias, abs=0.1)


@pytest.mark.parametrize("baseline", [False, True])
def test_errors_are_those_of_the_jackknife_over_items(baseline: bool) -> None:
    votes, covariates = simulate([0.4, 0.0, -0.5], [0.8], 200, baseline=baseline, seed=3)
    fit = fit_controlled(votes, covariates)
    without = []
    for item in range(votes.items):
        kept = votes.item != item
        others = Preferences.of(votes.item[kept], votes.first[kept], votes.second[kept], votes.choice[kept], 3)
        own = fit_controlled(others, covariates[kept])
        without.append(np.concatenate([own.fitted.strength, own.win_rates, own.coefficients]))
    jackknife = np.array(without).std(axis=0) * np.sqrt(votes.items - 1)
    assert np.sqrt(np.diagonal(fit.covariance)) == pytest.approx(jackknife, rel=0.05)
    strengths, rates, coefficients = fit.resample(20_000, np.random.default_rng(0))
    drawn = np.concatenate([strengths, rates, coefficients], axis=1).std(axis=0)
    assert drawn == pytest.approx(np.sqrt(np.diagonal(fit.covariance)), rel=0.03)


def test_a_weight_counts_as_so_many_equal_votes() -> None:
    votes, covariates = simulate([0.4, 0.0, -0.5], [0.8], 120, seed=3)
    times = np.random.default_rng(1).integers(1, 4, size=120)
    columns = (votes.item, votes.first, votes.second, votes.choice)
    weighted = fit_controlled(Preferences.of(*columns, 3, times.astype(float)), covariates)
    item, first, second, choice = (np.repeat(column, times) for column in columns)
    repeated = fit_controlled(Preferences.of(item, first, second, choice, 3), np.repeat(covariates, times, axis=0))
    assert weighted.fitted.strength == pytest.approx(repeated.fitted.strength)
    assert weighted.win_rates == pytest.approx(repeated.win_rates)
    assert weighted.coefficients == pytest.approx(repeated.coefficients)
    assert weighted.covariance == pytest.approx(repeated.covariance, rel=0.01)


def test_which_side_is_first_does_not_matter() -> None:
    votes, covariates = simulate([0.4, 0.0, -0.5], [0.8], 120, seed=3)
    sign = np.where(votes.first < votes.second, 1.0, -1.0)
    low, high = np.sort([votes.first, votes.second], axis=0)
    turned = Preferences.of(votes.item, low, high, sign * votes.choice, 3)
    fit, other = fit_controlled(votes, covariates), fit_controlled(turned, sign[:, None] * covariates)
    assert other.fitted.strength == pytest.approx(fit.fitted.strength)
    assert other.covariance == pytest.approx(fit.covariance)


def test_what_cannot_be_told_apart_is_refused() -> None:
    votes, covariates = simulate([0.3, 0.0, -0.3], [0.5], 120)
    always_wins = votes.choice[:, None]
    for unusable in (np.concatenate([covariates, covariates], axis=1), np.zeros((120, 1)), always_wins):
        with raises_code(RunError, "run_failed"):
            fit_controlled(votes, unusable)
