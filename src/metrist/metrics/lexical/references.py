"""Reduce scores of (output, reference) pairs to scores of records, and overlap as precision, recall and F.

A metric first scores pairs; the pairs of record r are `starts[r]:starts[r + 1]`, as in `Pairs.starts`. Each metric
defines what `reduce='native'` means; for most it is the best reference.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import NeedsError

Best = Literal["highest", "lowest"]
Numbers = NDArray[np.float64]


def best_pairs(
    values: NDArray[np.float64] | NDArray[np.int64], starts: NDArray[np.int64], best: Best = "highest"
) -> NDArray[np.int64]:
    """The number of each record's best pair; the first of several equally good ones."""
    counts = _count_pairs(starts)
    if not len(counts):
        return np.empty(0, np.int64)
    choose = np.maximum if best == "highest" else np.minimum
    optimum = np.repeat(choose.reduceat(values, starts[:-1]), counts)
    numbers = np.where(values == optimum, np.arange(len(values)), len(values))
    return np.minimum.reduceat(numbers, starts[:-1]).astype(np.int64)


def mean_rows(rows: Numbers | NDArray[np.int64], starts: NDArray[np.int64]) -> Numbers:
    """The mean over each record's pairs, of one number per pair (p,) or of a row of numbers (p, k)."""
    counts = _count_pairs(starts)
    if not len(counts):
        return np.empty((0, *rows.shape[1:]))
    sums = np.add.reduceat(rows.astype(np.float64), starts[:-1], axis=0)
    return sums / counts.reshape(-1, *[1] * (rows.ndim - 1))


def reduce_references(
    rows: Numbers, values: Numbers, starts: NDArray[np.int64], reduce: str, best: Best = "highest"
) -> Numbers:
    """Per record, the mean of its pairs' rows (reduce='mean'), or the row of its best pair by `values` (otherwise)."""
    if (np.diff(starts) == 1).all():
        return rows  # One reference each.
    if reduce == "mean":
        return mean_rows(rows, starts)
    chosen: Numbers = rows[best_pairs(values, starts, best)]
    return chosen


def _count_pairs(starts: NDArray[np.int64]) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = np.diff(starts)
    if len(counts) and not counts.all():
        record = int(np.flatnonzero(counts == 0)[0])
        raise NeedsError(f"record {record} of the shard has no references; leave out such records before scoring")
    return counts


class Overlap(NamedTuple):
    """Per pair: how much output and reference share, and how much there is in either."""

    shared: NDArray[np.int64]
    in_output: NDArray[np.int64]
    in_reference: NDArray[np.int64]


def precision_recall_f(overlap: Overlap) -> NDArray[np.float64]:
    """A row (precision, recall, f) per pair; zeros where nothing is shared."""
    precision = overlap.shared / np.maximum(overlap.in_output, 1)
    recall = overlap.shared / np.maximum(overlap.in_reference, 1)
    sums = precision + recall
    f = np.divide(2 * precision * recall, sums, out=np.zeros_like(sums), where=sums > 0)
    return np.stack([precision, recall, f], axis=1)
