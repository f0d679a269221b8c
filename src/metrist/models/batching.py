"""Batches by a budget of tokens, and what happens when one does not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from metrist.models.protocols import Likelihoods
from metrist.models.tokenization import Ids

#: What is said of an item that does not fit into memory on its own.
TOO_LARGE = "does not fit into the device's memory even alone ({tokens} tokens); use a smaller max_tokens or model"


class MemoryShortage(RuntimeError):
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


def split_batches(lengths: Sequence[int], tokens: int, *, padded: bool = True) -> Iterator[list[int]]:
    """Positions cut into runs whose size, padded to their longest or summed, stays within `tokens`. An item above it
    comes alone."""
    start = 0
    while start < len(lengths):
        stop = _stop(lengths, start, tokens, padded)
        yield list(range(start, stop))
        start = stop


def run_in_batches(
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


def is_out_of_memory(fault: BaseException) -> bool:
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
        if not is_out_of_memory(fault):
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


# Pairs of texts as work: equal texts and equal pairs once, in an order that keeps a condition's targets together, and
# results laid out again as they were asked for.


class DistinctPairs:
    """Distinct conditions, and for each its distinct targets. Conditions and targets are known by their number."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        conditions: dict[str, int] = {}
        targets: dict[str, int] = {}
        distinct: dict[tuple[int, int], int] = {}
        #: For every pair asked for, the number of the distinct pair that answers it.
        self.answers = np.empty(len(pairs), dtype=np.int64)
        for at, (condition, target) in enumerate(pairs):
            key = (conditions.setdefault(condition, len(conditions)), targets.setdefault(target, len(targets)))
            self.answers[at] = distinct.setdefault(key, len(distinct))
        self.conditions, self.targets, self.pairs = list(conditions), list(targets), list(distinct)
        self._of: list[list[int]] = [[] for _ in conditions]
        for pair, (condition_number, _) in enumerate(self.pairs):
            self._of[condition_number].append(pair)

    def of(self, conditions: Sequence[int]) -> list[int]:
        """The pairs of some conditions, condition after condition."""
        return [pair for condition in conditions for pair in self._of[condition]]

    def first_needed(self, conditions: Sequence[int]) -> list[int]:
        """All targets in the order in which those conditions need them."""
        return list(dict.fromkeys(self.pairs[pair][1] for pair in self.of(conditions)))


class PairResults:
    """What was found for the distinct pairs, until all of it is known."""

    def __init__(self, work: DistinctPairs) -> None:
        self._work = work
        self.labels: list[Ids] = [np.empty(0, dtype=np.int64)] * len(work.pairs)
        self.condition_cut = np.zeros(len(work.conditions), dtype=np.int64)
        self.target_cut = np.zeros(len(work.targets), dtype=np.int64)
        self.failures: dict[int, str] = {}
        #: Distinct pairs in the order in which their log-probabilities will come.
        self.order: list[int] = []

    def laid_out(self, logprobs: NDArray[np.float32]) -> Likelihoods:
        """Log-probabilities that came in `order`, as the pairs were asked for."""
        work = self._work
        lengths = np.zeros(len(work.pairs), dtype=np.int64)
        lengths[self.order] = [len(self.labels[pair]) for pair in self.order]
        begin = np.zeros(len(work.pairs), dtype=np.int64)
        begin[self.order] = np.cumsum(lengths[self.order]) - lengths[self.order]
        tokens = np.concatenate([np.empty(0, dtype=np.int64), *(self.labels[pair] for pair in self.order)])
        wanted = lengths[work.answers]
        starts = np.concatenate([[0], np.cumsum(wanted)]).astype(np.int64)
        at = np.repeat(begin[work.answers] - starts[:-1], wanted) + np.arange(starts[-1])
        both = np.array(work.pairs, dtype=np.int64).reshape(-1, 2)[work.answers]
        return Likelihoods(
            logprobs=logprobs[at],
            tokens=tokens[at],
            starts=starts,
            condition_cut=self.condition_cut[both[:, 0]],
            target_cut=self.target_cut[both[:, 1]],
            failures=self._failures(),
        )

    def _failures(self) -> Mapping[int, str]:
        if not self.failures:
            return {}
        return {at: self.failures[pair] for at, pair in enumerate(self._work.answers.tolist()) if pair in self.failures}
