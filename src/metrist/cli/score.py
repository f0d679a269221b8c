"""`metrist score`, `run` and `prefer`: score outputs, and choose between them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from metrist.cli.options import (
    DRAWS,
    DRY_RUN,
    PAPER_FORMAT,
    SEED,
    TABLE_FORMAT,
    TEXTS,
    WORKERS,
    Format,
    Inputs,
    LayoutOptions,
    LLMOptions,
    Names,
    PaperFormat,
    ReadingOptions,
)
from metrist.cli.output import (
    print_estimate,
    print_note,
    print_table,
    print_tables,
    print_text,
    progress_bar,
    report_skipped,
)
from metrist.errors import RunError, SpecError
from metrist.settings import ModelSettings, as_arguments, setting

VERBOSE = setting(False, "Print the metrics' signatures below the text table, too.", "-v", "--verbose")


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
    workers: int = WORKERS,
    executor: str | None = setting(
        None,
        "Where to score: serial, processes, ray or ray:ADDRESS (docs/guides/cluster.md).",
        metavar="NAME",
        shown="the fastest here",
    ),
    tokens: bool = setting(False, "Store scores of single tokens, for `metrist heat`."),
    texts: bool = TEXTS,
    log: Names = setting(
        (),
        "Log scores with their intervals, and the report: mlflow[:URI], wandb[:PROJECT] or tensorboard[:FOLDER]; "
        "repeatable.",
        metavar="TRACKER",
    ),
    log_step: int | None = setting(None, "The step of a training that --log shows the scores at.", metavar="N", min=0),
    dry_run: bool = DRY_RUN,
    draws: int = DRAWS,
    seed: int = SEED,
    form: PaperFormat = PAPER_FORMAT,
    verbose: bool = VERBOSE,
    appearance: LayoutOptions,
) -> None:
    from metrist.compat.tracking import check_trackers, log_results
    from metrist.report.scores import describe_missing_scores, describe_total_failure
    from metrist.run import score as score_records
    from metrist.run.estimate import estimate_run
    from metrist.run.executors import resolve_executor
    from metrist.run.results import NothingScored
    from metrist.runtime import Runtime

    check_trackers(log)
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
                texts=texts,
                **as_arguments(models),
                **as_arguments(llms),
            )
    except NothingScored as nothing_scored:
        results, error = nothing_scored.results, nothing_scored
    report_skipped(reader)  # Row by row, for which one note stands in the results.
    results = replace(results, notes=tuple(note for note in results.notes if note not in reader.skipped.describe()))
    # `score` does not raise when the only record fails; the exit code must tell all the same.
    failed = {
        text: RunError(message)
        for text, block in results.scores.items()
        if block.failures and (message := describe_total_failure(text, block))
    }
    if form == "bibtex":
        from metrist.metrics.cards import format_bibliography

        used = {"efron-1979-bootstrap": "bootstrap intervals"}
        print_text(format_bibliography(results.metrics, used, results.notes))
        print_note(*results.notes)
    else:
        table = results.table(draws=draws, seed=seed)
        if form == "text" and not verbose:
            table = replace(table, signatures=())
        if form == "text":  # The error says it once more.
            told = [remark for text in failed for remark in describe_missing_scores(text, results.scores[text])]
            table = replace(table, remarks=[remark for remark in table.remarks if remark not in told])
        print_table(table, form, layout)
    for failure in (error, *failed.values()):
        if failure is not None:
            raise failure
    if log:
        with progress_bar("logging"):
            places = log_results(results, *log, step=log_step, draws=draws, seed=seed)
        for place in places:
            print_note(f"logged to {place}")


def choose_default_metrics(reading: ReadingOptions, inputs: list[str]) -> tuple[str, ...]:
    """Choose metrics by the first records, and print which and why."""
    from itertools import islice

    from metrist.io.reader import read_records
    from metrist.metrics.trained.quality import LOOK_AT, choose_metrics

    # Notes about the file come from the reader that scores it.
    reader = read_records(inputs if len(inputs) > 1 else inputs[0], **{**reading.keywords(), "announce": None})
    if not reader.is_repeatable:
        raise SpecError(
            "standard input is read only once: name the metrics with -m, such as -m rougeL", code="missing_value"
        )
    choice = choose_metrics(list(islice(reader, LOOK_AT)))
    print_note(f"no -m was given: chose {', '.join(choice.metrics)}")
    print_note(*choice.reasons)
    return tuple(choice.metrics)


def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file; docs/guides/ci.md describes it.")],
    allow_import: bool = setting(
        False,
        "Trust the file: it may name code to run (import paths, programs), environment variables that hold "
        "keys, servers that get texts, and places outside its folder to write to.",
    ),
    verbose: bool = VERBOSE,
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.evaluate.compare.config import run_config

    with progress_bar("scoring") as progress:
        outcome = run_config(config, allow_import=allow_import, progress=progress)
    tables = outcome.tables()
    if form == "text" and not verbose:
        tables = [replace(table, signatures=()) for table in tables]
    print_tables(tables, form)
    if not outcome.passed:
        raise typer.Exit(1)


#: Which outputs are compared.
PairSource = Literal["given", "all"]


def prefer(
    inputs: Inputs,
    *,
    comparators: list[str] | None = setting(
        None,
        "A comparator, such as 'judge_pair(llm=…)', or a metric, whose better score wins; repeatable.",
        "-m",
        "--metric",
        metavar="SPEC",
    ),
    out: str | None = setting(
        None, "A .jsonl file of preferences, or a run folder (resumable); or its URL.", "-o", metavar="PATH"
    ),
    pairs: PairSource | None = setting(
        None, "given: rows of two outputs; all: every two systems of an item.", shown="given, if there are any"
    ),
    baseline: str | None = setting(None, "Compare each system with this one only.", metavar="SYSTEM"),
    limit_per_item: int | None = setting(None, "Compare at most N pairs of an item.", metavar="N", min=1),
    reading: ReadingOptions,
    models: ModelSettings,
    llms: LLMOptions,
    texts: bool = TEXTS,
    dry_run: bool = DRY_RUN,
    draws: int = DRAWS,
    seed: int = SEED,
    form: Format = TABLE_FORMAT,
) -> None:
    if not comparators:
        raise SpecError(
            "no comparator was requested: name at least one, such as -m 'judge_pair(llm=…)' or -m rougeL",
            code="missing_value",
        )
    from metrist.run.prefer import estimate_preferences
    from metrist.run.prefer import prefer as prefer_records

    reader = reading.read(inputs)
    choice: dict[str, Any] = {
        "pairs": pairs,
        "baseline": baseline,
        "limit_per_item": limit_per_item,
    }
    if dry_run:
        with llms.activate():
            print_estimate(estimate_preferences(reader, comparators, **choice), form)
        return
    with progress_bar("comparing", "pairs") as progress:
        preferences = prefer_records(
            reader,
            comparators,
            out=out,
            progress=progress,
            texts=texts,
            **choice,
            **as_arguments(models),
            **as_arguments(llms),
        )
    report_skipped(reader)
    print_tables([preferences.table(draws, seed), preferences.comparator_table(draws, seed)], form)
