"""Rules for turning judgments into pairs, and the count of pairs that were kept or dropped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from metrist.errors import SpecError
from metrist.settings import check_settings, setting

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

#: Why a pair is dropped, in the order in which the reasons are checked.
REASONS = {
    NO_TEXT: "the text of one output is not in the files",
    NO_CONTEXT: "a context field of one output is empty",
    EMPTY_TEXT: "one output is empty",
    OTHER_CONTEXT: "the two outputs of the item have different contexts",
    SAME_TEXT: "both outputs are the same text",
    NO_COMMON_RATER: "no named rater judged both; without 'raters', all values are compared",
    NEITHER_CHOSEN: "no rater chose either of the two",
    TIE: "the aggregated judgments are equal",
    SMALL_MARGIN: "the ratings differ by less than the margin",
    RATERS_SPLIT: "the ratings differ, but no majority of raters agrees with the order",
    COMPARED: "raters compared the same two texts directly, and that preference is used instead",
    REPEATED: "the item has the same two texts in this order already",
    OVER_CAP: "the item has as many pairs as the cap allows",
    NOT_DRAWN: "not among the pairs drawn from all",
    TWO_SIDES: "their texts are on two sides of the split",
}


@dataclass(slots=True)
class Account:
    """The count of pairs for one criterion. `without_text` counts judged outputs whose text is in no file; they make no
    pair. `soft` counts kept pairs with a certainty below 1."""

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
        """Whether every possible pair is either kept or dropped for exactly one reason."""
        return self.possible == self.kept + self.dropped.total()

    def drop(self, reason: str, count: int = 1) -> None:
        if count:
            self.dropped[reason] += count


def list_reasons(accounts: Iterable[Account]) -> list[str]:
    """Return the reasons that occur, in the order of `REASONS`."""
    seen = {reason for account in accounts for reason in account.dropped}
    return [reason for reason in REASONS if reason in seen]


Within = Literal["item", "all"]
Aggregation = Literal["mean", "median", "majority"]
Ties = Literal["drop", "soft"]
Certainty = Literal["full", "shares"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How judgments become pairs."""

    within: Within = setting("item", "Pair outputs of one item, or any two outputs.")
    aggregate: Aggregation = setting("mean", "How the values of several raters are combined.")
    margin: float = setting(0.0, "Smallest difference of two aggregated ratings.", min=0)
    ties: Ties = setting("drop", "Drop ties, or keep them as soft labels (certainty .5).")
    certainty: Certainty = setting("full", "full: 1; shares: the share of raters who agree.")
    cap: int | None = setting(None, "Maximum pairs per item.", metavar="N", min=1)
    seed: int = setting(0, "Seed of all sampling and splitting.", min=0)

    def __post_init__(self) -> None:
        check_settings(self, SpecError)
        if not math.isfinite(self.margin):
            raise SpecError(f"`margin` must be a number, got {self.margin!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """The criterion that the pairs of one aspect teach. With `opposite`, the lower rating is the good one. With
    `choice`, a rating of 1 marks an output that was chosen among several; two outputs rated 0 have no order."""

    aspect: str
    criterion: str
    instruction: str = ""
    opposite: bool = False
    choice: bool = False
