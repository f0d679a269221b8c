"""The report as one page of HTML that stands alone, or as Markdown for a pull request.

A report is a list of sections, a section a list of blocks: sentences, tables, figures, outputs. The page loads nothing
and sends nothing: its content security policy allows only its own script and style sheet, by their hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from markupsafe import escape

from metrist.errors import escape_controls
from metrist.report.card_text import markdown_text
from metrist.report.cells import Better, Estimate, Marked, NameCell, Number, find_best, format_cell
from metrist.report.html import embed_json, hash_source, join_scripts, read_static, render
from metrist.report.output_card import clean_text
from metrist.report.outputs import Heat, WorstOutputs
from metrist.report.svg import PAGE, PHONE, Drawing, Style
from metrist.report.tables import Table

#: Tables with more rows are cut on the page; copies have all rows.
MAX_ROWS = 400
COPY_FORMATS = ("csv", "latex", "markdown")
#: Characters of the Markdown form: a comment on GitHub may have 65,536.
_MAX_MARKDOWN = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prose:
    """Sentences: a list of findings, or paragraphs; notes are smaller."""

    sentences: Sequence[str]
    kind: str = "paragraphs"
    form: ClassVar = "prose"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBlock:
    """A table, which can be copied; readers can sort and filter its rows if it is `sortable`. Its notes are shown below
    it."""

    table: Table
    sortable: bool = False
    form: ClassVar = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureBlock:
    """A figure, which can be saved; `name` is that of the file. `narrow` is the same for the screens of phones."""

    drawing: Drawing
    narrow: Drawing
    name: str
    caption: str = ""
    form: ClassVar = "figure"

    @classmethod
    def of(cls, draw: Callable[[Style], Drawing | None], name: str, caption: str = "") -> list[FigureBlock]:
        """The figure in both widths; none where there is nothing to draw."""
        drawing, narrow = draw(PAGE), draw(PHONE)
        return [cls(drawing=drawing, narrow=narrow, name=name, caption=caption)] if drawing and narrow else []


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputsBlock:
    """Outputs with their texts."""

    outputs: WorstOutputs
    form: ClassVar = "outputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatBlock:
    """Words coloured by how unlikely they are; `pieces` is the same with pieces of words, shown on request."""

    words: Heat
    pieces: Heat
    form: ClassVar = "heat"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandBlock:
    """Commands, which can be copied."""

    lines: Sequence[str]
    form: ClassVar = "commands"

    @property
    def text(self) -> str:
        return "\n".join(map(escape_controls, self.lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerBlock:
    """All outputs, or a sample of them, to be searched and sorted on the page; `data` is read by its script."""

    data: Any
    form: ClassVar = "explorer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Blocks under a heading that opens them."""

    title: str
    blocks: Sequence[Block]
    opened: bool = False
    form: ClassVar = "fold"


