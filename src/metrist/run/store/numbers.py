"""Numbers as JSON text: the shortest digits that read back to the same float, in one way only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# JSON knows neither NaN nor infinity. A missing number is null; one too large for a double is read back as infinity.
_ODD = {"nan": "null", "inf": "1e999", "-inf": "-1e999"}

# Below this, every whole float is written with all its digits.
_EXACT = 2.0**53


def number_texts(column: NDArray[np.float64]) -> list[str]:
    """One text per number, as repr gives it."""
    if not len(column):
        return []
    # The repr of a whole list is several times faster than one repr per number.
    texts = repr(column.tolist())[1:-1].split(", ")
    return texts if np.isfinite(column).all() else [_ODD.get(text, text) for text in texts]


def count_texts(column: NDArray[np.float64]) -> list[str]:
    """As `number_texts`, with whole numbers written without their `.0`: statistics are mostly counts."""
    if len(column) and (np.abs(column) < _EXACT).all() and not (np.signbit(column) & (column == 0)).any():
        whole = column.astype(np.int64)
        if (whole == column).all():
            return repr(whole.tolist())[1:-1].split(", ")
    return [t[:-2] if t.endswith(".0") and t != "-0.0" else t for t in number_texts(column)]


def row_texts(columns: list[list[str]], size: int) -> list[str]:
    """The columns' texts side by side, as one JSON list per row."""
    return [f"[{','.join(row)}]" for row in zip(*columns, strict=True)] if columns else ["[]"] * size


def column_of(numbers: list[float | None]) -> NDArray[np.float64]:
    """Numbers as they were read from JSON, null as NaN."""
    return np.array(numbers, dtype=np.float64)
