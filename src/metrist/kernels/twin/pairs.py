"""Pairs of outputs, counted by how two columns order them, for many weightings at once.

The heart is one count: for each output, how much weight of lower human level lies before its tie window. Levels are
compared bit by bit: two levels differ first at some bit, where the lower has 0 and the higher 1. So for each bit the
outputs are brought together that share all higher bits, still in the metric's order, and a running sum over those with
a 0 answers for all those with a 1.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from metrist.kernels.arranging import Arranged, Floats, Places, arranged, check_weights, group_numbers

BAD_WEIGHTS: Final = "weights must be whole numbers, none negative, that add up to less than 2**31 in each draw"
_AT_ONCE: Final = 1 << 19


def pair_counts_grouped(
    human: Floats, metric: Floats, weights: Floats, starts: Places, epsilon: float = 0.0
) -> NDArray[np.int64]:
    outputs = arranged(human, metric, starts, epsilon)
    whole = _whole(weights, len(outputs.order))
    rows = max(1, _AT_ONCE // max(1, len(human)))
    blocks = [_counts(outputs, whole[i : i + rows]) for i in range(0, len(whole), rows)]
    return np.concatenate([np.empty((0, len(starts) - 1, 5), np.int64), *blocks])


def _whole(weights: Floats, outputs: int) -> NDArray[np.int64]:
    check_weights(weights, outputs)
    if not ((weights >= 0) & (weights < 2**31)).all() or (weights.sum(axis=1) >= 2**31).any():
        raise ValueError(BAD_WEIGHTS)
    whole = weights.astype(np.int64)
    if (whole != weights).any():
        raise ValueError(BAD_WEIGHTS)
    return whole


def _counts(outputs: Arranged, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    weights = weights[:, outputs.order]
    bits = int(outputs.levels.max(initial=0)).bit_length()
    levels = (group_numbers(outputs.starts) << bits) + outputs.levels
    below = _weight_below(levels, outputs.lows, weights, bits)
    same = _weight_same(levels, outputs.lows, weights)
    running = _running(weights)
    before = running[:, outputs.lows] - running[:, outputs.starts[group_numbers(outputs.starts)]]

    def summed(values: NDArray[np.int64]) -> NDArray[np.int64]:
        upto = _running(weights * values)
        return upto[:, outputs.starts[1:]] - upto[:, outputs.starts[:-1]]

    concordant, human_tied = summed(below), summed(same)
    discordant = summed(before - below - same)
    total = _pairs(running[:, outputs.starts[1:]] - running[:, outputs.starts[:-1]])
    both = _human_ties(levels, outputs.starts, weights, bits) - human_tied
    metric_tied = total - concordant - discordant - human_tied - both
    return np.stack([concordant, discordant, human_tied, metric_tied, both], axis=-1)


def _weight_below(levels: Places, lows: Places, weights: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    below = np.zeros_like(weights)
    for bit in range(bits):
        zero = (levels >> bit) & 1 == 0
        above = levels >> (bit + 1)
        together, begin, end = _windows(above, lows)
        running = _running(np.where(zero, weights, 0)[:, together])
        below += np.where(zero, 0, running[:, end] - running[:, begin])
    return below


def _weight_same(levels: Places, lows: Places, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    together, begin, end = _windows(levels, lows)
    running = _running(weights[:, together])
    return running[:, end] - running[:, begin]


def _windows(keys: Places, lows: Places) -> tuple[Places, Places, Places]:
    """The order that brings equal keys together, and where in it, for each output, the equal ones before its low lie.
    A low never lies before its output's own group, whose keys are its own; so an end is never before its begin."""
    together = np.argsort(keys, kind="stable")
    length = len(keys) + 1
    places = keys[together] * length + together
    begin = np.searchsorted(places, keys * length)
    return together, begin, np.searchsorted(places, keys * length + lows)


def _human_ties(levels: Places, starts: Places, weights: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    together = np.argsort(levels, kind="stable")
    distinct, first = np.unique(levels[together], return_index=True)
    running = _running(weights[:, together])
    tied = _running(_pairs(np.diff(running[:, np.append(first, len(levels))], axis=1)))
    cut = np.searchsorted(distinct, np.arange(len(starts)) << bits)
    return tied[:, cut[1:]] - tied[:, cut[:-1]]


def _running(values: NDArray[np.int64]) -> NDArray[np.int64]:
    sums = np.zeros((len(values), values.shape[1] + 1), np.int64)
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


def _pairs(count: NDArray[np.int64]) -> NDArray[np.int64]:
    return count * (count - 1) // 2
