"""Count pairs of outputs by how two columns order them, for many weightings at once.

The main count is, for each output, the weight of lower human levels before its tie window. Levels are compared bit by
bit: two levels first differ at some bit, where the lower has 0 and the higher 1. For each bit, outputs that share all
higher bits are grouped in the metric's order, and a running sum over those with a 0 gives the count of those with a 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.kernels.columns import (
    Arranged,
    Counts,
    Floats,
    LevelNumbers,
    Levels,
    Places,
    Ranked,
    Stretch,
    arrange,
    check_columns,
    check_weights,
    find_levels,
    group_numbers,
    segment_sums,
)

BAD_WEIGHTS: Final = "weights must be whole numbers, none negative, that add up to less than 2**31 in each draw"
_AT_ONCE: Final = 1 << 19


def pair_counts_grouped(
    human: Floats, metric: Floats, weights: Floats, starts: Places, epsilon: float = 0.0
) -> NDArray[np.int64]:
    """Count, for each draw and group, pairs of outputs that are concordant, discordant, tied by humans only, by the
    metric only, and by both: (draws, groups, 5); group g is the outputs `starts[g]:starts[g + 1]`.

    A draw is a row of `weights` (draws, outputs), which are integers: an output of weight w occurs w times. The metric
    ties two outputs whose values differ by at most `epsilon`.
    """
    outputs = arrange(human, metric, starts, epsilon)
    check_weights(weights, len(outputs.order))
    if not ((weights >= 0) & (weights < 2**31)).all() or (weights.sum(axis=1) >= 2**31).any():
        raise ValueError(BAD_WEIGHTS)
    integers = weights.astype(np.int64)
    if (integers != weights).any():
        raise ValueError(BAD_WEIGHTS)
    rows = max(1, _AT_ONCE // max(1, len(human)))
    blocks = [_count_block(outputs, integers[i : i + rows]) for i in range(0, len(integers), rows)]
    return np.concatenate([np.empty((0, len(starts) - 1, 5), np.int64), *blocks])


def _count_block(outputs: Arranged, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    weights = weights[:, outputs.order]
    bits = int(outputs.levels.max(initial=0)).bit_length()
    levels = (group_numbers(outputs.starts) << bits) + outputs.levels
    below = np.zeros_like(weights)
    for bit in range(bits):
        zero = (levels >> bit) & 1 == 0
        together, begin, end = _windows(levels >> (bit + 1), outputs.lows)
        zeros = _running_sums(np.where(zero, weights, 0)[:, together])
        below += np.where(zero, 0, zeros[:, end] - zeros[:, begin])
    together, begin, end = _windows(levels, outputs.lows)
    alike = _running_sums(weights[:, together])
    same = alike[:, end] - alike[:, begin]
    running = _running_sums(weights)
    before = running[:, outputs.lows] - running[:, outputs.starts[group_numbers(outputs.starts)]]

    def summed(values: NDArray[np.int64]) -> NDArray[np.int64]:
        upto = _running_sums(weights * values)
        return upto[:, outputs.starts[1:]] - upto[:, outputs.starts[:-1]]

    concordant, human_tied = summed(below), summed(same)
    discordant = summed(before - below - same)
    total = _count_pairs(running[:, outputs.starts[1:]] - running[:, outputs.starts[:-1]])
    together = np.argsort(levels, kind="stable")
    distinct, first = np.unique(levels[together], return_index=True)
    upto = _running_sums(weights[:, together])
    tied = _running_sums(_count_pairs(np.diff(upto[:, np.append(first, len(levels))], axis=1)))
    cut = np.searchsorted(distinct, np.arange(len(outputs.starts)) << bits)
    both = tied[:, cut[1:]] - tied[:, cut[:-1]] - human_tied
    metric_tied = total - concordant - discordant - human_tied - both
    return np.stack([concordant, discordant, human_tied, metric_tied, both], axis=-1)


def _windows(keys: Places, lows: Places) -> tuple[Places, Places, Places]:
    """Return an order that groups equal keys, and for each output the range in it of equal keys before its low. A low
    is never before its output's own group, which has its own keys, so no end is before its begin."""
    together = np.argsort(keys, kind="stable")
    length = len(keys) + 1
    places = keys[together] * length + together
    begin = np.searchsorted(places, keys * length)
    return together, begin, np.searchsorted(places, keys * length + lows)


def _running_sums(values: NDArray[np.int64]) -> NDArray[np.int64]:
    sums = np.zeros((len(values), values.shape[1] + 1), np.int64)
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


def _count_pairs(count: NDArray[np.int64]) -> NDArray[np.int64]:
    return count * (count - 1) // 2


