"""Printing: results on standard output, notes on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from metrist.cli.options import Format
from metrist.cli.options import print_note as print_note
from metrist.errors import RunError
from metrist.errors import format_count as format_count

if TYPE_CHECKING:
    from metrist.llm.budget import CallEstimate
    from metrist.report.tables import Layout, Table


def print_table(table: Table, form: StrEnum, layout: Layout | None = None) -> None:
    """Print a table: drawn with rich on a terminal, as plain text in a file or pipe. Where the layout does not fit the
    table, it is printed without, before the error: scores may have been expensive."""
    if layout is not None:
        tables, error = _apply_layout(layout, [table])
        print_table(tables[0], form)
        if error:
            raise error
        return
    if form == Format.text and sys.stdout.isatty():
        from rich.console import Console

        Console().print(table)
    elif form == Format.html:
        from metrist.report.tables import render_page

        print_text(render_page([table]))
    else:
        print_text(table.render(form.value))


def print_tables(tables: Sequence[Table], form: StrEnum, layout: Layout | None = None) -> None:
    """Print several tables; as JSON they are one list and as HTML one page, because several documents in a row are not
    valid."""
    if layout is not None:
        tables, error = _apply_layout(layout, tables)
        print_tables(tables, form)
        if error:
            raise error
        return
    if form == Format.json:
        print_text(json.dumps([table.to_dict() for table in tables], indent=2))
        return
    if form == Format.html:
        from metrist.report.tables import render_page

        print_text(render_page(tables))
        return
    for table in tables:
        print_table(table, form)
        print_text("")


def _apply_layout(layout: Layout, tables: Sequence[Table]) -> tuple[Sequence[Table], RunError | None]:
    try:
        return layout.apply(tables), None
    except RunError as error:
        return tables, error


def print_estimate(estimate: CallEstimate, form: StrEnum) -> None:
    """Print what a dry run found: one row per LLM."""
    from metrist.report.tables import Column, Count, Table

    names = ["LLM", "questions", "answered", "prompt tokens", "answer tokens", "cost from", "to"]
    rows = [
        [
            llm.llm,
            *map(Count, (llm.calls, llm.answered, llm.prompt_tokens, llm.most_completion_tokens)),
            Dollars(llm.least_cost),
            Dollars(llm.most_cost),
        ]
        for llm in estimate.by_llm.values()
    ]
    columns = [Column(name, "right" if number else "left") for number, name in enumerate(names)]
    notes = list(_estimate_notes(estimate))
    print_table(Table(title="Dry run: nothing was sent", columns=columns, rows=rows, notes=notes), form)


def _estimate_notes(estimate: CallEstimate) -> Iterator[str]:
    if not estimate.by_llm:
        yield "no metric asks an LLM"
        return
    yield (
        "answered: already in the cache, not asked again. Tokens and costs are those of the rest. Prompt tokens are "
        "estimated at 4 bytes each. Costs range from the prompts alone to the longest answers allowed; a --max-cost "
        "of that much never stops the run"
    )
    yield "questions that depend on answers to come, such as a second pass over errors, are not counted"
    for llm in estimate.by_llm.values():
        if llm.price is None:
            yield f"{llm.llm}: the price is unknown; set METRIST_PRICES to a file with prices (see docs/guides/llm.md)"
        elif llm.price.seen:
            yield f"{llm.llm}: list price of {llm.price.seen}"


@dataclass(frozen=True, slots=True)
class Dollars:
    """A table cell with an amount of US dollars, such as `$0.0132`; None if the price is unknown."""

    value: float | None

    def __str__(self) -> str:
        if self.value is None:
            return "unknown"
        return f"${self.value:,.2f}" if self.value >= 1 or self.value == 0 else f"${self.value:.4f}"

    def plain(self) -> float | None:
        return self.value


def print_text(text: str) -> None:
    """Print text on standard output."""
    sys.stdout.write(f"{text}\n")
