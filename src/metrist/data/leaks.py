"""Count the dev and test pairs that share a text with the training pairs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from metrist.data.pairs import SPLITS, GoodBad
from metrist.data.settings import INSIDE, NEAR
from metrist.data.text_overlap import SplitUnit, TextNumbers, find_contained_texts, find_near_duplicates
from metrist.errors import InputError

_Texts = Set[Hashable]


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
    numbers = TextNumbers()
    #: The numbers of a context (of its texts, of the whole if it is short, and of the item) and of the answers.
    groups: dict[tuple[str, str | None], list[tuple[_Texts, _Texts]]] = {}
    training: set[Hashable] = set()
    for pair in pairs:
        context: _Texts = numbers.of_texts(pair.contexts) | numbers.keys(SplitUnit.from_pair(pair))
        answers: _Texts = numbers.of_texts(pair.answers)
        groups.setdefault((pair.criterion, pair.split), []).append((context, answers))
        if pair.split == "train":
            training |= context | answers
    neighbours = {
        "near": _list_neighbours(find_near_duplicates(numbers.texts, near).tolist()),
        "part": _list_neighbours(find_contained_texts(numbers.texts, inside).tolist()),
    }
    rows = []
    for criterion in dict.fromkeys(pair.criterion for pair in pairs):
        learned = groups.get((criterion, "train"), [])
        contexts = set[Hashable]().union(*(context for context, _ in learned))
        answers = set[Hashable]().union(*(answers for _, answers in learned))
        either = contexts | answers
        for side in SPLITS[1:]:
            if not (judged := groups.get((criterion, side), [])):
                continue
            context_matches = [_match(context, contexts, neighbours) for context, _ in judged]
            answer_matches = [_match(own, answers, neighbours) for _, own in judged]
            every = [context | own for context, own in judged]
            rows.append(
                Leak(
                    criterion=criterion,
                    split=side,
                    pairs=len(judged),
                    same_context=context_matches.count("same"),
                    near_context=context_matches.count("near"),
                    part_context=context_matches.count("part"),
                    same_answer=answer_matches.count("same"),
                    near_answer=answer_matches.count("near"),
                    part_answer=answer_matches.count("part"),
                    any_text=sum(_match(own, either, neighbours) != "" for own in every),
                    elsewhere=sum(_match(own, training, neighbours) != "" for own in every),
                )
            )
    return rows


def _match(texts: _Texts, training: _Texts, neighbours: Mapping[str, Mapping[Hashable, set[int]]]) -> str:
    """Return the closest match of any of the texts: "same", "near", "part" (either way), or ""."""
    if not texts.isdisjoint(training):
        return "same"
    for how, alike in neighbours.items():
        if any(not alike.get(text, set()).isdisjoint(training) for text in texts):
            return how
    return ""


def _list_neighbours(couples: Iterable[Sequence[int]]) -> dict[Hashable, set[int]]:
    neighbours: dict[Hashable, set[int]] = {}
    for first, second in couples:
        neighbours.setdefault(first, set()).add(second)
        neighbours.setdefault(second, set()).add(first)
    return neighbours
