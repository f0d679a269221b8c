"""What metrics on vectors have in common: texts encoded once a shard, and what is said of texts that are too long or
that have nothing to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import SpecError
from metrist.metrics.base import Reduce, check_choice
from metrist.metrics.lexical import references
from metrist.metrics.model_metric import CUT, ModelMetric
from metrist.metrics.shard import Pairs, Shard, pairs_of
from metrist.metrics.token_weights import DocumentFrequencies, fingerprint, read_texts
from metrist.models import loading
from metrist.models.devices import Options
from metrist.models.protocols import EncoderModel, Long, States
from metrist.records import Need, Record
from metrist.scores import Column, Scores

#: The part that counts which of an output's texts were longer than the model takes at once and were read in windows.
WINDOWED = "windowed_texts"

#: Characters of distinct texts whose vectors are held at a time: half a gigabyte of them for a large model.
_MOST_TEXT = 1 << 19

_BARE_OUTPUT = "the output has no token to compare"
_BARE_OTHER = "there is no token to compare the output with"


@dataclass(frozen=True, kw_only=True)
class Embedding(ModelMetric):
    """A metric that compares vectors of tokens, taken after a layer of an encoder."""

    #: None: the metric's own choice for the model, the last layer as a rule.
    layer: int | None = None
    long: Long = "windows"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "long", ("windows", "truncate"))
        if self.layer is not None and self.layer < 0:
            raise SpecError(f"{self.name}: layer must be 0 (the embeddings) or more, got {self.layer}")

    def facts(self) -> Mapping[str, str]:
        """The weights' hash, and the layer where the settings leave it open."""
        chosen = self.chosen_layer
        return {**super().facts(), "layer": "last" if chosen is None else str(chosen)}

    @property
    def chosen_layer(self) -> int | None:
        """After which layer vectors are taken; None: the last."""
        return self.layer

    def score(self, shard: Shard) -> Scores:
        pieces = _pieces(shard.records)
        if not pieces:
            return Scores.of([])  # No reason to load a model.
        if len(pieces) == 1:
            return self.score_piece(shard)
        found = [self.score_piece(Shard([shard.records[i] for i in piece])) for piece in pieces]
        return Scores.join(found).spread(len(shard), [i for piece in pieces for i in piece], {})

    def score_piece(self, shard: Shard) -> Scores:
        """One score per record of a shard whose vectors fit into memory together."""
        raise NotImplementedError(f"{type(self).__name__} must define score_piece(self, shard)")

    def encoder(self) -> EncoderModel:
        """The model, loaded at most once a process."""
        return loading.load_encoder(self.options)

    def states(self, shard: Shard, texts: list[str]) -> States:
        """The texts' vectors, shared by all metrics of the shard that ask for the same."""
        key = ("states", self.options, self.chosen_layer, self.long, tuple(texts))
        return shard.once(key, lambda: self.encoder().states(texts, self.chosen_layer, self.long))

    def length_parts(self, states: States, pairs: Pairs) -> dict[str, Column]:
        """Per record: how many tokens of its texts were cut, and how many of its texts were read in windows."""
        long = np.diff(states.starts) > self.encoder().limit
        return {CUT: _per_record(states.cut, pairs), WINDOWED: _per_record(long.astype(np.int64), pairs)}

    def remarks(self, scores: Scores) -> list[str]:
        """How many outputs had texts cut or read in windows, if any."""
        windowed = scores.parts.get(WINDOWED)
        touched = int(np.count_nonzero(windowed > 0)) if windowed is not None else 0
        said = f"{self.text}: {touched:,} of {len(scores):,} outputs had texts longer than the model takes at once"
        return [*super().remarks(scores), *([f"{said}; these were read in overlapping windows"] if touched else [])]


def _pieces(records: Sequence[Record]) -> list[list[int]]:
    """Positions of records cut so that no piece has much more than `_MOST_TEXT` characters of distinct texts. Records
    with the same references or source stay together, wherever they stand: what they share is encoded once."""
    sharing: dict[tuple[str | None, ...], list[int]] = {}
    for position, record in enumerate(records):
        sharing.setdefault((record.source, *record.references), []).append(position)
    pieces: list[list[int]] = []
    held: set[str] = set()
    size = 0
    for position in (position for positions in sharing.values() for position in positions):
        record = records[position]
        texts = {record.output, record.source or "", *record.references}
        if not pieces or size + sum(map(len, texts - held)) > _MOST_TEXT:
            pieces.append([])
            held, size = set(), 0
        pieces[-1].append(position)
        size += sum(map(len, texts - held))
        held |= texts
    return pieces


