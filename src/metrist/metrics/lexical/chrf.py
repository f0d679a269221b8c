"""chrF: the overlap of character n-grams between output and reference, and of word n-grams for chrF++.

Agrees with sacrebleu at sentence and corpus level. A row of statistics is `[n-grams of the output, n-grams of the
reference, matches]` for each order, characters first, and a final 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from metrist import kernels
from metrist.errors import SpecError
from metrist.kernels import Tokens
from metrist.metrics.base import Metric, Reduce, Shard, pairs_of, reduce_references
from metrist.metrics.lexical.bleu import SACREBLEU_VERSION, shard_texts
from metrist.records import Need
from metrist.scores import Column, Scores

_MAX_ORDER = 16
_TINY = 1e-16  # The value of an order without n-grams with eps_smoothing.


@dataclass(frozen=True)
class Chrf(Metric):
    """chrF (Popović, 2015) from 0 to 100; with `word_order=2` it is chrF++ (Popović, 2017)."""

    char_order: int = 6
    word_order: int = 0
    #: Weight of recall relative to precision.
    beta: float = 2.0
    lowercase: bool = False
    #: Whether white space counts as characters.
    whitespace: bool = False
    #: The mean of F over the orders, as in chrF++.py, NLTK and Moses, instead of F of mean precision and recall.
    eps_smoothing: bool = False
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    bounds: ClassVar[tuple[float, float]] = (0.0, 100.0)
    catalog_name: ClassVar[str | None] = "chrf"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, order in (("char_order", self.char_order), ("word_order", self.word_order)):
            if not 0 <= order <= _MAX_ORDER:
                raise SpecError(f"chrf: {name} must be a whole number from 0 to {_MAX_ORDER}, got {order}")
        if self.char_order + self.word_order == 0:
            raise SpecError("chrf: char_order and word_order cannot both be 0", code="conflict")
        if not 0 < self.beta < np.inf:
            raise SpecError(f"chrf: beta must be a number above 0, got {self.beta}")
        object.__setattr__(self, "beta", float(self.beta))  # So that 2 and 2.0 have the same text.

    def peer_signature(self, references: str) -> str:
        if self.reduce != "native":
            return ""
        return (
            f"chrF{self.beta:g}{'+' * self.word_order}|nrefs:{references}|case:{'lc' if self.lowercase else 'mixed'}|"
            f"eff:{'no' if self.eps_smoothing else 'yes'}|nc:{self.char_order}|nw:{self.word_order}|"
            f"space:{'yes' if self.whitespace else 'no'}|version:{SACREBLEU_VERSION}"
        )

    def score(self, shard: Shard) -> Scores:
        pairs = pairs_of(shard)
        rows = np.ones((len(pairs.outputs), 3 * (self.char_order + self.word_order) + 1))
        column = 0
        for tokens, max_order in self._sequences(shard):
            lengths = tokens.lengths
            outputs, references = lengths[pairs.outputs], lengths[pairs.references]
            matches = kernels.clipped_matches(tokens, pairs.outputs, pairs.references, max_order)
            for n in range(max_order):
                # An order for which the reference is too short does not count against the output.
                rows[:, column] = np.where(references > n, np.maximum(outputs - n, 0), 0)
                rows[:, column + 1] = np.maximum(references - n, 0)
                rows[:, column + 2] = matches[:, n]
                column += 3
        by_pair = self._chrf(rows)
        reduced = reduce_references(np.column_stack([*by_pair, rows]), by_pair[0], pairs.starts, self.reduce)
        values, precision, recall = reduced[:, :3].T
        return Scores(values=values, parts={"precision": precision, "recall": recall}, stats=reduced[:, 3:])

    def score_against_mean(self, shard: Shard, weights: Column) -> Column:
        """The score of each distinct text of the shard (see `pairs_of`) with the weighted mean of the n-gram counts of
        all of them in place of a reference's counts (Vamvas and Sennrich, 2024)."""
        shares = weights / weights.sum()
        rows = np.ones((len(shares), 3 * (self.char_order + self.word_order) + 1))
        column = 0
        for tokens, max_order in self._sequences(shard):
            owners = np.repeat(np.arange(len(shares)), tokens.lengths)
            ends, grams = tokens.ids.astype(np.int64), np.zeros(len(tokens.ids), np.int64)
            for order in range(max_order):
                if order:
                    goes_on = owners[:-1] == owners[1:]
                    owners, grams, ends = owners[1:][goes_on], grams[:-1][goes_on], ends[1:][goes_on]
                # The number of the n-gram before, and the token that ends this one.
                _, grams = np.unique(grams * (ends.max(initial=0) + 1) + ends, return_inverse=True)
                kinds = int(grams.max(initial=-1)) + 1
                places, counts = np.unique(owners * kinds + grams, return_counts=True)
                texts, kind = np.divmod(places, max(kinds, 1))
                means = np.bincount(kind, counts * shares[texts], minlength=kinds)
                rows[:, column] = np.bincount(owners, minlength=len(shares))
                rows[:, column + 1] = means.sum()
                rows[:, column + 2] = np.bincount(texts, np.minimum(counts, means[kind]), minlength=len(shares))
                column += 3
        return self._chrf(rows)[0]

    def pool(self, sums: Column) -> Column:
        sums = np.asarray(sums, dtype=np.float64)
        return np.where(sums[..., -1] > 0, self._chrf(sums)[0], np.nan)

    def _sequences(self, shard: Shard) -> Iterator[tuple[Tokens, int]]:
        """The sequences whose n-grams are counted, with the highest order: characters, then words."""
        texts = shard_texts(shard, self.lowercase)
        if self.char_order:
            scan = _all_characters if self.whitespace else kernels.characters
            key = ("characters", self.whitespace, self.lowercase)
            yield shard.once(key, lambda: scan(texts)), self.char_order
        if self.word_order:
            yield shard.once(("chrf words", self.lowercase), lambda: kernels.scan_chrf_words(texts)), self.word_order

    def _chrf(self, stats: Column) -> tuple[Column, Column, Column]:
        """chrF with mean precision and recall, one number per row of statistics."""
        weight, max_orders = self.beta**2, self.char_order + self.word_order
        precision, recall, orders, summed = np.zeros((4, *stats.shape[:-1]))
        # Added up order by order, as in sacrebleu: the last bit can decide which of two references is better.
        for column in range(0, 3 * max_orders, 3):
            in_output, in_reference, matches = (stats[..., column + i] for i in range(3))
            counted = (in_output > 0) & (in_reference > 0)
            order_precision, order_recall = _ratio(matches, in_output, _TINY), _ratio(matches, in_reference, _TINY)
            precision += np.where(counted, order_precision, 0.0)
            recall += np.where(counted, order_recall, 0.0)
            orders += counted
            if self.eps_smoothing:
                summed += _f(order_precision, order_recall, weight, _TINY)
        precision, recall = _ratio(precision, orders, 0.0), _ratio(recall, orders, 0.0)
        values = summed / max_orders if self.eps_smoothing else _f(precision, recall, weight, 0.0)
        return 100 * values, 100 * precision, 100 * recall


def _f(precision: Column, recall: Column, weight: float, default: float) -> Column:
    return _ratio((1 + weight) * precision * recall, weight * precision + recall, default)


def _ratio(numerator: Column, denominator: Column, default: float) -> Column:
    """numerator / denominator, and `default` where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.full_like(denominator, default), where=denominator > 0)


def _all_characters(texts: Sequence[str]) -> Tokens:
    """All code points, including white space."""
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int32)
    return Tokens(points, np.cumsum([0, *map(len, texts)], dtype=np.int64), [])
