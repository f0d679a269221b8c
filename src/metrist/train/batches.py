"""Samplers choose the examples of each update; `split_parts` divides them into parts that fit into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from metrist.models.batching import split_batches

Indices = NDArray[np.int64]


class Sampler(Protocol):
    """Chooses examples. An epoch always has the same batches, so that a resumed training sees the same data."""

    @property
    def steps(self) -> int:
        """The number of batches per epoch."""

    def batches(self, epoch: int) -> Sequence[Indices]:
        """Return the epoch's batches as indices of examples."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shuffled:
    """Draws every example once per epoch in random order. With `bucket` above 1, the examples of that many consecutive
    batches are sorted by length before they are cut into batches: less padding, slightly less random batches."""

    lengths: NDArray[np.int64]
    batch: int
    seed: int
    bucket: int = 1

    @property
    def steps(self) -> int:
        return -(-len(self.lengths) // self.batch)

    def batches(self, epoch: int) -> list[Indices]:
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.lengths)).astype(np.int64)
        return _cut(order, self.lengths, self.batch, self.bucket, rng)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Balanced(Shuffled):
    """Draws as many examples per epoch as there are, from each group in proportion to its size to the power `balance`:
    1 keeps the proportions, 0 gives all groups equal shares. Across epochs, a group uses all its examples in random
    order before it repeats one."""

    groups: Sequence[str]
    balance: float

    @property
    def draws(self) -> dict[str, int]:
        """The number of examples per epoch by group, rounded by largest remainder."""
        sizes = {group: len(members) for group, members in self._members().items()}
        total = sum(size**self.balance for size in sizes.values())
        exact = {group: len(self.lengths) * size**self.balance / total for group, size in sizes.items()}
        counts = {group: int(share) for group, share in exact.items()}
        by_remainder = sorted(exact, key=lambda group: counts[group] - exact[group])
        for group in by_remainder[: len(self.lengths) - sum(counts.values())]:
            counts[group] += 1
        return counts

    def batches(self, epoch: int) -> list[Indices]:
        members = self._members()
        drawn = []
        for number, (group, draws) in enumerate(self.draws.items()):
            # Positions in the group, from where the last epoch ended in an endless sequence of permutations.
            size, start = len(members[group]), epoch * draws
            first, last = start // size, -(-(start + draws) // size)
            rounds = [np.random.default_rng([self.seed, number, at, 1]).permutation(size) for at in range(first, last)]
            sequence = np.concatenate([np.zeros(0, np.int64), *rounds]).astype(np.int64)
            drawn.append(members[group][sequence[start - first * size :][:draws]])
        rng = np.random.default_rng([self.seed, epoch])
        return _cut(rng.permutation(np.concatenate(drawn)), self.lengths, self.batch, self.bucket, rng)

    def _members(self) -> dict[str, Indices]:
        members: dict[str, list[int]] = {}
        for number, group in enumerate(self.groups):
            members.setdefault(group, []).append(number)
        return {group: np.array(numbers, np.int64) for group, numbers in members.items()}


def _cut(
    order: Indices, lengths: NDArray[np.int64], batch: int, bucket: int, rng: np.random.Generator
) -> list[Indices]:
    """Cut the examples into batches, sorted by length within `bucket` consecutive batches."""
    if bucket == 1:
        return [order[at : at + batch] for at in range(0, len(order), batch)]
    window = batch * bucket
    batches: list[Indices] = []
    for at in range(0, len(order), window):
        part = order[at : at + window]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[start : start + batch] for start in range(0, len(part), batch)]
    return [batches[number] for number in rng.permutation(len(batches))]


def sort_by_length(indices: Indices, lengths: NDArray[np.int64]) -> Indices:
    """Sort longest first, so that running out of memory shows up at the start."""
    return indices[np.argsort(-lengths[indices], kind="stable")]


def split_parts(
    indices: Indices, lengths: NDArray[np.int64], max_tokens: int, *, packed: bool = False
) -> list[Indices]:
    """Split examples into parts of similar length, each at most `max_tokens` after padding, or without padding if
    examples are `packed` into shared rows. An example longer than that forms a part alone."""
    order = sort_by_length(indices, lengths)
    return [order[part] for part in split_batches(lengths[order].tolist(), max_tokens, padded=not packed)]