# ---- Comoments of weighted midranks. An output of weight w occurs w times, tied with itself.


#: Numbers processed at once, few enough for a core's cache; results do not depend on it.
_AT_ONCE_RANKS: Final = 1 << 15


def rank_comoments_grouped(human: Floats, metric: Floats, weights: Floats, starts: Places) -> Floats:
    """Return comoments of ranks within groups for each draw, (draws, groups, 5): sums of squares about the mean of
    human ranks, of metric ranks, and of their products (in half ranks: integers, exact up to some 200,000 outputs), and
    the numbers of distinct values drawn of either column."""
    check_columns(human, metric, starts)
    check_weights(weights, len(human))
    levels = find_levels(human, starts), find_levels(metric, starts)
    results = np.empty((len(weights), len(starts) - 1, 5))
    rows = max(1, _AT_ONCE_RANKS // max(1, len(human)))
    for first in range(0, len(weights), rows):
        drawn = weights[first : first + rows]
        (x, x_weight), (y, y_weight) = (_distances(side, drawn) for side in levels)
        products = drawn * x.take(levels[0].level, axis=1) * y.take(levels[1].level, axis=1)
        columns = [
            segment_sums(x_weight * x * x, levels[0].starts),
            segment_sums(y_weight * y * y, levels[1].starts),
            segment_sums(products, starts),
            segment_sums((x_weight > 0).astype(np.float64), levels[0].starts),
            segment_sums((y_weight > 0).astype(np.float64), levels[1].starts),
        ]
        results[first : first + rows] = np.stack(columns, axis=-1)
    return results


def _distances(levels: Levels, weights: Floats) -> tuple[Floats, Floats]:
    """Return twice the distance of each level's midrank from its group's mean rank, and the level's weight."""
    weight = segment_sums(weights.take(levels.order, axis=1), levels.runs)
    upto = np.zeros((len(weights), len(levels.runs)))
    np.cumsum(weight, axis=1, out=upto[:, 1:])
    ends = upto[:, levels.starts[:-1]] + upto[:, levels.starts[1:]]
    return upto[:, :-1] + upto[:, 1:] - np.repeat(ends, np.diff(levels.starts), axis=1), weight


# ---- Pairs by the gap between their scores
#
# Outputs are ordered by group (`starts`), in a group by ascending score and, for equal scores, by descending human
# level. So the outputs within a gap of a later one directly precede it, and an earlier output on a lower level makes a
# concordant pair, which never has equal scores. An output of weight w counts as w copies, which are not paired with
# each other. Gaps are floating-point differences, whose rounding keeps their order.


#: Pairs processed at once.
_CHUNK = 1 << 20
#: Prefix sums computed at once.
_PREFIXES = 1 << 21


def beyond_counts(ranked: Ranked, epsilons: Floats) -> Counts:
    """Count the pairs whose gap is above epsilon, per threshold and group: tied by humans, concordant, and all."""
    scores, levels, weights, starts = ranked
    counts = np.zeros((len(epsilons), len(starts) - 1, 3), np.int64)
    if not len(scores):
        return counts
    firsts = _firsts(starts)
    total = np.concatenate([[0], np.cumsum(weights)])
    for row, epsilon in zip(counts, epsilons.tolist(), strict=True):
        ends = _window_starts(scores, firsts, epsilon)
        below, equal = _below_and_equal(levels, weights, firsts, ends)
        per_output = np.stack([equal, below, total[ends] - total[firsts]], axis=1) * weights[:, None]
        row[:] = np.add.reduceat(per_output, starts[:-1])
    return counts


def gap_histogram(ranked: Ranked, units: Counts, stretch: Stretch, buckets: int) -> Counts:
    """Sum the pairs of a stretch by bucket, in units of their group times both weights: tied by humans, concordant,
    discordant."""
    table = np.zeros((buckets, 3), np.int64)
    for pairs in _pairs_between(ranked, units, stretch):
        np.add.at(table, (stretch.buckets_of(pairs.gaps, buckets), pairs.relation), pairs.worth)
    return table


def gaps_kept(
    ranked: Ranked, units: Counts, stretch: Stretch, keep: NDArray[np.bool_], room: int
) -> tuple[Floats, Counts] | None:
    """Return the gaps of pairs in the buckets to keep that are not discordant, in no particular order, and their units,
    negative if concordant. Equal gaps may be combined. Return None if there are more than `room`."""
    gaps, gains = np.empty(0), np.empty(0, np.int64)
    for pairs in _pairs_between(ranked, units, stretch):
        selected = keep[stretch.buckets_of(pairs.gaps, len(keep))] & (pairs.relation < 2)
        changes = np.where(pairs.relation == 0, pairs.worth, -pairs.worth)[selected]
        gaps, which = np.unique(np.concatenate([gaps, pairs.gaps[selected]]), return_inverse=True)
        all_gains = np.concatenate([gains, changes])
        gains = np.zeros(len(gaps), np.int64)
        np.add.at(gains, which, all_gains)
        if len(gaps) > room:
            return None
    return gaps, gains


def best_prefixes(gains: Floats, groups: NDArray[np.int32], lasts: Counts, weights: Floats) -> tuple[Floats, Counts]:
    """Return, for each row of group weights, the largest weighted sum of gains from the first up to one of `lasts`, and
    the first of `lasts` that reaches it; 0 and -1 if none is above 0."""
    best, at = np.zeros(len(weights)), np.full(len(weights), -1, np.int64)
    step = max(1, _PREFIXES // max(1, len(gains)))
    for start in range(0, len(weights) if len(lasts) else 0, step):
        sums = np.cumsum(weights[start : start + step, groups] * gains, axis=1)[:, lasts]
        chosen = sums.argmax(axis=1)
        highest = sums[np.arange(len(sums)), chosen]
        best[start : start + step] = np.maximum(highest, 0)
        at[start : start + step] = np.where(highest > 0, chosen, -1)
    return best, at


class _Pairs(NamedTuple):
    """Gap, relation (0 tied by humans, 1 concordant, 2 discordant) and units of some pairs."""

    gaps: Floats
    relation: NDArray[np.intp]
    worth: Counts


def _firsts(starts: Counts) -> NDArray[np.int64]:
    return np.repeat(starts[:-1], np.diff(starts))


def _window_starts(scores: Floats, firsts: NDArray[np.int64], epsilon: float) -> NDArray[np.int64]:
    """Return, for each output, the first of its group that is at most epsilon below it, by bisection of all outputs."""
    low, high = firsts, np.arange(len(scores))
    while (low < high).any():
        middle = (low + high) // 2
        # Once low and high are equal, middle is too, and nothing changes.
        near = (scores - scores[middle] <= epsilon) | (low == high)
        high = np.where(near, middle, high)
        low = np.where(near, low, middle + 1)
    return low


def _below_and_equal(levels: LevelNumbers, weights: Counts, low: Counts, high: Counts) -> tuple[Counts, Counts]:
    """Return the weights, from each output's `low` up to its `high`, of lower levels and of its own level.

    This is a wavelet matrix: bit by bit from the highest, outputs are partitioned by that bit, and each range narrows
    to the part that still agrees with its output's level.
    """
    below = np.zeros(len(levels), np.int64)
    keys, loads = levels, weights
    for bit in reversed(range(int(levels.max()).bit_length())):
        zero = (keys >> bit & 1) == 0
        has_bit = (levels >> bit & 1) == 1
        rank = np.concatenate([[0], np.cumsum(zero)])
        load = np.concatenate([[0], np.cumsum(np.where(zero, loads, 0))])
        below += np.where(has_bit, load[high] - load[low], 0)
        low = np.where(has_bit, rank[-1] + low - rank[low], rank[low])
        high = np.where(has_bit, rank[-1] + high - rank[high], rank[high])
        parted = np.concatenate([np.flatnonzero(zero), np.flatnonzero(~zero)])
        keys, loads = keys[parted], loads[parted]
    load = np.concatenate([[0], np.cumsum(loads)])
    return below, load[high] - load[low]


def _pairs_between(ranked: Ranked, units: Counts, stretch: Stretch) -> Iterator[_Pairs]:
    """Yield the pairs whose gap is above `low` and at most `high`, in chunks."""
    scores, levels, weights, starts = ranked
    firsts = _firsts(starts)
    begin, end = _window_starts(scores, firsts, stretch.high), _window_starts(scores, firsts, stretch.low)
    unit = np.repeat(units, np.diff(starts)) * weights
    sizes = end - begin
    before = np.concatenate([[0], np.cumsum(sizes)])
    row = 0
    while row < len(sizes):
        stop = max(row + 1, int(np.searchsorted(before, before[row] + _CHUNK, side="right")) - 1)
        later = np.repeat(np.arange(row, stop), sizes[row:stop])
        earlier = np.arange(before[row], before[stop]) - before[later] + begin[later]
        relation = np.sign(levels[later] - levels[earlier]) % 3
        yield _Pairs(scores[later] - scores[earlier], relation, unit[later] * weights[earlier])
        row = stop
