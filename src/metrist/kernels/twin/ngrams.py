"""N-grams that an output shares with its references."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from metrist.kernels.tokens import Tokens


def clipped_matches(
    tokens: Tokens, outputs: NDArray[np.int32], references: NDArray[np.int32], max_order: int
) -> NDArray[np.int64]:
    starts = np.arange(len(references) + 1, dtype=np.int64)
    return clipped_matches_grouped(tokens, outputs, references, starts, max_order)


def clipped_matches_grouped(
    tokens: Tokens,
    outputs: NDArray[np.int32],
    references: NDArray[np.int32],
    starts: NDArray[np.int64],
    max_order: int,
) -> NDArray[np.int64]:
    # Neighbouring records share references, and the records of a system share none: a short memory is enough.
    @lru_cache(maxsize=32)
    def counted(text: int, order: int) -> Counter[tuple[int, ...]]:
        ids = tokens.listed(text)
        return Counter(zip(*(ids[i:] for i in range(order)), strict=False))

    matches = np.zeros((len(starts) - 1, max_order), np.int64)
    for group, (first, last) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        for order in range(1, max_order + 1 if last > first else 0):
            allowed: Counter[tuple[int, ...]] = Counter()
            for reference in references[first:last].tolist():
                allowed |= counted(reference, order)
            matches[group, order - 1] = (allowed & counted(int(outputs[first]), order)).total()
    return matches
