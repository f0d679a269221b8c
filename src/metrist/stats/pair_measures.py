"""Measures that look at outputs two by two: does the metric order them as humans do?

All of them pool one row of five counts: pairs ordered alike, ordered the other way round, tied by humans only, by the
metric only, by both. Rows add up, so a row may be one group's, a resample's, or that of preferences between two
outputs. Where a pool has nothing to divide by, its value is NaN.

An output that a resample holds several times is not paired with its copies: everyone ties those, so that a resample
would show more ties, and accuracies that are further up, than the data it was drawn from; the more so the smaller a
group is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from metrist import kernels
from metrist.kernels.columns import Floats, Places, segment_sums

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
