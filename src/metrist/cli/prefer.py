"""`metrist prefer`: of two outputs, which is better?"""

from __future__ import annotations

from enum import StrEnum
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
    Rpm,
    Seed,
    SkipBad,
    System,
    TableFormat,
    Tpm,
    parse_item_key,
    parse_pairs,
)
from metrist.errors import SpecError

if TYPE_CHECKING:
    from metrist.run.prefer import PairChoice


class Pairs(StrEnum):
    """Which outputs are set against each other."""

    given = "given"
    all = "all"


def prefer(
    inputs: Inputs,
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
        Path | None,
        typer.Option("-o", "--out", help="A .jsonl file of preferences, or a folder that a second run completes."),
    ] = None,
    pairs: Annotated[
        Pairs | None,
        typer.Option(
            "--pairs",
            help="given: rows of two outputs; all: each two systems of an item.",
            show_default="given, if any",
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="SYSTEM", help="Set each system against this one only.")
    ] = None,
    limit_per_item: Annotated[
        int | None,
        typer.Option("--limit-per-item", metavar="N", min=1, help="Compare at most so many pairs of an item."),
    ] = None,
    item_fields: ItemKey = "",
    fields: Fields = None,
    system: System = None,
    skip_bad: SkipBad = False,
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
    """Choose between two outputs of an item; print win rates, flips, and agreement with people's preferences."""
    if not comparators:
        raise SpecError("no comparator was asked for: name at least one, such as -m 'judge_pair(llm=…)' or -m rougeL")
    from metrist.cli.estimate import estimate_table
    from metrist.cli.output import print_table, print_tables
    from metrist.cli.progress import progress_bar
    from metrist.cli.score import report_skipped
    from metrist.io.reader import read_records
    from metrist.run.prefer import estimate_preferences
    from metrist.run.prefer import prefer as prefer_records

    reader = read_records(
        inputs if len(inputs) > 1 else inputs[0],
        item_key=parse_item_key(item_fields),
        fields=parse_pairs(fields or [], "--field"),
        skip_bad=skip_bad,
        system=system,
    )
    which: PairChoice | None = pairs.value if pairs else None
    if dry_run:
        asked = estimate_preferences(reader, comparators, pairs=which, baseline=baseline, limit_per_item=limit_per_item)
        print_table(estimate_table(asked), form)
        return
    with progress_bar("comparing") as progress:
        preferred = prefer_records(
            reader,
            comparators,
            pairs=which,
            baseline=baseline,
            limit_per_item=limit_per_item,
            out=out,
            progress=progress,
            device=device,
            batch_tokens=batch_tokens,
            cache=cache,
            max_cost=max_cost,
            concurrency=concurrency,
            rpm=rpm,
            tpm=tpm,
        )
    report_skipped(reader)
    print_tables([preferred.table(draws, seed), preferred.comparator_table(draws, seed)], form)
