"""`metrist worst`, `explain`, `heat` and `aspects`: which outputs go wrong, and where."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from metrist.cli.options import (
    Delimiter,
    DryRun,
    Encoding,
    Fields,
    ItemKey,
    LLMOptions,
    MaxCost,
    Outputs,
    ReadingOptions,
    RunPath,
    Sheet,
    SkipBad,
    expand_options,
)
from metrist.errors import RunError, format_count

#: What `metrist worst` ranks outputs by.
Ranking = Literal["score", "difference", "disagreement", "people"]
#: Which differences between two systems `metrist worst` shows.
DifferenceOrder = Literal["losses", "gains", "both"]
#: How outputs with their texts are printed.
PageFormat = Literal["text", "markdown", "json", "html"]


@expand_options
def worst(
    run: RunPath,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="IN…", help="Files with the texts and ratings.", show_default="those the run read"),
    ] = None,
    *,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many to show.")] = 10,
    metrics: Annotated[
        list[str] | None,
        typer.Option("-m", "--metric", metavar="SPEC", help="Rank by this metric; two or more for disagreements."),
    ] = None,
    vs: Annotated[
        str | None,
        typer.Option("--vs", metavar="OTHER", help="Show where a system loses most against this system or run."),
    ] = None,
    order: Annotated[
        DifferenceOrder | None,
        typer.Option(
            "--order",
            help="With --vs: where the first is worse, where it is better, or both, the largest difference first.",
            show_default="losses",
        ),
    ] = None,
    by: Annotated[
        Ranking | None,
        typer.Option(
            "--by",
            help="The lowest scores, the largest differences between two systems, or the largest disagreements between "
            "metrics or with people's ratings.",
            show_default="score; with --vs difference",
        ),
    ] = None,
    systems: Annotated[
        list[str] | None, typer.Option("--systems", metavar="A B …", help="Only these systems.", show_default="all")
    ] = None,
    aspect: Annotated[
        str | None, typer.Option("-a", "--aspect", metavar="A", help="The rating for --by people.", show_default="all")
    ] = None,
    lower_is_better: Annotated[
        list[str] | None,
        typer.Option("--lower-is-better", metavar="NAME", help="A metric or aspect where lower is better."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show long texts whole.")] = False,
    reading: ReadingOptions,
    form: Annotated[PageFormat, typer.Option("--format", help="How to print.")] = "text",
) -> None:
    """Show the outputs to look at first: the lowest, the most different, the most disputed; with texts and reasons."""
    from metrist.cli.output import print_text
    from metrist.cli.progress import progress_bar
    from metrist.evaluate.explain.worst import worst as find_worst
    from metrist.report.worst import TerminalPage

    reading.check_system([run, *(inputs or ())])
    with progress_bar("reading", "rows") as progress:
        outputs = find_worst(
            run,
            count,
            metrics,
            vs=vs,
            by=by,
            order=order,
            systems=systems or None,
            aspect=aspect,
            lower_is_better=lower_is_better or (),
            texts=inputs or None,
            progress=progress,
            **reading.keywords(),
        )
    if form == "text":
        _print_page(TerminalPage(outputs, full))
    else:
        print_text(outputs.render(form, full=full))


@expand_options
def explain(
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="Records, a run folder, or a .jsonl file that `metrist score` wrote.")
    ],
    *,
    llm: Annotated[
        str | None, typer.Option("--llm", metavar="LLM", help="Who finds the errors: \"openai(model='gpt-4o-mini')\".")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--metric",
            metavar="SPEC",
            help="How: errors, consistency, tigerscore, error_analysis(task='translation'), judge. For a run, which of "
            "its metrics.",
            show_default="errors, the shipped models; with --llm error_analysis",
        ),
    ] = None,
    item: Annotated[str | None, typer.Option("--item", help="Only outputs for this item.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="Only outputs of this system.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of outputs to judge or show.")] = 20,
    texts: Annotated[
        Path | None, typer.Option("--texts", metavar="FILE", help="The records of a run that stores no texts.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Also write the errors, with offsets, as .jsonl.")
    ] = None,
    item_key: ItemKey = "",
    fields: Fields = None,
    output_columns: Outputs = None,
    skip_bad: SkipBad = False,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    llms: LLMOptions,
    dry_run: DryRun = False,
) -> None:
    """Show outputs with errors underlined and reasons: those already there, or found now, offline or by an LLM."""
    from metrist.cli.output import format_count, print_estimate, print_note
    from metrist.cli.progress import progress_bar
    from metrist.evaluate.explain.explain import estimate_explanations
    from metrist.evaluate.explain.explain import explain as explain_outputs
    from metrist.io.compression import uncompressed_name
    from metrist.io.writer import atomic_write, check_distinct, check_writable

    if out is not None:
        if not uncompressed_name(out).endswith(".jsonl"):
            raise RunError(f"cannot write {out}: the name must end in .jsonl")
        check_writable(out)
        check_distinct(out, filter(None, (source, texts)), "the outputs are")
    options: dict[str, Any] = {
        "llm": llm,
        "item": item,
        "limit": limit,
        **ReadingOptions(
            item_key=item_key,
            fields=fields,
            output_columns=output_columns,
            skip_bad=skip_bad,
            delimiter=delimiter,
            encoding=encoding,
            sheet=sheet,
        ).keywords(),
        "system": system,
    }
    if dry_run:
        with llms.activate():
            print_estimate(estimate_explanations(source, metric, **options), "text")
        return
    with progress_bar("explaining", "outputs") as progress:
        explanations = explain_outputs(source, metric, texts=texts, progress=progress, **vars(llms), **options)
    _print_page(explanations)
    if out is not None:
        with atomic_write(out) as file:
            file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in explanations.rows())
        print_note(f"wrote {format_count(len(explanations.outputs), 'output')} to {out}")
    if explanations.outputs and all(output.failure for output in explanations.outputs):
        failure = explanations.outputs[0].failure
        raise RunError(f"none of {format_count(len(explanations.outputs), 'output')} could be judged: {failure}")


def _print_page(page: Any) -> None:
    """Print a page that rich can draw on a terminal and that has a plain `text()` for everything else."""
    from metrist.cli.output import print_text

    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(page)
    else:
        print_text(page.text())


def aspects(
    task: Annotated[str, typer.Option("--task", metavar="TEXT", help="What the outputs are made for, in a sentence.")],
    llm: Annotated[str, typer.Option("--llm", metavar="LLM", help="Who drafts: \"openai(model='gpt-4o')\".")],
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="The .toml file to write.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    max_cost: MaxCost = None,
    dry_run: DryRun = False,
) -> None:
    """Draft a table of aspects for a new task, to be edited by a person and used by error_analysis(aspects=…)."""
    from metrist.cli.output import print_estimate, print_note, print_text
    from metrist.cli.progress import progress_bar
    from metrist.evaluate.explain.aspects import draft_aspects, estimate_aspects, find_shipped_table
    from metrist.io.writer import atomic_write, check_writable
    from metrist.runtime import Runtime

    if out is not None:
        if out.suffix != ".toml":
            raise RunError(f"cannot write {out}: the name must end in .toml")
        if out.exists() and not overwrite:
            raise RunError(f"cannot write {out}: it exists, perhaps edited by a person; --overwrite replaces it")
        check_writable(out)
    if dry_run:
        print_estimate(estimate_aspects(task, llm), "text")
        return
    if known := find_shipped_table(task):
        print_note(f"metrist ships a table for {known!r}: error_analysis(task='{known}')")
    with progress_bar("drafting"), Runtime.current().override(max_cost=max_cost).activate():
        draft = draft_aspects(task, llm)
    if out is None:
        print_text(draft.toml().rstrip("\n"))
        return
    with atomic_write(out) as file:
        file.write(draft.toml())
    print_note(f"wrote {format_count(len(draft.table.aspects), 'aspect')} to {out}: read and edit them before use")


def heat(
    run: RunPath,
    metric: Annotated[
        str | None, typer.Option("-m", "--metric", metavar="SPEC", help="Only this metric.", show_default="all")
    ] = None,
    item: Annotated[str | None, typer.Option("--item", help="Only outputs for this item.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="Only outputs of this system.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum outputs per metric, the worst first.")] = 20,
    pieces: Annotated[
        bool, typer.Option("--pieces", help="Show the pieces of words that the model reads instead of words.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="PAGE", help="Write one HTML page instead of printing.")
    ] = None,
) -> None:
    """Colour each word by how unlikely the model found it; needs a run of `metrist score --tokens`."""
    from metrist.cli.output import format_count, print_note
    from metrist.io.writer import atomic_write
    from metrist.run import load

    page = load(run).heat(metric, item=item, system=system, limit=limit, pieces=pieces)
    if out is None:
        _print_page(page)
        return
    with atomic_write(out) as file:
        file.write(page.page())
    metrics = len({output.metric for output in page.outputs})
    of_metrics = f" of {metrics} metrics" if metrics > 1 else ""
    print_note(f"wrote {format_count(len(page.outputs), 'output')}{of_metrics} to {out}")
