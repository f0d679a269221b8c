"""Whether a split leaks: how many dev and test pairs have a text that training sees too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metrist.data.good_bad import GoodBad
from metrist.data.pairs_file import SPLITS
from metrist.data.shared_texts import Numbered
from metrist.data.similar_texts import NEAR, near_duplicates
from metrist.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """The dev or test pairs of one criterion, and how many share a text with its training pairs: a context or answer,
    the same or only a near-duplicate; `any_text` counts each such pair once. `elsewhere` counts the pairs that share a
    text with the training pairs of any criterion, which matters where one model learns them all."""

    criterion: str
    split: str
    pairs: int
    same_context: int
    near_context: int
    same_answer: int
    near_answer: int
    any_text: int
    elsewhere: int


def leaks(pairs: Sequence[GoodBad], near: float = NEAR) -> list[Leak]:
    """A row for each criterion's dev and test pairs. Texts of fewer than three words do not count."""
    if not any(pair.split == "train" for pair in pairs) or all(pair.split in ("train", None) for pair in pairs):
        found = ", ".join(sorted({pair.split or "no split" for pair in pairs}))
        raise InputError(f"there is no split to check: wanted pairs in train and in dev or test, found {found}")
    texts = _Texts(pairs, near)
    rows = []
    for criterion in dict.fromkeys(pair.criterion for pair in pairs):
        own = [pair for pair in pairs if pair.criterion == criterion]
        rows += [row for side in SPLITS[1:] if (row := texts.leak(criterion, side, own))]
    return rows


class _Texts:
    """All texts by number, with what each is a near-duplicate of."""

    def __init__(self, pairs: Sequence[GoodBad], near: float) -> None:
        self._numbered = Numbered()
        for pair in pairs:
            self._numbered.numbers((*pair.contexts, *pair.answers))
        self._near: dict[int, set[int]] = {}
        for one, other in near_duplicates(self._numbered.texts, near).tolist():
            self._near.setdefault(one, set()).add(other)
            self._near.setdefault(other, set()).add(one)
        self._trained = self._seen(pair for pair in pairs if pair.split == "train")

    def leak(self, criterion: str, side: str, own: Sequence[GoodBad]) -> Leak | None:
        held = [pair for pair in own if pair.split == side]
        if not held:
            return None
        contexts, answers = self._seen(pair for pair in own if pair.split == "train")
        of_contexts = [self._met(pair.contexts, contexts) for pair in held]
        of_answers = [self._met(pair.answers, answers) for pair in held]
        return Leak(
            criterion=criterion,
            split=side,
            pairs=len(held),
            same_context=of_contexts.count("same"),
            near_context=of_contexts.count("near"),
            same_answer=of_answers.count("same"),
            near_answer=of_answers.count("near"),
            any_text=self._any(held, contexts | answers),
            elsewhere=self._any(held, self._trained[0] | self._trained[1]),
        )

    def _seen(self, pairs: Iterable[GoodBad]) -> tuple[set[int], set[int]]:
        contexts: set[int] = set()
        answers: set[int] = set()
        for pair in pairs:
            contexts |= self._numbered.numbers(pair.contexts)
            answers |= self._numbered.numbers(pair.answers)
        return contexts, answers

    def _any(self, held: Sequence[GoodBad], seen: set[int]) -> int:
        return sum(self._met((*pair.contexts, *pair.answers), seen) != "" for pair in held)

    def _met(self, texts: Iterable[str], seen: set[int]) -> str:
        """Whether one of the texts was seen: the same, only a near-duplicate, or none."""
        numbers = self._numbered.numbers(texts)
        if not numbers.isdisjoint(seen):
            return "same"
        return "near" if any(not self._near.get(one, set()).isdisjoint(seen) for one in numbers) else ""
