"""In how many texts of a file each token occurs, and the weight (inverse document frequency) that follows from it.

The texts come from a file that the user names, not from the records at hand: a run scores its records in shards, and a
weight that depends on the shard would make a score depend on the records beside it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
from numpy.typing import NDArray

from metrist.errors import InputError
from metrist.metrics.likelihood.layout import Weigh
from metrist.metrics.model_metric import Span, find_spans
from metrist.models.protocols import LikelihoodModel

#: Texts in, each text's token numbers out.
Tokenize = Callable[[Sequence[str]], Iterable[Sequence[int]]]

_OPENERS: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


@dataclass(frozen=True, slots=True, eq=False)
class DocumentFrequencies:
    """Of `documents` texts, `counts[token]` have the token."""

    documents: int
    counts: Mapping[int, int]

    def idf(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """log((documents + 1) / (texts with the token + 1)) of each token: 0 for a token that every text has."""
        distinct, places = np.unique(tokens, return_inverse=True)
        having = np.array([self.counts.get(int(token), 0) for token in distinct], np.float64)
        weights: NDArray[np.float64] = np.log((self.documents + 1) / (having + 1))[places.reshape(tokens.shape)]
        return weights


def count_documents(path: str, tokenize: Tokenize) -> DocumentFrequencies:
    """How many of the file's texts have each token."""
    texts = read_texts(path)
    counts: Counter[int] = Counter()
    for ids in tokenize(texts):
        counts.update(set(ids))
    return DocumentFrequencies(len(texts), dict(counts))


def read_texts(path: str) -> list[str]:
    """The file's texts: its lines; or of a record file (.jsonl) each item's references, the outputs where no record has
    references. Blank texts are passed over, white space at both ends is dropped."""
    name = Path(path)
    suffixes = name.suffixes[-2:]
    compressed = suffixes[-1:][0] if suffixes and suffixes[-1] in _OPENERS else ""
    try:
        with _OPENERS.get(compressed, open)(name, "rt", encoding="utf-8-sig") as lines:
            found = list(_of_records(path, lines) if name.name.removesuffix(compressed).endswith(".jsonl") else lines)
    except (OSError, UnicodeDecodeError, EOFError, lzma.LZMAError) as fault:
        raise InputError(f"idf: cannot read the texts in {path}: {fault}") from fault
    texts = [text.strip() for text in found if text.strip()]
    if not texts:
        raise InputError(f"{path} has no texts; idf needs a file with one text a line, or a .jsonl file of records")
    return texts


def _of_records(path: str, lines: TextIO) -> Iterator[str]:
    rows = [_row(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    # The records of several systems repeat an item's references, which would make what is one text look frequent.
    references = dict.fromkeys((str(row.get("item")), text) for row in rows for text in row.get("references") or ())
    if references:
        return (text for _, text in references)
    return (row["output"] for row in rows if isinstance(row.get("output"), str))


def _row(path: str, number: int, line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as fault:
        raise InputError(f"{path}:{number}: not a JSON object: {fault}") from None
    if not isinstance(row, dict):
        raise InputError(f"{path}:{number}: a record must be a JSON object, got {type(row).__name__}")
    references = row.get("references")
    if references is not None and not (isinstance(references, list) and all(isinstance(r, str) for r in references)):
        raise InputError(f"{path}:{number}: 'references' must be a list of strings, got {references!r:.60}")
    return row


def fingerprint(path: str) -> str:
    """A hash of the file's bytes, for signatures."""
    try:
        stat = Path(path).stat()
        return _fingerprint(path, stat.st_size, stat.st_mtime_ns)
    except OSError as fault:
        raise InputError(f"cannot read {path}: {fault.strerror or fault}") from fault


@lru_cache(maxsize=32)
def _fingerprint(path: str, _size: int, _changed: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


# How much each token of a target counts in its mean (paper 002, equation 2 and footnote 2).
#
# uniform     every token the same
# stopwords   tokens within English stop words not at all
# idf         by how rare a token is in a user's texts: log((texts + 1) / (texts that have it + 1))
# prior       by how often the token stands in the target itself


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


def make_weigher(
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
            weights = content_word_weights(target, pieces)
        elif weighting == "idf" and rarity is not None:
            weights = np.array([rarity.weight(piece) for piece in pieces], dtype=np.float64)
        return weights * _after(prefix, language, target, pieces) if said else weights

    def weigh(target: str, tokens: NDArray[np.int64]) -> Numbers:
        if not len(tokens):
            return np.empty(0)
        return prior_weights(tokens) * (by_text(target) if said else 1.0) if weighting == "prior" else by_text(target)

    return weigh


def prior_weights(tokens: NDArray[np.int64]) -> Numbers:
    """The share of each token among the tokens of its own text."""
    _, which, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    shares: Numbers = counts[which.reshape(-1)] / len(tokens)
    return shares


def content_word_weights(text: str, pieces: Sequence[str]) -> Numbers:
    """0 for a piece that lies within a stop word, 1 for the rest."""
    stopped = np.zeros(len(text) + 1, dtype=bool)
    for word in _WORD.finditer(text):
        if word[0].lower().replace("’", "'") in read_stop_words():
            stopped[word.start() : word.end()] = True
    return np.array(
        [not (span and stopped[span[0] : span[1]].all()) for span in find_spans(text, pieces)], dtype=np.float64
    )


@cache
def read_stop_words() -> frozenset[str]:
    """The English stop words that ship."""
    text = (resources.files("metrist.metrics.likelihood") / "stop-words.en.txt").read_text(encoding="utf-8")
    return frozenset(word for line in text.splitlines() if not line.startswith("#") for word in line.split())


def _after(prefix: str, language: str | None, text: str, pieces: Sequence[str]) -> Numbers:
    """0 for pieces of the prefix that the text begins with, and for a token that is not in the text and is called like
    the language (some tokenizers put underscores around its name); 1 for the rest."""
    name = (language or "").strip("_")

    def counts(piece: str, span: Span) -> bool:
        return span[1] > len(prefix) if span else not (name and piece.strip("_") == name)

    return np.array(
        [counts(piece, span) for piece, span in zip(pieces, find_spans(text, pieces), strict=True)], np.float64
    )
