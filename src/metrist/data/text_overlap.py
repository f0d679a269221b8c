"""Find texts that almost repeat or contain each other, by their word 5-grams, and group the pairs that share them."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metrist.data.pairs import GoodBad
from metrist.data.settings import INSIDE, NEAR
from metrist.errors import SpecError

#: Words in a gram. A text with fewer words is one gram.
GRAM = 5

_MIXING = np.uint64(0x9E3779B97F4A7C15)
_TABLE_BITS = 24
_TABLE_MASK = np.uint64((1 << _TABLE_BITS) - 1)


@dataclass(frozen=True, slots=True)
class Grams:
    """The word 5-grams of several texts, as hashes.

    `sizes` counts each text's distinct grams. The other arrays list the grams that more than one text has, text by
    text and rarest first within each: the gram's hash, its text, and its rank within the text. Grams that no other text
    has rank before all of these.
    """

    sizes: NDArray[np.int64]
    common: NDArray[np.uint64]
    owners: NDArray[np.int64]
    rank: NDArray[np.int64]

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> Grams:
        grams = _hash_grams(texts)
        sizes = np.array([len(hashes) for hashes in grams], dtype=np.int64)
        flat = np.concatenate([*grams, np.empty(0, dtype=np.uint64)])
        in_order = np.sort(flat)
        repeated = _drop_repeats(in_order[1:][in_order[1:] == in_order[:-1]])
        # Most grams occur in one text only; a table of their last bits spares most of them the search.
        marked = np.zeros(1 << _TABLE_BITS, dtype=bool)
        marked[repeated & _TABLE_MASK] = True
        likely = np.flatnonzero(marked[flat & _TABLE_MASK])
        positions = np.searchsorted(repeated, flat[likely])
        matches = np.zeros(0, dtype=bool)
        if len(repeated):
            matches = repeated[np.minimum(positions, len(repeated) - 1)] == flat[likely]
        common = flat[likely[matches]]
        owners = np.repeat(np.arange(len(grams)), sizes)[likely[matches]]
        counts = np.bincount(positions[matches], minlength=len(repeated))[positions[matches]]
        order = np.lexsort((common, counts, owners))
        common, owners = common[order], owners[order]
        common_sizes = np.bincount(owners, minlength=len(texts))
        begins = np.cumsum(common_sizes) - common_sizes
        rank = np.arange(len(owners)) - begins[owners] + (sizes - common_sizes)[owners]
        return cls(sizes, common, owners, rank)

    def count_shared(self, couples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the grams that the two texts of each couple have in common."""
        ends = np.cumsum(np.bincount(self.owners, minlength=len(self.sizes)))
        begins = np.append(0, ends[:-1])
        sets = {text: set(self.common[begins[text] : ends[text]].tolist()) for text in np.unique(couples).tolist()}
        return np.array([len(sets[first] & sets[second]) for first, second in couples.tolist()], dtype=np.int64)


def _hash_grams(texts: Sequence[str]) -> list[NDArray[np.uint64]]:
    """Return each text's grams as distinct 64-bit hashes, sorted. Words are numbered in order of appearance, because
    Python's own hashes differ between processes. The hash of a gram starts from its length, so a short text's only gram
    equals no longer one."""
    numbers: dict[str, int] = {}
    grams = []
    for text in texts:
        words = np.fromiter((numbers.setdefault(word, len(numbers) + 1) for word in text.split()), dtype=np.uint64)
        mixed = words * _MIXING
        mixed = (mixed ^ (mixed >> np.uint64(32))) * _MIXING
        length = min(GRAM, len(words))
        hashes = np.full(len(words) - length + 1 if length else 0, length, dtype=np.uint64)
        for offset in range(length):
            hashes = (hashes ^ mixed[offset : offset + len(hashes)]) * _MIXING
            hashes ^= hashes >> np.uint64(32)
        grams.append(_drop_repeats(np.sort(hashes)))
    return grams


