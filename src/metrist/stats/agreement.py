"""Weighted tallies of ratings: how often each value occurs in each of many resamples.

A resample is a row of whole numbers, how often each output was picked. Tallies of them are whole numbers too, exact in
whatever order they are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from metrist.errors import RunError, did_you_mean
from metrist.stats import Codes, Floats
from metrist.stats.gold import Ratings, divided, summed
from metrist.stats.measures import measure
from metrist.stats.resampling import CHUNK, interval, resample_counts
from metrist.stats.ties import tie_shares


class Runs(NamedTuple):
    """The distinct values of each output, in order: which output, which level, how many ratings."""

    output: Codes
    level: Codes
    ratings: Codes


def level_totals(weights: Floats, output: Codes, level: Codes, levels: int) -> Floats:
    """Totals (draws, levels): how many ratings, counted as often as their outputs were picked, have each level."""
    # Sums of gathered weights rather than a product with ones and zeros: as fast, for any number of levels, and it
    # starts no threads that would wait for each other over many small products.
    order = np.argsort(level, kind="stable")
    present, starts = np.unique(level[order], return_index=True)
    totals = np.zeros((len(weights), levels))
    if len(present):
        totals[:, present] = np.add.reduceat(weights.take(output[order], axis=1), starts, axis=1)
    return totals


def pairable(ratings: Ratings) -> Ratings:
    """The ratings of outputs that have at least two."""
    return ratings.chosen(ratings.counts()[ratings.output] >= 2)


def runs(ratings: Ratings, level: Codes) -> Runs:
    """The ratings gathered by output and level."""
    width = int(level.max(initial=0)) + 1
    cells, counts = np.unique(ratings.output * width + level, return_counts=True)
    return Runs(cells // width, cells % width, counts)


# Krippendorff's alpha: one minus observed over expected disagreement, for any number of raters and missing ratings.
#
# The coincidences of two values c and k are the pairs of ratings within an output that have them, each output's pairs
# divided by its number of ratings less one. With their totals n_c, alpha is
#
#     1 - (n - 1) * sum over c < k of o_ck d(c, k) / sum over c < k of n_c n_k d(c, k)
#
# where d is 1 (nominal), (c - k)^2 (interval), or the squared distance of mid-ranks among all ratings (ordinal).
# After K.
# Krippendorff, Computing Krippendorff's Alpha-Reliability (2011).


Scale = Literal["nominal", "ordinal", "interval"]
#: From weights (draws, outputs), how often each output was picked, to values (draws,).
Statistic = Callable[[Floats], Floats]


class Coincidences(NamedTuple):
    """Pairs of different values within an output: which output, both levels, and how much the pair counts."""

    output: Codes
    low: Codes
    high: Codes
    amount: Floats


def alpha(ratings: Ratings, scale: Scale) -> Statistic:
    """Alpha as a function of how often each output counts. It is NaN where all ratings that can be compared agree on
    one value: without variation there is nothing to be reliable about."""
    compared = pairable(ratings)
    values, level = np.unique(compared.value, return_inverse=True)
    level = level.reshape(-1)
    found = coincidences(runs(compared, level), compared.counts())

    def statistic(weights: Floats) -> Floats:
        totals = level_totals(weights, compared.output, level, len(values))
        match scale:
            case "nominal":
                apart = np.ones(len(found.amount))
                expected = (totals.sum(axis=1) ** 2 - (totals**2).sum(axis=1)) / 2
            case "interval":
                position = values - values.mean() if len(values) else values
                apart = (position[found.high] - position[found.low]) ** 2
                expected = _spread(totals, position)
            case "ordinal":
                position = np.cumsum(totals, axis=1) - totals / 2 - totals.sum(axis=1, keepdims=True) / 2
                apart = (position[:, found.high] - position[:, found.low]) ** 2
                expected = _spread(totals, position)
        observed = (weights[:, found.output] * (found.amount * apart)).sum(axis=1)
        return 1 - divided((totals.sum(axis=1) - 1) * observed, expected)

    return statistic


def coincidences(found: Runs, counts: Codes) -> Coincidences:
    """All pairs of runs that share an output."""
    most = int(np.bincount(found.output).max(initial=0))
    pairs = [np.empty((2, 0), dtype=np.intp)]
    for ahead in range(1, most):
        first = np.flatnonzero(found.output[ahead:] == found.output[:-ahead])
        pairs.append(np.stack([first, first + ahead]))
    low, high = np.concatenate(pairs, axis=1)
    output = found.output[low]
    amount = found.ratings[low] * found.ratings[high] / (counts[output] - 1)
    return Coincidences(output, found.level[low], found.level[high], amount)


def _spread(totals: Floats, position: Floats) -> Floats:
    """The squared distances of all pairs of ratings, summed."""
    square, linear = (totals * position**2).sum(axis=1), (totals * position).sum(axis=1)
    spread = totals.sum(axis=1) * square - linear**2
    # Ratings of a single level have no spread at all, whatever rounding makes of it.
    varied: Floats = np.where((totals > 0).sum(axis=1) > 1, spread, 0.0)
    return varied


# Agreement beyond chance on levels: Fleiss' kappa for many raters, Cohen's for two.
#
# Fleiss (1971): the mean over outputs of the share of rater pairs that agree, against the chance that two ratings drawn
# at random agree. Outputs with unequal numbers of ratings are allowed: each output weighs the same in what is observed,
# each rating the same in what is expected; outputs with a single rating are left out.
#
# Cohen (1960, 1968): one minus observed over expected disagreement of two raters on the outputs that both rated. A
# disagreement counts 1 (plain), by the distance of the two values (linear) or by its square (quadratic). Distances are
# those of the values themselves, which on levels that lie evenly is the usual count of levels between.


Weighting = Literal["plain", "linear", "quadratic"]


def fleiss_kappa(ratings: Ratings) -> Statistic:
    """Fleiss' kappa as a function of how often each output counts; NaN where all ratings have one value."""
    compared = pairable(ratings)
    values, level = np.unique(compared.value, return_inverse=True)
    found, counts = runs(compared, level.reshape(-1)), compared.counts()
    agreeing = summed(found.ratings * (found.ratings - 1.0), found.output, compared.outputs)
    share = np.nan_to_num(divided(agreeing, counts * (counts - 1.0)))

    def statistic(weights: Floats) -> Floats:
        totals = level_totals(weights, compared.output, level.reshape(-1), len(values))
        chance = divided((totals**2).sum(axis=1), totals.sum(axis=1) ** 2)
        observed = divided((weights * share).sum(axis=1), (weights * (counts > 0)).sum(axis=1))
        return divided(observed - chance, np.where((totals > 0).sum(axis=1) > 1, 1 - chance, 0.0))

    return statistic


