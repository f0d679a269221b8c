"""`metrist stress`: test whether metrics see faults that were put into good texts."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from metrist.cli.options import (
    LLMOptions,
    ModelOptions,
    ReadingOptions,
    TableFormat,
    expand_options,
)


@expand_options
def stress(
    metrics: Annotated[
        list[str], typer.Argument(metavar="METRIC...", help="The metrics to test, such as bleu or chrf.")
    ],
    *,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "-i",
            "--input",
            metavar="FILE",
            help="Good outputs to put the faults into; repeatable.",
            show_default="20 short reports with summaries",
        ),
    ] = None,
    items: Annotated[int, typer.Option("--items", metavar="N", min=5, help="Items to test on, at most.")] = 100,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="KIND", help="A fault or harmless change; repeatable.", show_default="all"),
    ] = None,
    least: Annotated[
        float,
        typer.Option("--least", metavar="SHARE", help="Share of the items whose score must get worse to pass."),
    ] = 0.7,
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            metavar="TEST",
            help="Exit with 1 if this test fails: a name in the table, a group (fault, harmless, series, severity) or "
            "all; repeatable.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the faults.")] = 0,
    reading: ReadingOptions,
    models: ModelOptions,
    llms: LLMOptions,
    form: TableFormat = "text",
) -> None:
    """Test metrics on good texts with faults and with harmless changes: which are noticed, which are not?"""
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
            **vars(models),
            **vars(llms),
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
