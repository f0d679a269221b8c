"""Rules for turning judgments into pairs, and an account of every pair that was kept or dropped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from metrist.errors import SpecError

TIE = "tie"
SAME_TEXT = "same text"
COMPARED = "compared"
REPEATED = "repeated"
NO_TEXT = "no text"
NO_CONTEXT = "no context"
EMPTY_TEXT = "empty text"
OTHER_CONTEXT = "other context"
NEITHER_CHOSEN = "neither chosen"
SMALL_MARGIN = "below margin"
RATERS_SPLIT = "raters split"
NO_COMMON_RATER = "no common rater"
OVER_CAP = "over cap"
NOT_DRAWN = "not drawn"
TWO_SIDES = "on two sides"


#: Why a pair is dropped, in the order in which it is looked at.
REASONS = {
    NO_TEXT: "the text of one output is not in the files",
    NO_CONTEXT: "a context field of one output is empty",
    EMPTY_TEXT: "one output is empty",
    OTHER_CONTEXT: "the two outputs of the item have different contexts",
    SAME_TEXT: "both outputs are the same text",
    NO_COMMON_RATER: "no rater that is named judged both; without 'raters', all values are compared",
    NEITHER_CHOSEN: "nobody chose either of the two",
    TIE: "the aggregated judgments are equal",
    SMALL_MARGIN: "the ratings differ by less than the margin",
    RATERS_SPLIT: "the ratings differ, but no majority of raters agrees with the order",
    COMPARED: "people preferred one of the same two texts, which says more than two ratings",
    REPEATED: "the item has the same two texts in this order already",
    OVER_CAP: "the item has as many pairs as the cap allows",
    NOT_DRAWN: "not among the pairs drawn from all",
    TWO_SIDES: "their texts stand on two sides of the split",
}


@dataclass(slots=True)
class Account:
    """The count for one criterion. `without_text` are judged outputs that no file holds; they make no pair."""

    criterion: str
    good: str = ""
    outputs: int = 0
    without_text: int = 0
    possible: int = 0
    kept: int = 0
    soft: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def adds_up(self) -> bool:
        """Whether every possible pair is either kept or dropped for one reason."""
        return self.possible == self.kept + self.dropped.total()

    def drop(self, reason: str, count: int = 1) -> None:
        if count:
            self.dropped[reason] += count

    def why(self) -> str:
        """The reasons with their counts, the most common first."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.most_common())


def reasons_of(accounts: Iterable[Account]) -> list[str]:
    """The reasons that occur, in their fixed order."""
    seen = {reason for account in accounts for reason in account.dropped}
    return [reason for reason in REASONS if reason in seen]


Within = Literal["item", "all"]


Ties = Literal["drop", "soft"]


Certainty = Literal["full", "shares"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`within` sets outputs of one item against each other, or any two outputs; `margin` is the least difference of two
    aggregated ratings; `ties` are dropped, or kept with certainty .5; `cap` is the most pairs an item may take part in;
    `certainty` is 1, or the share of raters who agree with the order. `seed` decides what a cap leaves out."""

    within: Within = "item"
    aggregate: How = "mean"
    margin: float = 0.0
    ties: Ties = "drop"
    certainty: Certainty = "full"
    cap: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _one_of("within", self.within, get_args(Within))
        _one_of("aggregate", self.aggregate, get_args(How))
        _one_of("ties", self.ties, get_args(Ties))
        _one_of("certainty", self.certainty, get_args(Certainty))
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise SpecError(f"margin must be a number from 0 up, got {self.margin!r}")
        if self.cap is not None and self.cap < 1:
            raise SpecError(f"cap must be 1 or more, got {self.cap!r}")


def _one_of(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise SpecError(f"{name} must be one of {', '.join(known)}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What the pairs of one aspect teach: a criterion with its instruction. Where it is `opposite`, the lower rating is
    the good one. A `choice` marks the outputs that were chosen among several with 1 and says nothing of the others."""

    aspect: str
    criterion: str
    instruction: str = ""
    opposite: bool = False
    choice: bool = False


How = Literal["mean", "median", "majority"]
