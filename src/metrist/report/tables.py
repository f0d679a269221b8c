"""Tables, rendered as text, Markdown, LaTeX, JSON or HTML. Markup inside a name is always shown, never interpreted."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

from metrist.errors import RunError, did_you_mean
from metrist.errors import escape_controls as escape_controls

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


Align = Literal["left", "right", "center"]
Format = Literal["text", "markdown", "latex", "json", "html"]
FORMATS: tuple[str, ...] = get_args(Format)
_MAX_CELL = 80
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading and alignment."""

    name: str
    align: Align = "left"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Rows under columns. A cell is a string, a plain number, None, or one of the cells below."""

    title: str = ""
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise ValueError(f"two columns of one table have the same name: {names}")
        if wrong := [row for row in self.rows if len(row) != len(names)]:
            raise ValueError(f"a row of {len(wrong[0])} cells does not fit {len(names)} columns: {wrong[0]}")

    def render(self, form: str = "text") -> str:
        """The table in one of the `FORMATS`."""
        match form:
            case "text":
                return _render_text(self, None)
            case "json":
                return json.dumps(self.to_dict(), indent=2)
            case "markdown":
                return _render_markdown(self)
            case "latex":
                return _render_latex(self)
            case "html":
                return _render_html(self)
        raise RunError(f"no table format {form!r}; known are {', '.join(FORMATS)}{did_you_mean(form, FORMATS)}")

    def to_dict(self) -> dict[str, Any]:
        """The table as plain data, each row a mapping from column to value."""
        names = [column.name for column in self.columns]
        rows = [dict(zip(names, map(to_plain, row), strict=True)) for row in self.rows]
        return {"title": self.title, "columns": names, "rows": rows, "notes": list(self.notes)}

    def text(self, width: int | None = None) -> str:
        """Plain text in aligned columns, folded where it would be wider than `width`."""
        return _render_text(self, width)

    def __str__(self) -> str:
        return self.text()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        # A Text object, not a string: rich would interpret a name such as [red] as markup.
        text = Text(self.text(options.max_width))
        if self.title:
            text.stylize("bold", 0, len(escape_controls(self.title)))
        yield text

    def _repr_html_(self) -> str:
        return self.render("html")


def _render_text(table: Table, width: int | None) -> str:
    rows = [[column.name for column in table.columns], *table.rows]
    cells = [[format_cell(cell) for cell in row] for row in rows]
    cells = [[c if len(c) <= _MAX_CELL else shorten(c, _MAX_CELL) for c in row] for row in cells]
    lines = align_columns(cells, [column.align for column in table.columns], width)
    title = [escape_controls(table.title), ""] if table.title else []
    notes = ["", *map(escape_controls, table.notes)] if table.notes else []
    return "\n".join([*title, *lines, *notes])


def align_columns(rows: Sequence[Sequence[str]], aligns: Sequence[str], screen: int | None) -> list[str]:
    """The lines of a table whose first row is its heading, no wider than the screen if there is one.

    A number that is cut off would mislead, so cells are folded between words; if columns do not fit even then, each
    cell gets its own line.
    """
    natural = [max(map(text_width, column)) for column in zip(*rows, strict=True)]
    widths = natural if screen is None else _fit_widths(natural, rows, screen)
    if widths is None:
        return _stack_cells(rows)
    rule = _GAP.join("-" * width for width in widths)
    head, *body = (_align_row(row, widths, aligns) for row in rows)
    return [*head, rule, *(line for lines in body for line in lines)]


def text_width(text: str) -> int:
    """The columns that a text takes on a terminal: Chinese characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _fit_widths(natural: Sequence[int], rows: Sequence[Sequence[str]], screen: int) -> list[int] | None:
    """Narrow the widest columns until the table fits; None if a word would have to be cut."""
    longest_words = [
        max(max(map(text_width, cell.split()), default=0) for cell in column) for column in zip(*rows, strict=True)
    ]
    available = screen - len(_GAP) * (len(longest_words) - 1)
    if sum(longest_words) > available:
        return None
    widths = list(natural)
    while sum(widths) > available:
        spare = [
            (width, i) for i, (width, least) in enumerate(zip(widths, longest_words, strict=True)) if width > least
        ]
        widths[max(spare)[1]] -= 1
    return widths


def _align_row(row: Sequence[str], widths: Sequence[int], aligns: Sequence[str]) -> list[str]:
    cells = [[c] if text_width(c) <= width else _fold(c, width) for c, width in zip(row, widths, strict=True)]
    height = max(map(len, cells))
    padded = [cell + [""] * (height - len(cell)) for cell in cells]
    return [_GAP.join(map(_align_cell, line, widths, aligns)).rstrip() for line in zip(*padded, strict=True)]


