"""ROUGE (Lin, 2004): the overlap of word sequences between output and references.

With `tokenizer='rouge-score'` the numbers are those of the package rouge-score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metrist.errors import SpecError
from metrist.kernels import Tokens, clipped_matches, lcs_lengths, union_lcs_hits
from metrist.metrics.base import Reduce, Shard, pairs_of, reduce_references
from metrist.metrics.lexical import tokenizers
from metrist.metrics.lexical.tokenizers import WordMetric
from metrist.records import Need
from metrist.scores import Scores

Counts = NDArray[np.int64]

_MAX_UNSTEMMED_LENGTH = 3  # As in the original ROUGE, shorter words are not stemmed.


@dataclass(frozen=True)
class _Rouge(WordMetric):
    stem: bool = False
    tokenizer: str = "unicode"
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def score(self, shard: Shard) -> Scores:
        rows = precision_recall_f(*self._overlap(shard))
        rows = reduce_references(rows, rows[:, 2], pairs_of(shard).starts, self.reduce)
        precision, recall, f = rows.T
        return Scores(values=f, parts={"precision": precision, "recall": recall, "f": f})

    def _overlap(self, shard: Shard) -> tuple[Counts, Counts, Counts]:
        """Per pair: how much output and reference share, and how much there is in either."""
        raise NotImplementedError

    def _tokens(self, shard: Shard) -> Tokens:
        if self.stem:
            return tokenizers.stem_shard(shard, self.tokenizer, longer_than=_MAX_UNSTEMMED_LENGTH)
        return tokenizers.tokenise_shard(shard, self.tokenizer)


@dataclass(frozen=True)
class RougeN(_Rouge):
    """ROUGE-N: sequences of `order` consecutive words."""

    order: int = 1

    in_name: ClassVar[tuple[str, ...]] = ("order",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {f"rouge{n}": {"order": n} for n in range(1, 10)}

    def __post_init__(self) -> None:
        if not 1 <= self.order <= 9:
            raise SpecError(f"there is no rouge{self.order}: the order must be 1 to 9")
        super().__post_init__()

    @property
    def name(self) -> str:
        return f"rouge{self.order}"

    def _overlap(self, shard: Shard) -> tuple[Counts, Counts, Counts]:
        tokens, pairs = self._tokens(shard), pairs_of(shard)
        # Counting an order counts all lower ones too: orders that are often used together share one count.
        highest = next(tier for tier in (2, 4, 9) if self.order <= tier)
        matches = shard.once(
            ("n-gram matches", self.tokenizer, self.stem, highest),
            lambda: clipped_matches(tokens, pairs.outputs, pairs.references, highest),
        )
        sizes = np.maximum(tokens.lengths - (self.order - 1), 0)
        return matches[:, self.order - 1], sizes[pairs.outputs], sizes[pairs.references]


@dataclass(frozen=True)
class RougeL(_Rouge):
    """ROUGE-L: the longest common subsequence of words."""

    catalog_name: ClassVar[str | None] = "rougeL"

    def _overlap(self, shard: Shard) -> tuple[Counts, Counts, Counts]:
        tokens, pairs = self._tokens(shard), pairs_of(shard)
        hits = lcs_lengths(tokens, pairs.outputs, pairs.references)
        return hits, tokens.lengths[pairs.outputs], tokens.lengths[pairs.references]


@dataclass(frozen=True)
class RougeLsum(_Rouge):
    """ROUGE-Lsum: ROUGE-L per line. A line of the reference matches the words that it shares with any line of the
    output."""

    catalog_name: ClassVar[str | None] = "rougeLsum"

    def _overlap(self, shard: Shard) -> tuple[Counts, Counts, Counts]:
        pairs = pairs_of(shard)
        tokens, line_starts = self._lines(shard)
        words = np.diff(tokens.starts[line_starts])
        hits = union_lcs_hits(tokens, line_starts, pairs.outputs, pairs.references)
        return hits, words[pairs.outputs], words[pairs.references]

    def _lines(self, shard: Shard) -> tuple[Tokens, Counts]:
        """The tokens of each line, and the number of each text's first line."""
        texts = pairs_of(shard).texts
        if not any("\n" in text for text in texts):
            return self._tokens(shard), np.arange(len(texts) + 1)

        def tokenise() -> tuple[Tokens, Counts]:
            lines = [text.split("\n") for text in texts]
            starts = np.cumsum([0, *map(len, lines)], dtype=np.int64)
            return tokenizers.tokenise([line for text_lines in lines for line in text_lines], self.tokenizer), starts

        tokens, line_starts = shard.once(("lines", self.tokenizer), tokenise)
        return (tokenizers.stem_tokens(tokens, _MAX_UNSTEMMED_LENGTH) if self.stem else tokens), line_starts


def precision_recall_f(shared: Counts, in_output: Counts, in_reference: Counts) -> NDArray[np.float64]:
    """A row (precision, recall, f) per pair; zeros where nothing is shared."""
    precision = shared / np.maximum(in_output, 1)
    recall = shared / np.maximum(in_reference, 1)
    sums = precision + recall
    f = np.divide(2 * precision * recall, sums, out=np.zeros_like(sums), where=sums > 0)
    return np.stack([precision, recall, f], axis=1)
