"""How much each token counts in a mean: uniformly, by inverse document frequency, or without stop words.

Document frequencies come from a file that the user names, not from the scored records: a run scores its records in
shards, and a weight that depends on the shard would make a score depend on the other records.
"""

from __future__ import annotations

import gzip
import json
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TextIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from metrist.errors import InputError
from metrist.models.protocols import LikelihoodModel

#: uniform: all tokens count the same; stopwords: tokens within English stop words do not count; idf: inverse document
#: frequency; prior: the share of the token among the tokens of its text (BARTScore, equation 2 and footnote 2).
Weighting = Literal["uniform", "stopwords", "idf", "prior"]
Numbers = NDArray[np.float64]
#: Maps a target and the ids of its tokens to the tokens' weights.
Weigh = Callable[[str, NDArray[np.int64]], Numbers]

_OPENERS: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
_WORD = re.compile(r"\w+(?:['’]\w+)*")

# --- Document frequencies


@dataclass(frozen=True, slots=True, eq=False)
class DocumentFrequencies:
    """`counts[token]` of `documents` texts contain the token. Tokens are ids or strings."""

    documents: int
    counts: Mapping[Any, int]

    @classmethod
    def count(cls, texts: Iterable[Iterable[Hashable]]) -> DocumentFrequencies:
        """Count texts that are given as tokens."""
        counts: Counter[Hashable] = Counter()
        documents = 0
        for tokens in texts:
            counts.update(set(tokens))
            documents += 1
        return cls(documents, counts)

    def idf(self, tokens: Sequence[Any] | NDArray[np.int64]) -> Numbers:
        """log((documents + 1) / (texts with the token + 1)) of each token: 0 if every text contains it."""
        ids = tokens.tolist() if isinstance(tokens, np.ndarray) else tokens
        frequencies = np.array([self.counts.get(token, 0) for token in ids], np.float64)
        weights: Numbers = np.log((self.documents + 1) / (frequencies + 1))
        return weights


def read_texts(path: str) -> list[str]:
    """Read the texts of an idf file: its lines, or the references of a record file (.jsonl), each once per item; its
    outputs if no record has references. Blank texts are skipped, surrounding white space is dropped."""
    name = Path(path).name
    compression = Path(path).suffix if Path(path).suffix in _OPENERS else ""
    try:
        with _OPENERS.get(compression, open)(path, "rt", encoding="utf-8-sig") as lines:
            is_records = name.removesuffix(compression).endswith(".jsonl")
            texts = [text.strip() for text in (_record_texts(path, lines) if is_records else lines) if text.strip()]
    except (OSError, UnicodeDecodeError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"idf: cannot read the texts in {path}: {error}") from error
    if not texts:
        raise InputError(
            f"{path} has no texts; idf needs a file with one text per line, or a .jsonl file of records", code="no_data"
        )
    return texts


class _IdfRow(msgspec.Struct):
    """What an idf file of records needs of a record."""

    item: Any = None
    references: list[str] | None = None
    output: Any = None


def _record_texts(path: str, lines: TextIO) -> Iterator[str]:
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                rows.append(msgspec.convert(json.loads(line), _IdfRow))
        except msgspec.ValidationError as error:
            raise InputError(f"{path}:{number}: not a record: {error}", code="invalid_value") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not a JSON object: {error}") from None
    # Records of several systems repeat an item's references: counted each time, one text would look frequent.
    references = dict.fromkeys((str(row.item), text) for row in rows for text in row.references or ())
    if references:
        return (text for _, text in references)
    return (row.output for row in rows if isinstance(row.output, str))


# --- Where tokens lie in a text

#: Marks with which tokenizers begin (BPE, SentencePiece) or continue (WordPiece) a word.
_MARKS = ("Ġ", "▁", "##")
#: A piece is searched for this many characters ahead, not counting white space, so that one missing piece does not
#: misplace all that follow.
_LOOK_AHEAD = 12


def find_spans(text: str, pieces: Sequence[str]) -> list[tuple[int, int] | None]:
    """Start and end of each piece in the text, from left to right.

    Tokenizers mark word boundaries in different ways and may change letters. A piece that the tokenizer added, or
    changed so much that it cannot be found, is None.
    """
    lowered = _lower(text)
    spans: list[tuple[int, int] | None] = []
    position = 0
    for piece in pieces:
        for mark in _MARKS:
            # A piece that is nothing but a mark may be that very character.
            if piece.startswith(mark) and len(piece) > len(mark):
                piece = piece[len(mark) :]
        letters = _lower(piece.strip())
        while letters and position < len(lowered) and lowered[position].isspace():
            position += 1
        start = lowered.find(letters, position, position + len(letters) + _LOOK_AHEAD) if letters else -1
        if start < 0:
            spans.append(None)
        else:
            position = start + len(letters)
            spans.append((start, position))
    return spans


def _lower(text: str) -> str:
    """Lower-case without changing the length: characters whose lower case has several characters stay."""
    return "".join(lowered if len(lowered := character.lower()) == 1 else character for character in text)


# --- Weights of a target's tokens


def make_weigher(
    weighting: Weighting,
    model: LikelihoodModel,
    *,
    max_tokens: int | None = None,
    frequencies: DocumentFrequencies | None = None,
    prefix: str = "",
    language: str | None = None,
) -> Weigh | None:
    """A function that weighs the tokens of a target; None if all tokens have the same weight.

    The tokens of `prefix`, and the token that names the language, are not part of the text and have weight 0.
    """
    has_additions = bool(prefix or language)
    if weighting == "uniform" and not has_additions:
        return None

    @cache
    def weigh_text(target: str) -> Numbers:
        pieces = model.pieces(target, max_tokens)
        weights = np.ones(len(pieces))
        if weighting == "stopwords":
            weights = content_word_weights(target, pieces)
        elif weighting == "idf" and frequencies is not None:
            weights = frequencies.idf(pieces)
        if has_additions:
            # Some tokenizers put underscores around the language.
            name = (language or "").strip("_")
            own = [
                span[1] > len(prefix) if span else not (name and piece.strip("_") == name)
                for piece, span in zip(pieces, find_spans(target, pieces), strict=True)
            ]
            weights = weights * np.array(own, np.float64)
        return weights

    def weigh(target: str, tokens: NDArray[np.int64]) -> Numbers:
        if not len(tokens):
            return np.empty(0)
        if weighting == "prior":
            return prior_weights(tokens) * (weigh_text(target) if has_additions else 1.0)
        return weigh_text(target)

    return weigh


def prior_weights(tokens: NDArray[np.int64]) -> Numbers:
    """The share of each token among the tokens of its own text."""
    _, positions, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    weights: Numbers = counts[positions.reshape(-1)] / len(tokens)
    return weights


def content_word_weights(text: str, pieces: Sequence[str]) -> Numbers:
    """0 for a piece within a stop word, 1 for the others."""
    is_stop = np.zeros(len(text) + 1, dtype=bool)
    for word in _WORD.finditer(text):
        if word[0].lower().replace("’", "'") in read_stop_words():
            is_stop[word.start() : word.end()] = True
    spans = find_spans(text, pieces)
    return np.array([not (span and is_stop[span[0] : span[1]].all()) for span in spans], dtype=np.float64)


@cache
def read_stop_words() -> frozenset[str]:
    """The English stop words that ship with metrist."""
    text = (resources.files("metrist.metrics.likelihood") / "stop-words.en.txt").read_text(encoding="utf-8")
    return frozenset(word for line in text.splitlines() if not line.startswith("#") for word in line.split())
