"""Sorted columns of human and metric values, prepared once for counting pairs and ranks with many weightings.

Outputs are ordered by group: group g is `starts[g]:starts[g + 1]`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
Counts = NDArray[np.int64]
LevelNumbers = NDArray[np.int32]


class Levels(NamedTuple):
    """The distinct values of each group, ascending. Level l is the outputs `order[runs[l]:runs[l + 1]]`; group g has
    the levels `starts[g]:starts[g + 1]`; output i has level `level[i]`."""

    order: Places
    runs: Places
    starts: Places
    level: Places


class Arranged(NamedTuple):
    """Outputs in the order (group, metric). `levels` numbers the human values of each group from 0; the outputs of the
    group before `lows[i]` have a metric value lower than i's by more than the tie threshold."""

    order: Places
    levels: NDArray[np.int32]
    lows: Places
    starts: Places


class Ranked(NamedTuple):
    """Outputs for the functions that count pairs by the gap between their scores.

    Outputs come group by group (`starts`: group g is `starts[g]:starts[g + 1]`, none empty), in a group by ascending
    score and, for equal scores, by descending human level (from 0 in each group). Only outputs of one group are paired.
    An output of weight w counts as w copies, which are not paired with each other.
    """

    scores: Floats
    levels: LevelNumbers
    weights: Counts
    starts: Counts


class Stretch(NamedTuple):
    """Gaps above `low` and up to `high`. A gap falls into bucket (gap - origin) * scale, or into the last bucket;
    `origin` is at least 0 and at most `low`."""

    low: float
    high: float
    origin: float
    scale: float

    def buckets_of(self, gaps: Floats, buckets: int) -> NDArray[np.intp]:
        return np.minimum((gaps - self.origin) * self.scale, buckets - 1).astype(np.intp)


def group_starts(codes: NDArray[np.intp]) -> Places:
    """Return where each group of outputs begins, given its code at each of them, and the number of outputs."""
    is_first = np.ones(len(codes), dtype=bool)
    is_first[1:] = codes[1:] != codes[:-1]
    return np.append(np.flatnonzero(is_first), len(codes))


def group_numbers(starts: Places) -> Places:
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def find_levels(values: Floats, starts: Places) -> Levels:
    order = sort_within_groups(values, starts)
    ordered = values[order]
    first = np.ones(len(values), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    first[starts[:-1][starts[:-1] < len(values)]] = True
    running = np.cumsum(first) - 1
    level = np.empty(len(values), np.int64)
    level[order] = running
    runs = np.append(np.flatnonzero(first), len(values))
    return Levels(order, runs, np.searchsorted(runs[:-1], starts), level)


def arrange(human: Floats, metric: Floats, starts: Places, epsilon: float) -> Arranged:
    human, metric = np.asarray(human, np.float64), np.asarray(metric, np.float64)
    check_columns(human, metric, starts)
    if not epsilon >= 0:
        raise ValueError(f"the tie threshold must be 0 or more, got {epsilon}")
    order = sort_within_groups(metric, starts)
    lows = _find_lows(metric[order], starts, epsilon)
    return Arranged(order, levels_in_group(human, starts)[order], lows, np.asarray(starts, np.int64))


def levels_in_group(values: Floats, starts: Places) -> NDArray[np.int32]:
    """Return each output's level, counted from 0 in its group."""
    levels = find_levels(values, starts)
    return (levels.level - levels.starts[group_numbers(starts)]).astype(np.int32)


def sort_within_groups(values: Floats, starts: Places) -> Places:
    """Return the order that sorts each group by value and keeps the order of groups, and that of equal values."""
    if len(starts) == 2:
        return np.argsort(values, kind="stable")
    order, sizes = np.empty(len(values), np.int64), np.diff(starts)
    # Groups of one size at once: up to seven times faster than `np.lexsort` of all.
    for size in np.unique(sizes[sizes > 0]).tolist():
        at = np.asarray(starts[:-1], np.int64)[sizes == size][:, None] + np.arange(size)
        order[at] = np.take_along_axis(at, np.argsort(values[at], axis=1, kind="stable"), axis=1)
    return order


def segment_sums(values: Floats, starts: Places) -> Floats:
    """Sum (..., n) over each group: (..., groups)."""
    filled = np.flatnonzero(np.diff(starts))
    sums = np.zeros((*values.shape[:-1], len(starts) - 1))
    if len(filled):
        sums[..., filled] = np.add.reduceat(values, starts[:-1][filled], axis=-1)
    return sums


def _find_lows(metric: Floats, starts: Places, epsilon: float) -> Places:
    """Bisect on the rounded difference itself: it decreases as the other value increases, so the result equals that of
    checking every pair. Comparing with `metric - epsilon` would not guarantee that."""
    high = np.arange(len(metric))
    low = np.asarray(starts, np.int64)[group_numbers(starts)]
    with np.errstate(over="ignore"):
        while (low < high).any():
            middle = (low + high) // 2
            below = (metric - metric[middle] > epsilon) & (low < high)
            low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
    return low


def check_weights(weights: Floats, outputs: int) -> None:
    if weights.ndim != 2 or weights.shape[1] != outputs:
        raise ValueError(f"weights must have a row per draw and a column per output, got {weights.shape}")


def check_columns(human: Floats, metric: Floats, starts: Places) -> None:
    if human.ndim != 1 or human.shape != metric.shape:
        raise ValueError(f"expected one human and one metric value per output, got {human.shape} and {metric.shape}")
    if not (np.isfinite(human).all() and np.isfinite(metric).all()):
        raise ValueError("human and metric values must be finite")
    if len(starts) < 1 or starts[0] != 0 or starts[-1] != len(human) or (np.diff(starts) < 0).any():
        raise ValueError("starts must go from 0 to the number of outputs and never down")
