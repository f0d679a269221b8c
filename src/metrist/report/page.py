"""The report as one page of HTML that stands alone, or as Markdown for a pull request.

A report is a list of sections, a section a list of blocks: sentences, tables, figures, outputs. The page loads nothing
and sends nothing: its content security policy allows only its own script and style sheet, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from itertools import count
from typing import Any

from metrist.report.cells import Better, Column, Estimate, Marked, Name, Number, format_cell, to_plain
from metrist.report.heat import STYLE as HEAT_STYLE
from metrist.report.heat import Heat, render_body
from metrist.report.output_cards import CardWriter, html_text
from metrist.report.svg import Drawing
from metrist.report.tables import Table, escape_controls
from metrist.report.worst import WorstOutputs, markdown_text

#: Tables with more rows are cut on the page; copies have all rows.
MAX_ROWS = 400
COPY_FORMATS = ("csv", "latex", "markdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prose:
    """Sentences: a list of findings, or paragraphs; notes are smaller."""

    sentences: Sequence[str]
    kind: str = "paragraphs"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBlock:
    """A table, which can be copied. Its notes are shown below it."""

    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureBlock:
    """A figure, which can be saved; `name` is that of the file."""

    drawing: Drawing
    name: str
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputsBlock:
    """Outputs with their texts."""

    outputs: WorstOutputs


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatBlock:
    """Words coloured by how unlikely they are; `pieces` is the same with pieces of words, shown on request."""

    words: Heat
    pieces: Heat


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandBlock:
    """Commands, which can be copied."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerBlock:
    """All outputs, or a sample of them, to be searched and sorted on the page; `data` is read by its script."""

    data: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Blocks under a heading that opens them."""

    title: str
    blocks: Sequence[Block]
    opened: bool = False


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

    def html(self) -> str:
        """One self-contained page."""
        return _PageWriter().write(self)

    def markdown(self) -> str:
        """For a pull request: the verdict, the tables of the brief sections, and the rest folded up or left out."""
        return _write_markdown(self)


def read_static(name: str) -> str:
    return (files("metrist.report") / "static" / name).read_text(encoding="utf-8")


def embed_json(data: Any) -> str:
    """Data inside a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


