"""Many tests at once: p-values adjusted so that a family of tests is as hard to fool as a single one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def holm(p_values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's step-down adjustment, in the order given: reject where the adjusted value is at most alpha, and the chance
    of even one false finding in the family is at most alpha, however the tests depend on each other.

    A NaN is a test that was not made: it stays NaN and does not count into the family.
    """
    raw = np.asarray(p_values, dtype=np.float64)
    made = np.flatnonzero(~np.isnan(raw))
    order = made[np.argsort(raw[made], kind="stable")]
    stepped = raw[order] * np.arange(len(order), 0, -1)
    adjusted = np.full(raw.shape, np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return adjusted
