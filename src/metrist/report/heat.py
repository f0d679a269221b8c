"""How unlikely a model found the words of a text.

Models read pieces of words. People read words, so pieces are put together: the probability of a word is the product of
those of its pieces. The pieces themselves are shown on request.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrist.errors import escape_controls
from metrist.report.cells import NOT_AVAILABLE

#: How many of a reading's least likely words are listed.
WORST_WORDS = 5
#: Stands for a token that is only a space.
SPACE = "␣"
#: Stands for the end of a text among the least likely words.
END = "(end of text)"
#: What a metric stores of each reading.
READING_FIELDS = ("condition", "target", "pieces", "logprobs")
#: Smaller probabilities are not written out.
_LEAST_SHOWN = math.log(0.0001)
#: Tokens that mark the beginning or the end of a text, as tokenizers write them. They are no words.
_MARKER = re.compile(r"</?s>|<(?:pad|bos|eos)>|<\|[^|<>]*\|>|\[(?:CLS|SEP|PAD|BOS|EOS)\]")


@dataclass(frozen=True, slots=True)
class ColourStep:
    """A step of the colour scale, from its least log-probability up, with its style on a terminal."""

    label: str
    least: float
    style: str


#: From likely to unlikely. Fixed, so that two pages can be compared.
STEPS = (
    ColourStep("probability .5 or more", math.log(0.5), ""),
    ColourStep(".1 to .5", math.log(0.1), "black on #fff3c4"),
    ColourStep(".01 to .1", math.log(0.01), "black on #ffd591"),
    ColourStep(".001 to .01", math.log(0.001), "black on #ff9a62"),
    ColourStep("below .001", -math.inf, "bold white on #b3261e"),
)


def find_step(logprob: float) -> int:
    """The index of a log-probability's step; an unknown one belongs to the first."""
    return 0 if math.isnan(logprob) else next(n for n, step in enumerate(STEPS) if logprob >= step.least)


def format_probability(logprob: float) -> str:
    """A log-probability as a probability, to two digits."""
    if math.isnan(logprob):
        return NOT_AVAILABLE
    return f"{math.exp(logprob):.2g}" if logprob >= _LEAST_SHOWN else "below 0.0001"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A model's log-probabilities of one text, token by token; `label` names the text and its condition."""

    label: str
    pieces: tuple[str, ...]
    logprobs: tuple[float, ...]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Reading:
        """A reading as a metric stores it."""
        logprobs = tuple(math.nan if number is None else float(number) for number in row["logprobs"])
        pieces = tuple(map(str, row["pieces"]))
        if len(pieces) != len(logprobs):
            raise ValueError("as many pieces as numbers")
        # Whatever else a metric notes of a reading, such as the prompt, distinguishes it from others.
        extra = [f"{key}: {value}" for key, value in row.items() if key not in READING_FIELDS and value is not None]
        label = f"{row['target']}, given {row['condition']}" if row["condition"] else str(row["target"])
        return cls(label="; ".join([label, *extra]), pieces=pieces, logprobs=logprobs)

    def units(self, *, by_piece: bool = False) -> Iterator[tuple[str, float]]:
        """Each word, or each piece, as it is shown, and its log-probability."""
        pieces = list(self.pieces)
        if not any(piece[:1].isspace() for piece in pieces):
            # The tokenizer keeps no spaces and marks the continuation of a word with ##.
            for n, (before, piece) in enumerate(zip(("", *self.pieces), self.pieces, strict=False)):
                joined = not before or piece.startswith("##") or _is_unspaced(before[-1:]) or _is_unspaced(piece[:1])
                pieces[n] = f"{'' if joined else ' '}{piece.removeprefix('##')}"
        parts = list(zip(pieces, self.logprobs, strict=True))
        if by_piece:
            yield from ((escape_controls(piece), logprob) for piece, logprob in parts)
            return
        first, last = _trim_markers(self.pieces)
        for n, (word, logprob) in enumerate(_join_words(parts[first:last])):
            # Any white space before a word is shown as one space, and the first word begins the line.
            space = " " if n and word[:1].isspace() else ""
            yield f"{space}{escape_controls(word.strip())}", logprob

    def worst(self, *, by_piece: bool = False) -> list[tuple[str, float]]:
        """The least likely words or pieces, the least likely first; for words also the end of the text."""
        known = [(text.strip() or SPACE, logprob) for text, logprob in self.units(by_piece=by_piece)]
        if not by_piece and (last := _trim_markers(self.pieces)[1]) < len(self.pieces):
            known.append((END, _add_logprobs(self.logprobs[last:])))
        return sorted((unit for unit in known if not math.isnan(unit[1])), key=lambda unit: unit[1])[:WORST_WORDS]

    def for_script(self) -> dict[str, Any]:
        """The reading as a page's script draws it: words, log-probabilities and steps of the colour scale."""
        units = [
            [text, None if math.isnan(logprob) else round(logprob, 4), find_step(logprob)]
            for text, logprob in self.units()
        ]
        return {"label": self.label, "units": units}


def _trim_markers(pieces: Sequence[str]) -> tuple[int, int]:
    """Where the text begins and ends between markers such as <s> and </s>."""
    first, last = 0, len(pieces)
    while first < last and _MARKER.fullmatch(pieces[first].strip()):
        first += 1
    while last > first and _MARKER.fullmatch(pieces[last - 1].strip()):
        last -= 1
    return first, last


def _join_words(parts: Sequence[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """Put pieces together to words, which white space separates; some scripts have none, and each piece is one."""
    word: list[tuple[str, float]] = []
    for piece, logprob in parts:
        before = word[-1][0] if word else ""
        if before.strip() and (piece[:1].isspace() or _is_unspaced(before[-1:]) or _is_unspaced(piece[:1])):
            yield from _split_punctuation(word)
            word = []
        word.append((piece, logprob))
    if word:
        yield from _split_punctuation(word)


def _split_punctuation(word: Sequence[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """A word, and apart from it the pieces around it without letters and digits; those inside belong to it."""
    letters = [n for n, (piece, _) in enumerate(word) if any(map(str.isalnum, piece))]
    first, last = (letters[0], letters[-1] + 1) if letters else (0, len(word))
    if not "".join(piece for piece, _ in word[:first]).strip():
        first = 0  # Only a space.
    if not "".join(piece for piece, _ in word[last:]).strip():
        last = len(word)
    for group in (word[:first], word[first:last], word[last:]):
        if group:
            yield "".join(piece for piece, _ in group), _add_logprobs(logprob for _, logprob in group)


def _add_logprobs(logprobs: Iterable[float]) -> float:
    """The sum of those that are known; NaN if none is."""
    known = [logprob for logprob in logprobs if not math.isnan(logprob)]
    return sum(known) if known else math.nan


def _is_unspaced(character: str) -> bool:
    """Whether a character is Chinese, Japanese, Thai, Lao, Khmer or Burmese. Korean has spaces."""
    if not character or character < "\u0e00":
        return False
    if "\u0e00" <= character <= "\u0eff" or "\u1000" <= character <= "\u109f" or "\u1780" <= character <= "\u17ff":
        return True
    return unicodedata.east_asian_width(character) == "W" and not unicodedata.name(character, "").startswith("HANGUL")
