"""MoverScore: what it costs to move the output's words to the reference's words in the space of contextual vectors.
W. Zhao, M. Peyrard, F. Liu, Y. Gao, C. Meyer and S. Eger, 2019.

The variant is the one of the authors' second release: vectors of one layer (the last of DistilBERT) rather than power
means of five, the Euclidean distance between vectors of length 1, and 1 / (1 + cost) as the score. Sequences of several
words are those of the first release: the weighted mean of the words' vectors, weighing what the words weigh together.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.metrics import references
from metrist.metrics.base import Reduce, check_choice, check_within
from metrist.metrics.embedding import comparable
from metrist.metrics.shard import Pairs, Shard, pairs_of
from metrist.metrics.token_weights import Weighted
from metrist.metrics.transport import earth_movers_distance
from metrist.models.protocols import States
from metrist.records import Need
from metrist.scores import Scores

Numbers = NDArray[np.float64]
Subwords = Literal["drop", "keep"]

#: Words on a side. The exact cost of larger texts would take minutes a pair.
MOST_WORDS = 2_000


class _Heap(NamedTuple):
    """A text's words, or sequences of words: unit vectors, and weights that sum to 1."""

    vectors: Numbers
    weights: Numbers


@dataclass(frozen=True, kw_only=True)
class MoverScore(Weighted):
    """1 / (1 + earth mover's distance) between the words of output and reference."""

    model: str = "distilbert-base-uncased"
    #: How many words in a row are moved as one.
    ngram: int = 1
    #: What becomes of pieces that go on with a word.
    subwords: Subwords = "drop"
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    #: Vectors of length 1 are at most 2 apart.
    bounds: ClassVar[tuple[float, float]] = (1 / 3, 1.0)
    catalog_name: ClassVar[str | None] = "moverscore"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "subwords", ("drop", "keep"))
        check_choice(self, "reduce", ("native", "max", "mean"))
        check_within(self, "ngram", 1, 9)

    def score_piece(self, shard: Shard) -> Scores:
        pairs, encoder = pairs_of(shard), self.encoder()
        states = self.states(shard, [encoder.word_start + text.strip() for text in pairs.texts])
        weights = np.where(self._words(states), self.weights(states), 0.0)
        heaps = [self._heap(states, weights, text) for text in range(len(states))]
        sizes = np.array([len(heap.weights) for heap in heaps])
        found = comparable(pairs, (sizes > 0) & (sizes <= MOST_WORDS))
        distances = _distances(heaps, found.pairs)
        rows = np.column_stack([1 / (1 + distances), distances])
        value, distance = references.best_or_mean(rows, rows[:, 0], found.pairs.starts, self.reduce).T
        scores = Scores(values=value, parts={"distance": distance})
        scores = scores.spread(len(shard), found.positions, _why(found.failures, sizes, pairs))
        parts = {**scores.parts, **self.length_parts(states, pairs)}
        return Scores(values=scores.values, parts=parts, failures=scores.failures)

    def _words(self, states: States) -> NDArray[np.bool_]:
        """Which tokens count as words: no punctuation, and of a word in pieces the first alone."""
        distinct, places = np.unique(states.tokens, return_inverse=True)
        pieces = self.encoder().pieces(distinct.tolist())
        dropped = [_punctuation(piece) or (self.subwords == "drop" and piece.startswith("##")) for piece in pieces]
        counted: NDArray[np.bool_] = ~np.array(dropped, bool)[places.reshape(-1)] & ~states.special
        return counted

    def _heap(self, states: States, weights: Numbers, text: int) -> _Heap:
        start, end = states.starts[text], states.starts[text + 1]
        rows = start + np.flatnonzero(weights[start:end])
        if not len(rows):
            return _Heap(np.empty((0, states.vectors.shape[1])), np.empty(0))
        order = min(self.ngram, len(rows))
        weighed = np.lib.stride_tricks.sliding_window_view(weights[rows], order)
        vectors = np.lib.stride_tricks.sliding_window_view(states.vectors[rows].astype(np.float64), order, axis=0)
        totals = weighed.sum(axis=1)
        means = np.einsum("kdn,kn->kd", vectors, weighed / totals[:, None])
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        return _Heap(means / np.where(lengths > 0, lengths, 1), totals / totals.sum())


def _punctuation(piece: str) -> bool:
    return piece.removeprefix("##") in set(string.punctuation)


def _distances(heaps: list[_Heap], pairs: Pairs) -> Numbers:
    """The earth mover's distance of each pair, of equal pairs once."""
    known: dict[tuple[int, int], float] = {}
    asked = list(zip(pairs.outputs.tolist(), pairs.references.tolist(), strict=True))
    for output, reference in dict.fromkeys(asked):
        one, other = heaps[output], heaps[reference]
        costs = np.sqrt(np.maximum(2 - 2 * (one.vectors @ other.vectors.T), 0))
        known[output, reference] = earth_movers_distance(one.weights, other.weights, costs)
    return np.array([known[pair] for pair in asked])


def _why(failures: dict[int, str], sizes: NDArray[np.int64], pairs: Pairs) -> dict[int, str]:
    """The failures, with the reason of those that are too long."""
    said = dict(failures)
    for record in failures:
        start, end = pairs.starts[record], pairs.starts[record + 1]
        texts = [*pairs.outputs[start:end].tolist(), *pairs.references[start:end].tolist()]
        longest = int(sizes[texts].max()) if texts else 0
        if longest > MOST_WORDS:
            said[record] = f"a text of {longest:,} words is too long for an exact distance; at most {MOST_WORDS:,} go"
    return said
