"""Count the dev and test pairs that share a text with the training pairs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from metrist.data.pairs import SPLITS, GoodBad
from metrist.data.settings import INSIDE, NEAR
from metrist.data.text_overlap import SplitUnit, TextNumbers, find_contained_texts, find_near_duplicates
from metrist.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """The dev or test pairs of one criterion, and how many share a context or an answer with its training pairs.

    A shared text is the same, only a near-duplicate, or only a part (one text lies inside the other); `any_text` counts
    each such pair once. `elsewhere` counts the pairs that share a text with the training pairs of any criterion, which
    matters if one model learns them all. A named item on both sides counts as a shared context.
    """

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
    """Count the leaks of each criterion's dev and test pairs. Texts of fewer than three words do not count, unless a
    context has no longer one."""
    if not any(pair.split == "train" for pair in pairs) or all(pair.split in ("train", None) for pair in pairs):
        splits = ", ".join(sorted({pair.split or "no split" for pair in pairs}))
        raise InputError(
            f"there is no split to check: expected pairs in train and in dev or test, found {splits}",
            code="invalid_value",
        )
    index = _TextIndex(pairs, near, inside)
    rows = []
    for criterion in dict.fromkeys(pair.criterion for pair in pairs):
        criterion_pairs = [pair for pair in pairs if pair.criterion == criterion]
        rows += [row for side in SPLITS[1:] if (row := index.count_leaks(criterion, side, criterion_pairs))]
    return rows


class _TextIndex:
    """All texts by number, with their near-duplicates and with the texts that they contain or lie inside."""

    def __init__(self, pairs: Sequence[GoodBad], near: float, inside: float) -> None:
        self._numbers = TextNumbers()
        for pair in pairs:
            self._numbers.of_texts((*pair.contexts, *pair.answers))
        self._near = _list_neighbours(find_near_duplicates(self._numbers.texts, near).tolist())
        self._parts = _list_neighbours(find_contained_texts(self._numbers.texts, inside).tolist())
        contexts, answers = self._collect(pair for pair in pairs if pair.split == "train")
        self._training = contexts | answers

    def count_leaks(self, criterion: str, side: str, pairs: Sequence[GoodBad]) -> Leak | None:
        """Count the leaks on one side; `pairs` are those of the criterion. None if the side is empty."""
        side_pairs = [pair for pair in pairs if pair.split == side]
        if not side_pairs:
            return None
        contexts, answers = self._collect(pair for pair in pairs if pair.split == "train")
        context_matches = [self._match(self._contexts(pair), contexts) for pair in side_pairs]
        answer_matches = [self._match(self._numbers.of_texts(pair.answers), answers) for pair in side_pairs]
        return Leak(
            criterion=criterion,
            split=side,
            pairs=len(side_pairs),
            same_context=context_matches.count("same"),
            near_context=context_matches.count("near"),
            part_context=context_matches.count("part"),
            same_answer=answer_matches.count("same"),
            near_answer=answer_matches.count("near"),
            part_answer=answer_matches.count("part"),
            any_text=self._count_matching(side_pairs, contexts | answers),
            elsewhere=self._count_matching(side_pairs, self._training),
        )

    def _contexts(self, pair: GoodBad) -> frozenset[Hashable]:
        """Return the numbers of the context's texts, the whole context if it is short, and the item."""
        return self._numbers.of_texts(pair.contexts) | self._numbers.keys(SplitUnit.from_pair(pair))

    def _collect(self, pairs: Iterable[GoodBad]) -> tuple[set[Hashable], set[Hashable]]:
        contexts: set[Hashable] = set()
        answers: set[Hashable] = set()
        for pair in pairs:
            contexts |= self._contexts(pair)
            answers |= self._numbers.of_texts(pair.answers)
        return contexts, answers

    def _count_matching(self, pairs: Sequence[GoodBad], training: set[Hashable]) -> int:
        texts = (self._contexts(pair) | self._numbers.of_texts(pair.answers) for pair in pairs)
        return sum(self._match(pair_texts, training) != "" for pair_texts in texts)

    def _match(self, texts: frozenset[Hashable], training: set[Hashable]) -> str:
        """Return the closest match of any of the texts: "same", "near", "part" (either way), or ""."""
        if not texts.isdisjoint(training):
            return "same"
        if any(not self._near.get(text, set()).isdisjoint(training) for text in texts):
            return "near"
        return "part" if any(not self._parts.get(text, set()).isdisjoint(training) for text in texts) else ""


def _list_neighbours(couples: Iterable[Sequence[int]]) -> dict[Hashable, set[int]]:
    neighbours: dict[Hashable, set[int]] = {}
    for first, second in couples:
        neighbours.setdefault(first, set()).add(second)
        neighbours.setdefault(second, set()).add(first)
    return neighbours
