"""LaTeX tables fit for a paper: booktabs, the best value in bold, arrows, marks of significance, names as in papers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from metrist.errors import escape_controls
from metrist.report.cells import Column, Estimate, Marked, Name, Shares, Signature, find_best, format_cell

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # At the start of a row, LaTeX would read these two as arguments of the line break before it.
    "[": "{[}",
    "*": "{*}",
    # Some languages of babel make this one a command.
    '"': r"\char34{}",
    # Not set up in LaTeX's default fonts.
    "ε": r"$\varepsilon$",
    "τ": r"$\tau$",
    "ρ": r"$\rho$",
    "α": r"$\alpha$",
    "κ": r"$\kappa$",
    "↓": r"$\downarrow$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    **{character: "\\" + character for character in "&%$#_{}"},
}
#: Measures whose names have an index: Kendall's τ_b, acc_eq.
_SUBSCRIPTS = re.compile(r"\$\\tau\$\\_([a-c])\b|\bacc\\_eq\b")
_ARROWS = {"higher": r" $\uparrow$", "lower": r" $\downarrow$"}
#: The width of the text of a page in points, as LaTeX's own classes set it.
_TEXT_WIDTH = 345
_MARKS = {"†": r"\dagger", "‡": r"\ddagger", "↓": r"\downarrow"}


def render_latex(
    *,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    notes: Sequence[str],
    remarks: Sequence[str],
    signatures: Sequence[Signature],
    label: str,
) -> str:
    """A table as a float with caption and label. The document needs the package booktabs."""
    shown = [number for number, column in enumerate(columns) if column.in_latex]
    columns, rows = [columns[number] for number in shown], [[row[number] for number in shown] for row in rows]
    bold = find_best(columns, rows)
    named = {str(cell): cell.column for row in rows for cell in row if isinstance(cell, Name) and cell.column}
    metrics = dict(zip(named, _name_columns(list(named.values())), strict=True))
    arrows = any(column.better in _ARROWS for column in (*columns, *named.values()))
    # An arrow says which way is better; the note says the same in other formats.
    notes = [note for note in notes if not (arrows and note.startswith("Lower is better"))]
    if any(isinstance(cell, Name) and cell.strong for row in rows for cell in row):
        notes.append("The better system is in bold.")
    # In a paper with two columns, a float with a star spans both.
    wide = _estimate_width(columns, rows) > _TEXT_WIDTH
    table = "table*" if wide else "table"
    label = label or f"tab:{re.sub('[^a-z0-9]+', '-', title.lower()).strip('-') or 'scores'}"
    caption = [rf"\caption{{{escape_latex(title)}}}"] if title else []
    return "\n".join(
        [
            r"% Needs \usepackage{booktabs}.",
            # A control character must not end a comment.
            *(f"% {escape_controls(name)}: {escape_controls(t)}" for name, *texts in signatures for t in texts if t),
            *(f"% Note: {escape_controls(remark)}" for remark in remarks),
            rf"\begin{{{table}}}",
            r"\centering" + (r"\small\setlength{\tabcolsep}{3pt}" if wide else ""),
            *caption,
            rf"\label{{{label}}}",
            rf"\begin{{tabular}}{{{''.join(column.align[0] for column in columns)}}}",
            r"\toprule",
            " & ".join(_name_columns(columns)) + r" \\",
            r"\midrule",
            *(
                " & ".join(_format(cell, metrics, bold=(row, column) in bold) for column, cell in enumerate(cells))
                + r" \\"
                for row, cells in enumerate(rows)
            ),
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\footnotesize {escape_latex(note)}" for note in notes),
            rf"\end{{{table}}}",
        ]
    )


def escape_latex(text: str) -> str:
    """The text as LaTeX prints it, character by character."""
    escaped = "".join(_SPECIAL.get(character, character) for character in escape_controls(text))
    escaped = _SUBSCRIPTS.sub(lambda match: rf"$\tau_{match[1]}$" if match[1] else "acc$_{eq}$", escaped)
    # LaTeX draws two of these in a row as one character: a dash, or a quotation mark.
    return re.sub(r"([-'`])(?=\1)", r"\1{}", escaped)


def _name_columns(columns: Sequence[Column]) -> Iterator[str]:
    """The headings: metrics under their names in papers, with an arrow that points to better values."""
    titles = [column.title() if column.title else "" for column in columns]
    twice = {title for title, count in Counter(titles).items() if count > 1}
    for column, title in zip(columns, titles, strict=True):
        # Two settings of one metric have the same name in papers: their texts tell them apart.
        name = escape_latex(column.name if not title or title in twice else title)
        yield name + _ARROWS.get(column.better or "", "")


def _estimate_width(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> float:
    """The width of a table in points, about 5 for a character at the size of 10 and 12 between two columns."""
    cells = ([column.name, *(format_cell(row[number]) for row in rows)] for number, column in enumerate(columns))
    return sum(5 * max(map(len, texts)) + 12 for texts in cells)


def _format(cell: Any, metrics: Mapping[str, str], *, bold: bool) -> str:
    if isinstance(cell, Name):
        return metrics[cell] if cell.column else _embolden(escape_latex(cell), cell.strong)
    if isinstance(cell, str | Shares):
        return escape_latex(str(cell))
    if isinstance(cell, Marked):
        symbols = [_MARKS.get(mark, "") for mark in cell.marks]
        marks = f"$^{{{''.join(symbols)}}}$" if all(symbols) else rf"\textsuperscript{{{escape_latex(cell.marks)}}}"
        return _format(cell.cell, metrics, bold=bold) + (marks if cell.marks else "")
    if not isinstance(cell, Estimate):
        return _embolden(_escape_number(format_cell(cell)), bold)
    value, _, interval = str(cell).partition(" ")
    number = _embolden(_escape_number(value), bold)
    if interval.startswith("±"):
        return rf"{number}$_{{\pm {cell.half_width}}}$"
    return rf"{number} {{\scriptsize {_escape_number(interval)}}}" if interval else number


def _embolden(text: str, bold: bool) -> str:
    return rf"\textbf{{{text}}}" if bold else text


def _escape_number(text: str) -> str:
    text = text.replace("$", r"\$").replace("%", r"\%")
    return text.replace("<", "$<$").replace("-", "$-$").replace("+", "$+$")
