"""Printing: results on standard output, notes on standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from metrist.cli.options import print_note as print_note
from metrist.errors import RunError, escape_controls
from metrist.errors import format_count as format_count

if TYPE_CHECKING:
    from metrist.llm.estimate import CallEstimate
    from metrist.report.tables import Table, TableLayout
    from metrist.run.estimate import RunEstimate


def print_table(table: Table, form: str, layout: TableLayout | None = None) -> None:
    """Print a table: drawn with rich on a terminal, as plain text in a file or pipe. Where the layout does not fit the
    table, it is printed without, before the error: scores may have been expensive."""
    if layout is not None:
        tables, error = _apply_layout(layout, [table])
        print_table(tables[0], form)
        if error:
            raise error
        return
    if form == "text" and sys.stdout.isatty():
        from rich.console import Console

        Console().print(table)
    elif form == "html":
        from metrist.report.tables import render_page

        print_text(render_page([table]))
    else:
        print_text(table.render(form))
        if form in ("latex", "csv"):  # The other formats show them.
            for remark in table.remarks:
                print_note(remark)


def print_tables(tables: Sequence[Table], form: str, layout: TableLayout | None = None) -> None:
    """Print several tables; as JSON they are one list and as HTML one page, because several documents in a row are not
    valid."""
    if layout is not None:
        tables, error = _apply_layout(layout, tables)
        print_tables(tables, form)
        if error:
            raise error
        return
    if form == "json":
        print_text(json.dumps([table.to_dict() for table in tables], indent=2))
        return
    if form == "html":
        from metrist.report.tables import render_page

        print_text(render_page(tables))
        return
    for table in tables:
        print_table(table, form)
        print_text("")


def _apply_layout(layout: TableLayout, tables: Sequence[Table]) -> tuple[Sequence[Table], RunError | None]:
    try:
        return layout.apply(tables), None
    except RunError as error:
        return tables, error


def print_estimate(estimate: CallEstimate, form: str, run: RunEstimate | None = None) -> None:
    """Print what a dry run found: the time of each metric of a run, a row per LLM, and a prompt in full."""
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
    notes = list(_estimate_notes(estimate, run))
    calls = Table(title="Dry run: nothing was sent", columns=columns, rows=rows, notes=notes)
    times = None if run is None or not run.times else _build_time_table(run)
    prompts = [
        {"metric": metric, "llm": llm, "messages": [{"role": m.role, "text": m.text} for m in conversation]}
        for (metric, llm), conversation in estimate.prompts.items()
    ]
    if form == "json":
        facts = (
            calls.to_dict() | ({"times": times.to_dict()} if times else {}) | ({"prompts": prompts} if prompts else {})
        )
        print_text(json.dumps(facts, indent=2))
        return
    if not rows and times is None:
        print_text(f"{calls.title}\n\n{notes[0]}")
    tables = [table for table in (times, calls if rows else None) if table is not None]
    for number, table in enumerate(tables):
        if number:
            print_text("")
        print_table(table, form)
    if times is not None and not rows:
        print_text(f"\n{notes[0]}")
    if run is not None and any(run.stored.values()):
        held = ", ".join(f"{count:,} of {run.records:,} by {metric}" for metric, count in run.stored.items() if count)
        print_text(f"\nscores that the run folder holds already: {held}")
    for prompt in prompts:
        print_text(f"\n{_format_prompt(prompt)}")


def _build_time_table(run: RunEstimate) -> Table:
    from metrist.report.tables import Column, Count, Table

    names = ["metric", "records", "s per record", "time", "from", "to"]
    rows = [
        [
            time.metric,
            Count(time.records),
            Significant(time.seconds_per_record),
            *map(Duration, (time.seconds, time.low, time.high)),
        ]
        for time in run.times
    ]
    timed = [time for time in run.times if time.sample]
    notes = []
    if timed:
        notes.append(
            "time: measured on this machine now, in one process, on "
            + ", ".join(f"{format_count(time.sample, 'record')} ({time.metric})" for time in timed)
            + ", and scaled by the length of all texts; loading models is not in it"
        )
        if any(time.groups > 1 for time in timed):
            notes.append("from, to: a 95 % interval from the spread of the sample, at least 25 % on either side")
        notes += [
            f"{time.metric}: timed once, so the range is a guess: from a third of the time to three times as much"
            for time in timed
            if time.groups == 1
        ]
        notes += [
            f"{time.metric}: {Duration(time.loading)} for the model and its first record"
            for time in timed
            if time.loading >= 1
        ]
        if any(time.sample <= 8 for time in timed):
            notes.append("few records were timed: take such a time as an order of magnitude")
    notes += [f"{time.metric} was not timed: {time.reason}" for time in run.times if time.reason]
    columns = [Column(name, "right" if number else "left") for number, name in enumerate(names)]
    title = f"Dry run: {format_count(run.records, 'record')}, nothing was written"
    return Table(title=title, columns=columns, rows=rows, notes=notes, remarks=run.notes)


def _format_prompt(prompt: Mapping[str, Any]) -> str:
    """The first prompt of a metric in full. It holds the user's texts: what a terminal would interpret is escaped."""
    whose = f"of {prompt['metric']} to {prompt['llm']}" if prompt["metric"] else f"to {prompt['llm']}"
    lines = [f"The first prompt {escape_controls(whose)}:"]
    for message in prompt["messages"]:
        lines += [f"--- {message['role']} ---", *map(escape_controls, message["text"].split("\n"))]
    return "\n".join([*lines, "--- end ---"])


def _estimate_notes(estimate: CallEstimate, run: RunEstimate | None) -> Iterator[str]:
    if not estimate.by_llm:
        timed = {time.metric for time in run.times} if run else set()
        held = [count for metric, count in run.stored.items() if metric not in timed] if run else []
        yield "no question is left for an LLM: its scores are stored" if any(held) else "no metric asks an LLM"
        return
    yield (
        "answered: already in the cache, not asked again. Tokens and costs are those of the rest. Prompt tokens are "
        "estimated at 4 bytes each. Costs range from the prompts alone to the longest answers allowed; a --max-cost "
        "of that much never stops the run"
    )
    from metrist.runtime import Runtime

    yield "questions that depend on answers to come, such as a second pass over errors, are not counted"
    for llm in estimate.by_llm.values():
        if llm.price is None:
            path = Runtime.current().prices
            remedy = f"it is not in {path.name}" if path else "set METRIST_PRICES to a file with prices"
            yield f"{llm.llm}: the price is unknown; {remedy} (see docs/guides/llm.md)"
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


@dataclass(frozen=True, slots=True)
class Duration:
    """A table cell with a time: `0.4 s`, `12 s`, `1:02:03`; NaN if it is unknown."""

    seconds: float

    def __str__(self) -> str:
        if math.isnan(self.seconds):
            return "n/a"
        if self.seconds < 60:
            return f"{self.seconds:.1f} s" if self.seconds < 10 else f"{self.seconds:.0f} s"
        return str(timedelta(seconds=round(self.seconds)))

    def plain(self) -> float | None:
        return None if math.isnan(self.seconds) else self.seconds


@dataclass(frozen=True, slots=True)
class Significant:
    """A table cell with a number to two digits, such as `0.0013`."""

    value: float

    def __str__(self) -> str:
        return "n/a" if math.isnan(self.value) else f"{self.value:.2g}"

    def plain(self) -> float | None:
        return None if math.isnan(self.value) else self.value


def print_text(text: str) -> None:
    """Print text on standard output."""
    sys.stdout.write(f"{text}\n")
