"""What one row says: its outputs, and what others said of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from metrist.io.place import Place
from metrist.ratings import Choice, Error, Preference, Rating
from metrist.records import Record


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
