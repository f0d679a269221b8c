"""From values and p-values to places: significance clusters, average ranks, and the marks † and ‡ of a table.

Everywhere a larger value is the better one, and `p[i, j]` is the p-value of the difference between i and j, two-sided
and already adjusted for many tests if it should be. A NaN is a test that was not made: nothing is claimed from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from metrist.stats.resample import Floats

Mark = Literal["", "†", "‡"]


def wins(values: Floats, p: Floats, alpha: float = 0.05, differences: Floats | None = None) -> NDArray[np.bool_]:
    """wins[i, j]: i is significantly better than j, that is, lies above it at a p of at most alpha.

    `differences[i, j]` (i less j) are those that were tested, where each pair was compared on outputs of its own;
    without them, the differences of the values."""
    with np.errstate(invalid="ignore"):
        lead = values[:, None] - values[None, :] if differences is None else differences
        return (lead > 0) & (p <= alpha)


def clusters(values: Floats, p: Floats, alpha: float = 0.05, differences: Floats | None = None) -> NDArray[np.intp]:
    """The cluster of each metric, 1 for the best; 0 where a metric has no value.

    The rule of the WMT metrics tasks and of mt-metrics-eval: walk down from the best value; whoever is significantly
    worse than *any* member of the cluster so far opens the next one. So nobody in a cluster is beaten by another
    member of it, but two metrics in different clusters need not differ significantly from each other.

    Values on different outputs may stand in another order than the tests found. The walk then leaves a metric for
    later until whoever beats it has come.
    """
    beaten = wins(values, p, alpha, differences)
    found = np.zeros(len(values), dtype=np.intp)
    members: list[int] = []
    current = 1
    for metric in _walk(values, beaten):
        if beaten[members, metric].any():
            current, members = current + 1, []
        members.append(metric)
        found[metric] = current
    return found


def _walk(values: Floats, beaten: NDArray[np.bool_]) -> Iterator[int]:
    """From the best value down, but never past someone who is beaten by one still to come. Three metrics may beat each
    other in a circle, when each pair shares other outputs: there the best value goes first."""
    waiting = best_first(values)
    while waiting:
        free = (metric for metric in waiting if not beaten[waiting, metric].any())
        following = next(free, waiting[0])
        waiting.remove(following)
        yield following


def best_first(values: Floats) -> list[int]:
    """Positions from the best value to the worst; equals keep their order, NaN is left out."""
    defined = np.flatnonzero(~np.isnan(values))
    order: list[int] = defined[np.argsort(-values[defined], kind="stable")].tolist()
    return order


def ranks(values: Floats) -> Floats:
    """Ranks along the last axis, 1 for the largest; equals share the mean of their places, NaN stays NaN."""
    with np.errstate(invalid="ignore"):
        larger = (values[..., None, :] > values[..., :, None]).sum(axis=-1)
        equal = (values[..., None, :] == values[..., :, None]).sum(axis=-1)
    return np.where(np.isnan(values), np.nan, larger + (equal + 1) / 2)


def average_ranks(values: Floats) -> Floats:
    """The mean rank of each metric (columns) over the slices (rows) where it has a value; NaN where it has none."""
    per_slice = ranks(values)
    judged = ~np.isnan(per_slice)
    with np.errstate(invalid="ignore"):
        means: Floats = np.where(judged, per_slice, 0.0).sum(axis=0) / judged.sum(axis=0)
    return means


def marks(
    values: Floats,
    p: Floats,
    families: Sequence[str],
    marked: Collection[str],
    alpha: float = 0.05,
    differences: Floats | None = None,
) -> list[Mark]:
    """The marks of the BARTScore paper (002, "Significance Tests"), for the metrics of the marked families.

    † : significantly better than every metric outside its own family;
    ‡ : than every other metric, its own family's variants included.
    The paper lists unsupervised metrics only, and so should the caller. Who has no one to beat gets no mark.
    """
    better = wins(values, p, alpha, differences)
    kin = np.array([[a == b for b in families] for a in families], dtype=np.bool_).reshape(len(values), len(values))
    return [_mark(better[i], kin[i], i) if family in marked else "" for i, family in enumerate(families)]


def _mark(better: NDArray[np.bool_], kin: NDArray[np.bool_], metric: int) -> Mark:
    others = np.arange(len(better)) != metric
    strangers = ~kin
    if others.any() and better[others].all():
        return "‡"
    return "†" if strangers.any() and better[strangers].all() else ""
