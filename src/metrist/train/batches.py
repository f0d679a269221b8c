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
        return _cut(order, self.lengths, self.batch, self.bucket, rng)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Balanced:
    """As many examples an epoch as there are, but of each group in proportion to its size to the power `balance`: 1
    leaves things as they are, 0 gives all groups the same share. A group goes through all its examples in random order,
    epoch after epoch, before one comes again."""

    lengths: NDArray[np.int64]
    groups: Sequence[str]
    batch: int
    seed: int
    balance: float
    bucket: int = 1

    @property
    def steps(self) -> int:
        return -(-len(self.lengths) // self.batch)

    @property
    def draws(self) -> dict[str, int]:
        """How many examples of each group an epoch has."""
        sizes = {group: len(members) for group, members in self._members().items()}
        whole = sum(size**self.balance for size in sizes.values())
        exact = {group: len(self.lengths) * size**self.balance / whole for group, size in sizes.items()}
        found = {group: int(share) for group, share in exact.items()}
        by_rest = sorted(exact, key=lambda group: found[group] - exact[group])
        for group in by_rest[: len(self.lengths) - sum(found.values())]:
            found[group] += 1
        return found

    def batches(self, epoch: int) -> list[Chosen]:
        members = self._members()
        drawn = [
            members[group][self._places(number, len(members[group]), epoch * draws, draws)]
            for number, (group, draws) in enumerate(self.draws.items())
        ]
        rng = np.random.default_rng([self.seed, epoch])
        return _cut(rng.permutation(np.concatenate(drawn)), self.lengths, self.batch, self.bucket, rng)

    def _members(self) -> dict[str, Chosen]:
        found: dict[str, list[int]] = {}
        for number, group in enumerate(self.groups):
            found.setdefault(group, []).append(number)
        return {group: np.array(numbers, np.int64) for group, numbers in found.items()}

    def _places(self, group: int, size: int, start: int, count: int) -> Chosen:
        """So many of a group's places in an endless row of permutations, from `start` on."""
        first, last = start // size, -(-(start + count) // size)
        rounds = [np.random.default_rng([self.seed, group, at, 1]).permutation(size) for at in range(first, last)]
        row = np.concatenate([np.zeros(0, np.int64), *rounds]).astype(np.int64)
        return row[start - first * size :][:count]


def _cut(order: Chosen, lengths: NDArray[np.int64], batch: int, bucket: int, rng: np.random.Generator) -> list[Chosen]:
    """The examples as batches, in the order given, or sorted by length within `bucket` batches in a row."""
    if bucket == 1:
        return [order[at : at + batch] for at in range(0, len(order), batch)]
    window = batch * bucket
    drawn: list[Chosen] = []
    for at in range(0, len(order), window):
        part = order[at : at + window]
        part = part[np.argsort(lengths[part], kind="stable")]
        drawn += [part[start : start + batch] for start in range(0, len(part), batch)]
    return [drawn[number] for number in rng.permutation(len(drawn))]


def sort_by_length(chosen: Chosen, lengths: NDArray[np.int64]) -> Chosen:
    """Longest first: if anything is too much for the memory, it is the first."""
    return chosen[np.argsort(-lengths[chosen], kind="stable")]


def split_parts(chosen: Chosen, lengths: NDArray[np.int64], max_tokens: int) -> list[Chosen]:
    """The examples in parts that are computed at once: of like length, each within the budget of tokens after padding.
    An example longer than the budget is a part of its own."""
    order = sort_by_length(chosen, lengths)
    found, start = [], 0
    while start < len(order):
        room = max(1, max_tokens // max(1, int(lengths[order[start]])))
        found.append(order[start : start + room])
        start += room
    return found
