"""Where a row stands, and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from metrist.ratings import Choice, Error, Preference, Rating
from metrist.records import Record

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Place:
    """A row's place: `out.jsonl:17`, or `row 17` where the rows come from no file."""

    file: str | None
    line: int

    def __str__(self) -> str:
        return f"row {self.line}" if self.file is None else f"{self.file}:{self.line}"


class Fault(Exception):
    """What is wrong with one row, not yet saying where: whoever knows the place turns it into an `InputError`."""


def shown(value: Any) -> str:
    """A value as a message shows it: the way JSON spells it where Python differs, and never long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, str) and len(value) > _SHOWN:
        return repr(value[:_SHOWN]) + "…"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list nested thousands deep
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN + 2 else text[:_SHOWN] + "…"


# What one row says: its outputs, and what others said of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundError:
    """An error that someone found in the output of a system for an item."""

    item: str
    system: str
    error: Error


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredScore:
    """A score that somebody else's metric gave, and that came with the data."""

    item: str
    system: str
    metric: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChoice:
    """Which of two outputs somebody else's metric preferred; `choice` is None where its `answer` names none."""

    item: str
    first: str
    second: str
    metric: str
    choice: Choice | None
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row. `records` has one record, two for a row that compares two outputs, none where the row has no text;
    `new` has those of them whose item and system no earlier row had. `columns` are the further columns of a row without
    text. `raters` are the people named as having judged it, also those who found no error."""

    place: Place
    keys: tuple[tuple[str, str], ...]
    records: tuple[Record, ...] = ()
    new: tuple[Record, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    raters: tuple[str, ...] = ()
    ratings: tuple[Rating, ...] = ()
    preferences: tuple[Preference, ...] = ()
    errors: tuple[FoundError, ...] = ()
    scores: tuple[StoredScore, ...] = ()
    choices: tuple[StoredChoice, ...] = ()