def _drop_repeats(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the distinct values of a sorted array."""
    return hashes[np.concatenate([[True], hashes[1:] != hashes[:-1]])] if len(hashes) else hashes


def _concatenate_ranges(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return begin, begin + 1, … for each begin, as many as its length."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - ends + lengths, lengths)


# Texts that lie inside longer ones, such as the beginning of a dialogue.

#: Shorter texts are phrases that occur anywhere.
FEWEST_WORDS_INSIDE = 8

#: Texts made from one template share grams with thousands of others and would make billions of candidates. After this
#: many candidates by one gram, each text is compared only with its next larger neighbours, which still links them all.
#: The smallest texts, which many may contain, come first.
_MAX_CANDIDATES_PER_GRAM = 100_000
_INSIDE_NEIGHBOURS = 5
#: If the candidates exceed the batch size, the limit per gram is lowered, but not below this.
_MIN_CANDIDATES_PER_GRAM = 1_000
#: Candidates that are compared together, so that they fit into memory.
_BATCH_SIZE = 4_000_000


def find_contained_texts(texts: Sequence[str], threshold: float = INSIDE) -> NDArray[np.int64]:
    """Return all pairs (i, j) of different normalised texts of which the first lies inside the second: it has as many
    grams or fewer, and the second has at least the threshold's share of them. Of two equally large texts, i < j. A
    threshold of 0 finds nothing.

    Exact except for collisions of 64-bit hashes and for thousands of texts made from one template. A text that shares
    so many of its grams shares one of its rarest (all but the required number, plus one), so only texts that have one
    of these are compared.
    """
    if not 0 <= threshold <= 1:
        raise SpecError(f"the share of a text's grams inside another must be from 0 (off) to 1, got {threshold:g}")
    if not threshold:
        return np.empty((0, 2), dtype=np.int64)
    grams = Grams.from_texts(texts)
    # By number of grams, then by number: the texts that may contain a text come after it.
    by_size = np.argsort(grams.sizes, kind="stable")
    contained = [np.empty((0, 2), dtype=np.int64)]
    for couples in _iterate_containers(grams, by_size, threshold):
        enough = grams.count_shared(couples) >= threshold * grams.sizes[couples[:, 0]] - 1e-9
        contained.append(couples[enough])
    return np.unique(np.concatenate(contained), axis=0)


def _iterate_containers(grams: Grams, by_size: NDArray[np.int64], threshold: float) -> Iterator[NDArray[np.int64]]:
    """Yield couples of a text and a larger one that has one of its rarest grams, each couple once per batch."""
    position = np.empty(len(by_size), dtype=np.int64)
    position[by_size] = np.arange(len(by_size))
    order = np.lexsort((position[grams.owners], grams.common))
    owners = grams.owners[order]
    # The grams that are among their text's rarest, if the text is long enough. Length is counted in grams, not in
    # words, because repeated words make few grams.
    needed = np.ceil(threshold * grams.sizes - 1e-9).astype(np.int64)
    rare = grams.rank <= (grams.sizes - needed)[grams.owners]
    rare &= (grams.sizes >= FEWEST_WORDS_INSIDE - GRAM + 1)[grams.owners]
    begins, lengths = _limit_candidates(rare[order], _find_run_ends(grams.common[order]))
    first = 0
    while first < len(begins):
        last = max(first + 1, int(np.searchsorted(np.cumsum(lengths[first:]), _BATCH_SIZE)) + first)
        larger = owners[_concatenate_ranges(begins[first:last] + 1, lengths[first:last])]
        smaller = np.repeat(owners[begins[first:last]], lengths[first:last])
        keys = np.unique(smaller * len(by_size) + larger)
        yield np.stack([keys // len(by_size), keys % len(by_size)], axis=1)
        first = last


def _find_run_ends(in_order: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return, for each gram of a sorted array, the end of the run of equal grams."""
    last = np.flatnonzero(np.append(in_order[1:] != in_order[:-1], np.ones(min(1, len(in_order)), dtype=bool)))
    return np.repeat(last + 1, np.diff(np.append(-1, last)))


def _limit_candidates(rare: NDArray[np.bool_], ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the rare grams and how many after each are candidates: the rest of its run, or the next
    few once the run's limit is exceeded."""
    begins = np.flatnonzero(rare)
    lengths = ends[begins] - begins - 1
    # Candidates of smaller texts by the same gram. The smallest text has none before it and is compared with all.
    before = np.cumsum(lengths) - lengths
    before -= before[np.searchsorted(ends[begins], ends[begins])]
    limit = _MAX_CANDIDATES_PER_GRAM
    while True:
        limited = np.where(before > limit, np.minimum(lengths, _INSIDE_NEIGHBOURS), lengths)
        if limited.sum() <= _BATCH_SIZE or limit <= _MIN_CANDIDATES_PER_GRAM:
            return begins, limited
        limit //= 10


# Near-duplicates: texts that share a large part of all their grams.

#: If more texts than this share a rare gram, as texts made from one template do, each is compared only with its next
#: neighbours: this still links them all, and comparing every couple would take hours.
_MAX_TEXTS_PER_GRAM = 2_000
_NEAR_NEIGHBOURS = 50


class _CharacterMap(dict[int, str | int]):
    """How each character is normalised, filled on demand: punctuation separates words, and a character of a script
    written without spaces is a word of its own."""

    def __missing__(self, code: int) -> str | int:
        unspaced = (range(0x0E00, 0x0F00), range(0x3040, 0x3100), range(0x3400, 0xA000), range(0x20000, 0x40000))
        if unicodedata.category(chr(code))[0] in "PSZC":
            self[code] = " "
        else:
            self[code] = f" {chr(code)} " if any(code in block for block in unspaced) else code
        return self[code]


_CHARACTER_MAP = _CharacterMap()


def normalise_text(text: str) -> str:
    """Return the text's casefolded words separated by one space, without punctuation; a text without words is only
    stripped."""
    words = unicodedata.normalize("NFKC", text).casefold().translate(_CHARACTER_MAP).split()
    return " ".join(words) if words else text.strip()


def find_near_duplicates(texts: Sequence[str], threshold: float = NEAR) -> NDArray[np.int64]:
    """Return all pairs (i, j), i < j, of different normalised texts whose grams' Jaccard similarity reaches the
    threshold.

    Exact except for collisions of 64-bit hashes and for thousands of texts made from one template. Two sets that are so
    similar share one of their rarest grams (all but the required number, plus one), so only texts that share a rare
    gram are compared.
    """
    if not 0 < threshold <= 1:
        raise SpecError(
            f"the share of grams that makes near-duplicates must be more than 0 and at most 1, got {threshold:g}"
        )
    grams = Grams.from_texts(texts)
    sizes = grams.sizes
    if not len(grams.common):
        return np.empty((0, 2), dtype=np.int64)
    needed = np.ceil(threshold * sizes - 1e-9).astype(np.int64)
    rare = grams.rank <= (sizes - needed)[grams.owners]
    candidates = _find_candidates(grams.common[rare], grams.owners[rare], sizes, threshold)
    shared = grams.count_shared(candidates)
    first, second = candidates.T
    near: NDArray[np.bool_] = shared >= threshold * (sizes[first] + sizes[second] - shared) - 1e-9
    return candidates[near]


def _find_candidates(
    grams: NDArray[np.uint64], owners: NDArray[np.int64], sizes: NDArray[np.int64], threshold: float
) -> NDArray[np.int64]:
    """Return the pairs of texts that share one of these grams and whose sizes allow the similarity."""
    order = np.lexsort((owners, grams))
    grams, owners = grams[order], owners[order]
    begins = np.flatnonzero(np.concatenate([[True], grams[1:] != grams[:-1]]))
    lengths = np.diff(np.append(begins, len(grams)))
    # Texts that share a gram are adjacent: pair each with the next one, then with the one after that, …
    keys = []
    for step in range(1, int(lengths.max(initial=1))):
        active = (lengths > step) & ((lengths <= _MAX_TEXTS_PER_GRAM) | (step <= _NEAR_NEIGHBOURS))
        begins, lengths = begins[active], lengths[active]
        if not len(begins):
            break
        positions = np.concatenate([_concatenate_ranges(begins, lengths - step), np.empty(0, dtype=np.int64)])
        keys.append(np.unique(owners[positions] * len(sizes) + owners[positions + step]))
    pairs = np.unique(np.concatenate([*keys, np.empty(0, dtype=np.int64)]))
    first, second = pairs // len(sizes), pairs % len(sizes)
    alike = np.minimum(sizes[first], sizes[second]) >= threshold * np.maximum(sizes[first], sizes[second]) - 1e-9
    return np.stack([first[alike], second[alike]], axis=1)


# Which pairs belong together: every text gets a number, and so does an item or a short context that several share.

#: Texts of fewer words ("none", "yes", a name) reveal too little to count as shared.
FEWEST_WORDS = 3

#: What links units apart from a text: the name of an item, or all fields of a context.
LinkKey = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SplitUnit:
    """What must stay on one side of a split: the texts of a pair, or of one output, judged by one criterion. Each
    context is a tuple of all its fields."""

    criterion: str
    contexts: tuple[tuple[str, ...], ...]
    answers: tuple[str, ...]
    item: str = ""

    @classmethod
    def from_pair(cls, pair: GoodBad) -> SplitUnit:
        contexts = dict.fromkeys(tuple(text for _, text in side[:-1]) for side in (pair.good, pair.bad))
        return cls(pair.criterion, tuple(contexts), pair.answers, pair.item)

    @property
    def texts(self) -> tuple[str, ...]:
        return (*(text for context in self.contexts for text in context), *self.answers)


class DisjointSets:
    """Sets that merge: two members have the same root once a chain of joins links them."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def root(self, member: int) -> int:
        parent = self._parent
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    def join(self, members: Iterable[int]) -> None:
        """Merge the sets of all members; the root is the smallest."""
        roots = sorted({self.root(member) for member in members})
        for other in roots[1:]:
            self._parent[other] = roots[0]


class TextNumbers:
    """Numbers for distinct normalised texts. Texts of fewer than `FEWEST_WORDS` words have none."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._by_normalised: dict[str, int] = {}
        self._by_text: dict[str, int | None] = {}

    def of_texts(self, texts: Iterable[str]) -> frozenset[int]:
        """Return the numbers of the texts that are long enough."""
        return frozenset(number for text in texts if (number := self._number(text)) is not None)

    def keys(self, unit: SplitUnit) -> frozenset[LinkKey]:
        """Return what links the unit to others apart from its texts.

        An item's name links within its criterion only. A context links as a whole if all its fields are short: a field
        such as "none" occurs in many contexts, but a title of two words may be the only field. A longer field links by
        itself.
        """
        short = [context for context in unit.contexts if not self.of_texts(context)]
        contexts = [tuple(map(normalise_text, context)) for context in short]
        item = [("item", unit.criterion, unit.item)] if unit.item else []
        return frozenset([*item, *(("context", *texts) for texts in contexts if any(texts))])

    def _number(self, text: str) -> int | None:
        if text not in self._by_text:
            normalised = normalise_text(text)
            if normalised.count(" ") < FEWEST_WORDS - 1:
                self._by_text[text] = None
            else:
                if normalised not in self._by_normalised:
                    self._by_normalised[normalised] = len(self.texts)
                    self.texts.append(normalised)
                self._by_text[text] = self._by_normalised[normalised]
        return self._by_text[text]


def number_shared_texts(
    units: Sequence[SplitUnit], near: float = NEAR, inside: float = INSIDE
) -> list[tuple[int, ...]]:
    """Return, for each unit, the sorted numbers of its texts and of the keys that link it to others. Equal texts and
    near-duplicates have the same number, also if one is an answer and the other a context."""
    numbers = TextNumbers()
    texts = [numbers.of_texts(unit.texts) for unit in units]
    sets = DisjointSets(len(numbers.texts))
    for couple in find_near_duplicates(numbers.texts, near).tolist():
        sets.join(couple)
    # A unit also gets the numbers of the texts inside its own. If both had one number, no large group could be cut
    # between them.
    contained: dict[int, set[int]] = {}
    for inner, outer in find_contained_texts(numbers.texts, inside).tolist():
        contained.setdefault(outer, set()).add(inner)
    texts = [own.union(*(contained.get(text, ()) for text in own)) for own in texts]
    keys = [numbers.keys(unit) for unit in units]
    counts = Counter(key for own in keys for key in sorted(own))
    shared = (key for key, count in counts.items() if count > 1)
    key_numbers = {key: number for number, key in enumerate(shared, len(numbers.texts))}
    return [
        tuple(sorted({sets.root(text) for text in own_texts} | {key_numbers[key] for key in own if key in key_numbers}))
        for own_texts, own in zip(texts, keys, strict=True)
    ]


def group_units(texts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Group the units that a chain of shared texts links. A unit without texts is a group by itself."""
    sets = DisjointSets(1 + max((text for own in texts for text in own), default=-1))
    for own in texts:
        sets.join(own)
    groups: dict[int, list[int]] = {}
    for unit, own in enumerate(texts):
        groups.setdefault(sets.root(own[0]) if own else -1 - unit, []).append(unit)
    return list(groups.values())
