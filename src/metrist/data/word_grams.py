"""Texts as sets of word 5-grams, and which of these several texts have: what near-duplicates and parts are found by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Words in a row that make one gram. A text with fewer words is one gram.
GRAM = 5

_MIXING = np.uint64(0x9E3779B97F4A7C15)
_TABLE_BITS = 24
_TABLE_MASK = np.uint64((1 << _TABLE_BITS) - 1)


@dataclass(frozen=True, slots=True)
class Grams:
    """`sizes` counts each text's distinct grams. The others are of the grams that more than one text has, text by text,
    and rarest first within each: the gram's hash, its text, and its rank there; grams that no other text has come
    before all of these."""

    sizes: NDArray[np.int64]
    common: NDArray[np.uint64]
    owners: NDArray[np.int64]
    rank: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Grams:
        grams = _grams(texts)
        sizes = np.array([len(found) for found in grams], dtype=np.int64)
        common, owners, counts = _common(grams, sizes)
        order = np.lexsort((common, counts, owners))
        common, owners = common[order], owners[order]
        kept = np.bincount(owners, minlength=len(texts))
        rank = np.arange(len(owners)) - (np.cumsum(kept) - kept)[owners] + (sizes - kept)[owners]
        return cls(sizes, common, owners, rank)

    def shared(self, couples: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many grams the two texts of each couple have in common."""
        ends = np.cumsum(np.bincount(self.owners, minlength=len(self.sizes)))
        begins = np.append(0, ends[:-1])
        sets: dict[int, set[int]] = {}

        def of(text: int) -> set[int]:
            if text not in sets:
                sets[text] = set(self.common[begins[text] : ends[text]].tolist())
            return sets[text]

        return np.array([len(of(one) & of(other)) for one, other in couples.tolist()], dtype=np.int64)


def _grams(texts: Sequence[str]) -> list[NDArray[np.uint64]]:
    """Each text's grams as distinct 64-bit hashes, in order. They rest on the order in which words are first met, not
    on Python's own hashes, which differ from process to process."""
    numbers: dict[str, int] = {}
    found = []
    for text in texts:
        words = np.fromiter((numbers.setdefault(word, len(numbers) + 1) for word in text.split()), dtype=np.uint64)
        found.append(_distinct(np.sort(_rolled(_mixed(words)))))
    return found


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = numbers * _MIXING
    return (mixed ^ (mixed >> np.uint64(32))) * _MIXING


def _distinct(in_order: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return in_order[np.concatenate([[True], in_order[1:] != in_order[:-1]])] if len(in_order) else in_order


def _rolled(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One hash for each run of words. A short text's only gram begins with its length and meets no longer one."""
    length = min(GRAM, len(words))
    total = np.full(len(words) - length + 1 if length else 0, length, dtype=np.uint64)
    for at in range(length):
        total = (total ^ words[at : at + len(total)]) * _MIXING
        total ^= total >> np.uint64(32)
    return total


def _common(
    grams: list[NDArray[np.uint64]], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """The grams that more than one text has, with the text and the number of texts of each."""
    flat = np.concatenate([*grams, np.empty(0, dtype=np.uint64)])
    in_order = np.sort(flat)
    several = _distinct(in_order[1:][in_order[1:] == in_order[:-1]])
    # Most grams stand in one text only; a table of their last bits spares most of them the search.
    marked = np.zeros(1 << _TABLE_BITS, dtype=bool)
    marked[several & _TABLE_MASK] = True
    likely = np.flatnonzero(marked[flat & _TABLE_MASK])
    at = np.searchsorted(several, flat[likely])
    here = several[np.minimum(at, len(several) - 1)] == flat[likely] if len(several) else np.zeros(0, dtype=bool)
    owners = np.repeat(np.arange(len(grams)), sizes)[likely[here]]
    counts = np.bincount(at[here], minlength=len(several))
    return flat[likely[here]], owners, counts[at[here]]


def runs(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """begin, begin + 1, … for as long as each length says."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - ends + lengths, lengths)