class _PageWriter:
    """Writes the page; it gathers what its script needs: the texts of tables to copy, and the outputs to explore."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._cards = CardWriter()
        self._copies: dict[str, dict[str, str]] = {}
        self._explorer: Any = None

    def write(self, report: Report) -> str:
        style, script = read_static("report.css") + HEAT_STYLE, read_static("report.js")
        sections = "".join(map(self._write_section, report.sections))
        verdicts = "".join(f"<li>{html_text(sentence)}</li>" for sentence in report.verdicts)
        cautions = "".join(f'<p class="caution">{html_text(sentence)}</p>' for sentence in report.cautions)
        basis = f'<p class="soft">{html_text(report.basis)}</p>' if report.basis else ""
        verdict = (
            f'<section id="verdict" aria-labelledby="verdict-title"><h2 id="verdict-title">Verdict</h2>'
            f'<ul class="verdicts">{verdicts}</ul>{basis}{cautions}</section>'
        )
        links = "".join(
            f'<li><a href="#{section.name}">{html_text(section.title)}</a></li>' for section in report.sections
        )
        nav = f'<nav aria-label="Contents"><ul><li><a href="#verdict">Verdict</a></li>{links}</ul></nav>'
        data = {"copies": self._copies, "explorer": self._explorer}
        title = html_text(report.title)
        policy = (
            f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
            "base-uri 'none'; form-action 'none'"
        )
        head = (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="referrer" content="no-referrer">\n'
            f"<title>{title}</title>\n<style>{style}</style>\n</head>\n"
        )
        footer = f"<footer><p>{html_text(report.footer)}</p></footer>" if report.footer else ""
        body = (
            f'<body>\n<a class="skip" href="#verdict">Skip to the verdict</a>\n'
            f'<header><h1>{title}</h1><p class="facts">{html_text(report.facts)}</p></header>\n{nav}\n'
            f'<main>\n{verdict}\n{sections}</main>\n{footer}\n<div id="status" role="status"></div>\n'
        )
        scripts = f'<script type="application/json" id="data">{embed_json(data)}</script>\n<script>{script}</script>\n'
        return f"{head}{body}{scripts}</body>\n</html>\n"

    def _write_section(self, section: Section) -> str:
        blocks = "\n".join(map(self._write_block, section.blocks))
        label = f"{section.name}-title"
        heading = f'<h2 id="{label}">{html_text(section.title)}</h2>'
        return f'<section id="{section.name}" aria-labelledby="{label}">{heading}\n{blocks}</section>\n'

    def _write_block(self, block: Block) -> str:
        match block:
            case Prose():
                return _write_prose(block)
            case TableBlock():
                return self._write_table(block.table)
            case FigureBlock():
                return self._write_figure(block)
            case OutputsBlock():
                notes = "".join(f'<p class="soft">{html_text(note)}</p>' for note in block.outputs.notes)
                return f"{notes}{self._cards.write_entries(block.outputs)}"
            case HeatBlock():
                pieces = f'<div class="metrist-heat">{render_body(block.pieces)}</div>'
                summary = "<summary>Pieces of words, as the model reads them</summary>"
                folded = f'<details class="fold">{summary}{pieces}</details>'
                return f'<div class="metrist-heat">{render_body(block.words)}</div>{folded}'
            case CommandBlock():
                return self._write_commands(block)
            case ExplorerBlock():
                self._explorer = block.data
                return '<div id="explorer"><noscript><p>Searching all outputs needs JavaScript.</p></noscript></div>'
            case Fold():
                blocks = "\n".join(map(self._write_block, block.blocks))
                opened = " open" if block.opened else ""
                return f'<details class="fold"{opened}><summary>{html_text(block.title)}</summary>{blocks}</details>'

    def _write_figure(self, block: FigureBlock) -> str:
        identifier = f"figure-{next(self._numbers)}"
        caption = html_text(block.caption or block.drawing.title)
        name = escape(block.name, quote=True)
        buttons = "".join(
            f'<button type="button" data-save="{kind}" data-figure="{identifier}" data-name="{name}" '
            f'aria-label="Save the figure {name} as {kind.upper()}">{kind.upper()}</button>'
            for kind in ("svg", "png")
        )
        return (
            f'<figure id="{identifier}"><div class="scroll drawing" tabindex="0" role="group" '
            f'aria-label="Figure: {name}">{block.drawing.svg(identifier=identifier)}</div>'
            f'<figcaption>{caption}<span class="tools">{buttons}</span></figcaption></figure>'
        )

    def _write_commands(self, block: CommandBlock) -> str:
        identifier = f"command-{next(self._numbers)}"
        text = "\n".join(map(escape_controls, block.lines))
        self._copies[identifier] = {"text": text}
        button = f'<button type="button" data-copy="text" data-table="{identifier}">Copy</button>'
        label = 'tabindex="0" role="group" aria-label="Commands"'
        return f'<div class="command"><pre {label}><code>{escape(text)}</code></pre>{button}</div>'

    def _write_table(self, table: Table) -> str:
        identifier = f"table-{next(self._numbers)}"
        self._copies[identifier] = {form: table.render(form) for form in COPY_FORMATS}
        title = html_text(table.title)
        names = {"csv": "CSV", "latex": "LaTeX", "markdown": "Markdown"}
        buttons = "".join(
            f'<button type="button" data-copy="{form}" data-table="{identifier}" '
            f'aria-label="Copy the table {title} as {names[form]}">{names[form]}</button>'
            for form in COPY_FORMATS
        )
        rows = table.rows[:MAX_ROWS]
        best = _find_best(table)
        body = "".join(
            f"<tr>{''.join(_write_cells(table.columns, row, line, best))}</tr>\n" for line, row in enumerate(rows)
        )
        heads = "".join(
            f'<th scope="col" class="{column.align}">{html_text(column.name)}{_ARROWS[column.better]}</th>'
            for column in table.columns
        )
        notes = [*table.notes, *table.remarks]
        if len(table.rows) > len(rows):
            notes.insert(0, f"The first {len(rows):,} of {len(table.rows):,} rows; a copy has all.")
        below = "".join(f'<p class="soft">{html_text(note)}</p>' for note in notes)
        return (
            f'<div class="table"><div class="scroll" tabindex="0" role="region" aria-labelledby="{identifier}">'
            f'<table><caption id="{identifier}">{title}</caption><thead><tr>{heads}</tr></thead>\n'
            f'<tbody>{body}</tbody></table></div><div class="tools">Copy as {buttons}</div>{below}</div>'
        )


_ARROWS: dict[Better | None, str] = {
    None: "",
    "neither": "",
    "higher": ' <span class="soft" title="higher is better">↑</span>',
    "lower": ' <span class="soft" title="lower is better">↓</span>',
}


def _write_prose(block: Prose) -> str:
    if block.kind == "list":
        return f'<ul class="findings">{"".join(f"<li>{html_text(s)}</li>" for s in block.sentences)}</ul>'
    soft = ' class="soft"' if block.kind == "notes" else ""
    return "".join(f"<p{soft}>{html_text(sentence)}</p>" for sentence in block.sentences)


def _find_best(table: Table) -> set[tuple[int, int]]:
    """The cells with the best value of each column that holds a metric's values: row and column."""
    best: set[tuple[int, int]] = set()
    for number, column in enumerate(table.columns):
        if column.better not in ("higher", "lower") or len(table.rows) < 2:
            continue
        values = [(_value_of(row[number]), line) for line, row in enumerate(table.rows)]
        known = [(value, line) for value, line in values if value is not None]
        if known:
            top = max(known)[0] if column.better == "higher" else min(known)[0]
            best |= {(line, number) for value, line in known if value == top}
    return best


