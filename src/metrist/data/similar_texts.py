"""Texts that say almost the same: the share of word 5-grams that two have in common, found without comparing all."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metrist.data.word_grams import Grams, runs
from metrist.errors import SpecError

#: Two texts are near-duplicates when they share at least half of all their grams (Jaccard). One changed word in the
#: middle of a text of 20 words leaves .52, in one of 50 words .80.
NEAR = 0.5

#: Of more texts than this that share a rare gram, as texts made from one template do, each is compared with its next
#: neighbours only: they hang together all the same, and comparing all would take hours.
_CROWD = 2_000
_NEIGHBOURS = 50


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
    found = Grams.of(texts)
    sizes = found.sizes
    if not len(found.common):
        return np.empty((0, 2), dtype=np.int64)
    needed = np.ceil(threshold * sizes - 1e-9).astype(np.int64)
    in_prefix = found.rank <= (sizes - needed)[found.owners]
    candidates = _meeting(found.common[in_prefix], found.owners[in_prefix], sizes, threshold)
    shared = found.shared(candidates)
    one, other = candidates.T
    near: NDArray[np.bool_] = shared >= threshold * (sizes[one] + sizes[other] - shared) - 1e-9
    return candidates[near]


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
        first = np.concatenate([runs(begins, lengths - step), np.empty(0, dtype=np.int64)])
        met.append(np.unique(owners[first] * len(sizes) + owners[first + step]))
    pairs = np.unique(np.concatenate([*met, np.empty(0, dtype=np.int64)]))
    one, other = pairs // len(sizes), pairs % len(sizes)
    alike = np.minimum(sizes[one], sizes[other]) >= threshold * np.maximum(sizes[one], sizes[other]) - 1e-9
    return np.stack([one[alike], other[alike]], axis=1)
