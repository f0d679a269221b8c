"""The cosine of two texts' vectors, each the mean of its tokens' vectors or the vector of its first token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.metrics import references
from metrist.metrics.base import Reduce, check_choice
from metrist.metrics.embedding import Embedding, comparable, own_tokens
from metrist.metrics.shard import Pairs, Shard, pairs_of
from metrist.models.protocols import States
from metrist.records import Need
from metrist.scores import Scores

Pooling = Literal["mean", "cls"]
Other = Literal["references", "source"]


@dataclass(frozen=True, kw_only=True)
class EmbeddingCosine(Embedding):
    """How near the output lies to its references, or to its source, in the space of a sentence encoder."""

    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    pooling: Pooling = "mean"
    of: Other = "references"
    reduce: Reduce = "native"

    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    catalog_name: ClassVar[str | None] = "embedding_cosine"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "pooling", ("mean", "cls"))
        check_choice(self, "of", ("references", "source"))
        check_choice(self, "reduce", ("native", "max", "mean"))

    @property
    def needs(self) -> tuple[Need, ...]:
        return (self.of,)

    def score_piece(self, shard: Shard) -> Scores:
        pairs = pairs_of(shard) if self.of == "references" else _with_sources(shard)
        states = self.states(shard, [text.strip() for text in pairs.texts])
        found = comparable(pairs, own_tokens(states) > 0)
        pooled = _pooled(states, self.pooling)
        cosines = np.einsum("ij,ij->i", pooled[found.pairs.outputs], pooled[found.pairs.references]).clip(-1, 1)
        values = references.best_or_mean(cosines, cosines, found.pairs.starts, self.reduce)
        scores = Scores(values=values).spread(len(shard), found.positions, found.failures)
        return Scores(values=scores.values, parts=self.length_parts(states, pairs), failures=scores.failures)


def _with_sources(shard: Shard) -> Pairs:
    """Each output beside its source."""
    records = [replace(r, references=() if r.source is None else (r.source,)) for r in shard.records]
    return shard.once("pairs with sources", lambda: pairs_of(Shard(records)))


def _pooled(states: States, pooling: Pooling) -> NDArray[np.float64]:
    """One vector of length 1 per text; zeros for a text without tokens."""
    pooled = np.zeros((len(states), states.vectors.shape[1]))
    filled = np.flatnonzero(np.diff(states.starts))
    starts = states.starts[filled]
    if pooling == "cls":
        pooled[filled] = states.vectors[starts]
    elif len(filled):
        # The sum points where the mean does, and only the direction counts.
        pooled[filled] = np.add.reduceat(states.vectors, starts, axis=0, dtype=np.float64)
    lengths = np.linalg.norm(pooled, axis=1, keepdims=True)
    return pooled / np.where(lengths > 0, lengths, 1)
