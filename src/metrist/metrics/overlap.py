"""What an output and a reference share, as precision, recall and their harmonic mean."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


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
