"""Greedy matching of token vectors: each token is set beside the most similar token of the other text.

Outputs that share their references are compared with all of them by one product of matrices, and no text is padded, so
a pair's numbers do not depend on the pairs beside it.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from metrist.errors import InputError, SpecError
from metrist.metrics.base import Reduce, check_choice
from metrist.metrics.embedding.embedding import WeightedEmbedding, count_own_tokens, select_comparable
from metrist.metrics.lexical.references import reduce_references
from metrist.metrics.shard import Pairs, Shard, pairs_of
from metrist.metrics.token_weights import fingerprint
from metrist.records import Need
from metrist.scores import Scores

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


def normalise_weights(weights: Numbers, starts: NDArray[np.int64]) -> Numbers:
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


# BERTScore: tokens of output and reference matched by the similarity of their vectors in context. T. Zhang and others,
# 2020, in the form of their package bert-score 0.3.13.
#
# The package pads texts that it compares together, and gives a token whose best cosine is negative 0 when its text
# happened to be padded. Here nothing is padded and such a token has its cosine, whatever is scored beside it.


@dataclass(frozen=True, kw_only=True)
class BertScore(WeightedEmbedding):
    """The harmonic mean of how well the output's tokens are met in the reference and the reference's in the output."""

    model: str = "roberta-large"
    #: A file of baselines; False is None, as bert-score's users write it.
    rescale: str | bool | None = None
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    catalog_name: ClassVar[str | None] = "bertscore"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "reduce", ("native", "max", "mean"))
        if self.rescale is True:
            raise SpecError(
                "bertscore: rescale must name a file of baselines with the columns LAYER, P, R and F, such as "
                "rescale_baseline/en/roberta-large.tsv of the bert-score package"
            )
        object.__setattr__(self, "rescale", self.rescale or None)
        if self.rescale:
            object.__setattr__(self, "bounds", (-np.inf, 1.0))

    @property
    def chosen_layer(self) -> int | None:
        """The layer of the settings, or the one that BERTScore's authors found best for the model, or the last."""
        return _layers().get(Path(self.model).name) if self.layer is None else self.layer

    def facts(self) -> Mapping[str, str]:
        baseline = {"baseline": fingerprint(self.rescale)} if isinstance(self.rescale, str) else {}
        return {**super().facts(), **baseline}

    def score_piece(self, shard: Shard) -> Scores:
        pairs, encoder = pairs_of(shard), self.encoder()
        states = self.states(shard, [encoder.word_start + text.strip() for text in pairs.texts])
        weights = normalise_weights(self.weights(states), states.starts)
        weighed = np.add.reduceat(np.append(weights, 0), states.starts[:-1]) * (np.diff(states.starts) > 0)
        found = select_comparable(pairs, (weighed > 0) & (count_own_tokens(states) > 0))
        tokens = TokenVectors(unit_vectors(states.vectors), weights, states.starts)
        rows = self._reduced(_with_f(precision_recall(tokens, found.pairs)), found.pairs)
        if isinstance(self.rescale, str):
            base = baseline(self.rescale, encoder.layers if self.chosen_layer is None else self.chosen_layer)
            rows = (rows - base) / (1 - base)
        parts = dict(zip(("precision", "recall", "f"), rows.T, strict=True))
        scores = Scores(values=rows[:, 2], parts=parts).spread(len(shard), found.positions, found.failures)
        return Scores(
            values=scores.values,
            parts={**scores.parts, **self.length_parts(states, pairs)},
            failures=scores.failures,
        )

    def _reduced(self, rows: Numbers, pairs: Pairs) -> Numbers:
        if self.reduce != "native":
            return reduce_references(rows, rows[:, 2], pairs.starts, self.reduce)
        # The package takes the best precision, the best recall and the best f, each from whichever reference has it.
        return np.maximum.reduceat(rows, pairs.starts[:-1]) if len(rows) else rows


def _with_f(rows: Numbers) -> Numbers:
    """(precision, recall) with their harmonic mean as a third column; 0 where both are 0."""
    sums = rows.sum(axis=1)
    f = np.divide(2 * rows[:, 0] * rows[:, 1], sums, out=np.zeros_like(sums), where=sums != 0)
    return np.column_stack([rows, f])


@cache
def _layers() -> Mapping[str, int]:
    """Model names, without what stands before the last slash, to layers."""
    table = resources.files("metrist.metrics.embedding") / "bertscore_layers.toml"
    return {Path(name).name: layer for name, layer in tomllib.loads(table.read_text(encoding="utf-8")).items()}


def baseline(path: str, layer: int) -> Numbers:
    """What unrelated texts get after that layer: precision, recall and f of the line whose LAYER it is."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(f"bertscore: cannot read the baselines in {path}: {fault}") from fault
    rows = csv.reader(lines, delimiter="\t" if "\t" in "".join(lines[:1]) else ",")
    if [name.strip().upper() for name in next(rows, [])] != ["LAYER", "P", "R", "F"]:
        raise InputError(f"{path}:1: a file of baselines must have the columns LAYER, P, R, F; got {lines[:1]}")
    for number, row in enumerate(rows, start=2):
        if row and _number(path, number, row[0]) == layer:
            return _values(path, number, row)
    raise InputError(f"{path} has no baseline for layer {layer}; add a line for it, or set another layer")


def _values(path: str, number: int, row: list[str]) -> Numbers:
    values = np.array([_number(path, number, cell) for cell in row[1:]])
    if len(values) != 3 or not (values < 1).all():
        raise InputError(f"{path}:{number}: a baseline must be three numbers below 1, got {','.join(row[1:])}")
    return values


def _number(path: str, number: int, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise InputError(f"{path}:{number}: {cell!r} is not a number") from None
