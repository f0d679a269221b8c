"""`metrist explain`: what is wrong with this output, and where."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from metrist.cli.options import Concurrency, DryRun, Fields, Format, ItemKey, MaxCost, Rpm, Tpm


def explain(
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="Records, a run folder, or a .jsonl file that `metrist score` wrote.")
    ],
    llm: Annotated[
        str | None, typer.Option("--llm", metavar="LLM", help="Who finds the errors: \"openai(model='gpt-4o-mini')\".")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--metric",
            metavar="SPEC",
            help="How: tigerscore, error_analysis(task='translation'). For a run, which of its metrics.",
        ),
    ] = None,
    item: Annotated[str | None, typer.Option("--item", help="Only outputs for this item.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="Only outputs of this system.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most outputs that are judged or shown.")] = 20,
    texts: Annotated[
        Path | None, typer.Option("--texts", metavar="FILE", help="The records of a run, which holds no texts itself.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Also write the errors, with offsets, as .jsonl.")
    ] = None,
    item_key: ItemKey = "",
    fields: Fields = None,
    max_cost: MaxCost = None,
    concurrency: Concurrency = None,
    rpm: Rpm = None,
    tpm: Tpm = None,
    dry_run: DryRun = False,
) -> None:
    """Show outputs with their errors underlined and the reasons below; without --llm those that are already known."""
    from metrist.cli.estimate import estimate_table
    from metrist.cli.options import item_key as keys
    from metrist.cli.options import named_values
    from metrist.cli.output import remark, say, show
    from metrist.errors import RunError
    from metrist.files.writing import whole
    from metrist.run.surroundings import surroundings
    from metrist.studies.explain import estimate_explanations
    from metrist.studies.explain import explain as study

    if out is not None and ".jsonl" not in out.suffixes:
        raise RunError(f"cannot write {out}: wanted a name that ends in .jsonl")
    reading = {"item_key": keys(item_key), "fields": named_values(fields or [], "--field")}
    if dry_run:
        asked = estimate_explanations(source, metric, llm=llm, item=item, system=system, limit=limit, **reading)
        show(estimate_table(asked), Format.text)
        return
    with surroundings(max_cost=max_cost, concurrency=concurrency, rpm=rpm, tpm=tpm):
        found = study(source, metric, llm=llm, item=item, system=system, limit=limit, texts=texts, **reading)
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(found)
    else:
        say(found.text())
    if out is not None:
        with whole(out) as file:
            file.writelines(f"{json.dumps(row)}\n" for row in found.rows())
        remark(f"wrote {len(found.outputs):,} outputs to {out}")
