"""Columns of characters: how wide each one is, and where its cells are folded when a screen is narrow.

A number with its end cut off would be a lie, so cells are folded between words, and columns that do not fit even then
are given up: each cell gets a line of its own.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from metrist.errors import RunError, did_you_mean
from metrist.report.cells import plain, shortened, visible, written

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


GAP = "  "


def aligned(rows: Sequence[Sequence[str]], aligns: Sequence[str], screen: int | None) -> list[str]:
    """Lines of a table whose first row is its heading, no wider than the screen (None: as wide as need be)."""
    natural = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    widths = natural if screen is None else _narrowed(natural, rows, screen)
    if widths is None:
        return _stacked(rows)
    rule = GAP.join("-" * width for width in widths)
    head, *body = (_lines(row, widths, aligns) for row in rows)
    return [*head, rule, *(line for lines in body for line in lines)]


def width_of(text: str) -> int:
    """How many places a text takes on a terminal; Chinese characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _narrowed(natural: Sequence[int], rows: Sequence[Sequence[str]], screen: int) -> list[int] | None:
    """Widths that fit the screen, taken from the widest column first; None where words would have to be cut."""
    least = [max(map(_longest_word, column)) for column in zip(*rows, strict=True)]
    room = screen - len(GAP) * (len(least) - 1)
    if sum(least) > room:
        return None
    widths = list(natural)
    while sum(widths) > room:
        spare = [(width, i) for i, (width, needed) in enumerate(zip(widths, least, strict=True)) if width > needed]
        widths[max(spare)[1]] -= 1
    return widths


def _longest_word(cell: str) -> int:
    return max(map(width_of, cell.split()), default=0)


def _lines(row: Sequence[str], widths: Sequence[int], aligns: Sequence[str]) -> list[str]:
    cells = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
    height = max(map(len, cells))
    padded = [cell + [""] * (height - len(cell)) for cell in cells]
    return [GAP.join(map(_align, line, widths, aligns)).rstrip() for line in zip(*padded, strict=True)]


def _folded(cell: str, width: int) -> list[str]:
    if width_of(cell) <= width:
        return [cell]
    lines = [""]
    for word in cell.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if width_of(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _align(cell: str, width: int, align: str) -> str:
    space = width - width_of(cell)
    left = {"left": 0, "right": space, "center": space // 2}[align]
    return " " * left + cell + " " * (space - left)


def _stacked(rows: Sequence[Sequence[str]]) -> list[str]:
    heads, *body = rows
    indent = max(map(width_of, heads))
    lines: list[str] = []
    for row in body:
        lines += [_align(head, indent, "left") + GAP + cell for head, cell in zip(heads, row, strict=True)]
        lines.append("")
    return lines[:-1]


# Tables in markup languages: what a name holds is always shown, never obeyed.


class Heading(Protocol):
    """What a writer asks of a column."""

    @property
    def name(self) -> str: ...

    @property
    def align(self) -> str: ...


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """A table's words, all of them safe to show but not yet escaped for any markup."""

    title: str
    heads: list[str]
    aligns: list[str]
    rows: list[list[str]]
    names: list[list[bool]]  # Which cells are words that a user chose: only those can hold markup.
    notes: list[str]

    @staticmethod
    def of(title: str, columns: Sequence[Heading], rows: Sequence[Sequence[Any]], notes: Sequence[str]) -> Sheet:
        return Sheet(
            visible(title),
            [visible(column.name) for column in columns],
            [column.align for column in columns],
            [[written(cell) for cell in row] for row in rows],
            [[isinstance(cell, str) for cell in row] for row in rows],
            [visible(note) for note in notes],
        )

    def escaped_rows(self, name: Callable[[str], str], number: Callable[[str], str]) -> list[list[str]]:
        """The cells, names escaped in one way and numbers in another."""
        return [
            [name(cell) if is_name else number(cell) for cell, is_name in zip(row, kinds, strict=True)]
            for row, kinds in zip(self.rows, self.names, strict=True)
        ]


def _markdown(sheet: Sheet) -> str:
    rule = {"left": ":---", "right": "---:", "center": ":---:"}
    heads = [escape_markdown(head) for head in sheet.heads]
    rows = [heads, [rule[align] for align in sheet.aligns], *sheet.escaped_rows(escape_markdown, str)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    title = [f"**{escape_markdown(sheet.title)}**", ""] if sheet.title else []
    notes = [line for note in sheet.notes for line in ("", escape_markdown(note))]
    return "\n".join([*title, *lines, *notes])


def _latex(sheet: Sheet) -> str:
    aligns = "".join(align[0] for align in sheet.aligns)
    caption = [rf"\caption{{{escape_latex(sheet.title)}}}"] if sheet.title else []
    body = [" & ".join(row) + r" \\" for row in sheet.escaped_rows(escape_latex, _latex_number)]
    notes = [rf"\par\footnotesize {escape_latex(note)}" for note in sheet.notes]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            *caption,
            rf"\begin{{tabular}}{{{aligns}}}",
            r"\toprule",
            " & ".join(map(escape_latex, sheet.heads)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *notes,
            r"\end{table}",
        ]
    )


def _html(sheet: Sheet) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        styled = zip(row, sheet.aligns, strict=True)
        return "".join(
            f'<{tag} style="text-align:{align};padding:.15em .7em">{html.escape(cell)}</{tag}>'
            for cell, align in styled
        )

    # Styles stand with their elements: a notebook shows a table without any page of ours around it.
    bold = 'style="text-align:left;font-weight:bold;padding:.3em .7em"'
    caption = f"<caption {bold}>{html.escape(sheet.title)}</caption>" if sheet.title else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in sheet.rows)
    small = 'style="font-size:85%;margin:.2em .7em"'
    notes = "".join(f"<p {small}>{html.escape(note)}</p>\n" for note in sheet.notes)
    head = f"<thead><tr>{cells('th', sheet.heads)}</tr></thead>"
    opening = '<table class="metrist" style="border-collapse:collapse">'
    return f"{opening}{caption}\n{head}\n<tbody>\n{body}</tbody></table>\n{notes}"


WRITERS: Mapping[str, Callable[[Sheet], str]] = {"markdown": _markdown, "latex": _latex, "html": _html}

_MARKDOWN_SPECIAL = re.compile(r"[\\`*\[\]<>|~&$]|(?<![^\W_])_|_(?![^\W_])")
_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # After a line's end these two would be read as its arguments.
    "[": "{[}",
    "*": "{*}",
    **{character: "\\" + character for character in "&%$#_{}"},
}


