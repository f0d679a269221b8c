"""Metrics for short answers: exact match and token F1, as in SQuAD (Rajpurkar et al., 2016)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from metrist.kernels import clipped_matches
from metrist.metrics.base import Metric, Reduce, Shard, check_choice, pairs_of, reduce_references
from metrist.metrics.lexical import tokenizers
from metrist.metrics.lexical.rouge import precision_recall_f
from metrist.records import Need
from metrist.scores import Scores

NORMALISERS: Mapping[str, Callable[[str], str]] = {
    "none": lambda text: text,
    "case": lambda text: " ".join(text.casefold().split()),
    "squad": tokenizers.normalise_answer,
}


@dataclass(frozen=True)
class Exact(Metric):
    """1 if the output equals a reference, else 0."""

    normalise: str = "none"
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    catalog_name: ClassVar[str | None] = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "normalise", NORMALISERS)

    def score(self, shard: Shard) -> Scores:
        pairs = pairs_of(shard)
        seen: dict[str, int] = {}
        normalise = NORMALISERS[self.normalise]
        numbers = np.array([seen.setdefault(normalise(text), len(seen)) for text in pairs.texts], np.int64)
        equal = (numbers[pairs.outputs] == numbers[pairs.references]).astype(np.float64)
        return Scores(values=reduce_references(equal, equal, pairs.starts, self.reduce))


@dataclass(frozen=True)
class TokenF1(Metric):
    """F1 of the words that output and reference share."""

    tokenizer: str = "squad"
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    catalog_name: ClassVar[str | None] = "token_f1"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "tokenizer", tokenizers.TOKENIZERS)

    def facts(self) -> Mapping[str, str]:
        return tokenizers.tokenizer_facts(self.tokenizer)

    def score(self, shard: Shard) -> Scores:
        pairs, tokens = pairs_of(shard), tokenizers.tokenise_shard(shard, self.tokenizer)
        output_lengths, reference_lengths = tokens.lengths[pairs.outputs], tokens.lengths[pairs.references]
        shared = clipped_matches(tokens, pairs.outputs, pairs.references, 1)[:, 0]
        rows = precision_recall_f(shared, output_lengths, reference_lengths)
        # Two answers without words agree, as in SQuAD 2.0.
        rows[(output_lengths == 0) & (reference_lengths == 0)] = 1.0
        precision, recall, f = reduce_references(rows, rows[:, 2], pairs.starts, self.reduce).T
        return Scores(values=f, parts={"precision": precision, "recall": recall})
