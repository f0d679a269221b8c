"""Ratings, preferences and errors: what people or metrics say about outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Choice = Literal["first", "second", "tie"]
Side = Literal["output", "source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """One rater's value for one aspect of one output; `rater` is None where unknown."""

    item: str
    system: str
    aspect: str
    rater: str | None
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """One rater's choice between the outputs of two systems for one item."""

    item: str
    first: str
    second: str
    aspect: str
    rater: str | None
    choice: Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """One mistake in an output. `start` and `end` count characters, end exclusive, into `side`'s text;
    None where its position is unknown. `source_start` and `source_end` bound the passage of the source that contradicts
    the words or comes nearest to them, if there is one. `rater` is the person or the metric that marked it."""

    aspect: str
    severity: str | None
    penalty: float | None = None
    explanation: str = ""
    revision: str = ""
    text: str = ""
    start: int | None = None
    end: int | None = None
    side: Side = "output"
    rater: str | None = None
    source_start: int | None = None
    source_end: int | None = None