def escape_markdown(text: str) -> str:
    """A name that Markdown shows as it is; an underscore inside a word (word_order) needs no escape."""
    return _MARKDOWN_SPECIAL.sub(lambda found: "\\" + found.group(), text)


def escape_latex(text: str) -> str:
    """A name that LaTeX shows as it is."""
    return "".join(_LATEX_SPECIAL.get(character, character) for character in text)


def _latex_number(text: str) -> str:
    return text.replace("%", r"\%").replace("<", "$<$").replace("-", "$-$").replace("+", "$+$")


# A table once, written as text, Markdown, LaTeX, JSON or HTML.


Align = Literal["left", "right", "center"]
Format = Literal["text", "markdown", "latex", "json", "html"]
FORMATS: tuple[str, ...] = get_args(Format)
_LONGEST = 80


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading and the side on which its cells line up."""

    name: str
    align: Align = "left"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Rows under columns. A cell is a string, a plain number, None, or one of `metrist.report.cells`."""

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
                return self.text()
            case "json":
                return json.dumps(self.to_dict(), indent=2)
            case "markdown" | "latex" | "html":
                return WRITERS[form](Sheet.of(self.title, self.columns, self.rows, self.notes))
        raise RunError(f"no table format {form!r}; known are {', '.join(FORMATS)}{did_you_mean(form, FORMATS)}")

    def to_dict(self) -> dict[str, Any]:
        """The table as plain data, each row a mapping from column to value."""
        names = [column.name for column in self.columns]
        rows = [dict(zip(names, map(plain, row), strict=True)) for row in self.rows]
        return {"title": self.title, "columns": names, "rows": rows, "notes": list(self.notes)}

    def text(self, width: int | None = None) -> str:
        """Plain characters in aligned columns, at home in a log file; folded where a width is given and too small."""
        head = [self._cell(column.name) for column in self.columns]
        body = [[self._cell(cell) for cell in row] for row in self.rows]
        lines = aligned([head, *body], [column.align for column in self.columns], width)
        title = [visible(self.title), ""] if self.title else []
        notes = ["", *map(visible, self.notes)] if self.notes else []
        return "\n".join([*title, *lines, *notes])

    def __str__(self) -> str:
        return self.text()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        # A Text object, not a string: a name such as [red] is no markup.
        drawn = Text(self.text(options.max_width))
        if self.title:
            drawn.stylize("bold", 0, len(visible(self.title)))
        yield drawn

    def _repr_html_(self) -> str:
        return self.render("html")

    @staticmethod
    def _cell(value: Any) -> str:
        return shortened(written(value), _LONGEST)
