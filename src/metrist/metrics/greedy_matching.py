"""Greedy matching of token vectors: each token is set beside the most similar token of the other text.

Outputs that share their references are compared with all of them by one product of matrices, and no text is padded, so
a pair's numbers do not depend on the pairs beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metrist.metrics.shard import Pairs

Vectors = NDArray[np.float32]
Numbers = NDArray[np.float64]

#: Cosines that are held at a time: 64 MB.
_MOST_COSINES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class TokenVectors:
    """Unit vectors of the texts' tokens with the tokens' weights: text t has rows `starts[t]:starts[t + 1]`.
    Each text's weights sum to 1, or to 0 where none of its tokens weighs anything."""

    units: Vectors
    weights: Numbers
    starts: NDArray[np.int64]

    def of(self, text: int) -> slice:
        """The rows of one text."""
        return slice(int(self.starts[text]), int(self.starts[text + 1]))


def unit_vectors(vectors: Vectors) -> Vectors:
    """Each row divided by its length; a row of zeros stays one."""
    lengths: Vectors = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    lengths[lengths == 0] = 1
    return vectors / lengths[:, None]


def shares(weights: Numbers, starts: NDArray[np.int64]) -> Numbers:
    """Weights divided by the sum over their text; zeros where that sum is zero."""
    counts = np.diff(starts)
    # A text without tokens has nothing to sum up, and reduceat would give it its neighbour's first weight.
    filled = np.flatnonzero(counts)
    sums = np.add.reduceat(weights, starts[filled]) if len(filled) else np.empty(0)
    of_token = np.repeat(sums, counts[filled])
    divided: Numbers = np.divide(weights, of_token, out=np.zeros_like(weights), where=of_token > 0)
    return divided


def precision_recall(tokens: TokenVectors, pairs: Pairs) -> Numbers:
    """Per pair (precision, recall): the weighted mean, over the output's and over the reference's tokens, of each
    token's highest cosine with a token of the other text. Every text of a pair must have tokens."""
    found = np.zeros((len(pairs.outputs), 2))
    for outputs, references, places in _blocks(pairs):
        found[places] = _block(tokens, outputs, references)
    return found


def _blocks(pairs: Pairs) -> Iterator[tuple[list[int], list[int], NDArray[np.int64]]]:
    """Outputs with all the references that they share, and where [output, reference] stands among the pairs."""
    sharing: dict[tuple[int, ...], list[int]] = {}
    for record in range(len(pairs.starts) - 1):
        start, end = pairs.starts[record], pairs.starts[record + 1]
        if end > start:
            sharing.setdefault(tuple(pairs.references[start:end].tolist()), []).append(int(start))
    for references, starts in sharing.items():
        places = np.array(starts)[:, None] + np.arange(len(references))
        yield pairs.outputs[starts].tolist(), list(references), places


def _block(tokens: TokenVectors, outputs: list[int], references: list[int]) -> Numbers:
    """(output, reference, [precision, recall])"""
    columns = _rows(tokens, references)
    ends = np.cumsum([0, *(_size(tokens, text) for text in references)])
    found = np.zeros((len(outputs), len(references), 2))
    others, weights = tokens.units[columns], tokens.weights[columns]
    for row, output in enumerate(outputs):
        best_of_output, best_of_references = _best(tokens.units[tokens.of(output)], others, ends)
        found[row, :, 0] = tokens.weights[tokens.of(output)] @ best_of_output
        found[row, :, 1] = np.add.reduceat(weights * best_of_references, ends[:-1])
    return found


def _best(output: Vectors, others: Vectors, ends: NDArray[np.int64]) -> tuple[Vectors, Vectors]:
    """Each output token's highest cosine in each reference, and each reference token's highest in the output."""
    forth = np.empty((len(output), len(ends) - 1), np.float32)
    back = np.full(len(others), -1, np.float32)
    step = max(1, _MOST_COSINES // max(1, len(others)))
    for start in range(0, len(output), step):
        cosines = np.clip(output[start : start + step] @ others.T, -1, 1)
        np.maximum.reduceat(cosines, ends[:-1], axis=1, out=forth[start : start + step])
        np.maximum(back, cosines.max(axis=0), out=back)
    return forth, back


def _rows(tokens: TokenVectors, texts: Iterable[int]) -> NDArray[np.int64]:
    return np.concatenate([np.arange(tokens.starts[text], tokens.starts[text + 1]) for text in texts])


def _size(tokens: TokenVectors, text: int) -> int:
    return int(tokens.starts[text + 1] - tokens.starts[text])
