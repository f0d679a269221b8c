"""Pairs of outputs told apart by the gap between their scores.

Outputs come group by group (`starts`), in a group by ascending score and, of equal scores, by descending human level.
So the outputs within a gap of a later one lie side by side before it, and an earlier output on a lower level makes a
concordant pair that no equal score can have. An output of weight w stands for w copies; copies of one output are not
paired here. Gaps are differences as rounded by the machine, which keeps their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Levels = NDArray[np.int32]

#: Pairs that are written out at once.
_CHUNK = 1 << 20
#: Prefix sums that are held at once.
_PREFIXES = 1 << 21


def beyond_counts(scores: Floats, levels: Levels, weights: Counts, starts: Counts, epsilons: Floats) -> Counts:
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


def gap_histogram(
    scores: Floats,
    levels: Levels,
    weights: Counts,
    starts: Counts,
    units: Counts,
    low: float,
    high: float,
    origin: float,
    scale: float,
    buckets: int,
) -> Counts:
    table = np.zeros((buckets, 3), np.int64)
    for pairs in _pairs_between(scores, levels, weights, starts, units, low, high):
        bucket = buckets_of(pairs.gaps, origin, scale, buckets)
        np.add.at(table, (bucket, pairs.relation), pairs.worth)
    return table


def gaps_kept(
    scores: Floats,
    levels: Levels,
    weights: Counts,
    starts: Counts,
    units: Counts,
    low: float,
    high: float,
    origin: float,
    scale: float,
    keep: NDArray[np.bool_],
    room: int,
) -> tuple[Floats, Counts] | None:
    gaps, gains = np.empty(0), np.empty(0, np.int64)
    for pairs in _pairs_between(scores, levels, weights, starts, units, low, high):
        kept = keep[buckets_of(pairs.gaps, origin, scale, len(keep))] & (pairs.relation < 2)
        changes = np.where(pairs.relation == 0, pairs.worth, -pairs.worth)[kept]
        gaps, gains = _added_up(np.concatenate([gaps, pairs.gaps[kept]]), np.concatenate([gains, changes]))
        if len(gaps) > room:
            return None
    return gaps, gains


def best_prefixes(gains: Floats, groups: NDArray[np.int32], lasts: Counts, weights: Floats) -> tuple[Floats, Counts]:
    best, at = np.zeros(len(weights)), np.full(len(weights), -1, np.int64)
    step = max(1, _PREFIXES // max(1, len(gains)))
    for start in range(0, len(weights) if len(lasts) else 0, step):
        sums = np.cumsum(weights[start : start + step, groups] * gains, axis=1)[:, lasts]
        chosen = sums.argmax(axis=1)
        found = sums[np.arange(len(sums)), chosen]
        best[start : start + step] = np.maximum(found, 0)
        at[start : start + step] = np.where(found > 0, chosen, -1)
    return best, at


def buckets_of(gaps: Floats, origin: float, scale: float, buckets: int) -> NDArray[np.intp]:
    return np.minimum((gaps - origin) * scale, buckets - 1).astype(np.intp)


class _Pairs(NamedTuple):
    """Gap, relation (0 tied by humans, 1 concordant, 2 discordant) and units of some pairs."""

    gaps: Floats
    relation: NDArray[np.intp]
    worth: Counts


def _added_up(gaps: Floats, gains: Counts) -> tuple[Floats, Counts]:
    distinct, which = np.unique(gaps, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, which, gains)
    return distinct, sums


def _firsts(starts: Counts) -> NDArray[np.int64]:
    return np.repeat(starts[:-1], np.diff(starts))


def _window_starts(scores: Floats, firsts: NDArray[np.int64], epsilon: float) -> NDArray[np.int64]:
    """For each output the first of its group that is at most epsilon below it: by halving, all outputs at once."""
    low, high = firsts, np.arange(len(scores))
    while (low < high).any():
        middle = (low + high) // 2
        # Where the two have met, middle is that place and nothing changes any more.
        near = (scores - scores[middle] <= epsilon) | (low == high)
        high = np.where(near, middle, high)
        low = np.where(near, low, middle + 1)
    return low


def _below_and_equal(levels: Levels, weights: Counts, low: Counts, high: Counts) -> tuple[Counts, Counts]:
    """Weight, from each output's `low` up to its `high`, of those on a lower level, and of those on its own.

    A wavelet matrix: bit by bit from the highest, outputs are parted into those whose bit is 0 and those whose bit is
    1, and each range narrows to the part that still agrees with its output's level.
    """
    below = np.zeros(len(levels), np.int64)
    keys, loads = levels, weights
    for bit in reversed(range(int(levels.max()).bit_length())):
        zero = (keys >> bit & 1) == 0
        asks_one = (levels >> bit & 1) == 1
        rank = np.concatenate([[0], np.cumsum(zero)])
        load = np.concatenate([[0], np.cumsum(np.where(zero, loads, 0))])
        below += np.where(asks_one, load[high] - load[low], 0)
        low = np.where(asks_one, rank[-1] + low - rank[low], rank[low])
        high = np.where(asks_one, rank[-1] + high - rank[high], rank[high])
        parted = np.concatenate([np.flatnonzero(zero), np.flatnonzero(~zero)])
        keys, loads = keys[parted], loads[parted]
    load = np.concatenate([[0], np.cumsum(loads)])
    return below, load[high] - load[low]


def _pairs_between(
    scores: Floats, levels: Levels, weights: Counts, starts: Counts, units: Counts, low: float, high: float
) -> Iterator[_Pairs]:
    """The pairs whose gap is above `low` and at most `high`, in chunks."""
    firsts = _firsts(starts)
    begin, end = _window_starts(scores, firsts, high), _window_starts(scores, firsts, low)
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