def _value_of(cell: Any) -> float | None:
    plain = to_plain(cell)
    plain = plain.get("value") if isinstance(plain, dict) else plain
    return float(plain) if isinstance(plain, int | float) and not isinstance(plain, bool) else None


def _write_cells(columns: Sequence[Column], row: Sequence[Any], line: int, best: set[tuple[int, int]]) -> Iterator[str]:
    for number, (column, cell) in enumerate(zip(columns, row, strict=True)):
        text = _write_cell(cell)
        if (line, number) in best:
            text = f"<b>{text}</b>"
        name = ' scope="row"' if number == 0 else ""
        tag = "th" if number == 0 else "td"
        yield f'<{tag}{name} class="{column.align}">{text}</{tag}>'


def _write_cell(cell: Any) -> str:
    """A cell; intervals are smaller than the values before them, marks are raised."""
    if isinstance(cell, Marked):
        value, bracket, rest = _write_cell(cell.cell).partition('<span class="ci">')
        marks = f"<sup>{html_text(cell.marks)}</sup>" if cell.marks else ""
        return f"{value}{marks}{bracket}{rest}"
    text = html_text(format_cell(cell))
    if isinstance(cell, Estimate):
        value, bracket, rest = text.partition(" [")
        return f'{value} <span class="ci">[{rest}</span>' if bracket else value
    if isinstance(cell, Name) and cell.strong:
        return f"<b>{text}</b>"
    return f'<span class="number">{text}</span>' if isinstance(cell, Number) else text


# ---- Markdown

#: Characters of the Markdown form: a comment on GitHub may have 65,536.
_MAX_MARKDOWN = 60_000


def _write_markdown(report: Report) -> str:
    lines = [f"## {markdown_text(report.title)}", "", markdown_text(report.facts), ""]
    lines += [f"- {markdown_text(sentence)}" for sentence in report.verdicts]
    lines += ["", *([markdown_text(report.basis)] if report.basis else [])]
    lines += [f"> **Caution:** {markdown_text(sentence)}" for sentence in report.cautions]
    room, left_out = _MAX_MARKDOWN - sum(map(len, lines)), list[str]()
    for section in report.sections:
        if not section.brief:
            continue
        lines += ["", f"### {markdown_text(section.title)}"]
        for block in section.blocks:
            own = _write_markdown_block(block)
            size = sum(len(line) + 1 for line in own)
            if size > room:
                left_out.append(_name_block(block) or section.title)
                continue
            room -= size
            lines += own
    if left_out:
        names = ", ".join(dict.fromkeys(map(markdown_text, left_out)))
        lines += ["", f"Left out here, because a comment has room for {_MAX_MARKDOWN:,} characters: {names}."]
    return (
        "\n".join([*lines, "", f"<sub>{markdown_text(report.footer)}</sub>" if report.footer else ""]).rstrip() + "\n"
    )


def _name_block(block: Block) -> str:
    match block:
        case Fold():
            return block.title
        case OutputsBlock():
            return block.outputs.title
        case TableBlock():
            return block.table.title
    return ""


def _mark_directions(table: Table) -> Table:
    """The table with the arrows that its columns have on the page."""
    arrows: dict[Better | None, str] = {"higher": " ↑", "lower": " ↓"}
    columns = [replace(column, name=f"{column.name}{arrows.get(column.better, '')}") for column in table.columns]
    return replace(table, columns=columns)


def _write_markdown_block(block: Block) -> list[str]:
    match block:
        case Prose():
            mark = "- " if block.kind == "list" else ""
            return ["", *(f"{mark}{markdown_text(sentence)}" for sentence in block.sentences)]
        case TableBlock():
            return ["", _mark_directions(block.table).render("markdown")]
        case OutputsBlock():
            body = block.outputs.render("markdown").partition("\n\n")[2]
            # Reviewers open the texts when they want them.
            title = f"<summary>{html_text(block.outputs.title)}</summary>"
            return ["", "<details>", title, "", body, "", "</details>"]
        case CommandBlock():
            fence = "`" * 3
            return ["", f"{fence}console", *(f"$ {escape_controls(line)}" for line in block.lines), fence]
        case Fold():
            inner = [line for child in block.blocks for line in _write_markdown_block(child)]
            return ["", "<details>", f"<summary>{html_text(block.title)}</summary>", *inner, "", "</details>"]
    return []
