"""Agreement among raters, by several coefficients, each with its bootstrap interval.

alpha_nominal, alpha_ordinal, alpha_interval, fleiss_kappa         need two ratings of an output, by anyone
kendall, cohen_kappa, cohen_kappa_linear, cohen_kappa_quadratic    the mean over all pairs of raters
ties                                                               the mean over raters of the share of output pairs
                                                                   that a rater ties

The last two lines need named raters. A pair of raters that shares fewer than two outputs, or whose coefficient is
undefined (a rater who gives a single value), is skipped. A resample is a row of whole numbers, how often each output
was picked; counts of ratings are then whole numbers too, exact in any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from types import MappingProxyType
from typing import Literal

import numpy as np

from metrist.errors import RunError, did_you_mean
from metrist.stats import Codes, Floats
from metrist.stats.gold import Ratings, sum_by_code
from metrist.stats.measures import divide, measure
from metrist.stats.resampling import CHUNK, interval, resample_counts
from metrist.stats.ties import tie_shares


def level_totals(weights: Floats, output: Codes, level: Codes, levels: int) -> Floats:
    """Return totals (draws, levels) of ratings with each level, counted as often as their outputs were picked."""
    # Sums of gathered weights are as fast as a product with ones and zeros for any number of levels, and start no BLAS
    # threads for many small products.
    order = np.argsort(level, kind="stable")
    present, starts = np.unique(level[order], return_index=True)
    totals = np.zeros((len(weights), levels))
    if len(present):
        totals[:, present] = np.add.reduceat(weights.take(output[order], axis=1), starts, axis=1)
    return totals


class _Comparable:
    """The ratings of outputs that have at least two, each at the level of its value; and the distinct values of each
    output in order, as columns (`run_output`, `run_level`, `run_ratings`)."""

    def __init__(self, ratings: Ratings) -> None:
        compared = ratings.take(ratings.counts()[ratings.output] >= 2)
        self.output, self.counts = compared.output, compared.counts()
        self.values, self.level = np.unique(compared.value, return_inverse=True)
        width = max(1, len(self.values))
        cells, self.run_ratings = np.unique(compared.output * width + self.level, return_counts=True)
        self.run_output, self.run_level = cells // width, cells % width

    def totals(self, weights: Floats) -> Floats:
        """Return totals (draws, levels) of ratings with each level, counted as often as their outputs were picked."""
        return level_totals(weights, self.output, self.level, len(self.values))


# ---- Krippendorff's alpha: one minus observed over expected disagreement, for any number of ratings per output.
#
# The coincidences of two values c and k are the pairs of ratings within an output that have them, each output's pairs
# divided by its number of ratings minus one. With their totals n_c, alpha is
#
#     1 - (n - 1) * sum over c < k of o_ck d(c, k) / sum over c < k of n_c n_k d(c, k)
#
# where d is 1 (nominal), (c - k)^2 (interval), or the squared distance of mid-ranks among all ratings (ordinal): K.
# Krippendorff, Computing Krippendorff's Alpha-Reliability (2011).


Scale = Literal["nominal", "ordinal", "interval"]
#: From weights (draws, outputs), how often each output was picked, to values (draws,).
Statistic = Callable[[Floats], Floats]


def alpha(ratings: Ratings, scale: Scale) -> Statistic:
    """Return alpha as a function of how often each output counts; NaN if all comparable ratings have one value."""
    compared = _Comparable(ratings)
    values, run_output, run_level = compared.values, compared.run_output, compared.run_level
    # All pairs of different values within an output, and the weight of each pair.
    pairs = [np.empty((2, 0), dtype=np.intp)]
    for offset in range(1, int(np.bincount(run_output).max(initial=0))):
        first = np.flatnonzero(run_output[offset:] == run_output[:-offset])
        pairs.append(np.stack([first, first + offset]))
    low_run, high_run = np.concatenate(pairs, axis=1)
    output, low, high = run_output[low_run], run_level[low_run], run_level[high_run]
    amount = compared.run_ratings[low_run] * compared.run_ratings[high_run] / (compared.counts[output] - 1)

    def statistic(weights: Floats) -> Floats:
        totals = compared.totals(weights)
        match scale:
            case "nominal":
                apart = np.ones(len(amount))
                expected = (totals.sum(axis=1) ** 2 - (totals**2).sum(axis=1)) / 2
            case "interval":
                position = values - values.mean() if len(values) else values
                apart = (position[high] - position[low]) ** 2
                expected = _spread(totals, position)
            case "ordinal":
                position = np.cumsum(totals, axis=1) - totals / 2 - totals.sum(axis=1, keepdims=True) / 2
                apart = (position[:, high] - position[:, low]) ** 2
                expected = _spread(totals, position)
        observed = (weights[:, output] * (amount * apart)).sum(axis=1)
        return 1 - divide((totals.sum(axis=1) - 1) * observed, expected)

    return statistic


def _spread(totals: Floats, position: Floats) -> Floats:
    """Return the sum of squared distances of all pairs of ratings."""
    square, linear = (totals * position**2).sum(axis=1), (totals * position).sum(axis=1)
    spread = totals.sum(axis=1) * square - linear**2
    # Ratings of a single level have no spread; rounding may leave some.
    varied: Floats = np.where((totals > 0).sum(axis=1) > 1, spread, 0.0)
    return varied


# ---- Kappa: agreement beyond chance.
#
# Fleiss (1971): the mean over outputs of the share of agreeing rater pairs, compared with the chance that two random
# ratings agree. Outputs may have unequal numbers of ratings: each output has the same weight in what is observed, each
# rating in what is expected; outputs with a single rating are left out.
#
# Cohen (1960, 1968): one minus observed over expected disagreement of two raters on the outputs that both rated. A
# disagreement counts 1 (plain), the distance of the two values (linear) or its square (quadratic).


Weighting = Literal["plain", "linear", "quadratic"]


def fleiss_kappa(ratings: Ratings) -> Statistic:
    """Return Fleiss' kappa as a function of how often each output counts; NaN if all ratings have one value."""
    compared = _Comparable(ratings)
    counts, alike = compared.counts, compared.run_ratings
    agreeing = sum_by_code(alike * (alike - 1.0), compared.run_output, ratings.outputs)
    share = np.nan_to_num(divide(agreeing, counts * (counts - 1.0)))

    def statistic(weights: Floats) -> Floats:
        totals = compared.totals(weights)
        chance = divide((totals**2).sum(axis=1), totals.sum(axis=1) ** 2)
        observed = divide((weights * share).sum(axis=1), (weights * (counts > 0)).sum(axis=1))
        return divide(observed - chance, np.where((totals > 0).sum(axis=1) > 1, 1 - chance, 0.0))

    return statistic


