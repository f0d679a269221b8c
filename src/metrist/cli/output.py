"""Printing: results on standard output, notes and progress on standard error."""

from __future__ import annotations

import ast
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from metrist.errors import MetristError, RunError, escape_controls, format_count, quote_word

if TYPE_CHECKING:
    from metrist.io.reader import Reader
    from metrist.llm.estimate import CallEstimate
    from metrist.report.progress import ProgressReport
    from metrist.report.tables import Table, TableLayout
    from metrist.run.estimate import RunEstimate
    from metrist.settings import SettingField


#: The settings of the command that runs, by argument. Errors and notes come from functions of Python and speak of their
#: arguments.
_settings: ContextVar[Mapping[str, SettingField]] = ContextVar("settings", default=MappingProxyType({}))


@contextmanager
def name_arguments(settings: Mapping[str, SettingField]) -> Iterator[None]:
    """Print what the block prints, and raise its errors, with the options of a command for arguments of Python."""
    token = _settings.set(settings)
    try:
        yield
    except MetristError as error:
        error.args = (name_options(str(error), settings), *error.args[1:])
        raise
    finally:
        _settings.reset(token)


def name_options(message: str, options: Mapping[str, SettingField]) -> str:
    """Write the options of a command for the arguments that a message names in backticks: --top-k for `top_k`, --test
    sign for `test='sign'`, --field output=text for `fields={'output': 'text'}`."""

    def write_option(match: re.Match[str]) -> str:
        option = options.get(match["name"])
        if option is None:
            return match[0]
        flag = next(flag for flag in option.setting.option_names(match["name"]) if "--" in flag)
        on, _, off = map(str.strip, flag.partition("/"))
        if match["value"] in ("True", "False", None):
            return off if match["value"] == "False" or not on else on
        try:
            value = ast.literal_eval(match["value"])
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # A message may quote a file.
            value = match["value"]
        values = value if isinstance(value, list) else [value]
        if isinstance(value, dict):
            values = [f"{name}={shown}" for name, shown in value.items()]
        return " ".join(f"{on} {quote_word(str(one))}" for one in values)

    return re.sub(r"`(?P<name>\w+)(?:=(?P<value>[^`]*))?`", write_option, message)


def translate_notes(notes: Iterable[str]) -> list[str]:
    """Write options of the command that runs for the arguments that notes name."""
    return [name_options(note, _settings.get()) for note in notes]


def print_note(*texts: str) -> None:
    """Print messages that are not results, on standard error. They may quote a server, a model or a file, so what a
    terminal would obey is escaped; lines stay lines."""
    for text in texts:
        safe = "\n".join(map(escape_controls, name_options(text, _settings.get()).split("\n")))
        sys.stderr.write(f"metrist: {safe}\n")


def write_file(path: Path, text: str) -> None:
    """Write a file whole; if that fails, what was there stays."""
    from metrist.io.writer import atomic_write

    with atomic_write(path) as file:
        file.write(text)


def print_table(table: Table, form: str, layout: TableLayout | None = None) -> None:
    """Print a table as `print_tables` does, as JSON without a list."""
    print_tables([table], form, layout, as_list=False)


def print_tables(
    tables: Sequence[Table], form: str, layout: TableLayout | None = None, *, as_list: bool = True
) -> None:
    """Print tables: drawn with rich on a terminal, as plain text in a file or pipe. As JSON they are one list, unless
    there is one and not `as_list`, and as HTML one page, because several documents in a row are not valid. Where the
    layout does not fit the tables, they are printed without, before the error: scores may have been expensive."""
    tables = [
        replace(table, notes=translate_notes(table.notes), remarks=translate_notes(table.remarks)) for table in tables
    ]
    error: RunError | None = None
    try:
        tables = tables if layout is None else layout.apply(tables)
    except RunError as misfit:
        error = misfit
    is_single = len(tables) == 1 and not as_list
    if form == "html":
        from metrist.report.tables import render_page

        print_text(render_page(tables))
    elif form == "json" and not is_single:
        print_text(json.dumps([table.to_dict() for table in tables], indent=2))
    else:
        for table in tables:
            _print_one(table, form)
            if not is_single:
                print_text("")
    if error:
        raise error


def _print_one(table: Table, form: str) -> None:
    if form == "text" and sys.stdout.isatty():
        from rich.console import Console

        Console().print(table)
        return
    print_text(table.render(form))
    if form in ("latex", "csv"):  # The other formats show them.
        print_note(*table.remarks)


