"""`metrist prefer`: choose the better of two outputs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from metrist.cli.options import (
    Draws,
    DryRun,
    Inputs,
    LLMOptions,
    ModelOptions,
    NoTexts,
    ReadingOptions,
    Seed,
    TableFormat,
    expand_options,
)
from metrist.errors import SpecError

#: Which outputs are compared.
PairSource = Literal["given", "all"]


@expand_options
def prefer(
    inputs: Inputs,
    *,
    comparators: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--metric",
            metavar="SPEC",
            help="A comparator, such as 'judge_pair(llm=…)', or a metric, whose better score wins; repeatable.",
        ),
    ] = None,
    out: Annotated[
        str | None,  # Not a Path, which would drop the slash at the end that asks for a folder.
        typer.Option(
            "-o", "--out", metavar="PATH", help="A .jsonl file of preferences, or a run folder (resumable); or its URL."
        ),
    ] = None,
    pairs: Annotated[
        PairSource | None,
        typer.Option(
            "--pairs",
            help="given: rows of two outputs; all: every two systems of an item.",
            show_default="given, if there are any",
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="SYSTEM", help="Compare each system with this one only.")
    ] = None,
    limit_per_item: Annotated[
        int | None,
        typer.Option("--limit-per-item", metavar="N", min=1, help="Compare at most N pairs of an item."),
    ] = None,
    reading: ReadingOptions,
    models: ModelOptions,
    llms: LLMOptions,
    no_texts: NoTexts = False,
    dry_run: DryRun = False,
    draws: Draws = 1000,
    seed: Seed = 0,
    form: TableFormat = "text",
) -> None:
    """Choose between two outputs of an item; print win rates, flips, and agreement with human preferences."""
    if not comparators:
        raise SpecError("no comparator was requested: name at least one, such as -m 'judge_pair(llm=…)' or -m rougeL")
    from metrist.cli.output import print_estimate, print_tables
    from metrist.cli.progress import progress_bar
    from metrist.cli.score import report_skipped
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
            reader, comparators, out=out, progress=progress, texts=not no_texts, **choice, **vars(models), **vars(llms)
        )
    report_skipped(reader)
    print_tables([preferences.table(draws, seed), preferences.comparator_table(draws, seed)], form)
