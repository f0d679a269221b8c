"""Agreement beyond chance on levels: Fleiss' kappa for many raters, Cohen's for two.

Fleiss (1971): the mean over outputs of the share of rater pairs that agree, against the chance that two ratings drawn
at random agree. Outputs with unequal numbers of ratings are allowed: each output weighs the same in what is observed,
each rating the same in what is expected; outputs with a single rating are left out.

Cohen (1960, 1968): one minus observed over expected disagreement of two raters on the outputs that both rated. A
disagreement counts 1 (plain), by the distance of the two values (linear) or by its square (quadratic). Distances are
those of the values themselves, which on levels that lie evenly is the usual count of levels between.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from metrist.stats.krippendorff import Statistic
from metrist.stats.raters import Floats, Ratings, divided, summed
from metrist.stats.tallies import level_totals, pairable, runs

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
