"""Tokens as numbers, and the classes of characters that form them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

SEPARATOR, WORD, SINGLE = 1, 2, 3
#: Added to the class of a non-ASCII character that lower-casing changes: texts without one need no copy.
CHANGES = 4
_CODE_POINTS = 0x110000
#: A value of `json_arrays`.
Value = str | tuple[str, ...] | None
#: A column of `join_columns`: one text for all rows; texts one after another and where each begins, with the end of the
#: last; or numbers and whether whole ones are written without their `.0`.
TextColumn = bytes | tuple[memoryview, NDArray[np.int32]] | tuple[NDArray[np.float64], bool]
_PAGE = 256


class Tokens(NamedTuple):
    """The tokens of several texts, concatenated: text t is `ids[starts[t]:starts[t + 1]]`.

    Two tokens are equal exactly when their ids are. `words[i]` is the text of id i; `characters` leaves it empty,
    because there an id is the character's code point.
    """

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    words: list[str]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def listed(self, text: int) -> list[int]:
        ids: list[int] = self.ids[self.starts[text] : self.starts[text + 1]].tolist()
        return ids


def from_lists(token_lists: Sequence[Sequence[str]]) -> Tokens:
    """Number the tokens of texts that are already split."""
    seen: dict[str, int] = {}
    ids = [seen.setdefault(token, len(seen)) for tokens in token_lists for token in tokens]
    return Tokens(np.array(ids, np.int32), running_starts(map(len, token_lists)), list(seen))


def relabel(tokens: Tokens, words: Sequence[str]) -> Tokens:
    """Replace id i by that of `words[i]`, for example after stemming each distinct word. Equal words get one id."""
    seen: dict[str, int] = {}
    changed = np.array([seen.setdefault(word, len(seen)) for word in words], np.int32)
    return Tokens(changed[tokens.ids] if len(words) else tokens.ids, tokens.starts, list(seen))


def running_starts(lengths: Iterable[int]) -> NDArray[np.int64]:
    """Return where texts of these lengths start, and where the last one ends."""
    return np.cumsum([0, *lengths], dtype=np.int64)


class CharClasses:
    """The class of each character for `scan`: it separates tokens, belongs to a word, or is a token.

    `classify` returns SEPARATOR, WORD or SINGLE for a character; it is called for 256 neighbours at a time, when a text
    first contains one of them. With `case="lower"` texts are split after `str.lower`. The space always separates.
    """

    def __init__(self, classify: Callable[[str], int], *, case: Literal["keep", "lower"] = "keep") -> None:
        self._classify = classify
        self.case = case
        #: One byte per code point: its class, plus CHANGES where lower-casing changes it; 0 before `fill`.
        self.table = bytearray(_CODE_POINTS)
        self.fill(0)  # The compiled loop reads ASCII classes without checking that they are filled.

    def fill(self, code_point: int) -> None:
        """Classify a character and its neighbours."""
        first = code_point - code_point % _PAGE
        for number in range(first, first + _PAGE):
            character = chr(number)
            kind = SEPARATOR if character == " " else self._classify(character)
            if kind not in (SEPARATOR, WORD, SINGLE):
                raise ValueError(f"classify({character!r}) must return SEPARATOR, WORD or SINGLE, got {kind!r}")
            changes = self.case == "lower" and not character.isascii() and character.lower() != character
            self.table[number] = kind + (CHANGES if changes else 0)

    def __getitem__(self, code_point: int) -> int:
        if not self.table[code_point]:
            self.fill(code_point)
        return self.table[code_point] & ~CHANGES
