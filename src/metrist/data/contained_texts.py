"""Texts that lie inside longer ones, such as a dialogue's beginning: the share of the shorter one's word 5-grams that
the longer one has too, found without comparing all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from metrist.data.word_grams import GRAM, Grams, runs
from metrist.errors import SpecError

#: A text lies inside a longer one that has at least this share of its grams: a few words may be changed or left out.
INSIDE = 0.8
#: Shorter texts are phrases that anybody may use.
FEWEST_WORDS_INSIDE = 8

#: After this many meetings by one gram, of which texts made from one template have billions, each text meets its next
#: larger neighbours only: they hang together all the same. The smallest, which many may contain, are looked at first.
_CROWD = 100_000
_NEIGHBOURS = 5
#: Where there are many crowds, a crowd is what has fewer meetings, but never fewer than these.
_LEAST_CROWD = 1_000
#: Meetings that are looked at together, so that they fit into memory.
_AT_ONCE = 4_000_000


def contained_texts(texts: Sequence[str], threshold: float = INSIDE) -> NDArray[np.int64]:
    """All pairs (i, j) of different normalised texts of which the first lies inside the second: it has as many grams or
    fewer, and the threshold's share of them is the second's too. Of two as large as each other, i < j. A threshold of 0
    looks for nothing.

    Exact but for collisions of 64-bit hashes, and in crowds of thousands of texts made from one template. A text that
    shares so many of its grams shares one of its rarest (all but as many as must be shared, and one), so only the texts
    that have one of these are compared.
    """
    if not 0 <= threshold <= 1:
        raise SpecError(f"a text inside another shares from 0 (not looked for) to 1 of its grams, got {threshold:g}")
    if not threshold:
        return np.empty((0, 2), dtype=np.int64)
    grams = Grams.of(texts)
    # Rows by number of grams, then by number: what may contain a text comes after it.
    by_size = np.argsort(grams.sizes, kind="stable")
    found = [np.empty((0, 2), dtype=np.int64)]
    for couples in _meetings(grams, by_size, threshold):
        enough = grams.shared(couples) >= threshold * grams.sizes[couples[:, 0]] - 1e-9
        found.append(couples[enough])
    return np.unique(np.concatenate(found), axis=0)


def _meetings(grams: Grams, by_size: NDArray[np.int64], threshold: float) -> Iterator[NDArray[np.int64]]:
    """Texts beside larger ones that have one of their rarest grams, each couple once for as many as fit together."""
    place = np.empty(len(by_size), dtype=np.int64)
    place[by_size] = np.arange(len(by_size))
    order = np.lexsort((place[grams.owners], grams.common))
    owners = grams.owners[order]
    asking = _asking(grams, threshold)[order]
    ends = _ends(grams.common[order])
    begins, lengths = _later(asking, ends)
    first = 0
    while first < len(begins):
        last = max(first + 1, int(np.searchsorted(np.cumsum(lengths[first:]), _AT_ONCE)) + first)
        met = owners[runs(begins[first:last] + 1, lengths[first:last])]
        own = np.repeat(owners[begins[first:last]], lengths[first:last])
        keys = np.unique(own * len(by_size) + met)
        yield np.stack([keys // len(by_size), keys % len(by_size)], axis=1)
        first = last


def _asking(grams: Grams, threshold: float) -> NDArray[np.bool_]:
    """Which grams are among their text's rarest, where the text is long enough to be looked for. Words that are said
    again and again make few grams, so these are counted rather than the words."""
    needed = np.ceil(threshold * grams.sizes - 1e-9).astype(np.int64)
    long_enough = grams.sizes >= FEWEST_WORDS_INSIDE - GRAM + 1
    rare: NDArray[np.bool_] = grams.rank <= (grams.sizes - needed)[grams.owners]
    return rare & long_enough[grams.owners]


def _ends(in_order: NDArray[np.uint64]) -> NDArray[np.int64]:
    """For each gram in a sorted row, where the row of its equals ends."""
    last = np.flatnonzero(np.append(in_order[1:] != in_order[:-1], np.ones(min(1, len(in_order)), dtype=bool)))
    return np.repeat(last + 1, np.diff(np.append(-1, last)))


def _later(asking: NDArray[np.bool_], ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of the texts that ask, and how many after each they meet: all with the same gram, or in a crowd the
    next few."""
    begins = np.flatnonzero(asking)
    lengths = ends[begins] - begins - 1
    # The meetings of smaller texts by the same gram. The smallest has none before it and meets all, however many.
    before = np.cumsum(lengths) - lengths
    before -= before[np.searchsorted(ends[begins], ends[begins])]
    crowd = _CROWD
    while True:
        met = np.where(before > crowd, np.minimum(lengths, _NEIGHBOURS), lengths)
        if met.sum() <= _AT_ONCE or crowd <= _LEAST_CROWD:
            return begins, met
        crowd //= 10
