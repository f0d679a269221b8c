"""Cells and columns of tables: how numbers and names are formatted in every table, page and message."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from metrist.errors import escape_controls

Align = Literal["left", "right", "center"]
Better = Literal["higher", "lower", "neither"]
#: How an interval is shown: `41.2 [39.8, 42.5]`, `41.2 ± 1.4` or not at all.
Intervals = Literal["brackets", "plusminus", "none"]

#: Names in one sentence.
MAX_NAMED = 6
#: Shown where there is no number.
NOT_AVAILABLE = "n/a"


@runtime_checkable
class Cell(Protocol):
    """A table cell with its text and its value as plain data."""

    def __str__(self) -> str: ...

    def plain(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Value:
    """A cell with one number."""

    value: float

    def plain(self) -> float | None:
        return or_none(self.value)


@dataclass(frozen=True, slots=True)
class Number(_Value):
    """A score: `41.2`."""

    decimals: int = 3

    def __str__(self) -> str:
        return format_number(self.value, self.decimals)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A score with its interval: `41.2 [39.8, 42.5]`."""

    value: float
    low: float = math.nan
    high: float = math.nan
    decimals: int = 3
    intervals: Intervals = "brackets"

    sign: ClassVar[str] = "-"

    def __str__(self) -> str:
        value, low, high = (format_number(x, self.decimals, self.sign) for x in (self.value, self.low, self.high))
        if NOT_AVAILABLE in (value, low, high) or self.intervals == "none":
            return value
        return f"{value} [{low}, {high}]" if self.intervals == "brackets" else f"{value} ± {self.half_width}"

    @property
    def half_width(self) -> str:
        """Half the width of the interval, as text."""
        return format_number((self.high - self.low) / 2, self.decimals)

    def plain(self) -> dict[str, float | None]:
        return {"value": or_none(self.value), "low": or_none(self.low), "high": or_none(self.high)}


@dataclass(frozen=True, slots=True)
class Change(Estimate):
    """A difference with its interval, always signed: `+1.2 [-0.1, +2.5]`."""

    sign: ClassVar[str] = "+"


@dataclass(frozen=True, slots=True)
class Marked:
    """A number with marks behind it, such as letters of significance: `0.632 ab`. `room` is the width of the longest
    marks in the column, so that the numbers line up. `best` says whether no test finds a better one; None untested."""

    cell: Number | Estimate
    marks: str = ""
    room: int = 0
    best: bool | None = None

    def __str__(self) -> str:
        return f"{self.cell} {self.marks:<{self.room}}" if self.room or self.marks else str(self.cell)

    def plain(self) -> dict[str, Any]:
        value = self.cell.plain()
        return {**(value if isinstance(value, dict) else {"value": value}), "marks": self.marks}


@dataclass(frozen=True, slots=True)
class Share(_Value):
    """A share from 0 to 1: `98.7 %`. Rounding gives neither 100 nor 0 unless the share is exactly 1 or 0."""

    def __str__(self) -> str:
        if math.isnan(self.value):
            return NOT_AVAILABLE
        percent = 100 * self.value
        if percent < 0.05:
            return "0.0 %" if percent <= 0 else "0.1 %"
        return f"{min(percent, 99.9) if percent < 100 else percent:.1f} %"


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares by name, those that are equal together: `judge 98.7 %; rougeL, ter 100.0 %`. The least come first."""

    by_name: Mapping[str, float]

    def __str__(self) -> str:
        names: dict[float, list[str]] = {}
        for name, share in self.by_name.items():
            names.setdefault(share, []).append(name)
        return "; ".join(f"{', '.join(names[share])} {Share(share)}" for share in sorted(names))

    def plain(self) -> dict[str, float | None]:
        return {name: or_none(share) for name, share in self.by_name.items()}


@dataclass(frozen=True, slots=True)
class PValue(_Value):
    """A p-value: `.003`, `<.001`."""

    def __str__(self) -> str:
        if math.isnan(self.value):
            return NOT_AVAILABLE
        if self.value < 0.001:
            return "<.001"
        return f"{self.value:.3f}".removeprefix("0")


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


def shorten(text: str, max_length: int) -> str:
    """Replace the middle of a long text with an ellipsis; both ends stay, since names often differ there."""
    if len(text) <= max_length:
        return text
    tail = (max_length - 1) // 2
    return f"{text[: max_length - 1 - tail]}…{text[len(text) - tail :]}"


def join_names(names: Sequence[str], limit: int | None = MAX_NAMED) -> str:
    """`a, b and c`; the last of many are counted, unless there is no limit."""
    shown = list(names[:limit])
    if limit is not None and len(names) > limit:
        return f"{', '.join(shown)} and {len(names) - limit} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


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


# --- Columns and signatures


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading and alignment. For LaTeX, which of its numbers are better, if it holds a metric's, a function
    that gives its name in papers (looking that up takes time), and whether a paper has room for the column."""

    name: str
    align: Align = "left"
    better: Better | None = None
    title: Callable[[], str] | None = None
    in_latex: bool = True


def name_columns(*names: str, right: Iterable[str] = ()) -> list[Column]:
    """Columns of names, then of numbers, which stand on the right."""
    return [*map(Column, names), *(Column(name, "right") for name in right)]


class NameCell(str):
    """A name in a cell. LaTeX prints that of a metric as the heading of its column, and a strong one in bold."""

    __slots__ = ("column", "strong")
    column: Column | None
    strong: bool

    def __new__(cls, text: str, *, column: Column | None = None, strong: bool = False) -> NameCell:
        name = super().__new__(cls, text)
        name.column, name.strong = column, strong
        return name


class MetricSignature(NamedTuple):
    """How a metric's numbers came about: metrist's signature, and that of a package which readers know."""

    name: str
    text: str
    peer: str = ""


def find_best(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> set[tuple[int, int]]:
    """Row and column of the best value of each metric, and of those that do not differ from it: by a test, or without
    one as they are printed; none where no value differs."""
    best: set[tuple[int, int]] = set()
    for number, column in enumerate(columns):
        if column.better not in ("higher", "lower"):
            continue
        shown = {row: _value_text(cells[number]) for row, cells in enumerate(rows)}
        values = {row: float(text) for row, text in shown.items() if text}
        tested = {row: getattr(cells[number], "best", None) for row, cells in enumerate(rows)}
        if any(is_best is not None for is_best in tested.values()):
            winners = {(row, number) for row in values if tested[row]}
            best |= winners if len(winners) < len(values) else set()
        elif len(set(values.values())) > 1:
            top = (max if column.better == "higher" else min)(values.values())
            best |= {(row, number) for row, value in values.items() if value == top}
    return best


def _value_text(cell: Any) -> str:
    """The number in a cell as it is printed; empty if there is none."""
    inner = cell.cell if isinstance(cell, Marked) else cell
    if not isinstance(inner, Number | Estimate) or not math.isfinite(inner.value):
        return ""
    return str(Number(inner.value, inner.decimals))
