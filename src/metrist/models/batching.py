"""Batches within a token budget, their padding, and recovery when one does not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The failure of an item that does not fit into memory alone.
TOO_LARGE = "does not fit into the device's memory even alone ({tokens} tokens); use a smaller max_tokens or model"

_OOM_PHRASES = ("out of memory", "not enough memory", "can't allocate memory", "cublas_status_alloc_failed")


class MemoryShortage(RuntimeError):
    """An item would fit if fewer other items were in memory: the caller should hold less and try again."""


@dataclass(eq=False)
class TokenBudget:
    """The number of tokens computed at once. It shrinks when memory runs out and stays small for later calls."""

    tokens: int


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Return positions by descending length: batches pad little, and those that may not fit come first."""
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


def split_batches(lengths: Sequence[int], tokens: int, *, padded: bool = True) -> Iterator[list[int]]:
    """Yield consecutive positions whose total size, padded to the longest or summed, is at most `tokens`. A larger item
    forms a batch alone."""
    start = 0
    while start < len(lengths):
        stop = _batch_end(lengths, start, tokens, padded)
        yield list(range(start, stop))
        start = stop


def run_in_batches(
    lengths: Sequence[int],
    budget: TokenBudget,
    work: Callable[[list[int]], None],
    free: Callable[[], None],
    *,
    padded: bool = True,
) -> dict[int, str]:
    """Run `work` over batches of positions: the longest first if they are padded, else in order. When memory runs out,
    free it, halve the budget and continue with the batch that failed. Return a reason for each position that does not
    fit even alone."""
    order = longest_first(lengths) if padded else list(range(len(lengths)))
    sizes = [lengths[at] for at in order]
    failures: dict[int, str] = {}
    start = 0
    while start < len(order):
        stop = _batch_end(sizes, start, budget.tokens, padded)
        is_full = False
        try:
            work(order[start:stop])
        except Exception as fault:
            if not is_out_of_memory(fault):
                raise
            is_full = True
        # Memory is freed after the except clause: in it, the traceback would keep the batch's tensors alive.
        if is_full:
            free()
            if stop - start > 1:
                # What was tried last may be less than the budget.
                used = sizes[start] * (stop - start) if padded else sum(sizes[start:stop])
                budget.tokens = max(1, min(budget.tokens, used) // 2)
                continue
            failures[order[start]] = TOO_LARGE.format(tokens=f"{sizes[start]:,}")
        start = stop
    return failures


def pad_rows(rows: Sequence[Any], fill: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows of tokens as one table, padded on the right, and its mask."""
    lengths = np.array([len(row) for row in rows], np.int64)
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, fill, np.int64)
    ids[mask] = np.concatenate(rows)
    return ids, mask.astype(np.int64)


def is_out_of_memory(fault: BaseException) -> bool:
    """Whether an exception means that the device's memory is full."""
    if isinstance(fault, MemoryShortage) or type(fault).__name__ == "OutOfMemoryError":
        return True
    return isinstance(fault, RuntimeError) and any(phrase in str(fault).lower() for phrase in _OOM_PHRASES)


def _batch_end(lengths: Sequence[int], start: int, tokens: int, padded: bool) -> int:
    longest = total = 0
    for at in range(start, len(lengths)):
        longest = max(longest, lengths[at])
        total += lengths[at]
        if at > start and (longest * (at - start + 1) if padded else total) > tokens:
            return at
    return len(lengths)
