"""The noun that preference models learn from: two answers to one question, of which one is better."""

from __future__ import annotations

from dataclasses import dataclass

#: (label, text) of each field, the answer last and its context before it.
Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodBad:
    """Two answers judged by one criterion. `good` has more of what the criterion asks for, which need not be what
    people want: of two offensive texts, the more offensive one is good at offending.

    `certainty` is the probability that `good` is the better one: 1 where people were clear, .5 for a tie kept as a
    soft label. The good rating is the higher one, or equal in a tie. `split` is train, dev or test, None where nothing
    was split.
    """

    criterion: str
    good: Fields
    bad: Fields
    instruction: str = ""
    item: str = ""
    split: str | None = None
    certainty: float = 1.0
    good_rating: float | None = None
    bad_rating: float | None = None
    systems: tuple[str, str] | None = None

    @property
    def contexts(self) -> tuple[str, ...]:
        """The texts that the answers are judged in; both sides', where they differ."""
        return tuple(dict.fromkeys(text for side in (self.good, self.bad) for _, text in side[:-1]))

    @property
    def answers(self) -> tuple[str, str]:
        """The good answer's text and the bad one's."""
        return self.good[-1][1], self.bad[-1][1]
