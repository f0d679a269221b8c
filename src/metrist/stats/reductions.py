"""Score reductions on gold references: an error analyst should find nothing wrong with them (TIGERScore, Table 21)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionShares:
    """Shares of the references that were scored (`scored` of `total`), NaN where none was.

    The paper heads its second column "> -2" and explains it as a reduction of at most 1; the two readings differ
    where penalties come in halves, so both are here.
    """

    unreduced: float
    above_minus_two: float
    at_most_one: float
    scored: int
    total: int


def reduction_shares(scores: ArrayLike) -> ReductionShares:
    """How often an error analyst took nothing, less than 2, or at most 1 off; a score is minus the sum of penalties,
    and NaN where the analyst failed."""
    given = np.asarray(scores, np.float64).ravel()
    known = given[~np.isnan(given)]

    def share(kept: NDArray[np.bool_]) -> float:
        return float(kept.mean()) if len(kept) else float("nan")

    return ReductionShares(
        unreduced=share(known == 0),
        above_minus_two=share(known > -2),
        at_most_one=share(known >= -1),
        scored=len(known),
        total=len(given),
    )
