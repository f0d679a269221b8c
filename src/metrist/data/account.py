"""What became of all pairs that could have been made: each is kept, or dropped for one reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

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
