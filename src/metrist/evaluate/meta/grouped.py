"""What outputs are grouped by: one of meta's own groupings, or any column of the data."""

from __future__ import annotations

import numpy as np

from metrist.evaluate.meta.judged import Codes, Judged
from metrist.evaluate.meta.samples import Taken
from metrist.evaluate.meta.slices import column_of
from metrist.stats.grouping import GROUPINGS, Grouping


def grouping_of(judged: Judged, group: str, part: Taken) -> Grouping | Codes:
    """The grouping as meta takes it: by name, or a code per output of the sample."""
    for known in GROUPINGS:
        if group == known:
            return known
    return _column_codes(judged, group, part)


def group_codes(judged: Judged, group: str, part: Taken) -> Codes:
    """A code per output of the sample: outputs are paired where these are equal."""
    match group:
        case "none" | "system-level":
            return np.zeros(len(part.outputs), dtype=np.intp)
        case "item":
            return part.sample.item
        case "system":
            return part.sample.system
    return _column_codes(judged, group, part)


def _column_codes(judged: Judged, group: str, part: Taken) -> Codes:
    codes = column_of(judged, group, part.outputs).codes[part.outputs]
    # Outputs without a value in the column belong to no group: each stands alone and forms no pair.
    alone = codes < 0
    return np.where(alone, codes.max(initial=-1) + 1 + np.cumsum(alone), codes)