def cohen_kappa(first: Floats, second: Floats, weights: Floats, weighting: Weighting = "plain") -> Floats:
    """Return Cohen's kappa (draws,) of two raters' values (n,) under weights (draws, n); NaN if no disagreement is
    expected."""
    values, level = np.unique(np.stack([first, second]), return_inverse=True)
    everywhere, size = np.arange(len(first)), weights.sum(axis=1)
    own, other = (level_totals(weights, everywhere, side, len(values)) for side in level.reshape(2, -1))
    # `expected` is the disagreement of all values of one rater with all values of the other.
    match weighting:
        case "plain":
            apart, expected = first != second, size**2 - (own * other).sum(axis=1)
        case "linear":
            # A gap between neighbouring values separates all values below it from all values above it.
            below, below_other = np.cumsum(own, axis=1)[:, :-1], np.cumsum(other, axis=1)[:, :-1]
            across = below * (size[:, None] - below_other) + below_other * (size[:, None] - below)
            apart, expected = np.abs(first - second), (across * np.diff(values)).sum(axis=1)
        case "quadratic":
            centred = values - values.mean() if len(values) else values
            squares = ((own + other) * centred**2).sum(axis=1)
            total = size * squares - 2 * (own * centred).sum(axis=1) * (other * centred).sum(axis=1)
            # If both raters gave the same single value there is no disagreement; rounding may leave some.
            apart, expected = (first - second) ** 2, np.where(((own + other) > 0).sum(axis=1) > 1, total, 0.0)
    return 1 - divide((weights * apart).sum(axis=1) * size, expected)


# ---- Coefficients by name


