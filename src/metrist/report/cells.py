"""Table cells: how numbers and names are formatted in every table, page and message."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

#: Shown where there is no number.
NOT_AVAILABLE = "n/a"
# These change the direction of the text after them: a name with one could reorder a table on screen.
_DIRECTION_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@runtime_checkable
class Cell(Protocol):
    """A table cell with its text and its value as plain data."""

    def __str__(self) -> str: ...

    def plain(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Number:
    """A score: `41.2`."""

    value: float
    decimals: int = 3

    def __str__(self) -> str:
        return format_number(self.value, self.decimals)

    def plain(self) -> float | None:
        return or_none(self.value)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A score with its interval: `41.2 [39.8, 42.5]`."""

    value: float
    low: float = math.nan
    high: float = math.nan
    decimals: int = 3

    def __str__(self) -> str:
        return _join_interval(*(format_number(x, self.decimals) for x in (self.value, self.low, self.high)))

    def plain(self) -> dict[str, float | None]:
        return {"value": or_none(self.value), "low": or_none(self.low), "high": or_none(self.high)}


@dataclass(frozen=True, slots=True)
class Change:
    """A difference with its interval, always signed: `+1.2 [-0.1, +2.5]`."""

    value: float
    low: float = math.nan
    high: float = math.nan
    decimals: int = 3

    def __str__(self) -> str:
        return _join_interval(*(format_number(x, self.decimals, sign="+") for x in (self.value, self.low, self.high)))

    def plain(self) -> dict[str, float | None]:
        return {"value": or_none(self.value), "low": or_none(self.low), "high": or_none(self.high)}


@dataclass(frozen=True, slots=True)
class Share:
    """A share from 0 to 1: `98.7 %`. Rounding gives neither 100 nor 0 unless the share is exactly 1 or 0."""

    value: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return NOT_AVAILABLE
        percent = 100 * self.value
        if percent < 0.05:
            return "0.0 %" if percent <= 0 else "0.1 %"
        return f"{min(percent, 99.9) if percent < 100 else percent:.1f} %"

    def plain(self) -> float | None:
        return or_none(self.value)


@dataclass(frozen=True, slots=True)
class PValue:
    """A p-value: `.003`, `<.001`."""

    value: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return NOT_AVAILABLE
        if self.value < 0.001:
            return "<.001"
        return f"{self.value:.3f}".removeprefix("0")

    def plain(self) -> float | None:
        return or_none(self.value)


@dataclass(frozen=True, slots=True)
class Count:
    """A count: `1,600`."""

    value: int

    def __str__(self) -> str:
        return f"{self.value:,}"

    def plain(self) -> int:
        return self.value


def decimals_for(low: float, high: float) -> int:
    """The number of decimals for scores in this range."""
    reach = max(abs(low), abs(high))
    if reach <= 1:
        return 3
    return 2 if reach <= 10 else 1


def format_number(value: float, decimals: int, sign: str = "-") -> str:
    """Format a number with a fixed number of decimals, never as `-0.0`."""
    if math.isnan(value):
        return NOT_AVAILABLE
    # Adding zero turns a negative zero from rounding into zero.
    return f"{round(value, decimals) + 0.0:{sign}.{decimals}f}"


def escape_controls(text: str) -> str:
    """Escape characters that a terminal or a page would interpret instead of showing."""
    return text if text.isascii() and text.isprintable() else "".join(map(_escape_character, text))


def shorten(text: str, max_length: int) -> str:
    """Replace the middle of a long text with an ellipsis; both ends stay, since names often differ there."""
    if len(text) <= max_length:
        return text
    tail = (max_length - 1) // 2
    return f"{text[: max_length - 1 - tail]}…{text[len(text) - tail :]}"


def to_plain(value: Any) -> Any:
    """A cell as data for JSON; NaN is null."""
    if isinstance(value, Cell):
        return value.plain()
    return or_none(value) if isinstance(value, float) else value


def format_cell(value: Any) -> str:
    """A cell as one line of text that is safe to show."""
    if value is None:
        return NOT_AVAILABLE
    if isinstance(value, float):
        return str(Number(value))
    return escape_controls(str(value))


def or_none(value: float) -> float | None:
    """None in place of NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def _join_interval(value: str, low: str, high: str) -> str:
    return value if NOT_AVAILABLE in (value, low, high) else f"{value} [{low}, {high}]"


def _escape_character(character: str) -> str:
    if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _DIRECTION_CONTROLS:
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character
