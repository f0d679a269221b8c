"""Text as a reader compares it: case, kinds of quotation marks, dashes and spaces put aside, with the way back."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache

_ALIKE = {
    **dict.fromkeys("“”„‟«»″＂❝❞", '"'),
    **dict.fromkeys("‘’‚‛‹›′´`＇", "'"),
    **dict.fromkeys("‐‑‒–—―−﹣－", "-"),
}


@dataclass(frozen=True, slots=True)
class Normalised:
    """`text` is compared; its character k comes from `origins[k]` of the original, which has `length` characters."""

    text: str
    origins: tuple[int, ...]
    length: int

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The original characters that these came from."""
        return self.origins[start], self.origins[end - 1] + 1


@lru_cache(maxsize=256)
def normalised(text: str) -> Normalised:
    """Lower case, compatible forms made one, marks unified, runs of white space one space, invisible characters out."""
    characters: list[str] = []
    origins: list[int] = []
    for at, character in enumerate(text):
        for plain in _plain(character):
            if plain == " " and characters and characters[-1] == " ":
                continue
            characters.append(plain)
            origins.append(at)
    return Normalised("".join(characters), tuple(origins), len(text))


@lru_cache(maxsize=4096)
def _plain(character: str) -> str:
    if character.isspace():
        return " "
    if character in _ALIKE:
        return _ALIKE[character]
    if unicodedata.category(character) == "Cf":  # Zero-width joiners, byte order marks, directions.
        return ""
    return "".join(_ALIKE.get(one, one) for one in unicodedata.normalize("NFKC", character).casefold())
