"""How much each token of a target counts in its mean (paper 002, equation 2 and footnote 2).

uniform     every token the same
stopwords   tokens within English stop words not at all
idf         by how rare a token is in a user's texts: log((texts + 1) / (texts that have it + 1))
prior       by how often the token stands in the target itself
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from metrist.metrics.asking import Weigh
from metrist.metrics.token_spans import Span, spans
from metrist.models.protocols import LikelihoodModel

Weighting = Literal["uniform", "stopwords", "idf", "prior"]
Numbers = NDArray[np.float64]

_WORD = re.compile(r"\w+(?:['’]\w+)*")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rarity:
    """How many texts of a collection have each piece."""

    texts: int
    having: Counter[str]

    @staticmethod
    def of(texts: Iterable[Sequence[str]]) -> Rarity:
        """Counted over texts that are cut into pieces."""
        having: Counter[str] = Counter()
        number = 0
        for pieces in texts:
            having.update(set(pieces))
            number += 1
        return Rarity(texts=number, having=having)

    def weight(self, piece: str) -> float:
        """0 for what every text has, such as the pieces that a tokenizer adds; most for what none has."""
        return float(np.log((self.texts + 1) / (self.having[piece] + 1)))


def weigher(
    weighting: Weighting,
    model: LikelihoodModel,
    *,
    max_tokens: int | None = None,
    rarity: Rarity | None = None,
    prefix: str = "",
    language: str | None = None,
) -> Weigh | None:
    """What gives tokens their weights; None where all weigh the same. A prefix, and the token that names the language,
    say nothing of the target itself and weigh nothing."""
    said = bool(prefix or language)
    if weighting == "uniform" and not said:
        return None

    @cache
    def by_text(target: str) -> Numbers:
        pieces = model.pieces(target, max_tokens)
        weights = np.ones(len(pieces))
        if weighting == "stopwords":
            weights = content_words(target, pieces)
        elif weighting == "idf" and rarity is not None:
            weights = np.array([rarity.weight(piece) for piece in pieces], dtype=np.float64)
        return weights * _after(prefix, language, target, pieces) if said else weights

    def weigh(target: str, tokens: NDArray[np.int64]) -> Numbers:
        if not len(tokens):
            return np.empty(0)
        return prior(tokens) * (by_text(target) if said else 1.0) if weighting == "prior" else by_text(target)

    return weigh


def prior(tokens: NDArray[np.int64]) -> Numbers:
    """The share of each token among the tokens of its own text."""
    _, which, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    shares: Numbers = counts[which.reshape(-1)] / len(tokens)
    return shares


def content_words(text: str, pieces: Sequence[str]) -> Numbers:
    """0 for a piece that lies within a stop word, 1 for the rest."""
    stopped = np.zeros(len(text) + 1, dtype=bool)
    for word in _WORD.finditer(text):
        if word[0].lower().replace("’", "'") in stop_words():
            stopped[word.start() : word.end()] = True
    return np.array([not (span and stopped[span[0] : span[1]].all()) for span in spans(text, pieces)], dtype=np.float64)


@cache
def stop_words() -> frozenset[str]:
    """The English stop words that ship."""
    text = (resources.files("metrist.metrics") / "words" / "stop-words.en.txt").read_text(encoding="utf-8")
    return frozenset(word for line in text.splitlines() if not line.startswith("#") for word in line.split())


def _after(prefix: str, language: str | None, text: str, pieces: Sequence[str]) -> Numbers:
    """0 for pieces of the prefix that the text begins with, and for a token that is not in the text and is called like
    the language (some tokenizers put underscores around its name); 1 for the rest."""
    name = (language or "").strip("_")

    def counts(piece: str, span: Span) -> bool:
        return span[1] > len(prefix) if span else not (name and piece.strip("_") == name)

    return np.array([counts(piece, span) for piece, span in zip(pieces, spans(text, pieces), strict=True)], np.float64)
