"""Which examples an update sees, and which of them are computed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Chosen = NDArray[np.int64]


class Sampler(Protocol):
    """Chooses examples. The same epoch always gives the same batches: a resumed training asks again."""

    @property
    def steps(self) -> int:
        """Batches of one epoch."""
        ...

    def batches(self, epoch: int) -> Sequence[Chosen]:
        """The epoch's batches, as positions of examples."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shuffled:
    """Every example once an epoch, in random order. With `bucket` above 1, the examples of so many batches in a row are
    sorted by length before they are cut into batches, which saves padding and makes batches a little less random."""

    lengths: NDArray[np.int64]
    batch: int
    seed: int
    bucket: int = 1

    @property
    def steps(self) -> int:
        return -(-len(self.lengths) // self.batch)

    def batches(self, epoch: int) -> list[Chosen]:
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.lengths)).astype(np.int64)
        if self.bucket == 1:
            return [order[at : at + self.batch] for at in range(0, len(order), self.batch)]
        window = self.batch * self.bucket
        drawn: list[Chosen] = []
        for at in range(0, len(order), window):
            part = order[at : at + window]
            part = part[np.argsort(self.lengths[part], kind="stable")]
            drawn += [part[start : start + self.batch] for start in range(0, len(part), self.batch)]
        return [drawn[number] for number in rng.permutation(len(drawn))]


def by_length(chosen: Chosen, lengths: NDArray[np.int64]) -> Chosen:
    """Longest first: if anything is too much for the memory, it is the first."""
    return chosen[np.argsort(-lengths[chosen], kind="stable")]


def parts(chosen: Chosen, lengths: NDArray[np.int64], max_tokens: int) -> list[Chosen]:
    """The examples in parts that are computed at once: of like length, each within the budget of tokens after padding.
    An example longer than the budget is a part of its own."""
    order = by_length(chosen, lengths)
    found, start = [], 0
    while start < len(order):
        room = max(1, max_tokens // max(1, int(lengths[order[start]])))
        found.append(order[start : start + room])
        start += room
    return found
