"""`metrist score`: outputs in, scores out."""

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
    item_key,
    named_values,
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
        raise SpecError("no metric was asked for: name at least one, such as -m rougeL (`metrist list` shows them)")
    from metrist.cli.output import show
    from metrist.cli.progress import progress_bar
    from metrist.io.reader import read_records
    from metrist.run import score as score_records
    from metrist.run.results import NothingScored

    reader = read_records(
        inputs if len(inputs) > 1 else inputs[0],
        item_key=item_key(item_fields),
        fields=named_values(fields or [], "--field"),
        skip_bad=skip_bad,
        system=system,
    )
    if dry_run:
        _estimate(reader, metrics, form)
        return
    fault: RunError | None = None
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
    except NothingScored as found:
        results, fault = found.results, found
    tell_skipped(reader)
    show(results.table(draws=draws, seed=seed), form)
    _check_scored(results, fault)


def _check_scored(results: Results, fault: RunError | None) -> None:
    """A single record is no run: that it failed is shown, and then told by the exit code as for many."""
    from metrist.run.results import describe_total_failure

    lost = (describe_total_failure(text, block) for text, block in results.scores.items())
    if fault or (fault := next((RunError(said) for said in lost if said), None)):
        raise fault


def _estimate(reader: Reader, metrics: Sequence[str], form: Format) -> None:
    from metrist.cli.estimate import estimate_table
    from metrist.cli.output import show
    from metrist.run.pipeline import estimate

    found = estimate(reader, metrics)
    tell_skipped(reader)
    show(estimate_table(found), form)


def _executor(workers: int) -> Executor | None:
    from metrist.run.executors import Processes, Serial

    if workers == 0:
        return None
    return Serial() if workers == 1 else Processes(workers=workers)


def tell_skipped(reader: Reader) -> None:
    """Say which bad rows were left out."""
    from metrist.cli.output import remark

    if not reader.skipped.count:
        return
    for message in reader.skipped.messages:
        remark(f"skipped: {message}")
    remark(f"skipped {reader.skipped.count:,} bad rows in all")


# `metrist run`: a scoring, with its comparison and check, from one file.


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
    """Score, compare and check as a TOML file says; exit with 1 when a check fails."""
    from metrist.cli.output import remark, show_all
    from metrist.cli.progress import progress_bar
    from metrist.evaluate.config import run_config

    with progress_bar("scoring") as progress:
        outcome = run_config(config, allow_import=allow_import, progress=progress)
    if outcome.skipped:
        remark(f"skipped {outcome.skipped:,} bad rows")
    show_all(outcome.tables(), form)
    if not outcome.passed:
        raise typer.Exit(1)