def _fold(cell: str, width: int) -> list[str]:
    lines = [""]
    for word in cell.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if text_width(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _align_cell(cell: str, width: int, align: str) -> str:
    space = width - text_width(cell)
    left = {"left": 0, "right": space, "center": space // 2}[align]
    return " " * left + cell + " " * (space - left)


def _stack_cells(rows: Sequence[Sequence[str]]) -> list[str]:
    heads, *body = rows
    indent = max(map(text_width, heads))
    lines: list[str] = []
    for row in body:
        lines += [_align_cell(head, indent, "left") + _GAP + cell for head, cell in zip(heads, row, strict=True)]
        lines.append("")
    return lines[:-1]


def _escape_cells(table: Table, name: Callable[[str], str], number: Callable[[str], str]) -> list[list[str]]:
    """The formatted cells of all rows. Only strings are chosen by users and can contain markup, so names and numbers
    are escaped differently."""
    return [
        [name(format_cell(cell)) if isinstance(cell, str) else number(format_cell(cell)) for cell in row]
        for row in table.rows
    ]


def _render_markdown(table: Table) -> str:
    rules = {"left": ":---", "right": "---:", "center": ":---:"}
    rows = [
        [escape_markdown(escape_controls(column.name)) for column in table.columns],
        [rules[column.align] for column in table.columns],
        *_escape_cells(table, escape_markdown, str),
    ]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    title = [f"**{escape_markdown(escape_controls(table.title))}**", ""] if table.title else []
    notes = [line for note in table.notes for line in ("", escape_markdown(escape_controls(note)))]
    return "\n".join([*title, *lines, *notes])


def _render_latex(table: Table) -> str:
    aligns = "".join(column.align[0] for column in table.columns)
    heads = [escape_latex(escape_controls(column.name)) for column in table.columns]
    caption = [rf"\caption{{{escape_latex(escape_controls(table.title))}}}"] if table.title else []
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            *caption,
            rf"\begin{{tabular}}{{{aligns}}}",
            r"\toprule",
            " & ".join(heads) + r" \\",
            r"\midrule",
            *(" & ".join(row) + r" \\" for row in _escape_cells(table, escape_latex, _escape_latex_number)),
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\footnotesize {escape_latex(escape_controls(note))}" for note in table.notes),
            r"\end{table}",
        ]
    )


def _render_html(table: Table) -> str:
    def escape(text: str) -> str:
        return html.escape(escape_controls(text))

    def row(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f'<{tag} style="text-align:{column.align};padding:.15em .7em">{cell}</{tag}>'
            for cell, column in zip(cells, table.columns, strict=True)
        )

    # Inline styles, because a notebook shows the table without a style sheet.
    bold = 'style="text-align:left;font-weight:bold;padding:.3em .7em"'
    caption = f"<caption {bold}>{escape(table.title)}</caption>" if table.title else ""
    body = "".join(f"<tr>{row('td', cells)}</tr>\n" for cells in _escape_cells(table, html.escape, html.escape))
    small = 'style="font-size:85%;margin:.2em .7em"'
    notes = "".join(f"<p {small}>{escape(note)}</p>\n" for note in table.notes)
    head = f"<thead><tr>{row('th', [escape(column.name) for column in table.columns])}</tr></thead>"
    opening = '<table class="metrist" style="border-collapse:collapse">'
    return f"{opening}{caption}\n{head}\n<tbody>\n{body}</tbody></table>\n{notes}"


# An underscore inside a word (word_order) needs no escape.
_MARKDOWN_SPECIAL = re.compile(r"[\\`*\[\]<>|~&$]|(?<![^\W_])_|_(?![^\W_])")
_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # At the start of a row, LaTeX would read these two as arguments of the line break before it.
    "[": "{[}",
    "*": "{*}",
    **{character: "\\" + character for character in "&%$#_{}"},
}


def escape_markdown(text: str) -> str:
    return _MARKDOWN_SPECIAL.sub(lambda match: "\\" + match.group(), text)


def escape_latex(text: str) -> str:
    return "".join(_LATEX_SPECIAL.get(character, character) for character in text)


def _escape_latex_number(text: str) -> str:
    return text.replace("%", r"\%").replace("<", "$<$").replace("-", "$-$").replace("+", "$+$")


# --- Cells: how numbers and names are formatted in every table, page and message

#: Shown where there is no number.
NOT_AVAILABLE = "n/a"


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

    sign: ClassVar[str] = "-"

    def __str__(self) -> str:
        value, low, high = (format_number(x, self.decimals, self.sign) for x in (self.value, self.low, self.high))
        return value if NOT_AVAILABLE in (value, low, high) else f"{value} [{low}, {high}]"

    def plain(self) -> dict[str, float | None]:
        return {"value": or_none(self.value), "low": or_none(self.low), "high": or_none(self.high)}


@dataclass(frozen=True, slots=True)
class Change(Estimate):
    """A difference with its interval, always signed: `+1.2 [-0.1, +2.5]`."""

    sign: ClassVar[str] = "+"


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
