"""Weighted sums and comoments of columns, group by group, for many weightings at once.

Outputs lie group after group (group g is `starts[g]:starts[g + 1]`); weights are whole numbers (draws, outputs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metrist import kernels
from metrist.errors import SpecError, did_you_mean
from metrist.kernels.columns import Places, group_numbers, segment_sums
from metrist.spec import Spec, parse
from metrist.stats import Floats

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


# Measures that look at outputs two by two: does the metric order them as humans do?
#
# All of them pool one row of five counts: pairs ordered alike, ordered the other way round, tied by humans only, by the
# metric only, by both. Rows add up, so a row may be one group's, a resample's, or that of preferences between two
# outputs. Where a pool has nothing to divide by, its value is NaN.
#
# An output that a resample holds several times is not paired with its copies: everyone ties those, so that a resample
# would show more ties, and accuracies that are further up, than the data it was drawn from; the more so the smaller a
# group is.


Pool = Callable[[Floats], Floats]

#: Where a row has the pairs that both sides tie.
_BOTH = 4


def counted(epsilon: float = 0.0) -> Callable[[Floats, Floats, Floats, Places], Floats]:
    """The function that makes rows, with the metric's values tied up to a difference of `epsilon`."""

    def rows(human: Floats, metric: Floats, weights: Floats, starts: Places) -> Floats:
        counts = kernels.pair_counts_grouped(human, metric, weights, starts, epsilon).astype(np.float64)
        counts[..., _BOTH] -= segment_sums(weights * (weights - 1) / 2, starts)
        return counts

    return rows


def kendall_a(counts: Floats) -> Floats:
    """Ordered alike minus the other way round, of all pairs."""
    alike, opposed, *_ = _columns(counts)
    return _share(alike - opposed, counts.sum(axis=-1))


def kendall_b(counts: Floats) -> Floats:
    """As τ-a, with a divisor that leaves out, for each side, the pairs that side ties."""
    alike, opposed, human_tied, metric_tied, _ = _columns(counts)
    ordered = alike + opposed
    return _share(alike - opposed, np.sqrt((ordered + metric_tied) * (ordered + human_tied)))


def gamma(counts: Floats) -> Floats:
    """Of the pairs that neither side ties (Goodman and Kruskal; WMT13's τ): ties of the metric cost nothing."""
    alike, opposed, *_ = _columns(counts)
    return _share(alike - opposed, alike + opposed)


def darr_wmt14(counts: Floats) -> Floats:
    """Of the pairs that humans order, where a tie of the metric is neither right nor wrong."""
    alike, opposed, _, metric_tied, _ = _columns(counts)
    return _share(alike - opposed, alike + opposed + metric_tied)


def darr_wmt17(counts: Floats) -> Floats:
    """Of the pairs that humans order, where a tie of the metric is wrong."""
    alike, opposed, _, metric_tied, _ = _columns(counts)
    return _share(alike - opposed - metric_tied, alike + opposed + metric_tied)


def concordance(counts: Floats) -> Floats:
    """The C-index: of the pairs that humans order, how many the metric orders alike, its ties counting half."""
    alike, opposed, _, metric_tied, _ = _columns(counts)
    return _share(alike + metric_tied / 2, alike + opposed + metric_tied)


def pair_accuracy(counts: Floats) -> Floats:
    """Of the pairs that humans order, how many the metric orders strictly alike."""
    alike, opposed, _, metric_tied, _ = _columns(counts)
    return _share(alike, alike + opposed + metric_tied)


def acc_eq(counts: Floats) -> Floats:
    """Of all pairs, how many the metric orders, or ties, as humans do (Deutsch et al. 2023)."""
    alike, *_, both = _columns(counts)
    return _share(alike + both, counts.sum(axis=-1))


def at_random(counts: Floats) -> Floats:
    """What to expect of the counts if the metric's order were drawn at random and never a tie."""
    alike, opposed, human_tied, metric_tied, both = _columns(counts)
    half, none = (alike + opposed + metric_tied) / 2, np.zeros_like(both)
    return np.stack([half, half, human_tied + both, none, none], axis=-1)


def all_tied(counts: Floats) -> Floats:
    """The counts of a metric that gives every output the same score."""
    alike, opposed, human_tied, metric_tied, both = _columns(counts)
    none = np.zeros_like(both)
    return np.stack([none, none, none, alike + opposed + metric_tied, human_tied + both], axis=-1)


def stuart_rows(human: Floats, metric: Floats, weights: Floats, starts: Places) -> Floats:
    """Rows for Kendall's τ-c (Stuart 1953): ordered alike minus the other way round, and the most that this could be
    for as many levels as the coarser side has."""
    counts = kernels.pair_counts_grouped(human, metric, weights, starts)
    levels = kernels.rank_comoments_grouped(human, metric, weights, starts)[..., 3:].min(axis=-1)
    size = segment_sums(weights, starts)
    # Of n outputs that are there once this is n^2 (levels - 1) / (2 levels).
    distinct_pairs = (size * size - segment_sums(weights * weights, starts)) / 2
    most = distinct_pairs * size / np.maximum(size - 1, 1) * (levels - 1) / np.maximum(levels, 1)
    reached = (counts[..., 0] - counts[..., 1]).astype(np.float64)
    # Without the pairs of copies a resample of few outputs may pass the bound that holds for outputs there once.
    return np.stack([reached, np.maximum(most, np.abs(reached))], axis=-1)


def kendall_c(rows: Floats) -> Floats:
    return _share(rows[..., 0], rows[..., 1])


