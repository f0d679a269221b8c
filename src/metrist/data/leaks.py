"""Whether a split leaks: how many dev and test pairs have a text that training sees too."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from metrist.data.pairs import SPLITS, GoodBad
from metrist.data.text_overlap import INSIDE, NEAR, Numbered, Unit, contained_texts, near_duplicates
from metrist.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """The dev or test pairs of one criterion, and how many share a text with its training pairs: a context or answer,
    the same, only a near-duplicate, or only a part (one text lies inside the other); `any_text` counts each such pair
    once. `elsewhere` counts the pairs that share a text with the training pairs of any criterion, which matters where
    one model learns them all. An item that is named in both is a context shared."""

    criterion: str
    split: str
    pairs: int
    same_context: int
    near_context: int
    part_context: int
    same_answer: int
    near_answer: int
    part_answer: int
    any_text: int
    elsewhere: int


def leaks(pairs: Sequence[GoodBad], near: float = NEAR, inside: float = INSIDE) -> list[Leak]:
    """A row for each criterion's dev and test pairs. Texts of fewer than three words do not count, unless they are all
    that a context has."""
    if not any(pair.split == "train" for pair in pairs) or all(pair.split in ("train", None) for pair in pairs):
        found = ", ".join(sorted({pair.split or "no split" for pair in pairs}))
        raise InputError(f"there is no split to check: wanted pairs in train and in dev or test, found {found}")
    texts = _Texts(pairs, near, inside)
    rows = []
    for criterion in dict.fromkeys(pair.criterion for pair in pairs):
        own = [pair for pair in pairs if pair.criterion == criterion]
        rows += [row for side in SPLITS[1:] if (row := texts.leak(criterion, side, own))]
    return rows


class _Texts:
    """All texts by number, with what each is a near-duplicate of, lies inside or contains."""

    def __init__(self, pairs: Sequence[GoodBad], near: float, inside: float) -> None:
        self._numbered = Numbered()
        for pair in pairs:
            self._numbered.numbers((*pair.contexts, *pair.answers))
        self._near = _neighbours(near_duplicates(self._numbered.texts, near).tolist())
        self._parts = _neighbours(contained_texts(self._numbered.texts, inside).tolist())
        self._trained = self._seen(pair for pair in pairs if pair.split == "train")

    def leak(self, criterion: str, side: str, own: Sequence[GoodBad]) -> Leak | None:
        held = [pair for pair in own if pair.split == side]
        if not held:
            return None
        contexts, answers = self._seen(pair for pair in own if pair.split == "train")
        of_contexts = [self._met(self._contexts(pair), contexts) for pair in held]
        of_answers = [self._met(self._numbered.numbers(pair.answers), answers) for pair in held]
        return Leak(
            criterion=criterion,
            split=side,
            pairs=len(held),
            same_context=of_contexts.count("same"),
            near_context=of_contexts.count("near"),
            part_context=of_contexts.count("part"),
            same_answer=of_answers.count("same"),
            near_answer=of_answers.count("near"),
            part_answer=of_answers.count("part"),
            any_text=self._any(held, contexts | answers),
            elsewhere=self._any(held, self._trained[0] | self._trained[1]),
        )

    def _contexts(self, pair: GoodBad) -> frozenset[Hashable]:
        """The numbers of the context's texts, the context as a whole where it is short, and the item."""
        return self._numbered.numbers(pair.contexts) | self._numbered.keys(Unit.of(pair))

    def _seen(self, pairs: Iterable[GoodBad]) -> tuple[set[Hashable], set[Hashable]]:
        contexts: set[Hashable] = set()
        answers: set[Hashable] = set()
        for pair in pairs:
            contexts |= self._contexts(pair)
            answers |= self._numbered.numbers(pair.answers)
        return contexts, answers

    def _any(self, held: Sequence[GoodBad], seen: set[Hashable]) -> int:
        return sum(self._met(self._contexts(pair) | self._numbered.numbers(pair.answers), seen) != "" for pair in held)

    def _met(self, own: frozenset[Hashable], seen: set[Hashable]) -> str:
        """How one of these was seen: the same, only a near-duplicate, only a part or what it is a part of, or not."""
        if not own.isdisjoint(seen):
            return "same"
        if any(not self._near.get(one, set()).isdisjoint(seen) for one in own):
            return "near"
        return "part" if any(not self._parts.get(one, set()).isdisjoint(seen) for one in own) else ""


def _neighbours(couples: Iterable[Sequence[int]]) -> dict[Hashable, set[int]]:
    found: dict[Hashable, set[int]] = {}
    for one, other in couples:
        found.setdefault(one, set()).add(other)
        found.setdefault(other, set()).add(one)
    return found
