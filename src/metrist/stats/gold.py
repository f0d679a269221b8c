"""Ratings of one aspect as columns, the gold value of each output, and the human ceiling.

Outputs and raters are codes; an unknown rater is -1. The gold value of an output is one of

mean       the mean of its ratings
median     their median (the mean of the middle two if their number is even)
majority   the most frequent value; if several values are equally frequent, the median of the ratings. With three
           raters on a scale of 1 to 3 this is the vote of Doostmohammadi et al. (2024): what at least two say, and 2
           if all three differ.
z          the mean of the ratings' z-scores, each by its rater's mean and standard deviation (dividing by the number of
           ratings). A rater who gave a single value all along has no scale, and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metrist.errors import RunError, agree, format_count
from metrist.stats import Codes, Floats
from metrist.stats.measures import divide
from metrist.stats.samples import Sample

UNKNOWN = -1
#: Sums of up to 2^60 smaller values stay finite.
_LARGE = 2.0**960


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ratings:
    """One entry per rating, sorted by output; `outputs` counts all outputs, rated or not."""

    output: Codes
    rater: Codes
    value: Floats
    outputs: int

    @staticmethod
    def of(output: ArrayLike, rater: ArrayLike, value: ArrayLike, outputs: int | None = None) -> Ratings:
        """Make ratings from long columns, which are not copied if they are sorted and complete. NaN values are left
        out."""
        codes, raters = np.asarray(output, dtype=np.intp), np.asarray(rater, dtype=np.intp)
        values = np.asarray(value, dtype=np.float64)
        size = int(codes.max(initial=-1)) + 1 if outputs is None else outputs
        missing = np.isnan(values)
        if not missing.any() and (codes[1:] >= codes[:-1]).all():
            return Ratings(output=codes, rater=raters, value=values, outputs=size)
        known = np.flatnonzero(~missing)
        order = known[np.argsort(codes[known], kind="stable")]
        return Ratings(output=codes[order], rater=raters[order], value=values[order], outputs=size)

    @property
    def raters(self) -> Codes:
        """The codes of the known raters, ascending."""
        return np.unique(self.rater[self.rater != UNKNOWN])

    def counts(self) -> Codes:
        """Count the ratings of each output."""
        return np.bincount(self.output, minlength=self.outputs)

    def take(self, mask: NDArray[np.bool_]) -> Ratings:
        """Return the ratings under the mask, of the same outputs."""
        return replace(self, output=self.output[mask], rater=self.rater[mask], value=self.value[mask])

    def check_named(self, purpose: str) -> None:
        """Raise RunError unless each rating has a rater, and each rater one rating per output."""
        unknown = int(np.count_nonzero(self.rater == UNKNOWN))
        if unknown:
            raise RunError(
                f"{purpose} needs named raters, but {unknown:,} of "
                f"{format_count(len(self.rater), 'rating')} {agree(unknown, 'names', 'name')} no rater; "
                "add 'raters' to the data, or use a statistic that needs none"
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
        return len(np.unique(np.stack([self.output, self.rater]), axis=1).T) == len(self.rater)

    def table(self, purpose: str) -> Floats:
        """Return values (outputs, raters) in the order of `raters`, NaN for missing ratings."""
        self.check_named(purpose)
        cells = np.full((self.outputs, len(self.raters)), np.nan)
        cells[self.output, np.searchsorted(self.raters, self.rater)] = self.value
        return cells


def sum_by_code(values: Floats, codes: Codes, size: int) -> Floats:
    return np.bincount(codes, weights=values, minlength=size).astype(np.float64)


def mean_by_code(values: Floats, codes: Codes, size: int) -> Floats:
    """Return the mean of the values of each code, NaN without any. Finite values have a finite mean, also where their
    sum overflows."""
    counts = np.bincount(codes, minlength=size)
    shift = 64 * bool(len(values) and np.abs(values).max() > _LARGE)
    return np.ldexp(divide(sum_by_code(np.ldexp(values, -shift), codes, size), counts), shift)


# ---- Gold


def mean_gold(ratings: Ratings) -> Floats:
    """Return the mean of each output's ratings, NaN without any."""
    return mean_by_code(ratings.value, ratings.output, ratings.outputs)


