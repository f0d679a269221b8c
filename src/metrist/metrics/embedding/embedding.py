"""Base of metrics that compare token vectors of an encoder, and the cosine of whole texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import SpecError
from metrist.metrics.base import Pairs, Reduce, Shard, hash_file, pairs_of, reduce_references
from metrist.metrics.model_metric import CUT, ModelMetric, count_above, count_scored
from metrist.metrics.token_weights import DocumentFrequencies, read_texts
from metrist.models import loading
from metrist.models.devices import Options
from metrist.models.protocols import EncoderModel, Long, States
from metrist.records import Need, Record
from metrist.scores import Column, Failure, FailureKind, Scores

#: The part that counts texts longer than the model's context, which were read in windows.
WINDOWED = "windowed_texts"

#: Characters of distinct texts whose vectors are held at a time: half a gigabyte for a large model.
_MAX_TEXT = 1 << 19


class Comparable(NamedTuple):
    """The pairs that can be compared, the positions of records that have any, and why the others have none."""

    pairs: Pairs
    positions: list[int]
    failures: dict[int, Failure]


@dataclass(frozen=True, kw_only=True)
class Embedding(ModelMetric):
    """A metric that compares vectors of tokens, taken from a layer of an encoder."""

    #: None: the metric's default for the model, usually the last layer.
    layer: int | None = None
    long: Long = "windows"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer is not None and self.layer < 0:
            raise SpecError(f"{self.name}: layer must be 0 (the embeddings) or more, got {self.layer}")

    def facts(self) -> Mapping[str, str]:
        layer = self.resolved_layer
        return {**super().facts(), "layer": "last" if layer is None else str(layer)}

    @property
    def resolved_layer(self) -> int | None:
        """The layer whose vectors are compared; None: the last."""
        return self.layer

    def score(self, shard: Shard) -> Scores:
        parts = _split_by_memory(shard.records)
        if not parts:
            return Scores.of([])  # Nothing to load the model for.
        if len(parts) == 1:
            return self.score_part(shard)
        blocks = [self.score_part(Shard([shard.records[i] for i in part], runtime=shard.runtime)) for part in parts]
        return Scores.join(blocks).spread(len(shard), [i for part in parts for i in part], {})

    def score_part(self, shard: Shard) -> Scores:
        """Score the records of a shard whose vectors fit into memory together."""
        raise NotImplementedError(f"{type(self).__name__} must define score_part(self, shard)")

    def encoder(self) -> EncoderModel:
        return loading.load_encoder(self.options)

    def states(self, shard: Shard, texts: list[str]) -> States:
        """The texts' vectors, shared by all metrics of the shard with the same settings."""
        key = ("states", self.options, self.resolved_layer, self.long, tuple(texts))
        return shard.once(key, lambda: self.encoder().states(texts, self.resolved_layer, self.long))

    def make_scores(
        self, values: Column, parts: Mapping[str, Column], comparable: Comparable, states: States, pairs: Pairs
    ) -> Scores:
        """Scores of all records of the shard from the values of the comparable ones, with counts of cut tokens and of
        texts read in windows."""
        size = len(pairs.starts) - 1
        scores = Scores(values=values, parts=parts).spread(size, comparable.positions, comparable.failures)
        is_long = np.diff(states.starts) > self.encoder().limit
        lengths = {CUT: _sum_by_record(states.cut, pairs), WINDOWED: _sum_by_record(is_long.astype(np.int64), pairs)}
        return Scores(values=scores.values, parts={**scores.parts, **lengths}, failures=scores.failures)

    def remarks(self, scores: Scores) -> list[str]:
        remarks = super().remarks(scores)
        if count := count_above(scores, WINDOWED, 0):
            texts = "texts longer than the model's context; these were read in overlapping windows"
            remarks.append(f"{self.label}: {count:,} of {count_scored(scores)} had {texts}")
        return remarks


def _split_by_memory(records: Sequence[Record]) -> list[list[int]]:
    """Split positions of records into parts of at most about `_MAX_TEXT` characters of distinct texts. Records with
    the same references or source stay together, so that shared texts are encoded once."""
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for position, record in enumerate(records):
        groups.setdefault((record.source, *record.references), []).append(position)
    parts: list[list[int]] = []
    seen: set[str] = set()
    size = 0
    for position in (position for group in groups.values() for position in group):
        record = records[position]
        texts = {record.output, record.source or "", *record.references}
        if not parts or size + sum(map(len, texts - seen)) > _MAX_TEXT:
            parts.append([])
            seen, size = set(), 0
        parts[-1].append(position)
        size += sum(map(len, texts - seen))
        seen |= texts
    return parts


