"""Pairwise accuracy with ties (Deutsch, Foster and Freitag 2023): the share of pairs of outputs that a metric orders as
humans do.

The metric ties a pair whose scores differ by at most ε, so that equal scores are tied even at ε = 0; such a pair is
right if humans tie it too. A `Pairing` defines which outputs are paired and how much each pair counts. Everything is
counted in whole units, so that two thresholds are equally good exactly if their accuracies are mathematically equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metrist import kernels
from metrist.errors import RunError, did_you_mean
from metrist.kernels.columns import Ranked, group_starts, levels_in_group, sort_within_groups
from metrist.stats import Codes, Counts, Floats
from metrist.stats.measures import cut_groups, divide
from metrist.stats.samples import GROUPINGS, Average, Grouping, Sample, number_groups, sort_codes

#: Maximum worth of all pairs together: far enough from 2^63 for groups that are drawn more than once.
_MAX_UNITS = 1 << 59
#: Outputs that are sorted at a time, where whole groups can be.
_AT_A_TIME = 1 << 20


class Tied(NamedTuple):
    """Right and tied pairs of each group at a threshold, in (weighted) pairs."""

    right: Counts
    tied: Counts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairing:
    """Outputs arranged by group and score, in groups that have at least one pair.

    `order` are the outputs' positions in the columns that the pairing was made of; a pair of group g is worth
    `units[g]`, and all pairs together `total_units`. An output of weight w stands for w copies of itself, each paired
    with all other outputs but not with each other (see `measures`).
    """

    order: NDArray[np.intp]
    ranked: Ranked
    pairs: Counts
    units: Counts
    _all: Counts

    @property
    def total_units(self) -> int:
        return int(self.units @ self.pairs)

    def at(self, epsilons: ArrayLike) -> Tied:
        """Return right and tied pairs at each threshold: arrays (thresholds, groups)."""
        thresholds = np.atleast_1d(np.asarray(epsilons, np.float64))
        ties, concordant, all_pairs = np.moveaxis(self.windows(thresholds), 2, 0)
        return Tied(ties - concordant + self._all[:, 1], all_pairs)

    def windows(self, epsilons: Floats) -> Counts:
        """Return, per threshold and group, the pairs up to that gap that humans tie, that are concordant, and all of
        them."""
        return self._all - kernels.beyond_counts(self.ranked, epsilons)

    def accuracy(self, epsilon: float) -> float:
        return self.share(int(self.at(epsilon).right[0] @ self.units))

    def share(self, right: float) -> float:
        return right / self.total_units if self.total_units else math.nan


def pairing(
    human: ArrayLike,
    metric: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    slices: ArrayLike | None = None,
    average: Average = "macro",
    slice_average: Average = "macro",
    weights: ArrayLike | None = None,
) -> Pairing:
    """Pair the outputs that share group and slice, both codes; all values are finite. Groups with fewer than two
    outputs have no pair: they are left out of every average. macro: the mean of the groups' (or slices') accuracies;
    micro: all their pairs (or groups) in one pool.

    With slices, the accuracies of each slice's groups are averaged first (`average`), then those of the slices
    (`slice_average`); micro over slices averages over all groups or pairs as if there were no slices.
    """
    ratings, scores = np.asarray(human, np.float64), np.asarray(metric, np.float64)
    # Numbered without gaps, so that two of them fit into one number.
    group, slice_of = (
        np.zeros(len(scores), np.intp) if codes is None else number_groups(np.asarray(codes, np.intp))[1]
        for codes in (groups, slices)
    )
    weight = None if weights is None else np.asarray(weights, np.int64)
    block = group if slices is None else slice_of * (group.max(initial=0) + 1) + group
    order = _sort_outputs(block, scores, ratings)
    if weight is not None:
        order = order[weight[order] > 0]
    starts = group_starts(block[order])
    sizes = np.diff(starts)
    if (sizes < 2).any():
        order = order[np.repeat(sizes >= 2, sizes)]
        starts = group_starts(block[order])
        sizes = np.diff(starts)
    if weight is None:
        own, pairs = np.ones(len(order), np.int64), sizes * (sizes - 1) // 2
    else:
        own = weight[order]
        pairs = (_sums(own, starts) ** 2 - _sums(own**2, starts)) // 2
    units = _units(pairs, slice_of[order[starts[:-1]]], average, slice_average)
    levels = np.empty(len(order), np.int32)
    for first, last in cut_groups(starts, _AT_A_TIME):
        part, inside = slice(starts[first], starts[last]), starts[first : last + 1] - starts[first]
        levels[part] = levels_in_group(ratings[order[part]], inside)
    ranked = Ranked(scores[order], levels, own, starts)
    return Pairing(
        order=order,
        ranked=ranked,
        pairs=pairs,
        units=units,
        # All gaps are above -1.
        _all=kernels.beyond_counts(ranked, np.array([-1.0]))[0],
    )


def group_codes(sample: Sample, grouping: Grouping | Codes) -> Codes:
    """Return the group of each output; outputs of one group are paired."""
    if not isinstance(grouping, str):
        if len(grouping) != len(sample):
            raise RunError(
                f"a grouping needs a code per output, got {len(grouping)} for {len(sample)}", code="invalid_value"
            )
        return np.asarray(grouping)
    match grouping:
        case "none":
            return np.zeros(len(sample), np.intp)
        case "item":
            return sample.item
        case "system":
            return sample.system
        case "system-level":
            raise RunError("there are no tie thresholds between systems: each has one value", code="unsupported")
    raise RunError(f"unknown grouping {grouping!r}{did_you_mean(grouping, GROUPINGS)}", code="unknown_name")


def _sums(values: Counts, starts: Counts) -> Counts:
    return np.add.reduceat(values, starts[:-1]) if len(values) else np.zeros(0, np.int64)


def _sort_outputs(block: Codes, scores: Floats, ratings: Floats) -> Codes:
    """Return the order by block, score and descending rating; a few blocks at a time where they are sorted."""
    if sort_codes(block) is not None:
        return np.lexsort((-ratings, scores, block))
    order, starts = np.empty(len(block), np.intp), group_starts(block)
    for first, last in cut_groups(starts, _AT_A_TIME):
        part = slice(starts[first], starts[last])
        inside = starts[first : last + 1] - starts[first]
        by_rating = sort_within_groups(-ratings[part], inside)
        order[part] = by_rating[sort_within_groups(scores[part][by_rating], inside)] + starts[first]
    return order


def _units(pairs: Counts, slice_of: Codes, average: Average, slice_average: Average) -> Counts:
    """Return the worth of a pair of each group: shares 1/d of the average as whole numbers, by a common multiple of all
    d if that is small enough, else rounded, to nine digits even among a billion pairs."""
    slices = slice_of if slice_average == "macro" else np.zeros_like(slice_of)
    sharing = np.bincount(slices)[slices] if average == "macro" else np.ones_like(pairs)
    in_slice = np.zeros(slices.max(initial=0) + 1, np.int64)
    np.add.at(in_slice, slices, pairs)
    divisors = sharing * (pairs if average == "macro" else in_slice[slices])
    multiple = math.lcm(*np.unique(divisors).tolist())
    shares = float(np.sum(pairs / divisors))
    if multiple * shares <= _MAX_UNITS:
        return np.int64(multiple) // divisors
    return np.maximum(1, np.rint(_MAX_UNITS / shares / divisors)).astype(np.int64)


# ---- Gaps between the scores of paired outputs


def count_gaps(paired: Pairing) -> int:
    """Count the pairs of different outputs."""
    return int(_count_pairs(paired).sum())


def some_gaps(paired: Pairing, most: int) -> Floats:
    """Return the gaps of all pairs, ascending, or of `most` random pairs if there are more. Deterministic."""
    scores, starts, in_group = paired.ranked.scores, paired.ranked.starts, _count_pairs(paired)
    upto = np.cumsum(in_group)
    count = int(in_group.sum())
    pairs = np.arange(count) if count <= most else np.random.default_rng(0).integers(0, count, most)
    group = np.searchsorted(upto, pairs, side="right")
    number = pairs - (upto[group] - in_group[group])
    # Output j of a group is the later one of j pairs, after j (j - 1) / 2 others. The root may be off by its rounding.
    later = np.sqrt(2.0 * number).astype(np.int64)
    later += (later + 1) * later // 2 <= number
    later -= later * (later - 1) // 2 > number
    earlier = later - 1 - (number - later * (later - 1) // 2)
    gaps = scores[starts[group] + later] - scores[starts[group] + earlier]
    return np.sort(gaps + 0.0)  # No -0.0, which sorts in any order with 0.0.


def greatest_gap(paired: Pairing) -> float:
    scores, starts = paired.ranked.scores, paired.ranked.starts
    return float((scores[starts[1:] - 1] - scores[starts[:-1]]).max(initial=0.0))


def _count_pairs(paired: Pairing) -> Counts:
    sizes: Counts = np.diff(paired.ranked.starts)
    return np.asarray(sizes * (sizes - 1) // 2)


# ---- How often values tie: the share of all pairs of outputs whose values differ by at most a threshold


def tie_share(values: Floats, epsilon: float = 0.0) -> float:
    """Return the share of pairs of outputs that tie; NaN values take no part, fewer than two outputs have no pair."""
    known = values[~np.isnan(values)]
    return float(tie_shares(known, np.ones((1, len(known))), epsilon)[0])


def tie_shares(values: Floats, weights: Floats, epsilon: float = 0.0) -> Floats:
    """Return shares (draws,) under weights (draws, n), how often each output was picked.

    An output that was picked twice is not paired with itself: such pairs would all tie, and resamples would show more
    ties than the data they are drawn from.
    """
    if epsilon < 0:
        raise RunError(f"a tie threshold must be at least 0, got {epsilon}", code="invalid_value")
    order = np.argsort(values, kind="stable")
    sorted_values, picked = values[order], weights[:, order]
    below = np.concatenate([np.zeros((len(weights), 1)), np.cumsum(picked, axis=1)], axis=1)
    within = below[:, last_ties(sorted_values, epsilon)] - below[:, 1:]
    pairs = (picked.sum(axis=1) ** 2 - (picked**2).sum(axis=1)) / 2
    return divide((picked * within).sum(axis=1), pairs)


def last_ties(values: Floats, epsilon: float) -> Codes:
    """Return, for each of the ascending values, the end of those that differ from it by at most epsilon.

    Differences are compared, as elsewhere: value + epsilon would round differently.
    """
    low, high = np.arange(1, len(values) + 1), np.full(len(values), len(values))
    while np.any(unfinished := low < high):
        middle = np.minimum((low + high) // 2, len(values) - 1)
        near = values[middle] - values <= epsilon
        low = np.where(unfinished & near, middle + 1, low)
        high = np.where(unfinished & ~near, middle, high)
    return low


# ---- Scores as whole numbers that tie at one common threshold
#
# Parts of the data may each have their own ε. Scores divided by ε would round, and a gap of exactly ε would tie or not
# by chance. Instead each score becomes a whole number: two scores tie if their numbers differ by at most `TIE`, and the
# order stays the same.
#
# Sorted scores fall into steps: a step holds the scores that tie with its lowest one. Two scores of one step tie,
# scores of steps further apart than neighbours never do. For neighbouring steps it is enough to arrange all scores in
# one row, in which a score comes after exactly those of the next step that it ties with: the number is the step times
# `TIE + 1` plus the position in that row.


#: Larger than any number of distinct scores; its products must stay exact in a double.
TIE = float((1 << 26) - 1)


def quantise_ties(scores: Floats, epsilon: float) -> Floats:
    """Return the scores as whole numbers that tie up to `TIE` exactly if the scores tie up to epsilon; NaN stays."""
    known = ~np.isnan(scores)
    if not known.any():
        return scores.copy()
    values, which = np.unique(scores[known], return_inverse=True)
    ends = last_ties(values, epsilon).tolist()
    firsts = [0]
    while ends[firsts[-1]] < len(values):
        firsts.append(ends[firsts[-1]])
    step = np.zeros(len(values))
    step[firsts[1:]] = 1
    # Each score's position in the row: step by step from the last, a score is inserted right after the highest of the
    # next step that it ties with, or at the front if there is none.
    count = len(ends)
    follower = [count] * (count + 1)  # follower[count] is the front, and marks the end too
    for first, end in zip(reversed(firsts), reversed([*firsts[1:], count]), strict=True):
        for score in range(end - 1, first - 1, -1):
            before = ends[score] - 1 if ends[score] > end else count
            follower[score], follower[before] = follower[before], score
    places, at = np.empty(count), follower[count]
    for place in range(count):
        places[at], at = place, follower[at]
    numbers = np.cumsum(step) * (TIE + 1) + places
    quantised = np.full(len(scores), np.nan)
    quantised[known] = numbers[which.reshape(-1)]
    return quantised