def median_gold(ratings: Ratings) -> Floats:
    """Return the median of each output's ratings."""
    values = ratings.value[np.lexsort((ratings.value, ratings.output))]
    counts = ratings.counts()
    rated = counts > 0
    starts, sizes = (np.cumsum(counts) - counts)[rated], counts[rated]
    middle = np.full(ratings.outputs, np.nan)
    # Halved first: the sum of two large ratings may overflow.
    middle[rated] = values[starts + (sizes - 1) // 2] / 2 + values[starts + sizes // 2] / 2
    return middle


def majority_gold(ratings: Ratings) -> Floats:
    """Return the vote of each output's raters; if undecided, the median."""
    output, value, votes, most = _count_votes(ratings)
    winners = votes == most[output]
    vote = np.full(ratings.outputs, np.nan)
    vote[output[winners]] = value[winners]
    is_decided = np.bincount(output[winners], minlength=ratings.outputs) == 1
    return np.where(is_decided, vote, median_gold(ratings))


def majorities(ratings: Ratings) -> Floats:
    """Return per output 1 if more than half of its raters give one value, 0 if not, NaN with fewer than two ratings."""
    *_, most = _count_votes(ratings)
    counts = ratings.counts()
    return np.where(counts >= 2, most > counts / 2, np.nan)


def _count_votes(ratings: Ratings) -> tuple[Codes, Floats, Codes, Codes]:
    """Return the distinct values of each output as columns (output, value, votes), and the most votes that each of all
    outputs has for a value."""
    order = np.lexsort((ratings.value, ratings.output))
    output, value = ratings.output[order], ratings.value[order]
    first = np.flatnonzero(np.r_[True, (output[1:] != output[:-1]) | (value[1:] != value[:-1])][: len(output)])
    votes = np.diff(np.append(first, len(output)))
    most = np.zeros(ratings.outputs, dtype=np.intp)
    np.maximum.at(most, output[first], votes)
    return output[first], value[first], votes, most


def z_gold(ratings: Ratings) -> Floats:
    """Return the mean of each output's ratings, normalised by each rater's mean and standard deviation."""
    ratings.check_named("z-normalised gold")
    position = np.searchsorted(ratings.raters, ratings.rater)
    lowest, highest = np.full((2, len(ratings.raters)), np.nan)
    np.fmin.at(lowest, position, ratings.value)
    np.fmax.at(highest, position, ratings.value)
    varied = ratings.take((lowest < highest)[position])
    position = np.searchsorted(varied.raters, varied.rater)
    counts = np.bincount(position)
    # z-scores have no unit: a power of two keeps squares of very large and very small ratings finite.
    _, exponent = np.frexp(np.abs(varied.value).max(initial=0.0))
    values = np.ldexp(varied.value, -exponent)
    centred = values - (sum_by_code(values, position, len(counts)) / counts)[position]
    spread = np.sqrt(sum_by_code(centred**2, position, len(counts)) / counts)
    return mean_gold(replace(varied, value=centred / spread[position]))


def rater_gold(ratings: Ratings, rater: int) -> Floats:
    """Return the ratings of one rater."""
    ratings.check_named("the gold of one rater")
    if rater not in ratings.raters:
        raise RunError(f"rater {rater} gave no rating; raters with ratings: {len(ratings.raters)}")
    return mean_gold(ratings.take(ratings.rater == rater))


#: How ratings become gold values, by name.
GOLDS: Mapping[str, Callable[[Ratings], Floats]] = MappingProxyType(
    {"mean": mean_gold, "median": median_gold, "majority": majority_gold, "z": z_gold}
)


# ---- The human ceiling: each rater, as if it were a metric, compared with the gold of all others.
#
# It is slightly low: the gold lacks one rater whom the metrics' gold includes.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeftOut:
    """One rater with the gold of the others; `outputs` are the codes of the sample's outputs."""

    rater: int
    outputs: Codes
    sample: Sample


def leave_one_out(ratings: Ratings, item: Codes, system: Codes, how: str = "mean") -> list[LeftOut]:
    """Return a sample per rater: its ratings, and the gold of the others, on the outputs that both rated. `item` and
    `system` hold one code per output."""
    ratings.check_named("the leave-one-rater-out ceiling")
    if len(ratings.raters) < 2:
        raise RunError(f"the human ceiling needs two raters, got {len(ratings.raters)}", code="too_little_data")
    left_out = []
    for rater in ratings.raters.tolist():
        own = ratings.take(ratings.rater == rater)
        others = GOLDS[how](ratings.take(ratings.rater != rater))
        both = ~np.isnan(others[own.output])
        outputs = own.output[both]
        sample = Sample(human=others[outputs], metric=own.value[both], item=item[outputs], system=system[outputs])
        left_out.append(LeftOut(rater=rater, outputs=outputs, sample=sample))
    return left_out