def select_comparable(pairs: Pairs, has_tokens: NDArray[np.bool_]) -> Comparable:
    """Select the pairs of which both texts have something to compare. A record without such a pair fails."""
    selected = has_tokens[pairs.outputs] & has_tokens[pairs.references]
    counts = np.add.reduceat(np.append(selected, False), pairs.starts[:-1], dtype=np.int64)
    counts[np.diff(pairs.starts) == 0] = 0
    failures = {}
    for record in np.flatnonzero(counts == 0).tolist():
        first = pairs.starts[record]
        empty_output = first < pairs.starts[record + 1] and not has_tokens[pairs.outputs[first]]
        reason = "the output has no token to compare" if empty_output else "no token to compare the output with"
        failures[record] = Failure(FailureKind.missing_input, reason)
    positions = np.flatnonzero(counts)
    starts = np.cumsum([0, *counts[positions]]).astype(np.int64)
    return Comparable(
        Pairs(pairs.texts, pairs.outputs[selected], pairs.references[selected], starts), positions.tolist(), failures
    )


def count_own_tokens(states: States) -> NDArray[np.int64]:
    """The number of tokens of each text, without special tokens."""
    running = np.concatenate([[0], np.cumsum(~states.special)])
    counts: NDArray[np.int64] = np.diff(running[states.starts])
    return counts


def _sum_by_record(counts: NDArray[np.int64], pairs: Pairs) -> Column:
    """Sum counts per text over each record's output and distinct references."""
    sums = np.zeros(len(pairs.starts) - 1)
    for record in np.flatnonzero(np.diff(pairs.starts)).tolist() if counts.any() else ():
        start, end = pairs.starts[record], pairs.starts[record + 1]
        sums[record] = counts[list({int(pairs.outputs[start]), *pairs.references[start:end].tolist()})].sum()
    return sums


@dataclass(frozen=True, kw_only=True)
class WeightedEmbedding(Embedding):
    """A metric on token vectors whose tokens may be weighted by inverse document frequency."""

    #: A file of texts; False is the same as None, for users of bert-score.
    idf: str | bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.idf is True:
            raise SpecError(f"{self.name}: idf must name a file of texts or records, such as idf='references.txt'")
        object.__setattr__(self, "idf", self.idf or None)

    def facts(self) -> Mapping[str, str]:
        return {**super().facts(), **({"idf": hash_file(self.idf)} if isinstance(self.idf, str) else {})}

    def weights(self, states: States) -> NDArray[np.float64]:
        """The weight of each token; without idf, special tokens have weight 0 and all others 1."""
        if not isinstance(self.idf, str):
            return (~states.special).astype(np.float64)
        word_start = self.encoder().word_start
        frequencies = _count_documents(self.idf, hash_file(self.idf), self.options, self.long, word_start)
        return frequencies.idf(states.tokens)


@lru_cache(maxsize=8)
def _count_documents(path: str, _hash: str, options: Options, long: Long, word_start: str) -> DocumentFrequencies:
    encoder = loading.load_encoder(options)
    return DocumentFrequencies.count(encoder.token_ids([word_start + text for text in read_texts(path)], long))


Pooling = Literal["mean", "cls"]
Other = Literal["references", "source"]


@dataclass(frozen=True, kw_only=True)
class EmbeddingCosine(Embedding):
    """The cosine between the vectors of output and references, or source. The vector of a text is the mean of its
    tokens' vectors or that of its first token."""

    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    pooling: Pooling = "mean"
    of: Other = "references"
    reduce: Reduce = "native"

    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    catalog_name: ClassVar[str | None] = "embedding_cosine"

    @property
    def needs(self) -> tuple[Need, ...]:
        return (self.of,)

    def score_part(self, shard: Shard) -> Scores:
        if self.of == "source":
            sources = [replace(r, references=() if r.source is None else (r.source,)) for r in shard.records]
            pairs = shard.once("pairs with sources", lambda: pairs_of(Shard(sources, runtime=shard.runtime)))
        else:
            pairs = pairs_of(shard)
        states = self.states(shard, [text.strip() for text in pairs.texts])
        comparable = select_comparable(pairs, count_own_tokens(states) > 0)
        # One unit vector per text; zeros for a text without tokens.
        pooled = np.zeros((len(states), states.vectors.shape[1]))
        filled = np.flatnonzero(np.diff(states.starts))
        starts = states.starts[filled]
        if self.pooling == "cls":
            pooled[filled] = states.vectors[starts]
        elif len(filled):
            # The sum has the direction of the mean, and only the direction counts.
            pooled[filled] = np.add.reduceat(states.vectors, starts, axis=0, dtype=np.float64)
        norms = np.linalg.norm(pooled, axis=1, keepdims=True)
        vectors = pooled / np.where(norms > 0, norms, 1)
        outputs, others = vectors[comparable.pairs.outputs], vectors[comparable.pairs.references]
        cosines = np.einsum("ij,ij->i", outputs, others).clip(-1, 1)
        values = reduce_references(cosines, cosines, comparable.pairs.starts, self.reduce)
        return self.make_scores(values, {}, comparable, states, pairs)
