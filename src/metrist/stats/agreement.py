"""How far raters agree with each other, by several coefficients, each with its bootstrap interval.

alpha_nominal, alpha_ordinal, alpha_interval, fleiss_kappa   need at least two ratings of an output, whoever gave them
kendall, cohen_kappa, cohen_kappa_linear, cohen_kappa_quadratic   the mean over all pairs of raters
ties                                                              the mean over raters of the share of output pairs
                                                                  that a rater ties

The last two lines need to know who gave each rating. A pair of raters that shares fewer than two outputs, or whose
coefficient is undefined (a rater who gives a single value), is skipped and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from metrist.errors import RunError, did_you_mean
from metrist.stats.kappa import cohen_kappa, fleiss_kappa
from metrist.stats.krippendorff import Statistic, alpha
from metrist.stats.measures import measure
from metrist.stats.raters import Codes, Floats, Ratings, divided
from metrist.stats.resample import CHUNK, interval, resample_counts
from metrist.stats.tallies import level_totals
from metrist.stats.tie_shares import tie_shares

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
