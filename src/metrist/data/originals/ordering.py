"""From ratings to pairs: what two answers to the same question need in order to become a good and a bad one."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations
from typing import TypeVar

from metrist import criteria
from metrist.data.good_bad import Fields, GoodBad

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A judged text. `rank` orders it among others; `rating` is kept in the pairs, where people gave one."""

    text: str
    rank: float = 0.0
    rating: float | None = None
    system: str | None = None


def rated(text: str, rating: float, system: str | None = None) -> Answer:
    """An answer that its rating orders."""
    return Answer(text=text, rank=rating, rating=rating, system=system)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a criterion's answers are judged in: the texts of its context fields, in the criterion's order."""

    code: str
    context: tuple[str, ...]
    item: str

    def pair(self, good: Answer, bad: Answer) -> GoodBad:
        """The pair of these two."""
        return GoodBad(
            criterion=self.code,
            good=self._fields(good.text),
            bad=self._fields(bad.text),
            item=self.item,
            good_rating=good.rating,
            bad_rating=bad.rating,
            systems=(good.system, bad.system) if good.system and bad.system else None,
        )

    def _fields(self, answer: str) -> Fields:
        return tuple(zip(_labels(self.code), (*self.context, answer), strict=True))


@cache
def _labels(code: str) -> tuple[str, ...]:
    return criteria.suite("heap").criterion(code).fields


def winners_first(question: Question, answers: Sequence[Answer]) -> Iterator[GoodBad]:
    """The first answer's victories, then the second's, and so on; equal ranks make no pair."""
    for good, bad in permutations(answers, 2):
        if good.rank > bad.rank:
            yield question.pair(good, bad)


def two_by_two(question: Question, answers: Sequence[Answer]) -> Iterator[GoodBad]:
    """Each two answers once, in the order in which they stand; equal ranks make no pair."""
    for one, other in combinations(answers, 2):
        if one.rank != other.rank:
            yield question.pair(one, other) if one.rank > other.rank else question.pair(other, one)


def floor_mean(ratings: Sequence[float]) -> float:
    """HEAP's way to make one rating of several: the mean, rounded down."""
    return float(math.floor(sum(ratings) / len(ratings)))


def grouped(keyed: Iterable[tuple[Hashable, T]]) -> list[list[T]]:
    """Values of one key together, in the order in which keys and values first come."""
    groups: dict[Hashable, list[T]] = {}
    for key, value in keyed:
        groups.setdefault(key, []).append(value)
    return list(groups.values())
