"""Which pairs belong together: every text gets a number, near-duplicates get the same one, and so does what an item
or a context of short texts joins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metrist.data.contained_texts import INSIDE, contained_texts
from metrist.data.good_bad import GoodBad
from metrist.data.similar_texts import NEAR, near_duplicates, normalised

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
