"""`metrist score` and `metrist run`: score outputs with metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrist.cli.options import (
    BatchTokens,
    Cache,
    Concurrency,
    Device,
    Draws,
    DryRun,
    Fields,
    Format,
    Inputs,
    ItemKey,
    MaxCost,
    Metrics,
    Rpm,
    Seed,
    SkipBad,
    System,
    TableFormat,
    Tokens,
    Tpm,
    Workers,
    parse_item_key,
    parse_pairs,
)
from metrist.errors import RunError, SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metrist.io.reader import Reader
    from metrist.run.executors import Executor
    from metrist.run.results import Results


def score(
    inputs: Inputs,
    metrics: Metrics = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="A run folder (resumable), or a .jsonl, .csv or .parquet file."),
    ] = None,
    item_fields: ItemKey = "",
    fields: Fields = None,
    system: System = None,
    skip_bad: SkipBad = False,
    workers: Workers = 0,
    tokens: Tokens = False,
    device: Device = None,
    batch_tokens: BatchTokens = None,
    cache: Cache = None,
    max_cost: MaxCost = None,
    concurrency: Concurrency = None,
    rpm: Rpm = None,
    tpm: Tpm = None,
    dry_run: DryRun = False,
    draws: Draws = 1000,
    seed: Seed = 0,
    form: TableFormat = Format.text,
) -> None:
    """Score outputs with metrics; print system scores with intervals and coverage."""
    if not metrics:
        raise SpecError("no metric was requested: name at least one, such as -m rougeL (`metrist list` shows them)")
    from metrist.cli.output import print_table
    from metrist.cli.progress import progress_bar
    from metrist.io.reader import read_records
    from metrist.run import score as score_records
    from metrist.run.results import NothingScored

    reader = read_records(
        inputs if len(inputs) > 1 else inputs[0],
        item_key=parse_item_key(item_fields),
        fields=parse_pairs(fields or [], "--field"),
        skip_bad=skip_bad,
        system=system,
    )
    if dry_run:
        _estimate(reader, metrics, form)
        return
    error: RunError | None = None
    try:
        with progress_bar("scoring") as progress:
            results = score_records(
                reader,
                metrics,
                executor=_executor(workers),
                out=out,
                progress=progress,
                tokens=tokens,
                device=device,
                batch_tokens=batch_tokens,
                cache=cache,
                max_cost=max_cost,
                concurrency=concurrency,
                rpm=rpm,
                tpm=tpm,
            )
    except NothingScored as nothing_scored:
        results, error = nothing_scored.results, nothing_scored
    report_skipped(reader)
    print_table(results.table(draws=draws, seed=seed), form)
    _check_scored(results, error)


def _check_scored(results: Results, error: RunError | None) -> None:
    """Raise if a metric scored nothing; `score` itself does not when there is a single record."""
    from metrist.run.results import describe_total_failure

    messages = (describe_total_failure(text, block) for text, block in results.scores.items())
    error = error or next((RunError(message) for message in messages if message), None)
    if error:
        raise error


def _estimate(reader: Reader, metrics: Sequence[str], form: Format) -> None:
    from metrist.cli.estimate import estimate_table
    from metrist.cli.output import print_table
    from metrist.run.pipeline import estimate

    total = estimate(reader, metrics)
    report_skipped(reader)
    print_table(estimate_table(total), form)


def _executor(workers: int) -> Executor | None:
    from metrist.run.executors import Processes, Serial

    if workers == 0:
        return None
    return Serial() if workers == 1 else Processes(workers=workers)


def report_skipped(reader: Reader) -> None:
    """Print which bad rows were skipped."""
    from metrist.cli.output import print_note

    if not reader.skipped.count:
        return
    for message in reader.skipped.messages:
        print_note(f"skipped: {message}")
    print_note(f"skipped {reader.skipped.count:,} bad rows in all")


def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file; docs/ci.md describes it.")],
    allow_import: Annotated[
        bool,
        typer.Option(
            "--allow-import",
            help="Let the file name code to run (import paths, programs) and environment variables that hold keys.",
        ),
    ] = False,
    form: TableFormat = Format.text,
) -> None:
    """Score, compare and check as a TOML file specifies; exit with 1 if a check fails."""
    from metrist.cli.output import print_note, print_tables
    from metrist.cli.progress import progress_bar
    from metrist.evaluate.config import run_config

    with progress_bar("scoring") as progress:
        outcome = run_config(config, allow_import=allow_import, progress=progress)
    if outcome.skipped:
        print_note(f"skipped {outcome.skipped:,} bad rows")
    print_tables(outcome.tables(), form)
    if not outcome.passed:
        raise typer.Exit(1)
