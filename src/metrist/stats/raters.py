"""Ratings of one aspect as columns: which output, by whom, which value.

Outputs and raters are codes; a rater who is not known is -1. Nothing here knows a name or a text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metrist.errors import RunError

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]
UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ratings:
    """One entry per rating, in the order of their outputs; `outputs` counts all outputs, rated or not."""

    output: Codes
    rater: Codes
    value: Floats
    outputs: int

    @staticmethod
    def of(output: ArrayLike, rater: ArrayLike, value: ArrayLike, outputs: int | None = None) -> Ratings:
        """Ratings from long columns. A NaN is no rating and is left out."""
        codes, who, values = _codes(output), _codes(rater), np.asarray(value, dtype=np.float64)
        if not len(codes) == len(who) == len(values):
            raise RunError(
                f"ratings need one output, rater and value each, got {len(codes)}, {len(who)}, {len(values)}"
            )
        size = int(codes.max(initial=-1)) + 1 if outputs is None else outputs
        if len(codes) and (codes.min() < 0 or codes.max() >= size):
            raise RunError(f"output codes of ratings must lie in 0 to {size - 1}, found {codes.min()} to {codes.max()}")
        if np.isinf(values).any():
            raise RunError("ratings must be finite numbers, found infinity")
        given = np.flatnonzero(~np.isnan(values))
        order = given[np.argsort(codes[given], kind="stable")]
        return Ratings(output=codes[order], rater=who[order], value=values[order], outputs=size)

    @property
    def raters(self) -> Codes:
        """The codes of the raters who are known, ascending."""
        return np.unique(self.rater[self.rater != UNKNOWN])

    def counts(self) -> Codes:
        """How many ratings each output has."""
        return np.bincount(self.output, minlength=self.outputs)

    def chosen(self, mask: NDArray[np.bool_]) -> Ratings:
        """The ratings under the mask, of the same outputs."""
        return replace(self, output=self.output[mask], rater=self.rater[mask], value=self.value[mask])

    def check_named(self, purpose: str) -> None:
        """Refuse a per-rater statistic unless each rating has a rater, and a rater one rating per output."""
        unknown = int(np.count_nonzero(self.rater == UNKNOWN))
        if unknown:
            raise RunError(
                f"{purpose} needs to know who gave each rating, but {unknown:,} of {len(self.rater):,} ratings name no "
                "rater; add 'raters' to the data, or use a statistic that needs none"
            )
        repeated = len(self.rater) - len(np.unique(np.stack([self.output, self.rater]), axis=1).T)
        if repeated:
            raise RunError(
                f"{purpose} needs one rating per output and rater, but {repeated:,} of {len(self.rater):,} ratings "
                "repeat a rater on the same output; keep one of each"
            )

    def table(self, purpose: str) -> Floats:
        """Values (outputs, raters) in the order of `raters`, NaN where a rater gave none."""
        self.check_named(purpose)
        cells = np.full((self.outputs, len(self.raters)), np.nan)
        cells[self.output, np.searchsorted(self.raters, self.rater)] = self.value
        return cells


def summed(values: Floats, codes: Codes, size: int) -> Floats:
    """Sums of values by code."""
    return np.bincount(codes, weights=values, minlength=size).astype(np.float64)


def divided(sums: NDArray[Any], counts: NDArray[Any]) -> Floats:
    """Sums over counts, NaN where the count is 0."""
    quotient: Floats = np.divide(sums, counts, out=np.full(np.shape(sums), np.nan), where=counts > 0)
    return quotient


def _codes(column: ArrayLike) -> Codes:
    array: NDArray[Any] = np.asarray(column)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise RunError(f"outputs and raters are given as whole-number codes, got {array.dtype} values")
    return array.astype(np.intp)
