"""The gold value of an output: what its raters, taken together, say of it.

mean       the mean of its ratings
median     their median (the mean of the middle two where their number is even)
majority   the value given most often; where two or more values are given equally often, the median of the ratings, or
           a neutral value if one is named. With three raters on a scale of 1 to 3 this is the vote of Doostmohammadi et
           al. (2024): what at least two say, and 2 where all three differ.
z          each rating as distance from its rater's mean in that rater's standard deviations (over all of the rater's
           ratings, dividing by their number), then the mean. A rater who gave a single value all along has no scale:
           these ratings are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError, did_you_mean
from metrist.stats.raters import Codes, Floats, Ratings, divided, summed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gold:
    """One value per output, NaN where no rating speaks; `ratings` counts the ratings that went into it."""

    value: Floats
    ratings: Codes


def mean_gold(ratings: Ratings) -> Gold:
    """The mean of each output's ratings."""
    counts = ratings.counts()
    sums = summed(ratings.value, ratings.output, ratings.outputs)
    return Gold(value=divided(sums, counts), ratings=counts)


def median_gold(ratings: Ratings) -> Gold:
    """The median of each output's ratings."""
    values = ratings.value[np.lexsort((ratings.value, ratings.output))]
    counts = ratings.counts()
    rated = counts > 0
    starts, sizes = (np.cumsum(counts) - counts)[rated], counts[rated]
    middle = np.full(ratings.outputs, np.nan)
    middle[rated] = (values[starts + (sizes - 1) // 2] + values[starts + sizes // 2]) / 2
    return Gold(value=middle, ratings=counts)


def majority_gold(ratings: Ratings, neutral: float | None = None) -> Gold:
    """The vote of each output's raters; where it is undecided, `neutral` or, if that is None, the median."""
    vote, decided = _votes(ratings)
    fallback = median_gold(ratings)
    undecided = fallback.value if neutral is None else np.where(fallback.ratings > 0, neutral, np.nan)
    return Gold(value=np.where(decided, vote, undecided), ratings=fallback.ratings)


def z_gold(ratings: Ratings) -> Gold:
    """The mean of each output's ratings after each rater's own mean and spread were taken out."""
    ratings.check_named("z-normalised gold")
    position = np.searchsorted(ratings.raters, ratings.rater)
    kept = ratings.chosen(_varied(position, ratings.value)[position])
    position = np.searchsorted(kept.raters, kept.rater)
    many = np.bincount(position)
    centred = kept.value - (summed(kept.value, position, len(many)) / many)[position]
    spread = np.sqrt(summed(centred**2, position, len(many)) / many)
    return mean_gold(replace(kept, value=centred / spread[position]))


def rater_gold(ratings: Ratings, rater: int) -> Gold:
    """What one rater says."""
    ratings.check_named("the gold of one rater")
    if rater not in ratings.raters:
        raise RunError(f"rater {rater} gave no rating; raters with ratings: {len(ratings.raters)}")
    return mean_gold(ratings.chosen(ratings.rater == rater))


GOLDS: Mapping[str, Callable[[Ratings], Gold]] = MappingProxyType(
    {"mean": mean_gold, "median": median_gold, "majority": majority_gold, "z": z_gold}
)


def gold(ratings: Ratings, how: str = "mean") -> Gold:
    """The gold made in the named way."""
    if how not in GOLDS:
        raise RunError(f"no gold named {how!r}; known are {', '.join(GOLDS)}{did_you_mean(how, GOLDS)}")
    return GOLDS[how](ratings)


def _votes(ratings: Ratings) -> tuple[Floats, NDArray[np.bool_]]:
    """Per output the value given most often, and whether it is the only one."""
    order = np.lexsort((ratings.value, ratings.output))
    output, value = ratings.output[order], ratings.value[order]
    first = np.flatnonzero(np.r_[True, (output[1:] != output[:-1]) | (value[1:] != value[:-1])][: len(output)])
    votes = np.diff(np.append(first, len(output)))
    most = np.zeros(ratings.outputs, dtype=np.intp)
    np.maximum.at(most, output[first], votes)
    winners = votes == most[output[first]]
    vote = np.full(ratings.outputs, np.nan)
    vote[output[first][winners]] = value[first][winners]
    return vote, np.bincount(output[first][winners], minlength=ratings.outputs) == 1


def _varied(position: Codes, value: Floats) -> NDArray[np.bool_]:
    """Which raters gave more than one value."""
    lowest, highest = np.full((2, int(position.max(initial=-1)) + 1), np.nan)
    np.fmin.at(lowest, position, value)
    np.fmax.at(highest, position, value)
    return lowest < highest
