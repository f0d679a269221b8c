"""Ratings of one aspect as columns: which output, by whom, which value.

Outputs and raters are codes; a rater who is not known is -1. Nothing here knows a name or a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metrist.errors import RunError, did_you_mean
from metrist.stats import Codes, Floats
from metrist.stats.samples import Sample

UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ratings:
    """One entry per rating, in the order of their outputs; `outputs` counts all outputs, rated or not."""

    output: Codes
    rater: Codes
    value: Floats
    outputs: int

    @staticmethod
    def of(output: ArrayLike, rater: ArrayLike, value: ArrayLike, outputs: int | None = None) -> Ratings:
        """Ratings from long columns. A NaN is no rating and is left out."""
        codes, who, values = _codes(output), _codes(rater), np.asarray(value, dtype=np.float64)
        if not len(codes) == len(who) == len(values):
            raise RunError(
                f"ratings need one output, rater and value each, got {len(codes)}, {len(who)}, {len(values)}"
            )
        size = int(codes.max(initial=-1)) + 1 if outputs is None else outputs
        if len(codes) and (codes.min() < 0 or codes.max() >= size):
            raise RunError(f"output codes of ratings must lie in 0 to {size - 1}, found {codes.min()} to {codes.max()}")
        if np.isinf(values).any():
            raise RunError("ratings must be finite numbers, found infinity")
        given = np.flatnonzero(~np.isnan(values))
        order = given[np.argsort(codes[given], kind="stable")]
        return Ratings(output=codes[order], rater=who[order], value=values[order], outputs=size)

    @property
    def raters(self) -> Codes:
        """The codes of the raters who are known, ascending."""
        return np.unique(self.rater[self.rater != UNKNOWN])

    def counts(self) -> Codes:
        """How many ratings each output has."""
        return np.bincount(self.output, minlength=self.outputs)

    def chosen(self, mask: NDArray[np.bool_]) -> Ratings:
        """The ratings under the mask, of the same outputs."""
        return replace(self, output=self.output[mask], rater=self.rater[mask], value=self.value[mask])

    def check_named(self, purpose: str) -> None:
        """Refuse a per-rater statistic unless each rating has a rater, and a rater one rating per output."""
        unknown = int(np.count_nonzero(self.rater == UNKNOWN))
        if unknown:
            raise RunError(
                f"{purpose} needs to know who gave each rating, but {unknown:,} of {len(self.rater):,} ratings name no "
                "rater; add 'raters' to the data, or use a statistic that needs none"
            )
        repeated = len(self.rater) - len(np.unique(np.stack([self.output, self.rater]), axis=1).T)
        if repeated:
            raise RunError(
                f"{purpose} needs one rating per output and rater, but {repeated:,} of {len(self.rater):,} ratings "
                "repeat a rater on the same output; keep one of each"
            )

    def are_named(self) -> bool:
        """Whether at least two raters are known, and each rating names its rater, at most once per output."""
        if not len(self.rater) or (self.rater == UNKNOWN).any() or len(self.raters) < 2:
            return False
        return np.unique(np.stack([self.output, self.rater]), axis=1).shape[1] == len(self.rater)

    def table(self, purpose: str) -> Floats:
        """Values (outputs, raters) in the order of `raters`, NaN where a rater gave none."""
        self.check_named(purpose)
        cells = np.full((self.outputs, len(self.raters)), np.nan)
        cells[self.output, np.searchsorted(self.raters, self.rater)] = self.value
        return cells


def summed(values: Floats, codes: Codes, size: int) -> Floats:
    """Sums of values by code."""
    return np.bincount(codes, weights=values, minlength=size).astype(np.float64)


def divided(sums: NDArray[Any], counts: NDArray[Any]) -> Floats:
    """Sums over counts, NaN where the count is 0."""
    quotient: Floats = np.divide(sums, counts, out=np.full(np.shape(sums), np.nan), where=counts > 0)
    return quotient


def _codes(column: ArrayLike) -> Codes:
    array: NDArray[Any] = np.asarray(column)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise RunError(f"outputs and raters are given as whole-number codes, got {array.dtype} values")
    return array.astype(np.intp)


# The gold value of an output: what its raters, taken together, say of it.
#
# mean       the mean of its ratings
# median     their median (the mean of the middle two where their number is even)
# majority   the value given most often; where two or more values are given equally often, the median of the ratings, or
#            a neutral value if one is named. With three raters on a scale of 1 to 3 this is the vote of
# Doostmohammadi et
#            al. (2024): what at least two say, and 2 where all three differ.
# z          each rating as distance from its rater's mean in that rater's standard deviations (over all of the rater's
#            ratings, dividing by their number), then the mean. A rater who gave a single value all along has no scale:
#            these ratings are left out.


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


# The human ceiling: how well one rater does, as if it were a metric, against the gold of all others.
#
# Each rater in turn is left out of the gold and judged by it, on the outputs that this rater and at least one other
# rated. The mean over raters stands as a row beside the metrics. It is a little hard on humans: the gold lacks one
# rater
# whom the metrics' gold has.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeftOut:
    """One rater against the others: `outputs` are the codes of the sample's outputs."""

    rater: int
    outputs: Codes
    sample: Sample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ceiling:
    """The mean over raters, one value per draw; `raters` had a value at the first draw, `undefined` had none."""

    values: Floats
    raters: int
    undefined: int


def leave_one_out(ratings: Ratings, item: Codes, system: Codes, how: str = "mean") -> list[LeftOut]:
    """A sample per rater; `item` and `system` have one code per output, kept as they are."""
    ratings.check_named("the leave-one-rater-out ceiling")
    if len(ratings.raters) < 2:
        raise RunError(f"the leave-one-rater-out ceiling needs at least two raters, found {len(ratings.raters)}")
    return [_left_out(ratings, int(rater), item, system, how) for rater in ratings.raters]


def mean_over_raters(samples: list[LeftOut], estimate: Callable[[LeftOut], Floats]) -> Ceiling:
    """The ceiling under any estimate that gives values (draws,) for one rater. Raters without a value are skipped."""
    values = np.stack([estimate(sample) for sample in samples])
    defined = ~np.isnan(values)
    counts = defined.sum(axis=0)
    mean = np.divide(np.nan_to_num(values).sum(axis=0), counts, out=np.full(counts.shape, np.nan), where=counts > 0)
    return Ceiling(values=mean, raters=int(defined[:, 0].sum()), undefined=int((~defined[:, 0]).sum()))


def _left_out(ratings: Ratings, rater: int, item: Codes, system: Codes, how: str) -> LeftOut:
    own = ratings.chosen(ratings.rater == rater)
    others = gold(ratings.chosen(ratings.rater != rater), how).value
    both = ~np.isnan(others[own.output])
    outputs = own.output[both]
    sample = Sample(human=others[outputs], metric=own.value[both], item=item[outputs], system=system[outputs])
    return LeftOut(rater=rater, outputs=outputs, sample=sample)
