"""Edits between a few words and very many, all at once: what comparing them one by one in Python would take seconds for
in a text of thousands of words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Words of up to so many characters are compared together: one bit for each.
_LONGEST = 63
#: So many words at a time, which keeps what is in hand small.
_AT_ONCE = 32


class WordTable:
    """Words made ready to be compared with others. `edits` counts those of words too long to be compared together."""

    def __init__(self, words: Sequence[str], edits: Callable[[str, str], int]) -> None:
        self._words, self._edits = words, edits
        self._lengths = np.array([len(word) for word in words], dtype=np.int64)
        # Longest first, so that at each place the words that have not ended are the first ones.
        order = np.argsort(-self._lengths, kind="stable")
        self._order = order[self._lengths[order] <= _LONGEST]
        self._long = order[self._lengths[order] > _LONGEST]
        self._alphabet, self._columns = _by_place([words[n] for n in self._order])

    def edit_shares(self, wanted: Sequence[str]) -> Floats:
        """A row for each wanted word, a column for each word: the fewest edits between the two over the length of the
        longer."""
        found = np.empty((len(wanted), len(self._words)))
        for start in range(0, len(wanted), _AT_ONCE):
            found[start : start + _AT_ONCE] = self._edited(wanted[start : start + _AT_ONCE])
        longer = np.maximum(self._lengths, np.array([[len(one)] for one in wanted]))
        shares: Floats = np.minimum(found / longer, 1.0)
        return shares

    def _edited(self, wanted: Sequence[str]) -> NDArray[np.int64]:
        found = np.empty((len(wanted), len(self._words)), dtype=np.int64)
        short = [n for n, one in enumerate(wanted) if len(one) <= _LONGEST]
        if short:
            found[np.ix_(np.array(short), self._order)] = self._together([wanted[n] for n in short])
        for row, one in enumerate(wanted):
            for column in self._long if len(one) <= _LONGEST else range(len(self._words)):
                found[row, column] = self._edits(one, self._words[column])
        return found

    def _together(self, wanted: Sequence[str]) -> NDArray[np.int64]:
        """Myers' bit-parallel algorithm, a wanted word's characters in the bits: a step for each place of the words."""
        masks = self._masks(wanted)
        sizes = np.array([[len(one)] for one in wanted], dtype=np.uint64)
        one = np.uint64(1)
        last = one << (sizes - one)
        whole = last | (last - one)
        rises = np.repeat(whole, len(self._order), axis=1)
        falls = np.zeros_like(rises)
        edited = np.repeat(sizes.astype(np.int64), len(self._order), axis=1)
        for column in self._columns:
            live = np.s_[:, : len(column)]
            mask, rising, falling = masks[:, column], rises[live], falls[live]
            same = mask | falling
            diagonal = (((mask & rising) + rising) ^ rising) | mask
            up, down = falling | (whole & ~(diagonal | rising)), rising & diagonal
            edited[live] += ((up & last) > 0).astype(np.int64) - ((down & last) > 0)
            up, down = ((up << one) | one) & whole, (down << one) & whole
            rises[live], falls[live] = down | (whole & ~(same | up)), up & same
        return edited

    def _masks(self, wanted: Sequence[str]) -> NDArray[np.uint64]:
        """By the numbers of the words' characters, the bits where a wanted word has them."""
        masks = np.zeros((len(wanted), len(self._alphabet) + 1), dtype=np.uint64)
        for row, one in enumerate(wanted):
            for at, character in enumerate(one):
                masks[row, self._alphabet.get(character, -1)] |= np.uint64(1 << at)
        # What no word has is nowhere in them.
        masks[:, -1] = 0
        return masks


def _by_place(words: Sequence[str]) -> tuple[dict[str, int], list[NDArray[np.int64]]]:
    """A number for each character, and for each place the numbers of the characters that words have there."""
    alphabet = {character: n for n, character in enumerate(dict.fromkeys("".join(words)))}
    columns: list[list[int]] = [[] for _ in range(len(words[0]) if words else 0)]
    for word in words:
        for place, character in enumerate(word):
            columns[place].append(alphabet[character])
    return alphabet, [np.array(column, dtype=np.int64) for column in columns]


def edits_along(form: str, text: str) -> NDArray[np.int32]:
    """After each character of the text, the fewest edits that turn the form into a part of the text that ends there and
    begins anywhere: the textbook's table, a row at a time."""
    characters = _codes(text)
    along = np.arange(len(text) + 1, dtype=np.int32)
    row = np.zeros(len(text) + 1, dtype=np.int32)
    for character in _codes(form):
        made = row + np.int32(1)
        np.minimum(made[1:], row[:-1] + (characters != character), out=made[1:])
        # A character of the text that is passed over costs one more than the place before it.
        row = np.minimum.accumulate(made - along) + along
    return row[1:]


def least_edited(costs: Floats) -> Floats:
    """After each word of a text (a column), the least that wanted words (rows) cost against some words that end there:
    a changed word costs its share of edits, one too many or too few costs 1. Right but for rounding."""
    along = np.arange(costs.shape[1] + 1, dtype=np.float64)
    row = np.zeros(costs.shape[1] + 1)
    for changes in costs:
        made = row + 1.0
        np.minimum(made[1:], row[:-1] + changes, out=made[1:])
        row = np.minimum.accumulate(made - along) + along
    return row[1:]


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
