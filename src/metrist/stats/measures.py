"""Measures of agreement between humans and a metric: rows of statistics first, then a pool of summed rows.

Outputs lie group after group (group g is `starts[g]:starts[g + 1]`). Weights are whole numbers (draws, outputs); a
weight of 2 means that the output occurs twice, and the weighted value equals (for correlations up to rounding) the
value on the repeated data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metrist import kernels
from metrist.errors import SpecError, did_you_mean
from metrist.kernels.columns import Places, group_numbers, segment_sums
from metrist.spec import Spec, parse
from metrist.stats import Floats, Pool

Marks = NDArray[np.bool_]

_MANTISSA: Final = 53
#: Weights may add up to this many bits more than one per output, and sums are still exact.
_SPARE: Final = 6
#: Columns are scaled to this exponent before they are squared: squares and their sums stay finite, and values 300
#: orders of magnitude smaller do not vanish.
_EXPONENT: Final = 480
#: If so little of a second moment is left after the mean was subtracted, too many digits were lost.
_DOUBTFUL: Final = 1e-3
#: A table of shared weights by groups may have this many times more cells than there are outputs.
_MAX_SPARSITY: Final = 4


def comoments(human: Floats, metric: Floats, weights: Floats, starts: Places) -> Floats:
    """Return weighted squares and products about each group's weighted mean: (draws, groups, 3), in the order human
    squared, metric squared, product. A column that is constant in a draw gives exactly 0.

    The unit of each column is a power of two, the same for all groups and draws of one call.
    """
    columns = _scaled(human)[0], _scaled(metric)[0]
    x, y = (_centred(values, starts) for values in columns)
    sums = group_sums(np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1), weights, starts)
    count, sx, sy, xx, yy, xy = np.moveaxis(sums, -1, 0)
    count = np.maximum(count, 1.0)
    moments = np.stack([xx - sx * sx / count, yy - sy * sy / count, xy - sx * sy / count], axis=-1)
    squares = sums[..., 3:5]
    doubtful = np.any((moments[..., :2] <= _DOUBTFUL * squares) & (squares > 0), axis=-1)
    moments[doubtful] = _two_passes(columns, weights, starts, doubtful)
    return moments


def correlation(squares_and_product: Floats) -> Floats:
    """Turn comoments (..., 3) into correlations (...); NaN if either side does not vary."""
    xx, yy, xy = np.moveaxis(squares_and_product, -1, 0)
    varies = (xx > 0) & (yy > 0)
    size = np.sqrt(np.where(varies, xx, 1.0)) * np.sqrt(np.where(varies, yy, 1.0))
    return np.where(varies, np.clip(xy / size, -1.0, 1.0), np.nan)


def group_means(
    columns: tuple[Floats, ...], weights: Floats, starts: Places, at: Places | None = None
) -> tuple[Floats, Floats]:
    """Return weighted means of columns (draws, groups, c) and sums of weights (draws, groups); 0 if nothing was drawn.
    Groups with the same values in another order have the same mean, to the last bit."""
    scaled = [_scaled(values) for values in columns]
    sums = group_sums(np.stack([np.ones(len(columns[0])), *(s for s, _ in scaled)], axis=1), weights, starts, at)
    means = sums[..., 1:] / np.maximum(sums[..., :1], 1.0)
    return np.ldexp(means, -np.array([shift for _, shift in scaled])), sums[..., 0]


def group_sums(columns: Floats, weights: Floats, starts: Places, at: Places | None = None) -> Floats:
    """Return weighted sums of columns (outputs, c): (draws, groups, c). Output i has the weight in column i, or in
    column `at[i]` if outputs share weights.

    Each column is split into a coarse and a fine part of whole numbers, so small that their sums are exact in any
    order. Results therefore depend neither on the chunks of draws nor on the BLAS.
    """
    group = group_numbers(starts)
    room = _MANTISSA - _SPARE - np.frexp(np.diff(starts).astype(np.float64))[1][:, None]
    filled = np.flatnonzero(np.diff(starts))
    peaks = np.zeros((len(starts) - 1, columns.shape[1]))
    if len(filled):
        peaks[filled] = np.maximum.reduceat(np.abs(columns), starts[:-1][filled], axis=0)
    shift = room - np.frexp(peaks)[1]
    coarse = np.rint(np.ldexp(columns, shift[group]))
    remainder = columns - np.ldexp(coarse, -shift[group])
    fine = np.rint(np.ldexp(remainder, (shift + room)[group]))
    whole = np.concatenate([coarse, fine], axis=1)
    groups = len(starts) - 1
    width = columns.shape[1]
    # Sums of whole numbers are exact on every path; the choice between them only affects speed.
    if at is not None and weights.shape[1] * groups <= _MAX_SPARSITY * len(whole):
        table = np.zeros((weights.shape[1], groups, 2 * width))
        np.add.at(table, (at, group), whole)
        sums = (weights @ table.reshape(len(table), groups * 2 * width)).reshape(len(weights), groups, 2 * width)
    else:
        weights = weights if at is None else weights.take(at, axis=1)
        if len(weights) == 1 and groups > 1:
            sums = segment_sums((weights.T * whole).T, starts).T[None]
        else:
            sums = np.empty((len(weights), groups, 2 * width))
            for number, (start, end) in enumerate(pairwise(starts)):
                np.matmul(weights[:, start:end], whole[start:end], out=sums[:, number])
    total: Floats = np.ldexp(sums[..., :width], -shift) + np.ldexp(sums[..., width:], -(shift + room))
    return total


def _scaled(values: Floats) -> tuple[Floats, int]:
    """Scale values by a power of two that makes them large but safe to square; also return its exponent."""
    _, exponent = np.frexp(np.abs(values).max(initial=0.0))
    shift = _EXPONENT - int(exponent)
    return np.ldexp(values, shift), shift


def _centred(values: Floats, starts: Places) -> Floats:
    """Shift values by about each group's mean, such that a constant group becomes exactly 0."""
    group = group_numbers(starts)
    moved = values - values[starts[group]]
    centred: Floats = moved - (segment_sums(moved, starts) / np.maximum(np.diff(starts), 1))[group]
    return centred