class Comparable(NamedTuple):
    """The pairs that can be compared, the records (by position) that have any, and why the others have none."""

    pairs: Pairs
    positions: list[int]
    failures: dict[int, str]


def select_comparable(pairs: Pairs, able: NDArray[np.bool_]) -> Comparable:
    """The pairs of which both texts have something to compare. A record fails when none of its pairs is left."""
    kept = able[pairs.outputs] & able[pairs.references]
    counts = np.add.reduceat(np.append(kept, False), pairs.starts[:-1], dtype=np.int64)
    counts[np.diff(pairs.starts) == 0] = 0
    failures = {}
    for record in np.flatnonzero(counts == 0).tolist():
        pair = pairs.starts[record]
        bare = pair < pairs.starts[record + 1] and not able[pairs.outputs[pair]]
        failures[record] = _BARE_OUTPUT if bare else _BARE_OTHER
    positions = np.flatnonzero(counts)
    starts = np.cumsum([0, *counts[positions]]).astype(np.int64)
    return Comparable(
        Pairs(pairs.texts, pairs.outputs[kept], pairs.references[kept], starts), positions.tolist(), failures
    )


def count_own_tokens(states: States) -> NDArray[np.int64]:
    """Per text how many tokens it has besides those that open and close it."""
    own = np.concatenate([[0], np.cumsum(~states.special)])
    counts: NDArray[np.int64] = np.diff(own[states.starts])
    return counts


def _per_record(counts: NDArray[np.int64], pairs: Pairs) -> Column:
    """Summed over each record's output and its references, equal references once."""
    found = np.zeros(len(pairs.starts) - 1)
    for record in np.flatnonzero(np.diff(pairs.starts)).tolist() if counts.any() else ():
        start, end = pairs.starts[record], pairs.starts[record + 1]
        found[record] = counts[list({int(pairs.outputs[start]), *pairs.references[start:end].tolist()})].sum()
    return found


# What a token weighs in a comparison of texts: the same as all others, or by how few texts of a file have it.


@dataclass(frozen=True, kw_only=True)
class WeightedEmbedding(Embedding):
    """A metric on vectors whose tokens weigh by inverse document frequency when `idf` names a file of texts."""

    #: False is None: bert-score's users write it so.
    idf: str | bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.idf is True:
            raise SpecError(
                f"{self.name}: idf must name a file of texts, such as all references of the test set, one a line "
                f"(idf='references.txt') or as records (idf='records.jsonl'); weights made from the records that "
                f"happen to be scored together would change from run to run"
            )
        object.__setattr__(self, "idf", self.idf or None)

    def facts(self) -> Mapping[str, str]:
        """A hash of the file that weights come from, beside what all metrics on vectors depend on."""
        return {**super().facts(), **({"idf": fingerprint(self.idf)} if isinstance(self.idf, str) else {})}

    def weights(self, states: States) -> NDArray[np.float64]:
        """Each token's weight; those that open and close a text weigh nothing."""
        if not isinstance(self.idf, str):
            return (~states.special).astype(np.float64)
        start = self.encoder().word_start
        found = _frequencies(self.idf, fingerprint(self.idf), self.options, self.long, start)
        return found.idf(states.tokens)


@lru_cache(maxsize=8)
def _frequencies(path: str, _hash: str, options: Options, long: Long, start: str) -> DocumentFrequencies:
    encoder = loading.load_encoder(options)
    return DocumentFrequencies.count(encoder.token_ids([start + text for text in read_texts(path)], long))


# The cosine of two texts' vectors, each the mean of its tokens' vectors or the vector of its first token.


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
        found = select_comparable(pairs, count_own_tokens(states) > 0)
        pooled = _pooled(states, self.pooling)
        cosines = np.einsum("ij,ij->i", pooled[found.pairs.outputs], pooled[found.pairs.references]).clip(-1, 1)
        values = references.reduce_references(cosines, cosines, found.pairs.starts, self.reduce)
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
