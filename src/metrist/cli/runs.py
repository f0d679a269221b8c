"""`metrist query`, `signatures`, `export`, `remove` and `convert`: what a run holds, and files of other tools."""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from metrist.cli.options import TABLE_FORMAT, Format, ReadingOptions, RunFolder, RunPath
from metrist.cli.output import Significant, print_note, print_table, print_text, progress_bar
from metrist.errors import InputError, RunError, escape_controls, format_count
from metrist.settings import setting

if TYPE_CHECKING:
    import pyarrow as pa

    from metrist.report.tables import Table


def query(
    run: RunFolder,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A statement that reads, such as SELECT … FROM scores.")],
    out: Path | None = setting(None, "A .csv, .json, .jsonl or .parquet file for the answer.", "-o", metavar="FILE"),
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.run.run import open_run, query_with_notes

    suffix = "" if out is None else _check_out(out, form)
    answer, notes = query_with_notes(open_run(run), sql)
    seen = Counter[str]()
    names = []
    for name in answer.column_names:  # SQL may give a name to several columns: the second one gets a number.
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    answer = answer.rename_columns(names)
    if out is not None:
        _write(answer, out, suffix)
        print_note(f"wrote {format_count(len(answer), 'row')} to {out}")
    elif form == "csv" and not sys.stdout.isatty():
        sys.stdout.writelines(_format_csv(answer))
    else:
        print_table(_make_table(answer, form), form)
    print_note(*notes)


def _check_out(out: Path, form: str) -> str:
    """Refuse a file that could not be written at the end, and one of another format than that of --format; return its
    suffix, compression aside."""
    from metrist.io.compression import uncompressed_name
    from metrist.io.writer import check_writable as check_place
    from metrist.run.flat_file import check_writable

    suffix = Path(uncompressed_name(out)).suffix.lower()
    if form not in ("text", suffix.removeprefix(".")):
        raise RunError(
            f"--format {form} and -o {out} are two formats: leave out --format, or name another file", code="conflict"
        )
    if suffix == ".json":
        check_place(out)
    elif suffix in (".csv", ".jsonl", ".parquet"):
        check_writable(out)
    else:
        raise RunError(
            f"cannot write {out}: expected a name that ends in .csv, .json, .jsonl or .parquet", code="cannot_write"
        )
    return suffix


def _make_table(answer: pa.Table, form: str) -> Table:
    from pyarrow import types

    from metrist.report.tables import Column, Table

    def make_cell(value: Any) -> Any:
        # SQL does not say which digits count, so six are shown.
        return Significant(value, 6) if isinstance(value, float) else _make_text(value)

    rows = [list(row) if form == "json" else list(map(make_cell, row)) for row in _iterate_rows(answer)]
    columns = []
    for field in answer.schema:
        is_number = types.is_floating(field.type) or types.is_integer(field.type) or types.is_decimal(field.type)
        columns.append(Column(field.name, "right" if is_number else "left"))
    return Table(columns=columns, rows=rows)


def _write(answer: pa.Table, path: Path, suffix: str) -> None:
    import pyarrow.parquet as pq

    from metrist.io.writer import atomic_write, atomic_write_bytes, json_line

    if suffix == ".parquet":
        with atomic_write_bytes(path) as file:
            pq.write_table(answer, file, compression="zstd")
        return
    with atomic_write(path) as text:
        if suffix == ".csv":
            text.writelines(_format_csv(answer))
        elif suffix == ".json":
            text.write(f"{_make_table(answer, 'json').render('json')}\n")
        else:
            names = answer.column_names
            text.writelines(f"{json_line(dict(zip(names, row, strict=True)))}\n" for row in _iterate_rows(answer))


def _format_csv(answer: pa.Table) -> Iterator[str]:
    """The lines of an answer as CSV, the same in a file and in a pipe."""
    from metrist.io.writer import csv_line, encodable

    yield csv_line(map(encodable, answer.column_names))
    for row in _iterate_rows(answer):
        yield csv_line(map(_make_text, row))


def _iterate_rows(answer: pa.Table) -> Iterator[tuple[Any, ...]]:
    """The rows as data that JSON can hold."""
    from pyarrow import types

    for batch in answer.to_batches(max_chunksize=1 << 13):
        columns = []
        for column in batch.columns:
            values = column.to_pylist()
            is_map = types.is_map(column.type)
            columns.append([_plain(dict(value) if is_map and value is not None else value) for value in values])
        yield from zip(*columns, strict=True)


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return list(map(_plain, value)) if isinstance(value, list | tuple) else str(value)


def _make_text(value: Any) -> Any:
    """A value for a cell of text: truth, and what has several values, is JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict | bool) else value


def signatures(run: RunPath) -> None:
    from metrist.report.scores import sign_metrics
    from metrist.run import load

    results = load(run)
    for signature in sign_metrics(results.metrics, results.signatures, results.reference_counts):
        print_text(escape_controls(signature.name))
        for text in filter(None, (signature.text, signature.peer)):
            print_text(f"  {escape_controls(text)}")


def remove(
    run: RunFolder,
    inputs: list[str] | None = setting(None, "The records of this file; repeatable.", "--input", metavar="FILE"),
    metrics: list[str] | None = setting(None, "All scores by this metric; repeatable.", "-m", "--metric", metavar="M"),
    systems: list[str] | None = setting(None, "The records of this system; repeatable.", "--system", metavar="S"),
    unused: bool = setting(False, "Scores of earlier texts, rows and versions, which no record has any more."),
    yes: bool = setting(False, "Do not ask."),
) -> None:
    from metrist.run.removal import plan_removal

    removal = plan_removal(run, inputs=inputs or (), metrics=metrics or (), systems=systems or (), unused=unused)
    if not removal.deletes:
        print_note(f"{run}: there is nothing to delete")
        return
    for message in removal.messages:
        print_note(f"{'deleting' if yes else 'to be deleted'}: {message}")
    if not yes:
        if not sys.stdin.isatty():
            raise RunError("nothing was deleted: confirm with --yes", code="missing_value")
        if not typer.confirm("Delete?", err=True):
            print_note("nothing was deleted")
            raise typer.Exit(1)
    for message in removal.apply():
        print_note(message)


#: A format that need not be detected.
# The formats of metrist.io.convert, which is imported late.
Kind = Literal[
    "bartscore",
    "alpaca_eval",
    "mt_metrics_eval",
    "label_studio",
    "metric_instruct",
    "natural_instructions",
    "arena",
    "braintrust",
    "deepeval",
    "inspect_ai",
    "lm_eval",
    "openai_evals",
    "promptfoo",
    "ragas",
]


def convert(
    out: Path = setting(..., "The file to write: .jsonl, also .jsonl.gz, .xz or .zst; a folder for a run.", "-o"),
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[IN…]",
            help="Files of another tool, such as AlpacaEval, inspect_ai or promptfoo (docs/guides/convert.md lists "
            "all), or an mt-metrics-eval folder.",
        ),
    ] = None,
    source: Path | None = setting(None, "Line file of sources."),
    reference: list[Path] | None = setting(None, "Line file of references; repeatable."),
    outputs: Mapping[str, str] = setting(
        {}, "A system's line file, or its predictions for IN; repeatable.", "--output", metavar="SYSTEM=FILE"
    ),
    kind: Kind | None = setting(None, "The format of IN.", shown="detected"),
    system: str | None = setting(None, "The system's name, for outputs without one."),
    task: str | None = setting(None, "The task of all records."),
    language: str | None = setting(None, "The language of all records."),
    rating: list[str] | None = setting(
        None, "BARTScore: a score given by people; repeatable.", shown="the known names"
    ),
    take: list[str] | None = setting(
        None, "mt-metrics-eval: a reference to use, such as refA; repeatable.", "--take-reference", shown="all"
    ),
    limit: int = setting(0, "Natural Instructions: instances of a task to use; 0: all.", metavar="N", min=0),
) -> None:
    from metrist.data.error_analysis import read_published_row
    from metrist.io import convert as formats

    rows: Iterator[dict[str, Any]]
    if outputs and not paths:
        rows = formats.line_files(
            dict(outputs), source=source, references=reference or [], task=task, language=language
        )
    else:
        if source or reference:
            raise InputError(
                "--source and --reference need --output SYSTEM=FILE, and no other file", code="missing_value"
            )
        rows = formats.convert(
            *(paths or []),
            kind=kind,
            system=system,
            task=task,
            language=language,
            ratings=rating,
            references=take,
            announce=functools.cache(print_note),
            read_analysis=read_published_row,
            outputs=dict(outputs),
            limit=limit,
        )
    print_note(f"wrote {format_count(formats.write_rows(rows, out), 'row')} to {out}")


def validate(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="Records, ratings or preferences; each file is read by itself.")
    ],
    *,
    reading: ReadingOptions,
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.report.tables import Table, name_columns

    problems, rows = list[str](), list[list[object]]()
    for file in files:
        reader = replace(reading, skip_bad=True).read([file])
        good = 0
        try:
            good = sum(1 for _ in reader.entries())
        except InputError as error:
            problems.append(str(error))
        else:
            problems += reader.skipped.messages
        rows.append([file, good, reader.skipped.count])
    print_note(*problems)
    print_table(Table(columns=name_columns("file", right=("rows", "bad rows")), rows=rows), form)
    if problems and not (reading.skip_bad and all(good for _, good, _ in rows)):
        raise typer.Exit(1)


def export(
    run: RunFolder,
    out: Path = setting(..., "The file to write: .jsonl, .csv or .parquet, also compressed.", "-o"),
) -> None:
    from metrist.run import export as export_run

    with progress_bar("writing") as progress:
        results = export_run(run, out, progress)
    print_note(*results.notes)
    print_note(f"wrote {format_count(len(results) * len(results.scores), 'row')} to {out}")