def cohen_kappa(first: Floats, second: Floats, weights: Floats, weighting: Weighting = "plain") -> Floats:
    """Cohen's kappa (draws,) of two raters' values (n,) under weights (draws, n); NaN where chance leaves no room."""
    values, level = np.unique(np.stack([first, second]), return_inverse=True)
    levels = level.reshape(2, -1)
    everywhere = np.arange(len(first))
    one, two = (level_totals(weights, everywhere, side, len(values)) for side in levels)
    disagreement = {"plain": first != second, "linear": np.abs(first - second), "quadratic": (first - second) ** 2}
    size = weights.sum(axis=1)
    observed = (weights * disagreement[weighting]).sum(axis=1)
    return 1 - divided(observed * size, _expected(values, one, two, weighting))


def _expected(values: Floats, one: Floats, two: Floats, weighting: Weighting) -> Floats:
    """The disagreement of all of one rater's values with all of the other's."""
    size = one.sum(axis=1)
    expected: Floats
    match weighting:
        case "plain":
            expected = size**2 - (one * two).sum(axis=1)
        case "linear":
            # A gap between neighbouring values lies between all values below it and all values above it.
            below_one, below_two = np.cumsum(one, axis=1)[:, :-1], np.cumsum(two, axis=1)[:, :-1]
            across = below_one * (size[:, None] - below_two) + below_two * (size[:, None] - below_one)
            expected = (across * np.diff(values)).sum(axis=1)
        case "quadratic":
            expected = _squares(values, one, two)
    return expected


