"""Several references for one output: which of them counts, or their mean.

A metric first scores pairs (an output beside one reference); the pairs of record r are `starts[r]:starts[r + 1]`, as
`Pairs.starts` says. Here pairs become records again, all records at once. What `reduce='native'` means is each
metric's own affair: for most it is the best reference.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import NeedsError

Direction = Literal["highest", "lowest"]
Numbers = NDArray[np.float64]


def best_pairs(
    values: NDArray[np.float64] | NDArray[np.int64], starts: NDArray[np.int64], direction: Direction = "highest"
) -> NDArray[np.int64]:
    """Per record the number of its best pair; of equally good pairs the first."""
    counts = _counts(starts)
    if not len(counts):
        return np.empty(0, np.int64)
    choose = np.maximum if direction == "highest" else np.minimum
    best = np.repeat(choose.reduceat(values, starts[:-1]), counts)
    numbers = np.where(values == best, np.arange(len(values)), len(values))
    return np.minimum.reduceat(numbers, starts[:-1]).astype(np.int64)


def mean_rows(rows: Numbers | NDArray[np.int64], starts: NDArray[np.int64]) -> Numbers:
    """Per record the mean over its pairs, of one number a pair (p,) or of a row of numbers (p, k)."""
    counts = _counts(starts)
    if not len(counts):
        return np.empty((0, *rows.shape[1:]))
    sums = np.add.reduceat(rows.astype(np.float64), starts[:-1], axis=0)
    return sums / counts.reshape(-1, *[1] * (rows.ndim - 1))


def reduce_references(
    rows: Numbers, values: Numbers, starts: NDArray[np.int64], reduce: str, direction: Direction = "highest"
) -> Numbers:
    """Per record the row of its best pair by `values` ('max', and 'native' where that is the definition), or the mean
    of its pairs' rows ('mean')."""
    if _counts(starts).sum() == len(starts) - 1:
        return rows  # One reference each: nothing to choose from.
    if reduce == "mean":
        return mean_rows(rows, starts)
    picked: Numbers = rows[best_pairs(values, starts, direction)]
    return picked


def _counts(starts: NDArray[np.int64]) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = np.diff(starts)
    if len(counts) and not counts.all():
        lonely = int(np.flatnonzero(counts == 0)[0])
        raise NeedsError(f"record {lonely} of the shard has no references; records without any must be left out before")
    return counts


# What an output and a reference share, as precision, recall and their harmonic mean.


class Overlap(NamedTuple):
    """Per pair: how much both have in common, and how much there is in either."""

    shared: NDArray[np.int64]
    in_output: NDArray[np.int64]
    in_reference: NDArray[np.int64]


def precision_recall_f(overlap: Overlap) -> NDArray[np.float64]:
    """Per pair a row (precision, recall, f); zeros where nothing is shared."""
    precision = overlap.shared / np.maximum(overlap.in_output, 1)
    recall = overlap.shared / np.maximum(overlap.in_reference, 1)
    both = precision + recall
    f = np.divide(2 * precision * recall, both, out=np.zeros_like(both), where=both > 0)
    return np.stack([precision, recall, f], axis=1)
