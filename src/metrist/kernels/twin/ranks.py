"""Comoments of weighted midranks. An output of weight w is there w times, tied with itself."""

from __future__ import annotations

from typing import Final

import numpy as np

from metrist.kernels.arranging import Floats, Levels, Places, check_columns, check_weights, levels_of, segment_sums

#: Numbers worked on at once, few enough to stay in a core's cache; results do not depend on it.
_AT_ONCE: Final = 1 << 15


def rank_comoments_grouped(human: Floats, metric: Floats, weights: Floats, starts: Places) -> Floats:
    check_columns(human, metric, starts)
    check_weights(weights, len(human))
    levels = levels_of(human, starts), levels_of(metric, starts)
    found = np.empty((len(weights), len(starts) - 1, 5))
    rows = max(1, _AT_ONCE // max(1, len(human)))
    for first in range(0, len(weights), rows):
        block = slice(first, first + rows)
        found[block] = _block(levels, weights[block], starts)
    return found


def _block(levels: tuple[Levels, Levels], weights: Floats, starts: Places) -> Floats:
    (x, x_weight), (y, y_weight) = (_distances(side, weights) for side in levels)
    products = weights * x.take(levels[0].level, axis=1) * y.take(levels[1].level, axis=1)
    columns = [
        segment_sums(x_weight * x * x, levels[0].starts),
        segment_sums(y_weight * y * y, levels[1].starts),
        segment_sums(products, starts),
        segment_sums((x_weight > 0).astype(np.float64), levels[0].starts),
        segment_sums((y_weight > 0).astype(np.float64), levels[1].starts),
    ]
    return np.stack(columns, axis=-1)


def _distances(levels: Levels, weights: Floats) -> tuple[Floats, Floats]:
    """Twice the distance of each level's midrank from its group's mean rank, and the level's weight."""
    weight = segment_sums(weights.take(levels.order, axis=1), levels.runs)
    upto = np.zeros((len(weights), len(levels.runs)))
    np.cumsum(weight, axis=1, out=upto[:, 1:])
    ends = upto[:, levels.starts[:-1]] + upto[:, levels.starts[1:]]
    return upto[:, :-1] + upto[:, 1:] - np.repeat(ends, np.diff(levels.starts), axis=1), weight
