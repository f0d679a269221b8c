"""Batches by a budget of tokens, and what happens when one does not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

#: What is said of an item that does not fit into memory on its own.
TOO_LARGE = "does not fit into the device's memory even alone ({tokens} tokens); use a smaller max_tokens or model"


class MemoryIsShort(RuntimeError):
    """An item would fit if less were held beside it: whoever holds it should hold less and try again."""

    def __init__(self) -> None:
        super().__init__("out of memory beside what is held for other items")


class Budget:
    """How many tokens are computed at once; shrinks when memory runs out and stays small for later calls."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def halve(self, used: int) -> None:
        """Half of what was tried last, which may have been less than the budget."""
        self.tokens = max(1, min(self.tokens, used) // 2)


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Positions by falling length, so that a batch pads little and the one that may not fit comes first."""
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


def batches(lengths: Sequence[int], tokens: int, *, padded: bool = True) -> Iterator[list[int]]:
    """Positions cut into runs whose size, padded to their longest or summed, stays within `tokens`. An item above it
    comes alone."""
    start = 0
    while start < len(lengths):
        stop = _stop(lengths, start, tokens, padded)
        yield list(range(start, stop))
        start = stop


def halving(
    lengths: Sequence[int],
    budget: Budget,
    work: Callable[[list[int]], None],
    free: Callable[[], None],
    *,
    padded: bool = True,
) -> dict[int, str]:
    """Run `work` over batches of positions in the order given. When memory runs out, free it, halve the budget and go
    on from the batch that failed. Gives a reason for each position that does not fit even alone."""
    failures: dict[int, str] = {}
    start = 0
    while start < len(lengths):
        stop = _stop(lengths, start, budget.tokens, padded)
        if not _fits(work, list(range(start, stop))):
            free()
            if stop - start > 1:
                used = _size(lengths[start:stop], padded)
                budget.halve(used)
                continue
            failures[start] = TOO_LARGE.format(tokens=f"{lengths[start]:,}")
        start = stop
    return failures


def out_of_memory(fault: BaseException) -> bool:
    """Whether a fault says that a device's memory is full."""
    return type(fault).__name__ == "OutOfMemoryError" or (
        isinstance(fault, RuntimeError) and any(sign in str(fault).lower() for sign in _SIGNS)
    )


_SIGNS = ("out of memory", "not enough memory", "can't allocate memory", "cublas_status_alloc_failed")


def _fits(work: Callable[[list[int]], None], batch: list[int]) -> bool:
    # Memory is freed by the caller: inside the except clause the traceback would keep the batch's tensors alive.
    try:
        work(batch)
    except Exception as fault:
        if not out_of_memory(fault):
            raise
        return False
    return True


def _stop(lengths: Sequence[int], start: int, tokens: int, padded: bool) -> int:
    longest = total = 0
    for at in range(start, len(lengths)):
        longest = max(longest, lengths[at])
        total += lengths[at]
        if at > start and (longest * (at - start + 1) if padded else total) > tokens:
            return at
    return len(lengths)


def _size(lengths: Sequence[int], padded: bool) -> int:
    return max(lengths) * len(lengths) if padded else sum(lengths)
