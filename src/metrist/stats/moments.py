"""Weighted sums and comoments of columns, group by group, for many weightings at once.

Outputs lie group after group (group g is `starts[g]:starts[g + 1]`); weights are whole numbers (draws, outputs).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from metrist.kernels.columns import Floats, Places, group_numbers, segment_sums

Marks = NDArray[np.bool_]

_MANTISSA: Final = 53
#: Weights may add up to this many bits more than one per output, and sums are still exact.
_SPARE: Final = 6
#: The exponent that columns are brought to before they are squared: squares and their sums stay finite, and values
#: 300 orders of magnitude smaller keep theirs.
_EXPONENT: Final = 480
#: Where this little of a second moment is left after the mean was taken off, too many digits went with it.
_DOUBTFUL: Final = 1e-3
#: A table of shared weights by groups may have this many times as many cells as there are outputs.
_THINNEST: Final = 4


def comoments(human: Floats, metric: Floats, weights: Floats, starts: Places) -> Floats:
    """Weighted squares and products about each group's weighted mean: (draws, groups, 3), in the order human squared,
    metric squared, product. A column that is constant in a draw has exactly 0.

    The unit of each column is some power of two, the same for all groups and draws of one call.
    """
    columns = _scaled(human)[0], _scaled(metric)[0]
    x, y = (_centred(values, starts) for values in columns)
    sums = group_sums(np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1), weights, starts)
    count, sx, sy, xx, yy, xy = np.moveaxis(sums, -1, 0)
    count = np.maximum(count, 1.0)
    found = np.stack([xx - sx * sx / count, yy - sy * sy / count, xy - sx * sy / count], axis=-1)
    squares = sums[..., 3:5]
    doubtful = np.any((found[..., :2] <= _DOUBTFUL * squares) & (squares > 0), axis=-1)
    found[doubtful] = _two_passes(columns, weights, starts, doubtful)
    return found


def correlation(squares_and_product: Floats) -> Floats:
    """Comoments (..., 3) to correlations (...); NaN where either side does not vary."""
    xx, yy, xy = np.moveaxis(squares_and_product, -1, 0)
    varies = (xx > 0) & (yy > 0)
    size = np.sqrt(np.where(varies, xx, 1.0)) * np.sqrt(np.where(varies, yy, 1.0))
    return np.where(varies, np.clip(xy / size, -1.0, 1.0), np.nan)


def group_means(
    columns: tuple[Floats, ...], weights: Floats, starts: Places, at: Places | None = None
) -> tuple[Floats, Floats]:
    """Weighted means of columns (draws, groups, c), and the weights' sums (draws, groups); 0 where nothing was drawn.
    Groups whose values are the same in another order have the same mean, to the last bit."""
    scaled = [_scaled(values) for values in columns]
    sums = group_sums(np.stack([np.ones(len(columns[0])), *(s for s, _ in scaled)], axis=1), weights, starts, at)
    means = sums[..., 1:] / np.maximum(sums[..., :1], 1.0)
    return np.ldexp(means, -np.array([shift for _, shift in scaled])), sums[..., 0]


def group_sums(columns: Floats, weights: Floats, starts: Places, at: Places | None = None) -> Floats:
    """Weighted sums of columns (outputs, c): (draws, groups, c). Output i has the weight in column i, or in column
    `at[i]` where outputs share weights.

    Each column is cut into a coarse and a fine part of whole numbers, so small that their sums are exact in any order;
    so results do not depend on how draws are cut into chunks, nor on the BLAS.
    """
    group = group_numbers(starts)
    room = _MANTISSA - _SPARE - np.frexp(np.diff(starts).astype(np.float64))[1][:, None]
    shift = room - np.frexp(_peaks(np.abs(columns), starts))[1]
    coarse = np.rint(np.ldexp(columns, shift[group]))
    rest = columns - np.ldexp(coarse, -shift[group])
    fine = np.rint(np.ldexp(rest, (shift + room)[group]))
    sums = _whole_sums(np.concatenate([coarse, fine], axis=1), weights, starts, at)
    width = columns.shape[1]
    total: Floats = np.ldexp(sums[..., :width], -shift) + np.ldexp(sums[..., width:], -(shift + room))
    return total


def _whole_sums(columns: Floats, weights: Floats, starts: Places, at: Places | None) -> Floats:
    # Sums of whole numbers are the same on every path: which one is taken is a matter of speed alone.
    groups, width = len(starts) - 1, columns.shape[1]
    if at is not None and weights.shape[1] * groups <= _THINNEST * len(columns):
        table = np.zeros((weights.shape[1], groups, width))
        np.add.at(table, (at, group_numbers(starts)), columns)
        product: Floats = weights @ table.reshape(len(table), groups * width)
        return product.reshape(len(weights), groups, width)
    weights = weights if at is None else weights.take(at, axis=1)
    if len(weights) == 1 and groups > 1:
        return segment_sums((weights.T * columns).T, starts).T[None]
    sums = np.empty((len(weights), groups, width))
    for group, (start, end) in enumerate(pairwise(starts)):
        np.matmul(weights[:, start:end], columns[start:end], out=sums[:, group])
    return sums


def _peaks(columns: Floats, starts: Places) -> Floats:
    filled = np.flatnonzero(np.diff(starts))
    peaks = np.zeros((len(starts) - 1, columns.shape[1]))
    if len(filled):
        peaks[filled] = np.maximum.reduceat(columns, starts[:-1][filled], axis=0)
    return peaks


def _scaled(values: Floats) -> tuple[Floats, int]:
    """Values times a power of two that makes them large but safe to square, and the exponent of that power."""
    _, exponent = np.frexp(np.abs(values).max(initial=0.0))
    shift = _EXPONENT - int(exponent)
    return np.ldexp(values, shift), shift


def _centred(values: Floats, starts: Places) -> Floats:
    """Moved by about each group's mean, such that a constant group becomes exactly 0."""
    group = group_numbers(starts)
    moved = values - values[starts[group]]
    centred: Floats = moved - (segment_sums(moved, starts) / np.maximum(np.diff(starts), 1))[group]
    return centred


def _two_passes(columns: tuple[Floats, Floats], weights: Floats, starts: Places, chosen: Marks) -> Floats:
    """Comoments (chosen, 3) of some draws of some groups, each about its own mean."""
    draw, group = np.nonzero(chosen)
    sizes = np.diff(starts)[group]
    at = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes - starts[group], sizes)
    weight = weights[np.repeat(draw, sizes), at]
    drawn = np.flatnonzero(weight)
    owner = np.repeat(np.arange(len(group)), sizes)[drawn]
    at, weight = at[drawn], weight[drawn]
    ends = np.searchsorted(owner, np.arange(len(group) + 1))

    def about_mean(values: Floats) -> Floats:
        moved = values[at] - values[at[ends[:-1]]][owner]
        centred: Floats = moved - (segment_sums(weight * moved, ends) / segment_sums(weight, ends))[owner]
        return centred

    dx, dy = map(about_mean, columns)
    return np.stack([segment_sums(weight * a * b, ends) for a, b in ((dx, dx), (dy, dy), (dx, dy))], axis=-1)
