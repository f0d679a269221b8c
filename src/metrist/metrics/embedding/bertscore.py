"""BERTScore (Zhang et al., 2020): tokens of output and reference matched by the cosine of their contextual vectors, as
in the package bert-score 0.3.13.

The package pads texts that it compares together, and gives a token whose best cosine is negative 0 if its text happened
to be padded. Here nothing is padded and such a token keeps its cosine, so a score does not depend on other records.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from metrist.errors import InputError, SpecError
from metrist.kernels.columns import segment_sums
from metrist.metrics.base import Pairs, Reduce, Shard, hash_file, pairs_of, reduce_references
from metrist.metrics.embedding.embedding import WeightedEmbedding, count_own_tokens, select_comparable
from metrist.records import Need
from metrist.scores import Scores

Vectors = NDArray[np.float32]
Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class BertScore(WeightedEmbedding):
    """The harmonic mean of precision (output tokens matched in the reference) and recall (the reverse)."""

    model: str = "roberta-large"
    #: A file of baselines; False is the same as None, for users of bert-score.
    rescale: str | bool | None = None
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    catalog_name: ClassVar[str | None] = "bertscore"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rescale is True:
            raise SpecError("bertscore: rescale must name a file of baselines with the columns LAYER, P, R and F")
        object.__setattr__(self, "rescale", self.rescale or None)
        if self.rescale:
            object.__setattr__(self, "bounds", (-np.inf, 1.0))

    @property
    def resolved_layer(self) -> int | None:
        """The layer of the settings, else the best one for the model according to BERTScore's authors, else the
        last."""
        return _read_layers().get(Path(self.model).name) if self.layer is None else self.layer

    def facts(self) -> Mapping[str, str]:
        baseline = {"baseline": hash_file(self.rescale)} if isinstance(self.rescale, str) else {}
        return {**super().facts(), **baseline}

    def score_part(self, shard: Shard) -> Scores:
        pairs, encoder = pairs_of(shard), self.encoder()
        states = self.states(shard, [encoder.word_start + text.strip() for text in pairs.texts])
        weights = normalise_weights(self.weights(states), states.starts)
        has_weight = segment_sums(weights, states.starts) > 0
        comparable = select_comparable(pairs, has_weight & (count_own_tokens(states) > 0))
        tokens = TokenVectors(unit_vectors(states.vectors), weights, states.starts)
        rows = precision_recall(tokens, comparable.pairs)
        sums = rows.sum(axis=1)
        f = np.divide(2 * rows[:, 0] * rows[:, 1], sums, out=np.zeros_like(sums), where=sums != 0)
        rows = np.column_stack([rows, f])
        starts = comparable.pairs.starts
        if self.reduce != "native":
            rows = reduce_references(rows, f, starts, self.reduce)
        elif len(rows):
            # The package takes the best precision, recall and f independently, possibly from different references.
            rows = np.maximum.reduceat(rows, starts[:-1])
        if isinstance(self.rescale, str):
            layer = encoder.layers if self.resolved_layer is None else self.resolved_layer
            baseline = read_baseline(self.rescale, layer)
            rows = (rows - baseline) / (1 - baseline)
        parts = dict(zip(("precision", "recall", "f"), rows.T, strict=True))
        return self.make_scores(rows[:, 2], parts, comparable, states, pairs)


# --- Greedy matching: each token is matched with the most similar token of the other text

#: Cosines that are held at a time: 64 MB.
_MAX_COSINES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class TokenVectors:
    """Unit vectors and weights of the texts' tokens: text t has rows `starts[t]:starts[t + 1]`. The weights of each
    text sum to 1, or to 0 if none of its tokens has a weight."""

    units: Vectors
    weights: Numbers
    starts: NDArray[np.int64]

    def rows(self, text: int) -> slice:
        """The rows of one text."""
        return slice(int(self.starts[text]), int(self.starts[text + 1]))


def unit_vectors(vectors: Vectors) -> Vectors:
    """Divide each row by its norm; a row of zeros stays as it is."""
    norms: Vectors = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    norms[norms == 0] = 1
    return vectors / norms[:, None]


def normalise_weights(weights: Numbers, starts: NDArray[np.int64]) -> Numbers:
    """Divide weights by the sum over their text; zeros where the sum is zero."""
    totals = np.repeat(segment_sums(weights, starts), np.diff(starts))
    normalised: Numbers = np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)
    return normalised


def precision_recall(tokens: TokenVectors, pairs: Pairs) -> Numbers:
    """(precision, recall) per pair: the weighted mean, over the tokens of output and of reference, of each token's
    highest cosine with a token of the other text. Every text of a pair must have tokens.

    Outputs that share their references are compared with all of them in one matrix product. Nothing is padded, so the
    numbers of a pair do not depend on the other pairs.
    """
    # The first pairs of the outputs that share references.
    groups: dict[tuple[int, ...], list[int]] = {}
    for record in range(len(pairs.starts) - 1):
        start, end = pairs.starts[record], pairs.starts[record + 1]
        if end > start:
            groups.setdefault(tuple(pairs.references[start:end].tolist()), []).append(int(start))
    rows = np.zeros((len(pairs.outputs), 2))
    for references, starts in groups.items():
        positions = np.array(starts)[:, None] + np.arange(len(references))
        rows[positions] = _match_group(tokens, pairs.outputs[starts].tolist(), list(references))
    return rows


def _match_group(tokens: TokenVectors, outputs: list[int], references: list[int]) -> Numbers:
    """An array of shape (output, reference, [precision, recall])."""
    slices = [tokens.rows(text) for text in references]
    units = np.concatenate([tokens.units[rows] for rows in slices])
    weights = np.concatenate([tokens.weights[rows] for rows in slices])
    starts = np.cumsum([0, *(rows.stop - rows.start for rows in slices)])
    result = np.zeros((len(outputs), len(references), 2))
    step = max(1, _MAX_COSINES // max(1, len(units)))
    for row, text in enumerate(outputs):
        rows = tokens.rows(text)
        output = tokens.units[rows]
        # Each output token's highest cosine in each reference, and each reference token's highest in the output.
        in_references = np.empty((len(output), len(references)), np.float32)
        in_output = np.full(len(units), -1, np.float32)
        for start in range(0, len(output), step):
            cosines = np.clip(output[start : start + step] @ units.T, -1, 1)
            np.maximum.reduceat(cosines, starts[:-1], axis=1, out=in_references[start : start + step])
            np.maximum(in_output, cosines.max(axis=0), out=in_output)
        result[row, :, 0] = tokens.weights[rows] @ in_references
        result[row, :, 1] = np.add.reduceat(weights * in_output, starts[:-1])
    return result


# --- Layers and baselines


@cache
def _read_layers() -> Mapping[str, int]:
    """Layers by model name, without the part before the last slash."""
    table = resources.files("metrist.metrics.embedding") / "bertscore_layers.toml"
    return {Path(name).name: layer for name, layer in tomllib.loads(table.read_text(encoding="utf-8")).items()}


def read_baseline(path: str, layer: int) -> Numbers:
    """Precision, recall and f of unrelated texts after that layer, from the row of a baseline file."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"bertscore: cannot read the baselines in {path}: {error}") from error
    rows = csv.reader(lines, delimiter="\t" if "\t" in "".join(lines[:1]) else ",")
    if [name.strip().upper() for name in next(rows, [])] != ["LAYER", "P", "R", "F"]:
        raise InputError(
            f"{path}:1: a file of baselines must have the columns LAYER, P, R, F; got {lines[:1]}", code="invalid_value"
        )
    for number, row in enumerate(rows, start=2):
        if row and _parse_number(path, number, row[0]) == layer:
            values = np.array([_parse_number(path, number, cell) for cell in row[1:]])
            if len(values) != 3 or not (values < 1).all():
                raise InputError(
                    f"{path}:{number}: a baseline must be three numbers below 1, got {','.join(row[1:])}",
                    code="invalid_value",
                )
            return values
    raise InputError(f"{path} has no baseline for layer {layer}; add a row for it, or set another layer")


def _parse_number(path: str, number: int, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise InputError(f"{path}:{number}: {cell!r} is not a number", code="invalid_value") from None
