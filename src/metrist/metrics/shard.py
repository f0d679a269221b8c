"""Shards: records that are scored together, and pairs that are judged together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from metrist.records import Pair, Record
from metrist.runtime import Runtime

_T = TypeVar("_T")


class Shard:
    """Records that are scored together, the work that their metrics share, and the runtime to compute with.

    `once(key, make)` computes a value for the first metric that needs it and keeps it for the others. `tokens` asks
    metrics that look at single tokens to return a score for each. Without a `runtime`, the environment decides.
    """

    __slots__ = ("_made", "records", "runtime", "tokens")

    def __init__(self, records: Sequence[Record], *, tokens: bool = False, runtime: Runtime | None = None) -> None:
        self.records = tuple(records)
        self.tokens = tokens
        self.runtime = runtime or Runtime.current()
        self._made: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self.records)

    def once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The value of `make()`, computed at most once per shard and key."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[no-any-return]


class PairShard(Sequence[Pair]):
    """Pairs that a comparator judges together, and the runtime to compute with."""

    __slots__ = ("pairs", "runtime")

    def __init__(self, pairs: Sequence[Pair], *, runtime: Runtime | None = None) -> None:
        self.pairs = tuple(pairs)
        self.runtime = runtime or Runtime.current()

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: Any) -> Any:
        return self.pairs[index]


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Each output beside each of its references, as numbers into the shard's distinct texts.

    The pairs of record r are `starts[r]:starts[r + 1]`; pair p sets text `outputs[p]` against text `references[p]`.
    """

    texts: list[str]
    outputs: NDArray[np.int32]
    references: NDArray[np.int32]
    starts: NDArray[np.int64]


def pairs_of(shard: Shard) -> Pairs:
    """The shard's outputs beside their references, each distinct text listed once."""
    return shard.once("pairs", lambda: _pairs(shard.records))


def _pairs(records: Sequence[Record]) -> Pairs:
    outputs = [record.output for record in records]
    references = [record.references for record in records]
    counts = np.fromiter(map(len, references), np.int64, len(references))
    flat = list(chain.from_iterable(references))
    texts = list(dict.fromkeys(chain(outputs, flat)))
    number = dict(zip(texts, range(len(texts)), strict=True)).__getitem__
    return Pairs(
        texts,
        np.repeat(np.fromiter(map(number, outputs), np.int32, len(outputs)), counts),
        np.fromiter(map(number, flat), np.int32, len(flat)),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
    )