#: One coefficient of two raters' values (n,), for each row of weights (draws, n).
Comparison = Callable[[Floats, Floats, Floats], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementCoefficient:
    """One coefficient. `outputs` counts outputs with at least two ratings. If the value is NaN, `failure` gives the
    reason."""

    name: str
    value: float
    low: float
    high: float
    outputs: int
    raters: int
    failure: str | None = None


def agreement(
    ratings: Ratings,
    names: Sequence[str],
    draws: int,
    rng: np.random.Generator,
    cluster: Codes | None = None,
    confidence: float = 0.95,
) -> list[AgreementCoefficient]:
    """Return the named coefficients with intervals over resamples of the outputs, or of clusters of outputs (items, for
    example): `cluster` holds one code per output. Raise RunError if a coefficient needs named raters and there are
    none."""
    for name in names:
        if name not in COEFFICIENTS:
            known = f"{', '.join(COEFFICIENTS)}{did_you_mean(name, COEFFICIENTS)}"
            raise RunError(f"unknown agreement {name!r}; known are {known}", code="unknown_name")
    parts = {name: COEFFICIENTS[name](ratings) for name in names}
    counts = ratings.counts()
    rated = np.flatnonzero(counts)
    distinct, unit = np.unique(rated if cluster is None else cluster[rated], return_inverse=True)
    units = len(distinct)

    def weigh_outputs(picked: Floats) -> Floats:
        """How often each output counts (draws, outputs), from how often each unit was picked."""
        weights = np.zeros((len(picked), ratings.outputs))
        weights[:, rated] = picked[:, unit]
        return weights

    resampled: dict[str, list[Floats]] = {name: [np.empty(0)] for name in names}
    widest = max(1, ratings.outputs, int((counts * (counts - 1) // 2).sum()))
    for picked in resample_counts(units, draws, rng, max(1, CHUNK // widest)):
        weights = weigh_outputs(picked)
        for name in names:
            resampled[name].append(_mean(parts[name], weights))
    once = weigh_outputs(np.ones((1, units)))
    several = int(np.count_nonzero(counts >= 2))
    coefficients = []
    for name in names:
        value = float(_mean(parts[name], once)[0])
        low, high = interval(np.concatenate(resampled[name]), confidence, units, value)
        failure = None
        if math.isnan(value):
            if not several and name != "ties":
                failure = "no output was rated twice"
            elif len(np.unique(ratings.value)) < 2:
                failure = "all ratings have the same value"
            elif needs_names(name):
                failure = "no two raters share enough outputs with different values"
            else:
                failure = "the comparable ratings have one value"
        coefficients.append(
            AgreementCoefficient(
                name=name,
                value=value,
                low=low,
                high=high,
                outputs=several,
                raters=len(ratings.raters),
                failure=failure,
            )
        )
    return coefficients


def needs_names(name: str) -> bool:
    """Return whether a coefficient needs named raters."""
    return name not in _WITHOUT_NAMES


def _compare_raters(ratings: Ratings, compare: Comparison, purpose: str = "Cohen's kappa") -> list[Statistic]:
    table = ratings.table(purpose)

    def compared(first: int, second: int) -> Statistic:
        shared = np.flatnonzero(~np.isnan(table[:, first] + table[:, second]))
        # Outputs with the same two values are one output that counts several times.
        cells, cell = np.unique(table[shared][:, [first, second]], axis=0, return_inverse=True)
        first_values, second_values = cells.T

        def statistic(weights: Floats) -> Floats:
            return compare(first_values, second_values, level_totals(weights, shared, cell.reshape(-1), len(cells)))

        return statistic

    return [compared(first, second) for first, second in combinations(range(table.shape[1]), 2)]


def _tie_shares_of_raters(ratings: Ratings) -> list[Statistic]:
    table = ratings.table("the tie share of raters")

    def ties(values: Floats) -> Statistic:
        rated = np.flatnonzero(~np.isnan(values))
        return lambda weights: tie_shares(values[rated], weights.take(rated, axis=1))

    return [ties(values) for values in table.T]


def _kendall(first: Floats, second: Floats, weights: Floats) -> Floats:
    tau = measure("kendall_b")
    return tau.pool(tau.rows(first, second, weights))


_WITHOUT_NAMES: Mapping[str, Callable[[Ratings], list[Statistic]]] = MappingProxyType(
    {
        "alpha_nominal": lambda ratings: [alpha(ratings, "nominal")],
        "alpha_ordinal": lambda ratings: [alpha(ratings, "ordinal")],
        "alpha_interval": lambda ratings: [alpha(ratings, "interval")],
        "fleiss_kappa": lambda ratings: [fleiss_kappa(ratings)],
    }
)
#: Per name, the parts of which the coefficient is the mean.
COEFFICIENTS: Mapping[str, Callable[[Ratings], list[Statistic]]] = MappingProxyType(
    {
        **_WITHOUT_NAMES,
        "kendall": partial(_compare_raters, compare=_kendall, purpose="pairwise Kendall"),
        "cohen_kappa": partial(_compare_raters, compare=cohen_kappa),
        "cohen_kappa_linear": partial(_compare_raters, compare=partial(cohen_kappa, weighting="linear")),
        "cohen_kappa_quadratic": partial(_compare_raters, compare=partial(cohen_kappa, weighting="quadratic")),
        "ties": _tie_shares_of_raters,
    }
)


def _mean(parts: Sequence[Statistic], weights: Floats) -> Floats:
    """Return the mean of the defined parts, per draw."""
    total, defined = np.zeros(len(weights)), np.zeros(len(weights))
    for part in parts:
        values = part(weights)
        total += np.nan_to_num(values)
        defined += ~np.isnan(values)
    return divide(total, defined)