def _columns(counts: Floats) -> NDArray[np.float64]:
    return np.moveaxis(np.asarray(counts, np.float64), -1, 0)


def _share(part: Floats, whole: Floats) -> Floats:
    shares: Floats = np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=whole > 0)
    return shares


# Measures of agreement between humans and a metric, by name: rows of statistics first, then a pool of summed rows.
#
# A row comes from outputs with whole weights, where a weight of 2 means that the output is there twice: the weighted
# value equals, for correlations up to rounding, the plain one on the repeated data.


Rows = Callable[[Floats, Floats, Floats, Places], Floats]


@dataclass(frozen=True, slots=True)
class Measure:
    """How well a metric agrees with humans; its name is its identity.

    `grouped_rows(human (n,), metric (n,), weights (B, n), starts (G + 1,))` gives statistics (B, G, k) of outputs that
    lie group after group; `pool` turns (..., k) into values (...), NaN where undefined. Measures with the same
    `grouped_rows` can share its result. `chance` and `all_ties` pool the same rows into what a metric would reach that
    orders at random without ties, and one that ties everything; None where the latter has no meaning.
    """

    name: str
    grouped_rows: Rows
    pool: Pool
    bounds: tuple[float, float]
    chance: Pool
    all_ties: Pool | None = None
    higher_is_better: bool = True

    def rows(self, human: ArrayLike, metric: ArrayLike, weights: ArrayLike) -> Floats:
        """Statistics (B, k) of one group of outputs."""
        human, metric = np.asarray(human, np.float64), np.asarray(metric, np.float64)
        starts = np.array([0, len(human)])
        return self.grouped_rows(human, metric, np.asarray(weights, np.float64), starts)[:, 0]

    def value(self, human: ArrayLike, metric: ArrayLike) -> float:
        """The measure of one group of outputs, each there once."""
        return float(self.pool(self.rows(human, metric, np.ones((1, np.size(human)))))[0])

    def at_chance(self) -> Measure:
        """A measure whose value is this one's chance level."""
        return replace(self, name=f"{self.name} at chance", pool=self.chance)

    def at_all_ties(self) -> Measure:
        """A measure whose value is what a metric that ties all outputs reaches in this one."""
        if self.all_ties is None:
            raise SpecError(f"{self.name} says nothing of a metric that ties all outputs")
        return replace(self, name=f"{self.name} of all ties", pool=self.all_ties)


def acc_eq_measures(epsilon: float = 0.0) -> Measure:
    """Pairwise accuracy with ties at a fixed threshold: the metric ties what differs by at most `epsilon`."""
    if not (isinstance(epsilon, int | float) and 0 <= epsilon < np.inf):
        raise SpecError(f"acc_eq: epsilon must be a finite number, 0 or more, got {epsilon!r}")
    name = str(Spec("acc_eq", {"epsilon": float(epsilon)} if epsilon else {}))
    return _pairwise(name, acc_eq, (0.0, 1.0), counted(float(epsilon)))


def measure(text: str) -> Measure:
    """The measure that a text such as `kendall_b` or `acc_eq(epsilon=0.1)` names."""
    spec = parse(text)
    if spec.name not in MEASURES:
        known = ", ".join(MEASURES)
        raise SpecError(f"no measure named {spec.name!r}{did_you_mean(spec.name, MEASURES)} (known are {known})")
    takes = {"epsilon"} if spec.name == "acc_eq" else set()
    if unknown := spec.settings.keys() - takes:
        raise SpecError(f"{spec.name} has no setting {min(unknown)!r}")
    return acc_eq_measures(**spec.settings) if spec.settings else MEASURES[spec.name]


def _rank_comoments(human: Floats, metric: Floats, weights: Floats, starts: Places) -> Floats:
    return kernels.rank_comoments_grouped(human, metric, weights, starts)[..., :3]


def _pairwise(name: str, pool: Pool, bounds: tuple[float, float], rows: Rows) -> Measure:
    return Measure(
        name,
        rows,
        pool,
        bounds,
        chance=lambda counts: pool(at_random(counts)),
        all_ties=lambda counts: pool(all_tied(counts)),
    )


def _uncorrelated(pool: Pool) -> Pool:
    """No correlation, wherever there is one to be had."""
    return lambda stats: pool(stats) * 0.0


def _correlation(name: str, rows: Rows, pool: Pool) -> Measure:
    return Measure(name, rows, pool, (-1.0, 1.0), chance=_uncorrelated(pool))


_COUNTED: Final = counted()

#: Every measure that needs no setting, by name.
MEASURES: Final[Mapping[str, Measure]] = MappingProxyType(
    {
        made.name: made
        for made in (
            _correlation("pearson", comoments, correlation),
            _correlation("spearman", _rank_comoments, correlation),
            _pairwise("kendall_a", kendall_a, (-1.0, 1.0), _COUNTED),
            _pairwise("kendall_b", kendall_b, (-1.0, 1.0), _COUNTED),
            _correlation("kendall_c", stuart_rows, kendall_c),
            _pairwise("gamma", gamma, (-1.0, 1.0), _COUNTED),
            _pairwise("darr_wmt14", darr_wmt14, (-1.0, 1.0), _COUNTED),
            _pairwise("darr_wmt17", darr_wmt17, (-1.0, 1.0), _COUNTED),
            _pairwise("concordance", concordance, (0.0, 1.0), _COUNTED),
            _pairwise("pair_accuracy", pair_accuracy, (0.0, 1.0), _COUNTED),
            _pairwise("acc_eq", acc_eq, (0.0, 1.0), _COUNTED),
        )
    }
)
