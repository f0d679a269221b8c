"""`metrist worst`, `explain`, `heat` and `aspects`: which outputs go wrong, and where."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from metrist.cli.options import DRY_RUN, MAX_COST, FileOptions, LLMOptions, Names, ReadingOptions, RunPath
from metrist.cli.output import print_estimate, print_note, print_text, progress_bar, translate_notes, write_file
from metrist.errors import RunError, format_count
from metrist.evaluate.plans import ComparisonSettings, JoinSettings
from metrist.settings import as_arguments, reuse_setting, setting

#: What `metrist worst` ranks outputs by.
Ranking = Literal["score", "difference", "disagreement", "people"]
#: Which differences between two systems `metrist worst` shows.
DifferenceOrder = Literal["losses", "gains", "both"]
#: How outputs with their texts are printed.
PageFormat = Literal["text", "markdown", "json", "html"]


def worst(
    run: RunPath,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="IN…", help="Files with the texts and ratings.", show_default="those the run read"),
    ] = None,
    *,
    count: int = setting(10, "How many to show.", "-n", min=1),
    metrics: list[str] | None = setting(
        None, "Rank by this metric; two or more for disagreements.", "-m", "--metric", metavar="SPEC"
    ),
    vs: str | None = setting(None, "Show where a system loses most against this system or run.", metavar="OTHER"),
    order: DifferenceOrder | None = setting(
        None,
        "With --vs: where the first is worse, where it is better, or both, the largest difference first.",
        shown="losses",
    ),
    by: Ranking | None = setting(
        None,
        "The lowest scores, the largest differences between two systems, or the largest disagreements between "
        "metrics or with people's ratings.",
        shown="score; with --vs difference",
    ),
    systems: Names | None = reuse_setting(ComparisonSettings, "systems"),
    aspect: str | None = setting(None, "The rating for --by people.", "-a", metavar="A", shown="all"),
    lower_is_better: Names = reuse_setting(JoinSettings, "lower_is_better"),
    full: bool = setting(False, "Show long texts whole."),
    reading: ReadingOptions,
    form: PageFormat = setting("text", "How to print.", "--format"),
) -> None:
    from metrist.evaluate.explain.worst import worst as find_worst

    reading.check_system([run, *(inputs or ())])
    with progress_bar("reading", "rows") as progress:
        outputs = find_worst(
            run,
            count,
            metrics,
            vs=vs,
            by=by,
            order=order,
            systems=systems,
            aspect=aspect,
            lower_is_better=lower_is_better,
            texts=inputs or None,
            progress=progress,
            **reading.keywords(),
        )
    outputs = replace(outputs, full=full, how_full="--full", notes=translate_notes(outputs.notes))
    if form == "text":
        _print_page(outputs)
    else:
        print_text(outputs.render(form))


def explain(
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="Records, a run folder, or a .jsonl file that `metrist score` wrote.")
    ],
    *,
    llm: str | None = setting(None, "Who finds the errors: \"openai(model='gpt-4o-mini')\".", metavar="LLM"),
    metric: str | None = setting(
        None,
        "How: errors, consistency, tigerscore, error_analysis(task='translation'), judge. For a run, which of "
        "its metrics.",
        "-m",
        metavar="SPEC",
        shown="errors, the shipped models; with --llm error_analysis",
    ),
    item: str | None = setting(None, "Only outputs for this item."),
    system: str | None = setting(None, "Only outputs of this system."),
    limit: int = setting(20, "Maximum number of outputs to judge or show.", min=1),
    texts: Path | None = setting(None, "The records of a run that stores no texts.", metavar="FILE"),
    out: Path | None = setting(None, "Also write the errors, with offsets, as .jsonl.", "-o", metavar="FILE"),
    reading: FileOptions,
    llms: LLMOptions,
    dry_run: bool = DRY_RUN,
) -> None:
    from metrist.evaluate.explain.explain import estimate_explanations
    from metrist.evaluate.explain.explain import explain as explain_outputs
    from metrist.io.compression import uncompressed_name
    from metrist.io.writer import atomic_write, check_distinct, check_writable

    if out is not None:
        if not uncompressed_name(out).endswith(".jsonl"):
            raise RunError(f"cannot write {out}: the name must end in .jsonl", code="cannot_write")
        check_writable(out)
        check_distinct(out, filter(None, (source, texts)), "the outputs are")
    options: dict[str, Any] = {"llm": llm, "item": item, "limit": limit, "system": system, **reading.keywords()}
    if dry_run:
        with llms.activate():
            print_estimate(estimate_explanations(source, metric, **options), "text")
        return
    with progress_bar("explaining", "outputs") as progress:
        explanations = explain_outputs(source, metric, texts=texts, progress=progress, **as_arguments(llms), **options)
    _print_page(replace(explanations, notes=translate_notes(explanations.notes)))
    if out is not None:
        with atomic_write(out) as file:
            file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in explanations.rows())
        print_note(f"wrote {format_count(len(explanations.outputs), 'output')} to {out}")
    failures = [output.failure for output in explanations.outputs]
    if failures and all(failures):
        count = format_count(len(failures), "output")
        raise RunError(f"none of {count} could be judged: {failures[0]}", code="llm_failed")


def _print_page(page: Any) -> None:
    """Print a page that rich can draw on a terminal and that has a plain `text()` for everything else."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(page)
    else:
        print_text(page.text())


def aspects(
    task: str = setting(..., "What the outputs are made for, in a sentence.", metavar="TEXT"),
    llm: str = setting(..., "Who drafts: \"openai(model='gpt-4o')\".", metavar="LLM"),
    out: Path | None = setting(None, "The .toml file to write.", "-o", metavar="FILE"),
    overwrite: bool = setting(False, "Replace the file if it exists."),
    max_cost: float | None = MAX_COST,
    dry_run: bool = DRY_RUN,
) -> None:
    from metrist.evaluate.explain.aspects import draft_aspects, estimate_aspects, find_shipped_table
    from metrist.io.writer import check_writable
    from metrist.runtime import Runtime

    if out is not None:
        if out.suffix != ".toml":
            raise RunError(f"cannot write {out}: the name must end in .toml", code="cannot_write")
        if out.exists() and not overwrite:
            raise RunError(
                f"cannot write {out}: it exists, perhaps edited by a person; --overwrite replaces it",
                code="cannot_write",
            )
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
    write_file(out, draft.toml())
    print_note(f"wrote {format_count(len(draft.table.aspects), 'aspect')} to {out}: read and edit them before use")


def heat(
    run: RunPath,
    metric: str | None = setting(None, "Only this metric.", "-m", metavar="SPEC", shown="all"),
    item: str | None = setting(None, "Only outputs for this item."),
    system: str | None = setting(None, "Only outputs of this system."),
    limit: int = setting(20, "Maximum outputs per metric, the worst first.", min=1),
    pieces: bool = setting(False, "Show the pieces of words that the model reads instead of words."),
    out: Path | None = setting(None, "Write one HTML page instead of printing.", "-o", metavar="PAGE"),
) -> None:
    from metrist.io.rows import check_own
    from metrist.report.html import PAGE_MARK
    from metrist.run import load

    if out is not None:
        check_own(out, "page", mark=PAGE_MARK)
    page = load(run).heat(metric, item=item, system=system, limit=limit, pieces=pieces)
    if out is None:
        _print_page(page)
        return
    write_file(out, page.page())
    metrics = len({card.by for card in page.outputs})
    of_metrics = f" of {metrics} metrics" if metrics > 1 else ""
    print_note(f"wrote {format_count(len(page.outputs), 'output')}{of_metrics} to {out}")
