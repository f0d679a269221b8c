"""Texts as sets of word 5-grams, and which of these several texts have: what near-duplicates and parts are found by."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metrist.data.pairs import GoodBad
from metrist.errors import SpecError

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


# Texts that lie inside longer ones, such as a dialogue's beginning: the share of the shorter one's word 5-grams that
# the longer one has too, found without comparing all.


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


# Texts that say almost the same: the share of word 5-grams that two have in common, found without comparing all.


#: Two texts are near-duplicates when they share at least half of all their grams (Jaccard). One changed word in the
#: middle of a text of 20 words leaves .52, in one of 50 words .80.
NEAR = 0.5

#: Of more texts than this that share a rare gram, as texts made from one template do, each is compared with its next
#: neighbours only: they hang together all the same, and comparing all would take hours.
_CROWD_SIMILAR_TEXTS = 2_000
_NEIGHBOURS_SIMILAR_TEXTS = 50


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
        going = (lengths > step) & ((lengths <= _CROWD_SIMILAR_TEXTS) | (step <= _NEIGHBOURS_SIMILAR_TEXTS))
        begins, lengths = begins[going], lengths[going]
        if not len(begins):
            break
        first = np.concatenate([runs(begins, lengths - step), np.empty(0, dtype=np.int64)])
        met.append(np.unique(owners[first] * len(sizes) + owners[first + step]))
    pairs = np.unique(np.concatenate([*met, np.empty(0, dtype=np.int64)]))
    one, other = pairs // len(sizes), pairs % len(sizes)
    alike = np.minimum(sizes[one], sizes[other]) >= threshold * np.maximum(sizes[one], sizes[other]) - 1e-9
    return np.stack([one[alike], other[alike]], axis=1)


# Which pairs belong together: every text gets a number, near-duplicates get the same one, and so does what an item
# or a context of short texts joins.


#: Texts of fewer words say too little to give anything away: "none", "yes", a name.
FEWEST_WORDS = 3

#: What joins units besides a text: the name of an item, or the fields of a whole context.
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """What must stay on one side of a split: the texts of a pair, or of an output, judged by one criterion. A
    context is whole: all its fields."""

    criterion: str
    contexts: tuple[tuple[str, ...], ...]
    answers: tuple[str, ...]
    item: str = ""

    @classmethod
    def of(cls, pair: GoodBad) -> Unit:
        contexts = dict.fromkeys(tuple(text for _, text in side[:-1]) for side in (pair.good, pair.bad))
        return cls(pair.criterion, tuple(contexts), pair.answers, pair.item)

    @property
    def texts(self) -> tuple[str, ...]:
        return (*(text for context in self.contexts for text in context), *self.answers)


class Union:
    """Sets that grow together: two members have the same root once a chain of joins links them."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def root(self, member: int) -> int:
        parent = self._parent
        while parent[member] != member:
            parent[member] = member = parent[parent[member]]
        return member

    def join(self, members: Iterable[int]) -> None:
        """Put all of them into one set, whose root is its smallest member."""
        roots = sorted({self.root(member) for member in members})
        for other in roots[1:]:
            self._parent[other] = roots[0]


class Numbered:
    """Numbers for distinct normalised texts. Those too short to count have none."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._by_text: dict[str, int] = {}
        self._by_raw: dict[str, int | None] = {}

    def number(self, raw: str) -> int | None:
        if raw not in self._by_raw:
            self._by_raw[raw] = self._new(normalised(raw))
        return self._by_raw[raw]

    def numbers(self, raws: Iterable[str]) -> frozenset[int]:
        """The numbers of the texts that count."""
        return frozenset(found for raw in raws if (found := self.number(raw)) is not None)

    def keys(self, unit: Unit) -> frozenset[Key]:
        """What joins the unit to others besides its texts. An item's name holds for its criterion alone. A context
        counts as a whole where all its fields are short: "none" stands beside many a text, but a title of two words
        may be all that there is. A longer field joins by itself."""
        short = [context for context in unit.contexts if not self.numbers(context)]
        whole = [tuple(map(normalised, context)) for context in short]
        item = [("item", unit.criterion, unit.item)] if unit.item else []
        return frozenset([*item, *(("context", *texts) for texts in whole if any(texts))])

    def _new(self, text: str) -> int | None:
        if text.count(" ") < FEWEST_WORDS - 1:
            return None
        if text not in self._by_text:
            self._by_text[text] = len(self.texts)
            self.texts.append(text)
        return self._by_text[text]


def shared_texts(units: Sequence[Unit], near: float = NEAR, inside: float = INSIDE) -> list[tuple[int, ...]]:
    """For each unit, the numbers of its texts and of what else joins it to others, sorted. Equal texts and
    near-duplicates have one number, wherever they stand: what is an answer here may be a context there."""
    numbered = Numbered()
    texts = [numbered.numbers(unit.texts) for unit in units]
    union = Union(len(numbered.texts))
    for pair in near_duplicates(numbered.texts, near).tolist():
        union.join(pair)
    # A unit has the texts inside its own as well. Were both one text, no large group could be cut between them.
    within: dict[int, set[int]] = {}
    for inner, outer in contained_texts(numbered.texts, inside).tolist():
        within.setdefault(outer, set()).add(inner)
    texts = [found.union(*(within.get(one, ()) for one in found)) for found in texts]
    joins = _joins([numbered.keys(unit) for unit in units], len(numbered.texts))
    return [tuple(sorted({union.root(one) for one in found} | own)) for found, own in zip(texts, joins, strict=True)]


def _joins(keys: Sequence[frozenset[Key]], begin: int) -> list[set[int]]:
    """The numbers, from `begin` up, of the keys that a unit has in common with others."""
    count = Counter(key for own in keys for key in sorted(own))
    numbers = {key: at for at, key in enumerate((one for one, times in count.items() if times > 1), begin)}
    return [{numbers[key] for key in own if key in numbers} for own in keys]


def groups(texts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The units that a chain of shared texts links, each group in order. A unit without texts is a group of its own."""
    union = Union(1 + max((one for found in texts for one in found), default=-1))
    for found in texts:
        union.join(found)
    together: dict[int, list[int]] = {}
    for unit, found in enumerate(texts):
        together.setdefault(union.root(found[0]) if found else -1 - unit, []).append(unit)
    return list(together.values())