def _squares(values: Floats, one: Floats, two: Floats) -> Floats:
    centred = values - values.mean() if len(values) else values
    size = one.sum(axis=1)
    linear_one, linear_two = (one * centred).sum(axis=1), (two * centred).sum(axis=1)
    squares = ((one + two) * centred**2).sum(axis=1)
    total = size * squares - 2 * linear_one * linear_two
    # Where both raters gave one and the same value there is no disagreement, whatever rounding makes of it.
    varied: Floats = np.where(((one + two) > 0).sum(axis=1) > 1, total, 0.0)
    return varied


# How far raters agree with each other, by several coefficients, each with its bootstrap interval.
#
# alpha_nominal, alpha_ordinal, alpha_interval, fleiss_kappa   need at least two ratings of an output, whoever gave them
# kendall, cohen_kappa, cohen_kappa_linear, cohen_kappa_quadratic   the mean over all pairs of raters
# ties                                                              the mean over raters of the share of output pairs
#                                                                   that a rater ties
#
# The last two lines need to know who gave each rating. A pair of raters that shares fewer than two outputs, or whose
# coefficient is undefined (a rater who gives a single value), is skipped and counted.


#: One coefficient of two raters' values (n,), for each row of weights (draws, n).
Comparison = Callable[[Floats, Floats, Floats], Floats]


class _Cells(NamedTuple):
    """The outputs that have ratings, and which of the units that are resampled each belongs to."""

    rated: Codes
    unit: Codes
    units: int
    outputs: int

    @staticmethod
    def of(ratings: Ratings, cluster: Codes | None) -> _Cells:
        rated = np.flatnonzero(ratings.counts())
        units, unit = np.unique(rated if cluster is None else cluster[rated], return_inverse=True)
        return _Cells(rated, unit.reshape(-1), len(units), ratings.outputs)

    def weights(self, counts: Floats) -> Floats:
        """How often each output counts (draws, outputs), from how often each unit was picked."""
        weights = np.zeros((len(counts), self.outputs))
        weights[:, self.rated] = counts[:, self.unit]
        return weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One coefficient. `outputs` have at least two ratings; `compared` counts what was averaged over (pairs of raters,
    for ties raters; 1 where nothing was), `skipped` what had no value. The value is NaN exactly when `failure` says
    why."""

    name: str
    value: float
    low: float
    high: float
    outputs: int
    raters: int
    compared: int = 1
    skipped: int = 0
    failure: str | None = None


def agreement(
    ratings: Ratings,
    names: Sequence[str],
    draws: int,
    rng: np.random.Generator,
    cluster: Codes | None = None,
    confidence: float = 0.95,
) -> list[Agreement]:
    """The named coefficients, with intervals over resamples of the outputs, or of the clusters (say, items) that
    outputs belong to: `cluster` has one code per output. A coefficient that needs named raters is refused without."""
    for name in names:
        if name not in COEFFICIENTS:
            known = f"{', '.join(COEFFICIENTS)}{did_you_mean(name, COEFFICIENTS)}"
            raise RunError(f"no agreement named {name!r}; known are {known}")
    if cluster is not None and len(cluster) != ratings.outputs:
        raise RunError(f"clusters need one code per output: {ratings.outputs} outputs, {len(cluster)} codes")
    parts = {name: COEFFICIENTS[name](ratings) for name in names}
    cells = _Cells.of(ratings, cluster)
    resampled: dict[str, list[Floats]] = {name: [] for name in names}
    for counts in resample_counts(cells.units, draws, rng, _room(ratings)):
        weights = cells.weights(counts)
        for name in names:
            resampled[name].append(_mean(parts[name], weights))
    return [_agreement(ratings, name, parts[name], cells, resampled[name], confidence) for name in names]


def needs_names(name: str) -> bool:
    """Whether a coefficient can only be had where raters are named."""
    return name not in _ANYONE


def rater_pairs(ratings: Ratings, compare: Comparison, purpose: str) -> list[Statistic]:
    """The comparison of each two raters, on the outputs that both rated."""
    table = ratings.table(purpose)

    def compared(first: int, second: int) -> Statistic:
        shared = np.flatnonzero(~np.isnan(table[:, first] + table[:, second]))
        # Outputs on which the two say the same things are one output that counts so many times.
        cells, cell = np.unique(table[shared][:, [first, second]], axis=0, return_inverse=True)
        one, two = cells.T
        return lambda weights: compare(one, two, level_totals(weights, shared, cell.reshape(-1), len(cells)))

    return [compared(first, second) for first, second in combinations(range(table.shape[1]), 2)]


def rater_ties(ratings: Ratings) -> list[Statistic]:
    """Each rater's share of ties."""
    table = ratings.table("the tie share of raters")

    def ties(values: Floats) -> Statistic:
        given = np.flatnonzero(~np.isnan(values))
        return lambda weights: tie_shares(values[given], weights.take(given, axis=1))

    return [ties(values) for values in table.T]


