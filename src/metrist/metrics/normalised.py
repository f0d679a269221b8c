"""Text as a reader compares it: case, kinds of quotation marks, dashes and spaces put aside, with the way back."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

_ALIKE = {
    **dict.fromkeys("“”„‟«»″＂❝❞", '"'),
    **dict.fromkeys("‘’‚‛‹›′´`＇", "'"),
    **dict.fromkeys("‐‑‒–—―−﹣－", "-"),
}
# Most of a text in Latin script: nothing but capitals needs a look there.
_EASY = re.compile(r"[!-_a-~]+(?: [!-_a-~]+)*")
_VOICED = "\uff9e\uff9f"


@dataclass(frozen=True, slots=True)
class Normalised:
    """`text` is compared; its character k comes from those of the original from `origins[k]` up to `ends[k]`."""

    text: str
    origins: tuple[int, ...]
    ends: tuple[int, ...]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The original characters that these came from."""
        return self.origins[start], self.ends[end - 1]


@lru_cache(maxsize=256)
def normalised(text: str) -> Normalised:
    """Lower case, compatible and composed forms made one, marks unified, runs of white space one space, invisible
    characters out."""
    pieces: list[str] = []
    origins: list[int] = []
    ends: list[int] = []
    at, spaced = 0, False
    while at < len(text):
        easy = _easy_end(text, at)
        if easy > at:
            pieces.append(text[at:easy].lower())
            origins += range(at, easy)
            ends += range(at + 1, easy + 1)
            at, spaced = easy, False
            continue
        end = _cluster_end(text, at)
        for plain in _plain(text[at:end]):
            if plain == " " and spaced:
                continue
            spaced = plain == " "
            pieces.append(plain)
            origins.append(at)
            ends.append(end)
        at = end
    return Normalised("".join(pieces), tuple(origins), tuple(ends))


def _easy_end(text: str, at: int) -> int:
    """Where the easy characters from here on end; the last of them may have marks that follow."""
    found = _EASY.match(text, at)
    if found is None:
        return at
    end = found.end()
    return end - (end < len(text) and _joins(text[end]))


def _cluster_end(text: str, at: int) -> int:
    """Where a character ends together with the marks on it: they may be written as one character or as several."""
    end = at + 1
    while end < len(text) and _joins(text[end]):
        end += 1
    return end


def _joins(character: str) -> bool:
    return character >= "\u0300" and _is_joined(character)


@lru_cache(maxsize=4096)
def _is_joined(character: str) -> bool:
    # The vowels and end consonants of Korean syllables, and the voicing of half-width kana, are no marks by category.
    return unicodedata.category(character).startswith("M") or "\u1160" <= character <= "\u11ff" or character in _VOICED


@lru_cache(maxsize=4096)
def _plain(cluster: str) -> str:
    first = cluster[0]
    alone = _alone(first)
    if alone is not None:
        return alone + (_plain(cluster[1:]) if len(cluster) > 1 else "")
    composed = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", cluster).casefold())
    return "".join(_ALIKE.get(one, one) for one in composed)


def _alone(character: str) -> str | None:
    """What stands for a character whatever follows it; None where marks may change it."""
    if character.isspace():
        return " "
    if character in _ALIKE:
        return _ALIKE[character]
    # Zero-width joiners, byte order marks, directions.
    return "" if unicodedata.category(character) == "Cf" else None
