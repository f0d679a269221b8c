"""How a number or a name is written: one place for every table, page and message."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

#: What stands where there is no number.
NOTHING = "n/a"
# These turn the direction of the text that follows them: a name holding one could show a table in another order.
_DIRECTION_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@runtime_checkable
class Cell(Protocol):
    """A table's cell that knows how it is written and what it is as plain data."""

    def __str__(self) -> str: ...

    def plain(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Number:
    """A score: `41.2`."""

    value: float
    decimals: int = 3

    def __str__(self) -> str:
        return fixed(self.value, self.decimals)

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
        return _with_interval(*(fixed(x, self.decimals) for x in (self.value, self.low, self.high)))

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
        return _with_interval(*(fixed(x, self.decimals, sign="+") for x in (self.value, self.low, self.high)))

    def plain(self) -> dict[str, float | None]:
        return {"value": or_none(self.value), "low": or_none(self.low), "high": or_none(self.high)}


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a whole, from 0 to 1: `98.7 %`. Only all of it is written as 100, only none of it as 0."""

    value: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return NOTHING
        percent = 100 * self.value
        return f"{min(percent, 99.9) if percent < 100 else percent:.1f} %" if percent >= 0.05 else _least(percent)

    def plain(self) -> float | None:
        return or_none(self.value)


@dataclass(frozen=True, slots=True)
class PValue:
    """A p-value: `.003`, `<.001`."""

    value: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return NOTHING
        if self.value < 0.001:
            return "<.001"
        return f"{self.value:.3f}".removeprefix("0")

    def plain(self) -> float | None:
        return or_none(self.value)


@dataclass(frozen=True, slots=True)
class Count:
    """How many: `1,600`."""

    value: int

    def __str__(self) -> str:
        return f"{self.value:,}"

    def plain(self) -> int:
        return self.value


def decimals_for(low: float, high: float) -> int:
    """How many decimals say enough for scores of this range."""
    reach = max(abs(low), abs(high))
    if reach <= 1:
        return 3
    return 2 if reach <= 10 else 1


def fixed(value: float, decimals: int, sign: str = "-") -> str:
    """A number with so many decimals, never `-0.0`."""
    if math.isnan(value):
        return NOTHING
    # Adding zero turns the negative zero that rounding leaves into a plain one.
    return f"{round(value, decimals) + 0.0:{sign}.{decimals}f}"


def visible(text: str) -> str:
    """The text with every character that a terminal or a page would obey instead of show written as an escape."""
    return text if text.isascii() and text.isprintable() else "".join(map(_visible_character, text))


def shortened(text: str, longest: int) -> str:
    """The text with its middle left out where it is longer than allowed: names often differ at their ends."""
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 2
    return f"{text[: longest - 1 - tail]}…{text[len(text) - tail :]}"


def plain(value: Any) -> Any:
    """A cell as data for JSON: NaN, which JSON cannot say, is null."""
    if isinstance(value, Cell):
        return value.plain()
    return or_none(value) if isinstance(value, float) else value


def written(value: Any) -> str:
    """A cell as one line of characters that are safe to show."""
    if value is None:
        return NOTHING
    if isinstance(value, float):
        return str(Number(value))
    return visible(str(value))


def or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _with_interval(value: str, low: str, high: str) -> str:
    return value if NOTHING in (value, low, high) else f"{value} [{low}, {high}]"


def _least(percent: float) -> str:
    return "0.0 %" if percent <= 0 else "0.1 %"


def _visible_character(character: str) -> str:
    if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _DIRECTION_CONTROLS:
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character