def _two_passes(columns: tuple[Floats, Floats], weights: Floats, starts: Places, chosen: Marks) -> Floats:
    """Return comoments (chosen, 3) of some draws of some groups, each about its own mean."""
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


# ---- Pairwise measures
#
# All of them pool one row of five counts: pairs ordered alike, ordered the other way round, tied by humans only, by the
# metric only, by both. Rows add up, so a row may come from a group, a resample, or preferences between two outputs. The
# value is NaN if there is nothing to divide by.
#
# An output that occurs several times in a resample is not paired with its copies. Everyone ties those, so that
# resamples would show more ties and higher accuracies than the data they were drawn from, especially in small groups.


#: The position of the pairs that both sides tie.
_BOTH = 4
#: Outputs, times draws, whose pairs are counted at a time: more would need several times the memory of their columns.
_AT_A_TIME: Final = 1 << 20


def count_pairs(epsilon: float = 0.0) -> Callable[[Floats, Floats, Floats, Places], Floats]:
    """Return the function that makes rows, with metric values tied up to a difference of `epsilon`."""

    def rows(human: Floats, metric: Floats, weights: Floats, starts: Places) -> Floats:
        counts = np.empty((len(weights), len(starts) - 1, _BOTH + 1))
        for first, last in cut_groups(starts, max(1, _AT_A_TIME // max(1, len(weights)))):
            part = slice(starts[first], starts[last])
            inside, picked = starts[first : last + 1] - starts[first], weights[:, part]
            counts[:, first:last] = kernels.pair_counts_grouped(human[part], metric[part], picked, inside, epsilon)
            counts[:, first:last, _BOTH] -= segment_sums(picked * (picked - 1) / 2, inside)
        return counts

    return rows


def cut_groups(starts: Places, most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of groups that have about `most` outputs together, or of one group that has more."""
    first, groups = 0, len(starts) - 1
    while first < groups:
        last = int(np.searchsorted(starts, starts[first] + most, side="right")) - 1
        last = min(max(last, first + 1), groups)
        yield first, last
        first = last


def kendall_a(counts: Floats) -> Floats:
    """Concordant minus discordant, of all pairs."""
    alike, opposed, *_ = _columns(counts)
    return divide(alike - opposed, counts.sum(axis=-1))


def kendall_b(counts: Floats) -> Floats:
    """As τ-a, with a divisor that leaves out, for each side, the pairs that side ties."""
    alike, opposed, human_tied, metric_tied, _ = _columns(counts)
    ordered = alike + opposed
    return divide(alike - opposed, np.sqrt((ordered + metric_tied) * (ordered + human_tied)))


def gamma(counts: Floats) -> Floats:
    """Concordant minus discordant, of the pairs that neither side ties (Goodman and Kruskal; WMT13's τ)."""
    alike, opposed, *_ = _columns(counts)
    return divide(alike - opposed, alike + opposed)


def darr_wmt14(counts: Floats) -> Floats:
    """Concordant minus discordant, of the pairs that humans order; a tie of the metric is neither right nor wrong."""
    alike, opposed, _, metric_tied, _ = _columns(counts)
    return divide(alike - opposed, alike + opposed + metric_tied)


def darr_wmt17(counts: Floats) -> Floats:
    """Concordant minus discordant, of the pairs that humans order; a tie of the metric is wrong."""
    alike, opposed, _, metric_tied, _ = _columns(counts)
    return divide(alike - opposed - metric_tied, alike + opposed + metric_tied)


def concordance(counts: Floats) -> Floats:
    """The C-index: the share of pairs ordered by humans that the metric orders alike, its ties counting half."""
    alike, opposed, _, metric_tied, _ = _columns(counts)
    return divide(alike + metric_tied / 2, alike + opposed + metric_tied)


def pair_accuracy(counts: Floats) -> Floats:
    """The share of pairs ordered by humans that the metric orders alike; ties are wrong."""
    alike, opposed, _, metric_tied, _ = _columns(counts)
    return divide(alike, alike + opposed + metric_tied)


def acc_eq(counts: Floats) -> Floats:
    """The share of all pairs that the metric orders, or ties, as humans do (Deutsch et al. 2023)."""
    alike, *_, both = _columns(counts)
    return divide(alike + both, counts.sum(axis=-1))


def at_random(counts: Floats) -> Floats:
    """Return the expected counts of a metric that orders at random and never ties."""
    alike, opposed, human_tied, metric_tied, both = _columns(counts)
    half, none = (alike + opposed + metric_tied) / 2, np.zeros_like(both)
    return np.stack([half, half, human_tied + both, none, none], axis=-1)


def all_tied(counts: Floats) -> Floats:
    """Return the counts of a metric that gives every output the same score."""
    alike, opposed, human_tied, metric_tied, both = _columns(counts)
    none = np.zeros_like(both)
    return np.stack([none, none, none, alike + opposed + metric_tied, human_tied + both], axis=-1)


def stuart_rows(human: Floats, metric: Floats, weights: Floats, starts: Places) -> Floats:
    """Return rows for Kendall's τ-c (Stuart 1953): concordant minus discordant, and the maximum of this for as many
    levels as the coarser side has."""
    counts = kernels.pair_counts_grouped(human, metric, weights, starts)
    levels = kernels.rank_comoments_grouped(human, metric, weights, starts)[..., 3:].min(axis=-1)
    size = segment_sums(weights, starts)
    # For n outputs that occur once this is n^2 (levels - 1) / (2 levels).
    distinct_pairs = (size * size - segment_sums(weights * weights, starts)) / 2
    most = distinct_pairs * size / np.maximum(size - 1, 1) * (levels - 1) / np.maximum(levels, 1)
    reached = (counts[..., 0] - counts[..., 1]).astype(np.float64)
    # Without pairs of copies, a resample of few outputs may exceed the bound, which holds for outputs that occur once.
    return np.stack([reached, np.maximum(most, np.abs(reached))], axis=-1)


def kendall_c(rows: Floats) -> Floats:
    return divide(rows[..., 0], rows[..., 1])


def _columns(counts: Floats) -> NDArray[np.float64]:
    return np.moveaxis(np.asarray(counts, np.float64), -1, 0)


def divide(sums: NDArray[Any], counts: NDArray[Any]) -> Floats:
    """Divide sums by counts; NaN if the count is 0."""
    quotient: Floats = np.divide(sums, counts, out=np.full(np.shape(sums), np.nan), where=counts > 0)
    return quotient


def mean_of_known(values: Floats) -> Floats:
    """Return the mean over the last axis of the values that are not NaN; NaN if there are none."""
    known = ~np.isnan(values)
    return divide(np.where(known, values, 0.0).sum(axis=-1), known.sum(axis=-1))


# ---- Measures by name


Rows = Callable[[Floats, Floats, Floats, Places], Floats]


@dataclass(frozen=True, slots=True)
class Measure:
    """How well a metric agrees with humans; its name is its identity.

    `grouped_rows(human (n,), metric (n,), weights (B, n), starts (G + 1,))` gives statistics (B, G, k) of outputs that
    lie group after group; `pool` turns (..., k) into values (...), NaN if undefined. Measures with the same
    `grouped_rows` can share its result. `chance` and `all_ties` pool the same rows into the value of a metric that
    orders at random without ties, and of one that ties everything; `all_ties` is None if that is meaningless.
    """

    name: str
    grouped_rows: Rows
    pool: Pool
    chance: Pool
    all_ties: Pool | None = None

    def rows(self, human: ArrayLike, metric: ArrayLike, weights: ArrayLike) -> Floats:
        """Return statistics (B, k) of one group of outputs."""
        human, metric = np.asarray(human, np.float64), np.asarray(metric, np.float64)
        starts = np.array([0, len(human)])
        return self.grouped_rows(human, metric, np.asarray(weights, np.float64), starts)[:, 0]

    def value(self, human: ArrayLike, metric: ArrayLike) -> float:
        """Return the measure of one group of outputs, each occurring once."""
        return float(self.pool(self.rows(human, metric, np.ones((1, np.size(human)))))[0])

    def at_chance(self) -> Measure:
        """Return a measure whose value is this one's chance level."""
        return replace(self, name=f"{self.name} at chance", pool=self.chance)

    def at_all_ties(self) -> Measure:
        """Return a measure whose value is what a metric that ties all outputs reaches in this one."""
        if self.all_ties is None:
            raise SpecError(f"{self.name} is undefined for a metric that ties all outputs", code="too_little_data")
        return replace(self, name=f"{self.name} of all ties", pool=self.all_ties)


def accuracy_at(epsilon: float = 0.0) -> Measure:
    """Return pairwise accuracy with ties at a fixed threshold: the metric ties what differs by at most `epsilon`."""
    if not (isinstance(epsilon, int | float) and 0 <= epsilon < np.inf):
        raise SpecError(f"acc_eq: epsilon must be a finite number, 0 or more, got {epsilon!r}")
    name = str(Spec("acc_eq", {"epsilon": float(epsilon)} if epsilon else {}))
    return _pairwise(name, acc_eq, count_pairs(float(epsilon)))


def measure(text: str) -> Measure:
    """Return the measure that a text such as `kendall_b` or `acc_eq(epsilon=0.1)` names."""
    spec = parse(text)
    if spec.name not in MEASURES:
        known = ", ".join(MEASURES)
        raise SpecError(
            f"no measure named {spec.name!r}{did_you_mean(spec.name, MEASURES)} (known are {known})",
            code="unknown_name",
        )
    takes = {"epsilon"} if spec.name == "acc_eq" else set()
    if unknown := spec.settings.keys() - takes:
        raise SpecError(f"{spec.name} has no setting {min(unknown)!r}", code="unknown_name")
    return accuracy_at(**spec.settings) if spec.settings else MEASURES[spec.name]


#: The rows that all pairwise measures share.
_COUNTED: Final = count_pairs()


def _rank_comoments(human: Floats, metric: Floats, weights: Floats, starts: Places) -> Floats:
    return kernels.rank_comoments_grouped(human, metric, weights, starts)[..., :3]


def _pairwise(name: str, pool: Pool, rows: Rows = _COUNTED) -> Measure:
    return Measure(
        name,
        rows,
        pool,
        chance=lambda counts: pool(at_random(counts)),
        all_ties=lambda counts: pool(all_tied(counts)),
    )


def _correlation(name: str, rows: Rows, pool: Pool) -> Measure:
    # Chance is 0 wherever the measure is defined.
    return Measure(name, rows, pool, chance=lambda stats: pool(stats) * 0.0)


#: Every measure that needs no setting, by name.
MEASURES: Final[Mapping[str, Measure]] = MappingProxyType(
    {
        measure.name: measure
        for measure in (
            _correlation("pearson", comoments, correlation),
            _correlation("spearman", _rank_comoments, correlation),
            _pairwise("kendall_a", kendall_a),
            _pairwise("kendall_b", kendall_b),
            _correlation("kendall_c", stuart_rows, kendall_c),
            _pairwise("gamma", gamma),
            _pairwise("darr_wmt14", darr_wmt14),
            _pairwise("darr_wmt17", darr_wmt17),
            _pairwise("concordance", concordance),
            _pairwise("pair_accuracy", pair_accuracy),
            _pairwise("acc_eq", acc_eq),
        )
    }
)
