"""ROUGE: how many of the references' word sequences an output repeats. C.-Y. Lin, ROUGE: A Package for Automatic
Evaluation of Summaries, 2004. With `tokenizer='rouge-score'` the numbers are those of the package rouge-score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from metrist.errors import SpecError
from metrist.kernels import Tokens, clipped_matches, lcs_lengths, union_lcs_hits
from metrist.metrics.base import Metric, Reduce, check_choice
from metrist.metrics.lexical import references, tokenizers
from metrist.metrics.lexical.references import Overlap, precision_recall_f
from metrist.metrics.shard import Shard, pairs_of
from metrist.records import Need
from metrist.scores import Scores

_LONGEST_UNSTEMMED = 3  # The original ROUGE leaves shorter words as they are.


@dataclass(frozen=True)
class _Rouge(Metric):
    stem: bool = False
    tokenizer: str = "unicode"
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        check_choice(self, "tokenizer", tokenizers.TOKENIZERS)
        check_choice(self, "reduce", ("native", "max", "mean"))

    def facts(self) -> Mapping[str, str]:
        return tokenizers.tokenizer_facts(self.tokenizer)

    def score(self, shard: Shard) -> Scores:
        rows = precision_recall_f(self._overlap(shard))
        kept = references.reduce_references(rows, rows[:, 2], pairs_of(shard).starts, self.reduce)
        precision, recall, f = kept.T
        return Scores(values=f, parts={"precision": precision, "recall": recall, "f": f})

    def _overlap(self, shard: Shard) -> Overlap:
        raise NotImplementedError

    def _tokens(self, shard: Shard) -> Tokens:
        if self.stem:
            return tokenizers.stem_shard(shard, self.tokenizer, longer_than=_LONGEST_UNSTEMMED)
        return tokenizers.tokenise_shard(shard, self.tokenizer)


@dataclass(frozen=True)
class RougeN(_Rouge):
    """Sequences of `order` words in a row."""

    order: int = 1

    in_name: ClassVar[tuple[str, ...]] = ("order",)

    def __post_init__(self) -> None:
        if not 1 <= self.order <= 9:
            raise SpecError(f"there is no rouge{self.order}: the order must be 1 to 9")
        super().__post_init__()

    @property
    def name(self) -> str:
        return f"rouge{self.order}"

    def _overlap(self, shard: Shard) -> Overlap:
        tokens, pairs = self._tokens(shard), pairs_of(shard)
        sizes = np.maximum(tokens.lengths - (self.order - 1), 0)
        return Overlap(self._matches(shard, tokens), sizes[pairs.outputs], sizes[pairs.references])

    def _matches(self, shard: Shard, tokens: Tokens) -> NDArray[np.int64]:
        # Orders that are mostly asked for together are counted together, since counting the highest counts them all.
        highest = next(tier for tier in (2, 4, 9) if self.order <= tier)
        pairs = pairs_of(shard)
        matches = shard.once(
            ("n-gram matches", self.tokenizer, self.stem, highest),
            lambda: clipped_matches(tokens, pairs.outputs, pairs.references, highest),
        )
        return matches[:, self.order - 1]


@dataclass(frozen=True)
class RougeL(_Rouge):
    """The longest sequence of words that output and reference have in common, gaps allowed."""

    catalog_name: ClassVar[str | None] = "rougeL"

    def _overlap(self, shard: Shard) -> Overlap:
        tokens, pairs = self._tokens(shard), pairs_of(shard)
        hits = lcs_lengths(tokens, pairs.outputs, pairs.references)
        return Overlap(hits, tokens.lengths[pairs.outputs], tokens.lengths[pairs.references])


@dataclass(frozen=True)
class RougeLsum(_Rouge):
    """ROUGE-L line by line: a line of the reference collects the words that it shares with any line of the output."""

    catalog_name: ClassVar[str | None] = "rougeLsum"

    def _overlap(self, shard: Shard) -> Overlap:
        pairs = pairs_of(shard)
        tokens, line_starts = self._lines(shard)
        words = np.diff(tokens.starts[line_starts])
        hits = union_lcs_hits(tokens, line_starts, pairs.outputs, pairs.references)
        return Overlap(hits, words[pairs.outputs], words[pairs.references])

    def _lines(self, shard: Shard) -> tuple[Tokens, NDArray[np.int64]]:
        """The tokens of each line, and at which line each text starts."""
        texts = pairs_of(shard).texts
        if not any("\n" in text for text in texts):
            return self._tokens(shard), np.arange(len(texts) + 1)
        tokens, line_starts = shard.once(("lines", self.tokenizer), lambda: _cut_lines(texts, self.tokenizer))
        return (tokenizers.stem_tokens(tokens, _LONGEST_UNSTEMMED) if self.stem else tokens), line_starts


def _cut_lines(texts: list[str], tokenizer: str) -> tuple[Tokens, NDArray[np.int64]]:
    lines = [text.split("\n") for text in texts]
    line_starts = np.cumsum([0, *map(len, lines)], dtype=np.int64)
    return tokenizers.tokenise([line for some in lines for line in some], tokenizer), line_starts
