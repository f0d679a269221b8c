"""Tables, rendered as text, Markdown, HTML, LaTeX, CSV or JSON. Markup inside a name is shown, never interpreted."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, get_args

from metrist.errors import RunError, did_you_mean, escape_controls
from metrist.io.writer import csv_line
from metrist.report.cells import (
    Change,
    Column,
    Count,
    Estimate,
    Intervals,
    Marked,
    MetricSignature,
    NameCell,
    Number,
    PValue,
    Share,
    Shares,
    decimals_for,
    find_best,
    format_cell,
    format_number,
    name_columns,
    or_none,
    shorten,
    to_plain,
)
from metrist.spec import split_list

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = [
    "FORMATS",
    "Change",
    "Column",
    "Count",
    "Estimate",
    "Marked",
    "MetricSignature",
    "NameCell",
    "Number",
    "PValue",
    "Share",
    "Table",
    "TableLayout",
    "align_columns",
    "decimals_for",
    "escape_controls",
    "escape_latex",
    "escape_markdown",
    "format_number",
    "name_columns",
    "or_none",
    "render_page",
    "shorten",
    "text_width",
    "to_plain",
]

Format = Literal["text", "markdown", "html", "latex", "csv", "json"]
FORMATS: tuple[str, ...] = get_args(Format)
_MAX_CELL = 80
_GAP = "  "
#: The width to which signatures are folded where the screen's width is not known, and the longest name beside them.
_SIGNATURE_WIDTH = 100
_MAX_SIGNATURE_NAME = 24


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Rows under columns. A cell is a string, a plain number, None, or a cell of `metrist.report.cells`."""

    title: str = ""
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()
    #: For whoever makes the table rather than for its readers, such as what a run lacks: shown after the notes, and as
    #: comments in LaTeX. CSV has no place for either.
    remarks: Sequence[str] = ()
    #: How the metrics of the table were computed: a block at its foot.
    signatures: Sequence[MetricSignature] = ()
    #: The LaTeX label; by default one from the title.
    label: str = ""

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise ValueError(f"two columns of one table have the same name: {names}")
        if wrong := [row for row in self.rows if len(row) != len(names)]:
            raise ValueError(f"a row of {len(wrong[0])} cells does not fit {len(names)} columns: {wrong[0]}")

    def render(self, form: str = "text", layout: TableLayout | None = None) -> str:
        """The table in one of the `FORMATS`."""
        if layout is not None:
            (table,) = layout.apply([self])
            return table.render(form)
        match form:
            case "text":
                return self.text()
            case "json":
                return json.dumps(self.to_dict(), indent=2)
            case "markdown":
                return _render_markdown(self)
            case "html":
                from metrist.report.html import render

                return render("table.html", table=self)
            case "csv":
                return _render_csv(self)
            case "latex":
                return _render_latex(self)
        hint = did_you_mean(form, FORMATS)
        raise RunError(f"no table format {form!r}; known are {', '.join(FORMATS)}{hint}", code="unknown_name")

    @property
    def all_notes(self) -> list[str]:
        return [*self.notes, *self.remarks]

    def to_dict(self) -> dict[str, Any]:
        """The table as plain data, each row a mapping from column to value."""
        names = [column.name for column in self.columns]
        rows = [dict(zip(names, map(to_plain, row), strict=True)) for row in self.rows]
        table = {"title": self.title, "columns": names, "rows": rows, "notes": self.all_notes}
        signatures = {
            signature.name: {"metrist": signature.text, **({"sacrebleu": signature.peer} if signature.peer else {})}
            for signature in self.signatures
        }
        return {**table, "signatures": signatures} if signatures else table

    def text(self, width: int | None = None) -> str:
        """Plain text in aligned columns, folded where it would be wider than `width`."""
        rows = [[column.name for column in self.columns], *self.rows]
        cells = [[shorten(format_cell(cell), _MAX_CELL) for cell in row] for row in rows]
        lines = align_columns(cells, [column.align for column in self.columns], width)
        title = [escape_controls(self.title), ""] if self.title else []
        notes = ["", *map(escape_controls, self.all_notes)] if self.all_notes else []
        return "\n".join([*title, *lines, *notes, *_signature_lines(self.signatures, width or _SIGNATURE_WIDTH)])

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """What the reader of a table chooses: columns, names, decimals, intervals, caption. No number changes.

    `rename` gives columns, metrics and systems other names. `label` is the LaTeX label.
    """

    caption: str = ""
    label: str = ""
    decimals: int | None = None
    drop: Sequence[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    intervals: Intervals | None = None

    def __post_init__(self) -> None:
        if self.decimals is not None and not 0 <= self.decimals <= 15:
            raise RunError(f"the number of decimals must be 0 to 15, got {self.decimals}", code="invalid_value")
        if not re.fullmatch(r"[A-Za-z0-9:._/-]*", self.label):
            raise RunError(f"a LaTeX label has letters, digits and :._/- only: {self.label!r}", code="invalid_value")

    def apply(self, tables: Sequence[Table]) -> list[Table]:
        """The tables as the reader wants them; caption and label are those of the first."""
        columns = dict.fromkeys(column.name for table in tables for column in table.columns)
        cells = (cell for table in tables for row in table.rows for cell in row if isinstance(cell, str))
        dropped = {name for text in self.drop for name in split_list(text)}
        _check_names("`drop`", dropped, columns)
        _check_names("`rename`", self.rename, {**columns, **dict.fromkeys(cells)})
        names = self.rename
        arranged = []
        for table in tables:
            kept = [number for number, column in enumerate(table.columns) if column.name not in dropped]
            if not kept:
                raise RunError("`drop` leaves no column of the table", code="invalid_value")
            own_columns = [table.columns[number] for number in kept]
            # A name that the reader chose stands instead of the metric's own in papers, too.
            heads = [
                replace(column, name=names[column.name], title=None) if column.name in names else column
                for column in own_columns
            ]
            estimates = any(isinstance(cell, Estimate | Marked) for row in table.rows for cell in row)
            halves = ["± is half the width of the interval."] if estimates and self.intervals == "plusminus" else []
            table = replace(
                table,
                columns=heads,
                rows=[[self._cell(row[number]) for number in kept] for row in table.rows],
                notes=[*table.notes, *halves],
                signatures=[sign._replace(name=names.get(sign.name, sign.name)) for sign in table.signatures],
            )
            arranged.append(table)
        first, *others = arranged
        return [replace(first, title=self.caption or first.title, label=self.label or first.label), *others]

    def _cell(self, cell: Any) -> Any:
        if isinstance(cell, str):
            # A name that the reader chose stands instead of the metric's own in papers, too.
            strong = isinstance(cell, NameCell) and cell.strong
            return NameCell(self.rename[cell], strong=strong) if cell in self.rename else cell
        if isinstance(cell, Marked):
            return replace(cell, cell=self._cell(cell.cell))
        if self.decimals is not None and isinstance(cell, Number | Estimate):
            cell = replace(cell, decimals=self.decimals)
        if self.intervals is not None and isinstance(cell, Estimate):
            cell = replace(cell, intervals=self.intervals)
        return cell


def _check_names(option: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            shown = f"{', '.join(map(escape_controls, list(known)[:30]))}{did_you_mean(name, known)}"
            raise RunError(f"{option}: no {name!r} in the table, which has {shown}", code="unknown_name")


def _signature_lines(signatures: Sequence[MetricSignature], width: int) -> Iterator[str]:
    """The block at the foot of a table: a line per signature beside the metric's name, folded where it is long."""
    if not signatures:
        return
    yield from ("", "Signatures")
    names = [escape_controls(signature.name) for signature in signatures]
    indent = min(max(map(text_width, names)), _MAX_SIGNATURE_NAME)
    for name, signature in zip(names, signatures, strict=True):
        lines = [
            line
            for text in filter(None, (signature.text, signature.peer))
            for line in textwrap.wrap(
                escape_controls(text),
                max(width - indent - len(_GAP), 20),
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        ]
        if text_width(name) > indent:
            yield name
            name = ""
        for line in lines:
            yield f"{_align_cell(name, indent, 'left')}{_GAP}{line}"
            name = ""


def align_columns(rows: Sequence[Sequence[str]], aligns: Sequence[str], screen: int | None) -> list[str]:
    """The lines of a table whose first row is its heading, no wider than the screen if there is one.

    A number that is cut off would mislead, so cells are folded between words; if columns do not fit even then, each
    cell gets its own line.
    """
    widths = _fit_widths(rows, screen)
    lines: list[str] = []
    if widths is None:
        heads, *body = rows
        indent = max(map(text_width, heads))
        for row in body:
            lines += [_align_cell(head, indent, "left") + _GAP + cell for head, cell in zip(heads, row, strict=True)]
            lines.append("")
        return lines[:-1]
    for number, row in enumerate(rows):
        cells = [[c] if text_width(c) <= width else _fold(c, width) for c, width in zip(row, widths, strict=True)]
        for line in zip_longest(*cells, fillvalue=""):
            lines.append(_GAP.join(map(_align_cell, line, widths, aligns)).rstrip())
        if number == 0:
            lines.append(_GAP.join("-" * width for width in widths))
    return lines


def text_width(text: str) -> int:
    """The columns that a text takes on a terminal: Chinese characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _fit_widths(rows: Sequence[Sequence[str]], screen: int | None) -> list[int] | None:
    """The widths of the columns, the widest ones narrowed until the table fits; None if a word would have to be cut."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(text_width, column)) for column in columns]
    if screen is None:
        return widths
    least = [max(max(map(text_width, cell.split()), default=0) for cell in column) for column in columns]
    available = screen - len(_GAP) * (len(columns) - 1)
    if sum(least) > available:
        return None
    while sum(widths) > available:
        widths[max((width, i) for i, width in enumerate(widths) if width > least[i])[1]] -= 1
    return widths


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


def _render_markdown(table: Table) -> str:
    rules = {"left": ":---", "right": "---:", "center": ":---:"}

    def show(cell: Any) -> str:
        # Only names are chosen by users and can contain markup.
        return escape_markdown(format_cell(cell)) if isinstance(cell, str | Shares) else format_cell(cell)

    rows = [
        [escape_markdown(escape_controls(column.name)) for column in table.columns],
        [rules[column.align] for column in table.columns],
        *([show(cell) for cell in row] for row in table.rows),
    ]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    title = [f"**{escape_markdown(escape_controls(table.title))}**", ""] if table.title else []
    notes = [line for note in table.all_notes for line in ("", escape_markdown(escape_controls(note)))]
    if table.signatures:
        notes += ["", "Signatures:", ""]
    for name, *texts in table.signatures:
        shown = "; ".join(_code_span(escape_controls(text)) for text in texts if text)
        notes.append(f"- {_code_span(escape_controls(name))}: {shown}")
    return "\n".join([*title, *lines, *notes])


def _code_span(text: str) -> str:
    """The text as code in Markdown, between more backticks than the text has in a row."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def render_page(tables: Sequence[Table]) -> str:
    """A page of HTML that stands alone, with all the tables."""
    from metrist.report.html import render

    title = next((table.title for table in tables if table.title), "metrist")
    return render("tables.html", title=title, tables=tables)


def _render_csv(table: Table) -> str:
    """Plain numbers with all their digits; an interval's limits are columns of their own."""
    columns = [[to_plain(row[number]) for row in table.rows] for number in range(len(table.columns))]
    heads: list[str] = []
    cells: list[list[Any]] = []
    for column, values in zip(table.columns, columns, strict=True):
        keys = dict.fromkeys(key for value in values if isinstance(value, Mapping) for key in value)
        for key in keys or ("value",):
            heads.append(column.name if key == "value" else f"{column.name} {key}")
            cells.append([value.get(key) if isinstance(value, Mapping) else value for value in values])
    lines = []
    for row in (heads, *zip(*cells, strict=True)):
        texts = (escape_controls(value) if isinstance(value, str) else value for value in row)
        lines.append(csv_line(json.dumps(value) if isinstance(value, bool) else value for value in texts))
    return "".join(lines).removesuffix("\n")


# An underscore inside a word (word_order) needs no escape.
_MARKDOWN_SPECIAL = re.compile(r"[\\`*\[\]<>|~&$]|(?<![^\W_])_|_(?![^\W_])")


def escape_markdown(text: str) -> str:
    return _MARKDOWN_SPECIAL.sub(lambda match: "\\" + match.group(), text)


# ---- LaTeX: booktabs, the best value in bold, arrows, marks of significance, names as in papers

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
_PAPER_WIDTH = 345
_LATEX_MARKS = {"†": r"\dagger", "‡": r"\ddagger", "↓": r"\downarrow"}


def _render_latex(table: Table) -> str:
    """The table as a float with caption and label. The document needs the package booktabs."""
    shown = [number for number, column in enumerate(table.columns) if column.in_latex]
    columns = [table.columns[number] for number in shown]
    rows = [[row[number] for number in shown] for row in table.rows]
    named = {str(cell): cell.column for row in rows for cell in row if isinstance(cell, NameCell) and cell.column}
    metrics = dict(zip(named, _name_latex_columns(list(named.values())), strict=True))
    arrows = any(column.better in _ARROWS for column in (*columns, *named.values()))
    # An arrow says which way is better; the note says the same in other formats.
    notes = [note for note in table.notes if not (arrows and note.startswith("Lower is better"))]
    if any(isinstance(cell, NameCell) and cell.strong for row in rows for cell in row):
        notes.append("The better system is in bold.")
    # About 5 points for a character at the size of 10, and 12 between two columns. In a paper with two columns, a float
    # with a star spans both.
    texts = ([column.name, *(format_cell(row[number]) for row in rows)] for number, column in enumerate(columns))
    wide = sum(5 * max(map(len, column)) + 12 for column in texts) > _PAPER_WIDTH
    environment = "table*" if wide else "table"
    label = table.label or f"tab:{re.sub('[^a-z0-9]+', '-', table.title.lower()).strip('-') or 'scores'}"
    # A control character must not end a comment.
    remarks = [f"{name}: {text}" for name, *texts in table.signatures for text in texts if text]
    remarks += [f"Note: {remark}" for remark in table.remarks]
    lines = [r"% Needs \usepackage{booktabs}.", *(f"% {escape_controls(remark)}" for remark in remarks)]
    lines += [rf"\begin{{{environment}}}", r"\centering" + (r"\small\setlength{\tabcolsep}{3pt}" if wide else "")]
    if table.title:
        lines.append(rf"\caption{{{escape_latex(table.title)}}}")
    lines += [rf"\label{{{label}}}", rf"\begin{{tabular}}{{{''.join(column.align[0] for column in columns)}}}"]
    lines += [r"\toprule", " & ".join(_name_latex_columns(columns)) + r" \\", r"\midrule"]
    bold = find_best(columns, rows)
    for number, row in enumerate(rows):
        cells = (_format_latex(cell, metrics, bold=(number, column) in bold) for column, cell in enumerate(row))
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", *(rf"\par\footnotesize {escape_latex(note)}" for note in notes)]
    return "\n".join([*lines, rf"\end{{{environment}}}"])


def escape_latex(text: str) -> str:
    """The text as LaTeX prints it, character by character."""
    escaped = "".join(_LATEX_SPECIAL.get(character, character) for character in escape_controls(text))
    escaped = _SUBSCRIPTS.sub(lambda match: rf"$\tau_{match[1]}$" if match[1] else "acc$_{eq}$", escaped)
    # LaTeX draws two of these in a row as one character: a dash, or a quotation mark.
    return re.sub(r"([-'`])(?=\1)", r"\1{}", escaped)


def _name_latex_columns(columns: Sequence[Column]) -> Iterator[str]:
    """The headings: metrics under their names in papers, with an arrow that points to better values."""
    titles = [column.title() if column.title else "" for column in columns]
    twice = {title for title, count in Counter(titles).items() if count > 1}
    for column, title in zip(columns, titles, strict=True):
        # Two settings of one metric have the same name in papers: their texts tell them apart.
        name = escape_latex(column.name if not title or title in twice else title)
        yield name + _ARROWS.get(column.better or "", "")


def _format_latex(cell: Any, metrics: Mapping[str, str], *, bold: bool) -> str:
    if isinstance(cell, NameCell):
        return metrics[cell] if cell.column else _embolden(escape_latex(cell), cell.strong)
    if isinstance(cell, str | Shares):
        return escape_latex(str(cell))
    if isinstance(cell, Marked):
        symbols = [_LATEX_MARKS.get(mark, "") for mark in cell.marks]
        marks = f"$^{{{''.join(symbols)}}}$" if all(symbols) else rf"\textsuperscript{{{escape_latex(cell.marks)}}}"
        return _format_latex(cell.cell, metrics, bold=bold) + (marks if cell.marks else "")
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
