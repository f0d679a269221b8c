"""Many tests at once: p-values adjusted so that a family of tests is as hard to fool as a single one.

A NaN is a test that was not made: it stays NaN and does not count into the family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError, did_you_mean

Correction = Literal["holm", "benjamini-hochberg", "none"]
CORRECTIONS: Mapping[str, str] = {
    "holm": "Holm: the chance of even one false finding among all pairs is at most alpha",
    "benjamini-hochberg": "Benjamini-Hochberg: at most a share alpha of the findings is expected to be false",
    "none": "none: each test stands alone, and one in twenty true nulls is rejected at .05",
}


def adjust(p_values: Sequence[float] | NDArray[np.float64], correction: Correction) -> NDArray[np.float64]:
    """The adjusted p-values, in the order given."""
    if correction not in CORRECTIONS:
        known = ", ".join(CORRECTIONS)
        raise RunError(f"no correction {correction!r}; known are {known}{did_you_mean(correction, CORRECTIONS)}")
    match correction:
        case "holm":
            return holm(p_values)
        case "benjamini-hochberg":
            return benjamini_hochberg(p_values)
        case "none":
            return np.array(p_values, dtype=np.float64)


def holm(p_values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's step-down adjustment, in the order given: reject where the adjusted value is at most alpha, and the chance
    of even one false finding in the family is at most alpha, however the tests depend on each other.
    """
    raw = np.asarray(p_values, dtype=np.float64)
    made = np.flatnonzero(~np.isnan(raw))
    order = made[np.argsort(raw[made], kind="stable")]
    stepped = raw[order] * np.arange(len(order), 0, -1)
    adjusted = np.full(raw.shape, np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return adjusted


def benjamini_hochberg(p_values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Benjamini and Hochberg's step-up adjustment, in the order given: reject where the adjusted value is at most
    alpha, and of all that is rejected a share of at most alpha is expected to be false.

    It holds for independent tests and for those that err in the same direction (1995; Benjamini & Yekutieli 2001).
    """
    raw = np.asarray(p_values, dtype=np.float64)
    made = np.flatnonzero(~np.isnan(raw))
    order = made[np.argsort(raw[made], kind="stable")]
    stepped = raw[order] * len(order) / np.arange(1, len(order) + 1)
    adjusted = np.full(raw.shape, np.nan)
    adjusted[order] = np.minimum(np.minimum.accumulate(stepped[::-1])[::-1], 1.0)
    return adjusted
