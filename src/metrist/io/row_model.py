"""What one row of input holds: its location, its outputs, and the judgments of them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec

from metrist.ratings import Choice, Error, Preference, Rating
from metrist.records import Record

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a row: `out.jsonl:17`, or `row 17` for rows in memory."""

    file: str | None
    line: int

    def __str__(self) -> str:
        return f"row {self.line}" if self.file is None else f"{self.file}:{self.line}"


class RowError(Exception):
    """An error in one row, without its location: the caller adds that and raises an `InputError`."""


def format_value(value: Any) -> str:
    """Format a value for a message: spelled as in JSON where Python differs, and shortened."""
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


def describe_json_error(error: Exception) -> str:
    """Describe for a user why a text is not JSON."""
    if isinstance(error, json.JSONDecodeError):
        text = error.doc[error.pos : error.pos + 30]
        rest = format_value(text) if text else "the end of the line"
        return f"not valid JSON: {error.msg} at column {error.colno}, found {rest}"
    if isinstance(error, RecursionError):
        return "not readable JSON: it is nested too deeply"
    # All that is left of what `json` raises.
    return f"not readable JSON: an integer has more than {sys.get_int_max_str_digits():,} digits"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredError:
    """An error that a rater marked in the output of a system for an item."""

    item: str
    system: str
    error: Error


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredScore:
    """A score by another metric that the data contain."""

    item: str
    system: str
    metric: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChoice:
    """The choice of another metric between two outputs; `choice` is None if its `answer` names none."""

    item: str
    first: str
    second: str
    metric: str
    choice: Choice | None
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRow:
    """One row.

    `records` has one record, two for a row that compares two outputs, and none for a row without text; `new` has those
    whose (item, system) did not occur in an earlier row. `columns` are the other columns of a row without text.
    `raters` are all raters of the row, including those who marked no error. `weight` is how many outputs or pairs the
    row stands for, if it was sampled.
    """

    location: Location
    keys: tuple[tuple[str, str], ...]
    records: tuple[Record, ...] = ()
    new: tuple[Record, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    raters: tuple[str, ...] = ()
    ratings: tuple[Rating, ...] = ()
    preferences: tuple[Preference, ...] = ()
    errors: tuple[StoredError, ...] = ()
    scores: tuple[StoredScore, ...] = ()
    choices: tuple[StoredChoice, ...] = ()
    weight: float | None = None

    def without(self, keys: Collection[tuple[str, str]]) -> ParsedRow:
        """The row without the outputs of these items and systems, and without what it says about them."""

        def remains(part: Any) -> bool:
            is_pair = isinstance(part, Preference | StoredChoice)
            systems = (part.first, part.second) if is_pair else (part.system,)
            return all((part.item, system) not in keys for system in systems)

        names = ("records", "new", "ratings", "preferences", "errors", "scores", "choices")
        remaining: dict[str, Any] = {name: tuple(filter(remains, getattr(self, name))) for name in names}
        return replace(self, keys=tuple(key for key in self.keys if key not in keys), **remaining)


_Name = Annotated[str, msgspec.Meta(min_length=1)]


class CompleteRow(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A row of one output in metrist's own names that leaves nothing to be filled in: it has the attributes of a
    Record. Such rows are decoded by the thousand."""

    item: _Name
    system: _Name
    output: str
    source: str | None = None
    references: tuple[str, ...] = ()
    instruction: str | None = None
    task: str | None = None
    language: str | None = None
    ratings: dict[str, float] | None = None
    extra: ClassVar[Mapping[str, Any]] = MappingProxyType({})


class CompleteRows(list[CompleteRow]):
    """Such rows of consecutive lines, and the bytes of these."""

    size: int


class PlainRow(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A row of one output in metrist's own names and usual types, which is decoded several times faster than a dict is
    parsed. Once `RowParser.complete` has seen it, it has the attributes of a Record."""

    output: str
    item: str | int | None = None
    system: str | None = None
    source: str | None = None
    references: tuple[str, ...] | None = None
    reference: str | None = None
    instruction: str | None = None
    task: str | None = None
    language: str | None = None
    ratings: dict[str, float | list[float | None] | None] | None = None
    rater: str | None = None
    extra: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    @property
    def simple_ratings(self) -> dict[str, Any] | None:
        """The ratings if there is one number for each aspect, by a rater without a name."""
        is_simple = self.rater is None and self.ratings and {*map(type, self.ratings.values())} == {float}
        return self.ratings if is_simple else None


class RatedRow(NamedTuple):
    """A row that holds one number for each aspect, by a rater without a name, as most rows with judgments do. Half a
    dozen objects less than a `ParsedRow` of the same."""

    line: int
    item: str
    system: str
    ratings: Mapping[str, float]