Block = Prose | TableBlock | FigureBlock | OutputsBlock | HeatBlock | CommandBlock | ExplorerBlock | Fold


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the report. `name` is its address on the page."""

    name: str
    title: str
    blocks: Sequence[Block]
    #: Whether the form for a pull request has it.
    brief: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a report says: `verdicts` first, then the sections. `facts` say what was evaluated, in a line."""

    title: str
    facts: str
    verdicts: Sequence[str]
    sections: Sequence[Section] = ()
    cautions: Sequence[str] = ()
    #: What the page is told apart by, such as the version of metrist.
    footer: str = ""
    #: How the sentences of the verdict were tested.
    basis: str = ""

    @property
    def remarks(self) -> list[str]:
        """What to know about the numbers: how they were tested, and where to be careful."""
        return [*([self.basis] if self.basis else []), *self.cautions]

    def html(self) -> str:
        """One self-contained page."""
        style = read_static("base.css") + read_static("report.css")
        script = join_scripts("elements.js", "output_card.js", "report.js")
        policy = (
            f"default-src 'none'; script-src {hash_source(script)}; style-src {hash_source(style)}; "
            "img-src data: blob:; base-uri 'none'; form-action 'none'"
        )
        # What the template gathers for the script: texts of tables and commands to copy, and the outputs to explore.
        data: dict[str, Any] = {"copies": {}, "explorer": None}
        values: dict[str, Any] = {"style": style, "script": script, "policy": policy, "data": data}
        return render("report.html", report=self, embed_json=embed_json, view_table=_TableView, **values)

    def markdown(self) -> str:
        """For a pull request: the verdict, the tables of the brief sections, and the rest folded up or left out."""
        lines = [f"## {markdown_text(self.title)}", "", markdown_text(self.facts), ""]
        lines += [f"- {markdown_text(sentence)}" for sentence in self.verdicts]
        if self.remarks:
            remarks = [Prose(sentences=self.remarks, kind="list")]
            lines += _write_markdown_block(Fold(title="What to know about these numbers", blocks=remarks))
        room = _MAX_MARKDOWN - sum(map(len, lines))
        left_out: dict[str, None] = {}
        for section in self.sections:
            if not section.brief:
                continue
            lines += ["", f"### {markdown_text(section.title)}"]
            for block in section.blocks:
                own = _write_markdown_block(block)
                size = sum(len(line) + 1 for line in own)
                if size > room:
                    left_out[markdown_text(_name_block(block) or section.title)] = None
                    continue
                room -= size
                lines += own
        if left_out:
            limit = f"a comment has room for {_MAX_MARKDOWN:,} characters"
            lines += ["", f"Left out here, because {limit}: {', '.join(left_out)}."]
        if self.footer:
            lines += ["", f"<sub>{markdown_text(self.footer)}</sub>"]
        return "\n".join(lines).rstrip() + "\n"


class _TableView:
    """What the template shows of a table: its first rows, and the forms in which it can be copied."""

    def __init__(self, block: TableBlock) -> None:
        table, self.sortable = block.table, block.sortable
        self.title, self.columns = table.title, table.columns
        best = find_best(table.columns, table.rows)
        shown = table.rows[:MAX_ROWS]
        self.rows = [
            [_CellView(cell, best=(line, number) in best) for number, cell in enumerate(row)]
            for line, row in enumerate(shown)
        ]
        self.notes = table.all_notes
        if len(table.rows) > len(shown):
            self.notes.insert(0, f"The first {len(shown):,} of {len(table.rows):,} rows; a copy has all.")
        self.copies = {form: table.render(form) for form in COPY_FORMATS}


class _CellView:
    """A cell: intervals are smaller than the values before them, marks are raised."""

    def __init__(self, cell: Any, *, best: bool) -> None:
        self.marks = cell.marks if isinstance(cell, Marked) else ""
        inner = cell.cell if isinstance(cell, Marked) else cell
        self.text = format_cell(inner)
        bracket = rest = ""
        if isinstance(inner, Estimate):
            self.text, bracket, rest = self.text.partition(" [")
        self.interval = f"[{rest}" if bracket else ""
        self.strong = best or (isinstance(inner, NameCell) and inner.strong)
        self.is_number = isinstance(inner, Number)


# ---- Markdown


def _name_block(block: Block) -> str:
    match block:
        case Fold():
            return block.title
        case OutputsBlock():
            return block.outputs.title
        case TableBlock():
            return block.table.title
    return ""


def _write_markdown_block(block: Block) -> list[str]:
    match block:
        case Prose():
            mark = "- " if block.kind == "list" else ""
            return ["", *(f"{mark}{markdown_text(sentence)}" for sentence in block.sentences)]
        case TableBlock():
            arrows: dict[Better | None, str] = {"higher": " ↑", "lower": " ↓"}
            columns = [replace(own, name=f"{own.name}{arrows.get(own.better, '')}") for own in block.table.columns]
            return ["", replace(block.table, columns=columns).render("markdown")]
        case OutputsBlock():
            return ["", block.outputs.render("markdown").partition("\n\n")[2]]
        case CommandBlock():
            fence = "`" * 3
            return ["", f"{fence}console", *(f"$ {escape_controls(line)}" for line in block.lines), fence]
        case Fold(opened=False) if any(isinstance(child, OutputsBlock) for child in block.blocks):
            return []  # The page has more lists of outputs.
        case Fold():
            inner = [line for child in block.blocks for line in _write_markdown_block(child)]
            return ["", "<details>", f"<summary>{escape(clean_text(block.title))}</summary>", *inner, "", "</details>"]
    return []
