"""`metrist explain`: what is wrong with this output, and where."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrist.cli.options import Concurrency, DryRun, Fields, Format, ItemKey, MaxCost, Rpm, SkipBad, Tpm

if TYPE_CHECKING:
    from metrist.report.errors import Explanations
from metrist.cli.options import RunPath


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
    skip_bad: SkipBad = False,
    max_cost: MaxCost = None,
    concurrency: Concurrency = None,
    rpm: Rpm = None,
    tpm: Tpm = None,
    dry_run: DryRun = False,
) -> None:
    """Show outputs with their errors underlined and the reasons below; without --llm those that are already known."""
    from metrist.cli.estimate import estimate_table
    from metrist.cli.options import parse_item_key, parse_pairs
    from metrist.cli.output import format_count, print_note, print_table
    from metrist.cli.progress import progress_bar
    from metrist.errors import RunError
    from metrist.evaluate.explain import estimate_explanations
    from metrist.evaluate.explain import explain as study
    from metrist.io.compression import uncompressed_name
    from metrist.io.writer import atomic_write, check_distinct, check_writable

    if out is not None:
        if not uncompressed_name(out).endswith(".jsonl"):
            raise RunError(f"cannot write {out}: wanted a name that ends in .jsonl")
        check_writable(out)
        check_distinct(out, filter(None, (source, texts)), "what is explained is")
    reading: dict[str, Any] = {"item_key": parse_item_key(item_key), "fields": parse_pairs(fields or [], "--field")}
    reading["skip_bad"] = skip_bad
    if dry_run:
        asked = estimate_explanations(source, metric, llm=llm, item=item, system=system, limit=limit, **reading)
        print_table(estimate_table(asked), Format.text)
        return
    limits: dict[str, Any] = {"max_cost": max_cost, "concurrency": concurrency, "rpm": rpm, "tpm": tpm}
    with progress_bar("explaining"):
        found = study(source, metric, llm=llm, item=item, system=system, limit=limit, texts=texts, **limits, **reading)
    _show(found)
    if out is not None:
        with atomic_write(out) as file:
            file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in found.rows())
        print_note(f"wrote {format_count(len(found.outputs), 'output')} to {out}")
    if found.outputs and all(output.failure for output in found.outputs):
        why = found.outputs[0].failure
        raise RunError(f"none of {format_count(len(found.outputs), 'output')} could be judged, such as: {why}")


def _show(found: Explanations) -> None:
    from metrist.cli.output import print_text

    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(found)
    else:
        print_text(found.text())


# `metrist aspects`: what can be wrong with an output of this task?


def aspects(
    task: Annotated[str, typer.Option("--task", metavar="TEXT", help="What the outputs are made for, in a sentence.")],
    llm: Annotated[str, typer.Option("--llm", metavar="LLM", help="Who drafts: \"openai(model='gpt-4o')\".")],
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="The .toml file to write.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file where there is one.")] = False,
    max_cost: MaxCost = None,
    dry_run: DryRun = False,
) -> None:
    """Draft a table of aspects for a new task, to be edited by a person and used by error_analysis(aspects=…)."""
    from metrist.cli.estimate import estimate_table
    from metrist.cli.output import print_note, print_table, print_text
    from metrist.cli.progress import progress_bar
    from metrist.errors import RunError
    from metrist.evaluate.aspects import draft_aspects, estimate_aspects, shipped
    from metrist.io.writer import atomic_write, check_writable
    from metrist.runtime import Runtime

    if out is not None and out.suffix != ".toml":
        raise RunError(f"cannot write {out}: wanted a name that ends in .toml")
    if out is not None and out.exists() and not overwrite:
        raise RunError(f"cannot write {out}: it is there already, perhaps edited by a person; --overwrite replaces it")
    if out is not None:
        check_writable(out)
    if dry_run:
        print_table(estimate_table(estimate_aspects(task, llm)), Format.text)
        return
    if known := shipped(task):
        print_note(f"there is a table for {known!r} already: error_analysis(task='{known}')")
    with progress_bar("drafting"), Runtime.current().override(max_cost=max_cost).activate():
        draft = draft_aspects(task, llm)
    if out is None:
        print_text(draft.toml().rstrip("\n"))
        return
    with atomic_write(out) as file:
        file.write(draft.toml())
    print_note(f"wrote {len(draft.table.aspects)} aspects to {out}: read and change them before they are used")


# `metrist heat`: which tokens a model did not expect.


def heat(
    run: RunPath,
    metric: Annotated[
        str | None, typer.Option("-m", "--metric", metavar="SPEC", help="Only this metric.", show_default="all")
    ] = None,
    item: Annotated[str | None, typer.Option("--item", help="Only outputs for this item.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="Only outputs of this system.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most outputs of a metric, the worst first.")] = 20,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="PAGE", help="Write one HTML page instead of printing.")
    ] = None,
) -> None:
    """Colour each token by how little the model expected it; wants a run of `metrist score --tokens`."""
    from metrist.cli.output import print_note, print_text
    from metrist.io.writer import atomic_write
    from metrist.run import load

    found = load(run).heat(metric, item=item, system=system, limit=limit)
    if out is not None:
        with atomic_write(out) as file:
            file.write(found.page())
        metrics = len({output.metric for output in found.outputs})
        of = f" of {metrics} metrics" if metrics > 1 else ""
        print_note(f"wrote {len(found.outputs):,} outputs{of} to {out}")
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(found)
    else:
        print_text(found.text())
