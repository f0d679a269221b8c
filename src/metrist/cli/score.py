"""`metrist score` and `metrist run`: score outputs with metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrist.cli.options import (
    DRAWS,
    DRY_RUN,
    NO_TEXTS,
    PAPER_FORMAT,
    SEED,
    TABLE_FORMAT,
    Format,
    Inputs,
    LayoutOptions,
    LLMOptions,
    Names,
    PaperFormat,
    ReadingOptions,
)
from metrist.errors import RunError, SpecError
from metrist.settings import ModelSettings, as_arguments, setting

if TYPE_CHECKING:
    from metrist.io.reader import Reader


def score(
    inputs: Inputs,
    *,
    metrics: Names = setting(
        (),
        "A metric: rougeL, 'chrf(word_order=2)', or with a short name: 'judge=judge(llm=…)'; repeatable.",
        "-m",
        "--metric",
        metavar="SPEC",
    ),
    # Not a Path, which would drop the slash at the end that asks for a folder.
    out: str | None = setting(
        None,
        "A run folder (resumable), or a .jsonl, .csv or .parquet file; or its URL in a store (s3://…, gs://…, "
        "file://…), where the store's library is installed.",
        "-o",
        metavar="PATH",
    ),
    reading: ReadingOptions,
    models: ModelSettings,
    llms: LLMOptions,
    workers: int = setting(
        0, "Processes to score with; 0: all cores, or one process per GPU for models; 1: only this process.", min=0
    ),
    executor: str | None = setting(
        None,
        "Where to score: serial, processes, ray or ray:ADDRESS (docs/guides/cluster.md).",
        metavar="NAME",
        shown="the fastest here",
    ),
    tokens: bool = setting(False, "Store scores of single tokens, for `metrist heat`."),
    no_texts: bool = NO_TEXTS,
    dry_run: bool = DRY_RUN,
    draws: int = DRAWS,
    seed: int = SEED,
    form: PaperFormat = PAPER_FORMAT,
    appearance: LayoutOptions,
) -> None:
    from metrist.cli.output import print_estimate, print_note, print_table, print_text
    from metrist.cli.progress import progress_bar
    from metrist.run import score as score_records
    from metrist.run.estimate import estimate_run
    from metrist.run.executors import resolve_executor
    from metrist.run.results import NothingScored, describe_total_failure
    from metrist.runtime import Runtime

    layout = appearance.layout()
    chosen_executor = resolve_executor(executor, workers or None)
    reader = reading.read(inputs)
    metrics = metrics or choose_default_metrics(reading, inputs)
    if dry_run:
        with progress_bar("estimating") as progress, llms.activate():
            runtime = Runtime.current().override(**as_arguments(models))
            total = estimate_run(reader, metrics, out=out, tokens=tokens, runtime=runtime, on_metric=progress.begin)
        report_skipped(reader)
        print_estimate(total.calls, form, total)
        return
    error: RunError | None = None
    try:
        with progress_bar("scoring") as progress:
            results = score_records(
                reader,
                metrics,
                executor=chosen_executor,
                out=out,
                progress=progress,
                tokens=tokens,
                texts=not no_texts,
                **as_arguments(models),
                **as_arguments(llms),
            )
    except NothingScored as nothing_scored:
        results, error = nothing_scored.results, nothing_scored
    if reader.skipped.count:
        report_skipped(reader)
    if form == "bibtex":
        from metrist.metrics.cards import format_bibliography

        used = {"efron-1979-bootstrap": "bootstrap intervals"}
        print_text(format_bibliography(results.metrics, used, results.notes))
        for note in results.notes:
            print_note(note)
    else:
        print_table(results.table(draws=draws, seed=seed), form, layout)
    if error:
        raise error
    # `score` does not raise when the only record fails; the exit code must tell all the same.
    for text, block in results.scores.items():
        if block.failures and (message := describe_total_failure(text, block)):
            raise RunError(message)


def choose_default_metrics(reading: ReadingOptions, inputs: list[str]) -> tuple[str, ...]:
    """Choose metrics by the first records, and print which and why."""
    from itertools import islice

    from metrist.cli.output import print_note
    from metrist.io.reader import read_records
    from metrist.metrics.trained.quality import LOOK_AT, choose_metrics

    # Notes about the file come from the reader that scores it.
    reader = read_records(inputs if len(inputs) > 1 else inputs[0], **{**reading.keywords(), "announce": None})
    if not reader.is_repeatable:
        raise SpecError("standard input is read only once: name the metrics with -m, such as -m rougeL")
    choice = choose_metrics(list(islice(reader, LOOK_AT)))
    print_note(f"no -m was given: chose {', '.join(choice.metrics)}")
    for reason in choice.reasons:
        print_note(reason)
    return tuple(choice.metrics)


def report_skipped(reader: Reader) -> None:
    """Print which bad rows were skipped, if any."""
    from metrist.cli.output import format_count, print_note

    if not reader.skipped.count:
        return
    for message in reader.skipped.messages:
        print_note(f"skipped: {message}")
    print_note(f"skipped {format_count(reader.skipped.count, 'bad row')} in all")


def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file; docs/guides/ci.md describes it.")],
    allow_import: bool = setting(
        False,
        "Trust the file: it may name code to run (import paths, programs), environment variables that hold "
        "keys, servers that get texts, and places outside its folder to write to.",
    ),
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.cli.output import print_tables
    from metrist.cli.progress import progress_bar
    from metrist.evaluate.compare.config import run_config

    with progress_bar("scoring") as progress:
        outcome = run_config(config, allow_import=allow_import, progress=progress)
    print_tables(outcome.tables(), form)
    if not outcome.passed:
        raise typer.Exit(1)


def remove(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or its URL.")],
    inputs: list[str] | None = setting(None, "The records of this file; repeatable.", "--input", metavar="FILE"),
    metrics: list[str] | None = setting(None, "All scores by this metric; repeatable.", "-m", "--metric", metavar="M"),
    systems: list[str] | None = setting(None, "The records of this system; repeatable.", "--system", metavar="S"),
    unused: bool = setting(False, "Scores of earlier texts, rows and versions, which no record has any more."),
    yes: bool = setting(False, "Do not ask."),
) -> None:
    import sys

    from metrist.cli.output import print_note
    from metrist.run.removal import plan_removal

    removal = plan_removal(run, inputs=inputs or (), metrics=metrics or (), systems=systems or (), unused=unused)
    if not removal.deletes:
        print_note(f"{run}: there is nothing to delete")
        return
    for message in removal.messages:
        print_note(f"{'deleting' if yes else 'to be deleted'}: {message}")
    if not yes:
        if not sys.stdin.isatty():
            raise RunError("nothing was deleted: confirm with --yes")
        if not typer.confirm("Delete?", err=True):
            print_note("nothing was deleted")
            raise typer.Exit(1)
    for message in removal.apply():
        print_note(message)
