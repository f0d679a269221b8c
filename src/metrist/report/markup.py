"""Tables in markup languages: what a name holds is always shown, never obeyed."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from metrist.report.cells import visible, written


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