def print_estimate(estimate: CallEstimate, form: str, run: RunEstimate | None = None) -> None:
    """Print what a dry run found: the time of each metric of a run, a row per LLM, and a prompt in full."""
    from metrist.report.tables import Count, Table, name_columns

    names = ["questions", "answered", "prompt tokens", "answer tokens", "cost from", "to"]
    rows = [
        [
            llm.llm,
            *map(Count, (llm.calls, llm.answered, llm.prompt_tokens, llm.most_completion_tokens)),
            Dollars(llm.least_cost),
            Dollars(llm.most_cost),
        ]
        for llm in estimate.by_llm.values()
    ]
    notes = list(_estimate_notes(estimate, run))
    columns = name_columns("LLM", right=names)
    calls = Table(title="Dry run: nothing was sent", columns=columns, rows=rows, notes=notes)
    times = None if run is None or not run.times else _build_time_table(run)
    if form == "json":
        prompts = [
            {"metric": metric, "llm": llm, "messages": [{"role": m.role, "text": m.text} for m in conversation]}
            for (metric, llm), conversation in estimate.prompts.items()
        ]
        facts = calls.to_dict()
        facts |= {"times": times.to_dict()} if times else {}
        facts |= {"prompts": prompts} if prompts else {}
        print_text(json.dumps(facts, indent=2))
        return
    if times is not None:
        print_table(times, form)
        print_text("")
    if rows:
        print_table(calls, form)
    else:
        print_text(notes[0] if times else f"{calls.title}\n\n{notes[0]}")
    if run is not None and any(run.stored.values()):
        held = ", ".join(f"{count:,} of {run.records:,} by {metric}" for metric, count in run.stored.items() if count)
        print_text(f"\nscores that the run folder holds already: {held}")
    for (metric, llm), conversation in estimate.prompts.items():
        whose = f"of {metric} to {llm}" if metric else f"to {llm}"
        print_text(f"\nThe first prompt {escape_controls(whose)}:")
        for message in conversation:
            print_text(f"--- {message.role} ---")
            for line in message.text.split("\n"):  # The user's texts: what a terminal would interpret is escaped.
                print_text(escape_controls(line))
        print_text("--- end ---")


def _build_time_table(run: RunEstimate) -> Table:
    from metrist.report.tables import Count, Table, name_columns

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
    columns = name_columns("metric", right=("records", "s per record", "time", "from", "to"))
    title = f"Dry run: {format_count(run.records, 'record')}, nothing was written"
    return Table(title=title, columns=columns, rows=rows, notes=notes, remarks=run.notes)


def _estimate_notes(estimate: CallEstimate, run: RunEstimate | None) -> Iterator[str]:
    if not estimate.by_llm:
        timed = {time.metric for time in run.times} if run else set()
        held = [count for metric, count in run.stored.items() if metric not in timed] if run else []
        yield "no question is left for an LLM: its scores are stored" if any(held) else "no metric asks an LLM"
        return
    yield "answered: in the cache already; tokens and costs are those of the rest, at 4 bytes per prompt token"
    yield "cost: from the prompts alone to the longest answers allowed; with such a --max-cost the run never stops"
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
    """A table cell with a number to so many digits, such as `0.0013`."""

    value: float
    digits: int = 2

    def __str__(self) -> str:
        return "n/a" if math.isnan(self.value) else f"{self.value:.{self.digits}g}"

    def plain(self) -> float | None:
        return None if math.isnan(self.value) else self.value


def print_text(text: str) -> None:
    """Print text on standard output."""
    sys.stdout.write(f"{text}\n")


def report_skipped(reader: Reader) -> None:
    """Print which bad rows were skipped, if any."""
    skipped = reader.skipped
    for message in skipped.messages:
        print_note(f"skipped: {message}")
    if skipped.count > len(skipped.messages):
        print_note(f"skipped {format_count(skipped.count, 'bad row')} in all")


@contextmanager
def progress_bar(title: str, noun: str = "records") -> Iterator[ProgressReport]:
    """Show the progress of the block, which is counted in `noun`; yields the callback to pass on."""
    from metrist.report.progress import ProgressReport, show_progress, watch_run

    report = ProgressReport(title, noun)
    with watch_run(report), show_progress(report):
        yield report
