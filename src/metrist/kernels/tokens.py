"""Tokens as numbers, and which characters make a token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

SEPARATOR, WORD, SINGLE = 1, 2, 3
#: Added to the class of a character, other than A to Z, that lower-casing changes: texts without one need no copy.
CHANGES = 4
_CODE_POINTS = 0x110000
_PAGE = 256


class Tokens(NamedTuple):
    """The tokens of several texts, end to end: text t is `ids[starts[t]:starts[t + 1]]`.

    Two tokens are equal exactly when their ids are. `words[i]` is the text of id i; `characters` leaves it empty,
    because there an id is the character's code point.
    """

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    words: list[str]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many tokens each text has."""
        return np.diff(self.starts)

    def listed(self, text: int) -> list[int]:
        """One text's ids, as plain numbers."""
        ids: list[int] = self.ids[self.starts[text] : self.starts[text + 1]].tolist()
        return ids


def from_lists(token_lists: Sequence[Sequence[str]]) -> Tokens:
    """Texts that someone else has cut into tokens."""
    seen: dict[str, int] = {}
    ids = [seen.setdefault(token, len(seen)) for tokens in token_lists for token in tokens]
    return Tokens(np.array(ids, np.int32), running_starts(map(len, token_lists)), list(seen))


def relabel(tokens: Tokens, words: Sequence[str]) -> Tokens:
    """The same tokens with `words[i]` for id i, as after stemming each distinct word. Equal words get one id."""
    seen: dict[str, int] = {}
    changed = np.array([seen.setdefault(word, len(seen)) for word in words], np.int32)
    return Tokens(changed[tokens.ids] if len(words) else tokens.ids, tokens.starts, list(seen))


def running_starts(lengths: Iterable[int]) -> NDArray[np.int64]:
    """Where texts of these lengths start, and where the last one ends."""
    return np.cumsum([0, *lengths], dtype=np.int64)


class CharClasses:
    """Which characters separate tokens, join into words, or are a token each: what `scan` cuts texts by.

    `classify` gives SEPARATOR, WORD or SINGLE for one character; it is asked about 256 neighbours at a time, when a
    text first holds one of them. With `case="lower"` texts are cut after `str.lower`. The space always separates.
    """

    def __init__(self, classify: Callable[[str], int], *, case: Literal["keep", "lower"] = "keep") -> None:
        self._classify = classify
        self.case = case
        #: One byte per code point: its class, plus CHANGES where lower-casing changes it; 0 before `fill`.
        self.table = bytearray(_CODE_POINTS)

    def fill(self, code_point: int) -> None:
        """Classify a character and its neighbours."""
        first = code_point - code_point % _PAGE
        for number in range(first, first + _PAGE):
            character = chr(number)
            kind = SEPARATOR if character == " " else self._classify(character)
            if kind not in (SEPARATOR, WORD, SINGLE):
                raise ValueError(f"classify({character!r}) must give SEPARATOR, WORD or SINGLE, got {kind!r}")
            changes = self.case == "lower" and not character.isascii() and character.lower() != character
            self.table[number] = kind + (CHANGES if changes else 0)

    def __getitem__(self, code_point: int) -> int:
        if not self.table[code_point]:
            self.fill(code_point)
        return self.table[code_point] & ~CHANGES
