"""`metrist stress`: test whether metrics see faults that were put into good texts."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from metrist.cli.options import TABLE_FORMAT, Format, LLMOptions, ReadingOptions
from metrist.settings import ModelSettings, as_arguments, setting


def stress(
    metrics: Annotated[
        list[str], typer.Argument(metavar="METRIC...", help="The metrics to test, such as bleu or chrf.")
    ],
    *,
    inputs: list[str] | None = setting(
        None,
        "Good outputs to put the faults into; repeatable.",
        "-i",
        "--input",
        metavar="FILE",
        shown="20 short reports with summaries",
    ),
    items: int = setting(100, "Items to test on, at most.", metavar="N", min=5),
    kinds: list[str] | None = setting(
        None, "A fault or harmless change; repeatable.", "--fault", metavar="KIND", shown="all"
    ),
    least: float = setting(0.7, "Share of the items whose score must get worse to pass.", metavar="SHARE"),
    require: list[str] | None = setting(
        None,
        "Exit with 1 if this test fails: a name in the table, a group (fault, harmless, series, severity) or "
        "all; repeatable.",
        metavar="TEST",
    ),
    seed: int = setting(0, "Seed of the faults.", min=0),
    reading: ReadingOptions,
    models: ModelSettings,
    llms: LLMOptions,
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.cli.output import print_note, print_table, print_text
    from metrist.cli.progress import progress_bar
    from metrist.cli.score import report_skipped
    from metrist.evaluate.audit.stress import check_tests
    from metrist.evaluate.audit.stress import stress as stress_metrics

    check_tests(require or ())
    reader = reading.read(inputs) if inputs else None
    with progress_bar("scoring") as progress:
        report = stress_metrics(
            metrics,
            reader,
            items=items,
            kinds=kinds,
            least=least,
            seed=seed,
            progress=progress,
            **as_arguments(models),
            **as_arguments(llms),
        )
    if reader is not None:
        report_skipped(reader)
    if form == "json":
        print_text(json.dumps(report.to_dict(), indent=2))
    else:
        print_table(report.table(), form)
    failures = report.find_failures(require or ())
    for test in failures:
        print_note(f"{test.metric} fails {test.test}: {test.outcome}")
    if failures:
        raise typer.Exit(1)
