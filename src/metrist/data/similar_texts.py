"""Texts that say almost the same: the share of word 5-grams that two have in common, found without comparing all."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from metrist.errors import SpecError

#: Words in a row that make one gram. A text with fewer words is one gram.
GRAM = 5
#: Two texts are near-duplicates when they share at least half of all their grams (Jaccard). One changed word in the
#: middle of a text of 20 words leaves .52, in one of 50 words .80.
NEAR = 0.5

_MIXING = np.uint64(0x9E3779B97F4A7C15)
#: Of more texts than this that share a rare gram, as texts made from one template do, each is compared with its next
#: neighbours only: they hang together all the same, and comparing all would take hours.
_CROWD = 2_000
_NEIGHBOURS = 50
_TABLE_BITS = 24
_TABLE_MASK = np.uint64((1 << _TABLE_BITS) - 1)


class _Letters(dict[int, str | int]):
    """How each character is normalised, learned as characters are met: punctuation parts words, and so does each side
    of a character of a script that is written without spaces."""

    def __missing__(self, code: int) -> str | int:
        category = unicodedata.category(chr(code))
        if category[0] in "PSZC":
            found: str | int = " "
        else:
            found = f" {chr(code)} " if _stands_alone(code) else code
        self[code] = found
        return found


def _stands_alone(code: int) -> bool:
    return (
        0x0E00 <= code <= 0x0EFF or 0x3040 <= code <= 0x30FF or 0x3400 <= code <= 0x9FFF or 0x20000 <= code <= 0x3FFFF
    )


_LETTERS = _Letters()


def normalised(text: str) -> str:
    """The text's words in small letters with one space between, no punctuation; a text without words as it is."""
    words = unicodedata.normalize("NFKC", text).casefold().translate(_LETTERS).split()
    return " ".join(words) if words else text.strip()


def near_duplicates(texts: Sequence[str], threshold: float = NEAR) -> NDArray[np.int64]:
    """All pairs (i, j), i < j, of different normalised texts whose grams' Jaccard similarity reaches the threshold.

    Exact but for collisions of 64-bit hashes, and in crowds of thousands of texts made from one template. Of two sets
    that similar, the rarest grams of one (all but as many as must be shared, and one) meet those of the other, so only
    texts that share a rare gram are compared.
    """
    if not 0 < threshold <= 1:
        raise SpecError(f"near-duplicates share more than 0 and at most 1 of their grams, got {threshold:g}")
    grams = _grams(texts)
    sizes = np.array([len(found) for found in grams], dtype=np.int64)
    common, owners, counts = _common(grams, sizes)
    if not len(common):
        return np.empty((0, 2), dtype=np.int64)
    kept = np.bincount(owners, minlength=len(texts))
    # Rarest first within each text: grams that no other text has come before all that are left here.
    order = np.lexsort((common, counts, owners))
    common, owners = common[order], owners[order]
    starts = np.concatenate([[0], np.cumsum(kept)])
    rank = np.arange(len(owners)) - starts[owners] + (sizes - kept)[owners]
    needed = np.ceil(threshold * sizes - 1e-9).astype(np.int64)
    in_prefix = rank <= (sizes - needed)[owners]
    candidates = _meeting(common[in_prefix], owners[in_prefix], sizes, threshold)
    return _verified(candidates, [np.sort(common[a:b]) for a, b in pairwise(starts)], sizes, threshold)


def _grams(texts: Sequence[str]) -> list[NDArray[np.uint64]]:
    """Each text's grams as distinct 64-bit hashes, in order. Python's own hashes of words are fast, and are kept no
    longer than the process that made them."""
    found = []
    for text in texts:
        words = np.fromiter(map(hash, text.split()), dtype=np.int64)
        found.append(_distinct(np.sort(_rolled(words.view(np.uint64)))))
    return found


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


def _meeting(
    grams: NDArray[np.uint64], owners: NDArray[np.int64], sizes: NDArray[np.int64], threshold: float
) -> NDArray[np.int64]:
    """The pairs of texts that share one of these grams, and whose sizes allow the similarity."""
    order = np.lexsort((owners, grams))
    grams, owners = grams[order], owners[order]
    begins = np.flatnonzero(np.concatenate([[True], grams[1:] != grams[:-1]]))
    lengths = np.diff(np.append(begins, len(grams)))
    # Texts that share a gram stand in a row: each meets the one after it, then the one after that, …
    met = []
    for step in range(1, int(lengths.max(initial=1))):
        going = (lengths > step) & ((lengths <= _CROWD) | (step <= _NEIGHBOURS))
        begins, lengths = begins[going], lengths[going]
        if not len(begins):
            break
        first = np.concatenate([_runs(begins, lengths - step), np.empty(0, dtype=np.int64)])
        met.append(np.unique(owners[first] * len(sizes) + owners[first + step]))
    pairs = np.unique(np.concatenate([*met, np.empty(0, dtype=np.int64)]))
    one, other = pairs // len(sizes), pairs % len(sizes)
    alike = np.minimum(sizes[one], sizes[other]) >= threshold * np.maximum(sizes[one], sizes[other]) - 1e-9
    return np.stack([one[alike], other[alike]], axis=1)


def _runs(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """begin, begin + 1, … for as long as each length says."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - ends + lengths, lengths)


def _verified(
    candidates: NDArray[np.int64], grams: list[NDArray[np.uint64]], sizes: NDArray[np.int64], threshold: float
) -> NDArray[np.int64]:
    sets: dict[int, set[int]] = {}

    def of(text: int) -> set[int]:
        if text not in sets:
            sets[text] = set(grams[text].tolist())
        return sets[text]

    near = []
    for one, other in candidates.tolist():
        shared = len(of(one) & of(other))
        if shared >= threshold * (sizes[one] + sizes[other] - shared) - 1e-9:
            near.append((one, other))
    return np.array(near, dtype=np.int64).reshape(-1, 2)
