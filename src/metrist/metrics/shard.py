"""A shard: the records that are scored together, and the work that their metrics share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from metrist.records import Record
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
        self.runtime = runtime or Runtime.from_environment()
        self._made: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self.records)

    def once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What `make` gives, made at most once per shard and key."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[no-any-return]


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
    seen: dict[str, int] = {}
    number = seen.setdefault
    outputs: list[int] = []
    references: list[int] = []
    starts = [0]
    for record in records:
        output = number(record.output, len(seen))
        for reference in record.references:
            outputs.append(output)
            references.append(number(reference, len(seen)))
        starts.append(len(outputs))
    return Pairs(list(seen), np.array(outputs, np.int32), np.array(references, np.int32), np.array(starts, np.int64))
