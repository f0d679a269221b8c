"""Short answers: the same as a reference or not, or the words that both share. P. Rajpurkar et al., SQuAD: 100,000+
Questions for Machine Comprehension of Text, 2016."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from metrist.kernels import clipped_matches
from metrist.metrics.base import Metric, Reduce, check_choice
from metrist.metrics.lexical import references, tokenizers
from metrist.metrics.lexical.references import Overlap, precision_recall_f
from metrist.metrics.shard import Shard, pairs_of
from metrist.records import Need
from metrist.scores import Scores


def _unchanged(text: str) -> str:
    return text


def _without_case(text: str) -> str:
    return " ".join(text.casefold().split())


NORMALISERS: Mapping[str, Callable[[str], str]] = {
    "none": _unchanged,
    "case": _without_case,
    "squad": tokenizers.normalise_answer,
}


@dataclass(frozen=True)
class Exact(Metric):
    """1 where the output equals a reference, else 0."""

    normalise: str = "none"
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    catalog_name: ClassVar[str | None] = "exact"

    def __post_init__(self) -> None:
        check_choice(self, "normalise", NORMALISERS)
        check_choice(self, "reduce", ("native", "max", "mean"))

    def score(self, shard: Shard) -> Scores:
        pairs = pairs_of(shard)
        seen: dict[str, int] = {}
        same = NORMALISERS[self.normalise]
        numbers = np.array([seen.setdefault(same(text), len(seen)) for text in pairs.texts], np.int64)
        equal = (numbers[pairs.outputs] == numbers[pairs.references]).astype(np.float64)
        return Scores(values=references.reduce_references(equal, equal, pairs.starts, self.reduce))


@dataclass(frozen=True)
class TokenF1(Metric):
    """The words that output and reference share, as an F1 score."""

    tokenizer: str = "squad"
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    catalog_name: ClassVar[str | None] = "token_f1"

    def __post_init__(self) -> None:
        check_choice(self, "tokenizer", tokenizers.TOKENIZERS)
        check_choice(self, "reduce", ("native", "max", "mean"))

    def facts(self) -> Mapping[str, str]:
        return tokenizers.tokenizer_facts(self.tokenizer)

    def score(self, shard: Shard) -> Scores:
        rows = self._rows(shard)
        kept = references.reduce_references(rows, rows[:, 2], pairs_of(shard).starts, self.reduce)
        precision, recall, f = kept.T
        return Scores(values=f, parts={"precision": precision, "recall": recall})

    def _rows(self, shard: Shard) -> NDArray[np.float64]:
        """Per pair (precision, recall, f); two answers without a word agree, as in SQuAD 2.0."""
        pairs, tokens = pairs_of(shard), tokenizers.tokenise_shard(shard, self.tokenizer)
        ours, theirs = tokens.lengths[pairs.outputs], tokens.lengths[pairs.references]
        shared = clipped_matches(tokens, pairs.outputs, pairs.references, 1)[:, 0]
        rows = precision_recall_f(Overlap(shared, ours, theirs))
        rows[(ours == 0) & (theirs == 0)] = 1.0
        return rows
