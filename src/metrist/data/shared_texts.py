"""Which pairs share a text: every text gets a number, and near-duplicates get the same one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metrist.data.good_bad import GoodBad
from metrist.data.similar_texts import NEAR, near_duplicates, normalised

#: Texts of fewer words say too little to give anything away: "none", "yes", a name.
FEWEST_WORDS = 3


@dataclass(frozen=True, slots=True)
class Unit:
    """What must stay on one side of a split: the texts of a pair, or of an output, judged by one criterion."""

    criterion: str
    contexts: tuple[str, ...]
    answers: tuple[str, ...]

    @classmethod
    def of(cls, pair: GoodBad) -> Unit:
        return cls(pair.criterion, pair.contexts, pair.answers)


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

    def _new(self, text: str) -> int | None:
        if text.count(" ") < FEWEST_WORDS - 1:
            return None
        if text not in self._by_text:
            self._by_text[text] = len(self.texts)
            self.texts.append(text)
        return self._by_text[text]


def shared_texts(units: Sequence[Unit], near: float = NEAR) -> list[tuple[int, ...]]:
    """For each unit, the numbers of its texts, sorted. Equal texts and near-duplicates have one number, wherever they
    stand: what is an answer here may be a context there."""
    numbered = Numbered()
    texts = [numbered.numbers((*unit.contexts, *unit.answers)) for unit in units]
    union = Union(len(numbered.texts))
    for pair in near_duplicates(numbered.texts, near).tolist():
        union.join(pair)
    return [tuple(sorted({union.root(one) for one in found})) for found in texts]


def groups(texts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The units that a chain of shared texts links, each group in order. A unit without texts is a group of its own."""
    union = Union(1 + max((one for found in texts for one in found), default=-1))
    for found in texts:
        union.join(found)
    together: dict[int, list[int]] = {}
    for unit, found in enumerate(texts):
        together.setdefault(union.root(found[0]) if found else -1 - unit, []).append(unit)
    return list(together.values())