def _kendall(first: Floats, second: Floats, weights: Floats) -> Floats:
    tau = measure("kendall_b")
    return tau.pool(tau.rows(first, second, weights))


def _paired(compare: Comparison, purpose: str) -> Callable[[Ratings], list[Statistic]]:
    return partial(rater_pairs, compare=compare, purpose=purpose)


_ANYONE: Mapping[str, Callable[[Ratings], list[Statistic]]] = MappingProxyType(
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
        **_ANYONE,
        "kendall": _paired(_kendall, "pairwise Kendall"),
        "cohen_kappa": _paired(cohen_kappa, "Cohen's kappa"),
        "cohen_kappa_linear": _paired(partial(cohen_kappa, weighting="linear"), "Cohen's kappa"),
        "cohen_kappa_quadratic": _paired(partial(cohen_kappa, weighting="quadratic"), "Cohen's kappa"),
        "ties": rater_ties,
    }
)


def _mean(parts: Sequence[Statistic], weights: Floats) -> Floats:
    """The mean of the parts that are defined, per draw."""
    total, defined = np.zeros(len(weights)), np.zeros(len(weights))
    for part in parts:
        values = part(weights)
        total += np.nan_to_num(values)
        defined += ~np.isnan(values)
    return divided(total, defined)


def _agreement(
    ratings: Ratings,
    name: str,
    parts: Sequence[Statistic],
    cells: _Cells,
    resampled: Sequence[Floats],
    confidence: float,
) -> Agreement:
    whole = cells.weights(np.ones((1, cells.units)))
    skipped = sum(bool(np.isnan(part(whole)[0])) for part in parts)
    value = float(_mean(parts, whole)[0])
    spread = np.concatenate(resampled) if resampled else np.empty(0)
    low, high = (math.nan, math.nan) if math.isnan(value) else interval(spread, confidence, cells.units)
    return Agreement(
        name=name,
        value=value,
        low=low,
        high=high,
        outputs=int(np.count_nonzero(ratings.counts() >= 2)),
        raters=len(ratings.raters),
        compared=len(parts) - skipped,
        skipped=skipped,
        failure=_failure(ratings, name) if math.isnan(value) else None,
    )


def _failure(ratings: Ratings, name: str) -> str:
    if not (ratings.counts() >= 2).any() and name != "ties":
        return "nothing was rated twice"
    if len(np.unique(ratings.value)) < 2:
        return "all ratings have the same value"
    return (
        "no two raters share enough outputs with different values"
        if needs_names(name)
        else "the ratings that can be compared have one value"
    )


def _room(ratings: Ratings) -> int:
    counts = ratings.counts()
    widest = max(1, ratings.outputs, int((counts * (counts - 1) // 2).sum()))
    return max(1, CHUNK // widest)
