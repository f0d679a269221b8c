"""Metrics that describe an output without judging it: how varied, how long, how much of it is copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.kernels import Tokens
from metrist.metrics.base import Shard, check_choice, check_within
from metrist.metrics.lexical import tokenizers
from metrist.metrics.lexical.tokenizers import WordMetric
from metrist.records import Need
from metrist.scores import Failure, FailureKind, Scores

Numbers = NDArray[np.int64]


class _NumberedGrams(NamedTuple):
    """All n-grams of some texts, numbered: text t has `numbers[starts[t]:starts[t + 1]]`."""

    numbers: Numbers
    starts: Numbers


@dataclass(frozen=True)
class _ShareOfGrams(WordMetric):
    """The share of an output's n-grams that have some property."""

    order: int = 2
    tokenizer: str = "unicode"

    higher_is_better: ClassVar[bool | None] = None
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        check_within(self, "order", 1, 9)
        super().__post_init__()


@dataclass(frozen=True)
class Distinct(_ShareOfGrams):
    """The share of distinct n-grams among an output's n-grams."""

    catalog_name: ClassVar[str | None] = "distinct"

    def score(self, shard: Shard) -> Scores:
        texts, outputs, _ = _texts(shard)
        grams = _grams(_tokens(shard, self.tokenizer), self.order)
        text_of = np.repeat(np.arange(len(texts)), np.diff(grams.starts))
        width = int(grams.numbers.max(initial=0)) + 1
        distinct = np.bincount(np.unique(text_of * width + grams.numbers) // width, minlength=len(texts))
        return _share(distinct[outputs], np.diff(grams.starts)[outputs], self.order)


@dataclass(frozen=True)
class CopyRate(_ShareOfGrams):
    """The share of an output's n-grams that occur in the source."""

    needs: ClassVar[tuple[Need, ...]] = ("source",)
    catalog_name: ClassVar[str | None] = "copy_rate"

    def score(self, shard: Shard) -> Scores:
        _, outputs, sources = _texts(shard)
        grams = _grams(_tokens(shard, self.tokenizer), self.order)
        width = int(grams.numbers.max(initial=0)) + 1
        output_grams, record_of = _list_grams(grams, outputs)
        distinct = np.unique(sources)
        source_grams, source_of = _list_grams(grams, distinct)
        in_source = np.isin(sources[record_of] * width + output_grams, distinct[source_of] * width + source_grams)
        copied = np.bincount(record_of[in_source], minlength=len(shard))
        return _share(copied, np.diff(grams.starts)[outputs], self.order)


@dataclass(frozen=True)
class Length(WordMetric):
    """The number of words or characters of an output."""

    unit: str = "words"
    tokenizer: str = "unicode"

    higher_is_better: ClassVar[bool | None] = None
    bounds: ClassVar[tuple[float, float]] = (0.0, np.inf)
    catalog_name: ClassVar[str | None] = "length"

    def __post_init__(self) -> None:
        check_choice(self, "unit", ("words", "characters"))
        super().__post_init__()

    def facts(self) -> Mapping[str, str]:
        return super().facts() if self.unit == "words" else {}

    def score(self, shard: Shard) -> Scores:
        texts, outputs, _ = _texts(shard)
        if self.unit == "characters":
            lengths = np.array([len(text) for text in texts], np.float64)
        else:
            lengths = _tokens(shard, self.tokenizer).lengths.astype(np.float64)
        return Scores(values=lengths[outputs])


def _texts(shard: Shard) -> tuple[list[str], Numbers, Numbers]:
    """The distinct outputs and sources, and for each record the index of its output and of its source (-1: none)."""
    return shard.once("outputs and sources", lambda: _index_texts(shard))


def _index_texts(shard: Shard) -> tuple[list[str], Numbers, Numbers]:
    indices: dict[str, int] = {}
    outputs = [indices.setdefault(record.output, len(indices)) for record in shard.records]
    sources = [
        -1 if record.source is None else indices.setdefault(record.source, len(indices)) for record in shard.records
    ]
    return list(indices), np.array(outputs, np.int64), np.array(sources, np.int64)


def _tokens(shard: Shard, tokenizer: str) -> Tokens:
    texts = _texts(shard)[0]
    return shard.once(("tokens of outputs and sources", tokenizer), lambda: tokenizers.tokenise(texts, tokenizer))


def _grams(tokens: Tokens, order: int) -> _NumberedGrams:
    """Number the n-grams: each is the pair of the (n - 1)-gram before its last word and that word."""
    numbers = tokens.ids.astype(np.int64)
    width = int(numbers.max(initial=0)) + 1
    longer = numbers
    for step in range(1, order):
        _, longer = np.unique(longer[:-1] * width + numbers[step:], return_inverse=True)
    sizes = np.maximum(tokens.lengths - (order - 1), 0)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    # Only starts that are early enough count: the other sequences extend beyond the end of their text.
    at = np.arange(int(starts[-1])) + np.repeat(tokens.starts[:-1] - starts[:-1], sizes)
    return _NumberedGrams(longer[at], starts)


def _list_grams(grams: _NumberedGrams, texts: Numbers) -> tuple[Numbers, Numbers]:
    """The n-grams of these texts in one array, and the position of each one's text in the list."""
    sizes = np.diff(grams.starts)[texts]
    owner = np.repeat(np.arange(len(texts)), sizes)
    at = np.arange(len(owner)) + np.repeat(grams.starts[texts] - (np.cumsum(sizes) - sizes), sizes)
    return grams.numbers[at], owner


def _share(counted: Numbers, total: Numbers, order: int) -> Scores:
    unit = "word" if order == 1 else f"sequence of {order} words"
    failures = {
        int(i): Failure(FailureKind.missing_input, f"the output has no {unit}") for i in np.flatnonzero(total == 0)
    }
    with np.errstate(invalid="ignore"):
        return Scores(values=counted / total, failures=failures)
