"""Comoments of weighted midranks: what Spearman's correlation pools.

An output that is drawn twice counts as two, tied with each other. Each column is sorted once for all draws.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from metrist.kernels.arranging import Floats, Levels, Places, levels_of
from metrist.meta.moments import segment_sums

#: Numbers worked on at once, few enough to stay in a core's cache; results do not depend on it.
_AT_ONCE: Final = 1 << 15


def rank_comoments(human: Floats, metric: Floats, weights: Floats, starts: Places) -> Floats:
    """Squares and products of ranks about each group's mean rank, (draws, groups, 3), in units of a half rank: whole
    numbers, so exact up to some 200,000 outputs in a group."""
    levels = levels_of(human, starts), levels_of(metric, starts)
    found = np.empty((len(weights), len(starts) - 1, 3))
    rows = max(1, _AT_ONCE // max(1, len(human)))
    for first in range(0, len(weights), rows):
        block = slice(first, first + rows)
        found[block] = _block(levels, weights[block], starts)
    return found


def _block(levels: tuple[Levels, Levels], weights: Floats, starts: Places) -> Floats:
    (x, x_size), (y, y_size) = (_centred_midranks(side, weights) for side in levels)
    products = weights * x.take(levels[0].level, axis=1) * y.take(levels[1].level, axis=1)
    squares = [
        segment_sums(size * rank * rank, side.starts)
        for side, rank, size in zip(levels, (x, y), (x_size, y_size), strict=True)
    ]
    return np.stack([*squares, segment_sums(products, starts)], axis=-1)


def _centred_midranks(levels: Levels, weights: Floats) -> tuple[Floats, Floats]:
    """Twice the distance of each level's midrank from its group's mean rank, and the level's weight."""
    size = segment_sums(weights.take(levels.order, axis=1), levels.runs)
    upto = np.zeros((len(weights), len(levels.runs)))
    np.cumsum(size, axis=1, out=upto[:, 1:])
    ends = upto[:, levels.starts[:-1]] + upto[:, levels.starts[1:]]
    per_level = np.repeat(ends, np.diff(levels.starts), axis=1)
    return upto[:, :-1] + upto[:, 1:] - per_level, size
