"""Measures that never pair an output with a copy of itself.

A resample may hold an output several times. Its copies would be tied by humans and metric alike, and so be pairs that
every metric gets right: accuracies on resamples would lie above those on the data, the more so the smaller a group is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from metrist.kernels.arranging import Floats, Places, segment_sums
from metrist.meta.measures import Measure

#: Where a row of pair counts has the pairs that both sides tie.
_BOTH = 4
_COUNTS = 5


def distinct(measure: Measure) -> Measure:
    """The measure without pairs of copies; one that is not made of pair counts stays what it is. On outputs that are
    there once each, nothing changes."""

    def rows(human: Floats, metric: Floats, weights: Floats, starts: Places) -> Floats:
        counts = measure.grouped_rows(human, metric, weights, starts)
        if counts.shape[-1] == _COUNTS:
            counts[..., _BOTH] -= segment_sums(weights * (weights - 1) / 2, starts)
            np.maximum(counts, 0.0, out=counts)
        return counts

    return replace(measure, grouped_rows=rows)
