"""Commands about metrics: `list` and `explain-metric` describe them, `prompts` chooses the wording of one, `reproduce`
recomputes published tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from metrist.cli.options import (
    ModelOptions,
    ReadingOptions,
    TableFormat,
    expand_options,
    parse_pairs,
)
from metrist.errors import RunError, SpecError, did_you_mean

#: Where standard output is no terminal.
_LIST_WIDTH = 100


#: How a metric is described.
CardFormat = Literal["text", "bibtex"]


def list_metrics(
    family: Annotated[
        str | None, typer.Argument(metavar="FAMILY", help="Only the metrics of this family, one by one.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List all metrics one by one.")] = False,
    form: TableFormat = "text",
) -> None:
    """List the metrics by family: what they need, their direction, and the extra to install."""
    from metrist.cli.output import print_table, print_text
    from metrist.metrics import registry
    from metrist.report.tables import Column, Table

    by_family: dict[str, list[str]] = {}
    for name in registry.names():
        by_family.setdefault(registry.family(name), []).append(name)
    if family is not None and family not in by_family:
        raise SpecError(f"no family {family!r}; there are {', '.join(by_family)}{did_you_mean(family, by_family)}")
    notes = ["`metrist explain-metric NAME` describes a metric and how to read it."]
    # Programs read JSON and CSV, and want single metrics.
    if family is not None or every or form in ("json", "csv"):
        names = registry.names() if family is None else by_family[family]
        columns = ("metric", "needs", "better", "range", "install")
        table = Table(columns=[*map(Column, columns)], rows=[_describe_metric(name) for name in names], notes=notes)
    else:
        rows = []
        for title, names in by_family.items():
            groups: dict[tuple[str, ...], list[str]] = {}
            for name in names:
                _, needs, better, _, install = _describe_metric(name)
                # All need the output: it is shown where nothing else is.
                groups.setdefault((needs.removeprefix("output "), better, install), []).append(name)
            rows += [[title, _join_names(group), *facts] for facts, group in groups.items()]
        notes.append("`metrist list FAMILY` and `metrist list --all` list the metrics one by one, with their ranges.")
        columns = ("family", "metrics", "needs", "better", "install")
        table = Table(columns=[*map(Column, columns)], rows=rows, notes=notes)
    if form == "text" and not sys.stdout.isatty():
        print_text(table.text(_LIST_WIDTH))
    else:
        print_table(table, form)


def _join_names(names: Sequence[str]) -> str:
    """The names between commas; more than three in a row that differ by a number only are shown as first … last."""
    runs: list[list[str]] = []
    for name in names:
        stem = name.rstrip("0123456789")
        if runs and stem != name and runs[-1][-1].rstrip("0123456789") == stem:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]} … {run[-1]}" if len(run) > 3 else ", ".join(run) for run in runs)


def _describe_metric(name: str) -> list[Any]:
    from metrist.metrics.registry import example

    try:
        metric = example(name)
    except SpecError as error:  # A metric of another package may be broken, or may require settings.
        return [name, "", "", "", str(error)]
    better = {True: "higher", False: "lower", None: "describes"}[metric.higher_is_better]
    low, high = metric.bounds
    install = f"metrist[{metric.extra}]" if metric.extra else "metrist"
    return [metric.name, " ".join(("output", *metric.needs)), better, f"{low:g} to {high:g}", install]


def explain_metric(
    spec: Annotated[str, typer.Argument(metavar="NAME", help="A metric, such as rougeL or 'chrf(word_order=2)'.")],
    form: Annotated[CardFormat, typer.Option("--format", help="The description, or the papers to cite.")] = "text",
) -> None:
    """Describe a metric: what it measures, its range, how to read it, when not to trust it, and whom to cite."""
    from metrist.cli.output import print_text
    from metrist.metrics.cards import describe, format_bibliography
    from metrist.metrics.registry import example

    metric = example(spec)
    print_text(format_bibliography([metric]) if form == "bibtex" else describe(metric).rstrip())


@expand_options
def prompts(
    inputs: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="Records with ratings, on which prompts are compared.")
    ],
    *,
    metric: Annotated[
        str,
        typer.Option("-m", "--metric", metavar="SPEC", help="A likelihood metric, such as bartscore."),
    ],
    aspects: Annotated[
        list[str] | None, typer.Option("-a", "--aspect", metavar="A", help="The rating to agree with; repeatable.")
    ] = None,
    prompt_set: Annotated[
        str | None,
        typer.Option(
            "--prompt-set",
            metavar="SET",
            help="source-output, reference-output, or a file with one phrase per line.",
            show_default="by the metric's direction",
        ),
    ] = None,
    phrases: Annotated[
        list[str] | None, typer.Option("--prompt", metavar="PHRASE", help="Try this phrase; repeatable.")
    ] = None,
    measure: Annotated[str, typer.Option("--measure", metavar="M", help="spearman, kendall_b, acc_eq, …")] = "spearman",
    group: Annotated[
        str, typer.Option("--group", metavar="BY", help="item, none, system, system-level, or a column.")
    ] = "item",
    gold: Annotated[
        str, typer.Option("--gold", metavar="HOW", help="mean, median, majority, z, or a rater's name.")
    ] = "mean",
    groups: Annotated[
        list[str] | None,
        typer.Option("--aspect-group", metavar="A=GROUP", help="Count an aspect in this group; repeatable."),
    ] = None,
    reading: ReadingOptions,
    models: ModelOptions,
    json_out: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write all figures here.")] = None,
    form: TableFormat = "text",
) -> None:
    """Try prompts of a likelihood metric on rated data: which agree best with people, and which aspects they help."""
    from metrist.cli.output import print_tables, print_text
    from metrist.cli.progress import progress_bar
    from metrist.evaluate.meta.prompts import search_prompts
    from metrist.io.writer import atomic_write

    if phrases and prompt_set:
        raise SpecError("give either --prompt-set or --prompt, not both")
    with progress_bar("trying prompts") as progress:
        study = search_prompts(
            inputs if len(inputs) > 1 else inputs[0],
            metric,
            aspects or (),
            prompts=phrases or prompt_set,
            measure=measure,
            group=group,
            gold=gold,
            groups=parse_pairs(groups or [], "--aspect-group"),
            progress=progress,
            score_options=vars(models),
            **reading.keywords(),
        )
    if json_out is not None:
        with atomic_write(json_out) as file:
            file.write(study.to_json() + "\n")
    if form == "json":
        print_text(study.to_json())
        return
    print_tables([study.table(), study.shares()], form)
    print_text(f"best prompt: {study.best}")


def reproduce(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="Folder of data sets.", show_default="$METRIST_TEST_DATA, or ../shared/data"
        ),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="NAME", help="Only this table; repeatable.", show_default="all"),
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option("--scores", metavar="DIR", help="Keep scores here; another time computes only what has changed."),
    ] = None,
    agreement: Annotated[
        Path | None,
        typer.Option(
            "--agreement", metavar="FILE", help="Write the figures of the shipped metrics here, for explain-metric."
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="COLUMN",
            help="Keep this column of shipped-metrics as published, for weights that have not changed; repeatable.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="DATA",
            help="Compute only this data set of shipped-metrics; other rows stay as published; repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Markdown file.", show_default="standard output")
    ] = None,
) -> None:
    """Recompute tables of papers from data with human judgments; print the paper's numbers next to ours."""
    from metrist.cli.output import print_note, print_text
    from metrist.io.writer import atomic_write
    from metrist.metrics.agreement import dump_agreements
    from metrist.studies.reproduce.page import format_page
    from metrist.studies.reproduce.page import reproduce as reproduce_tables

    sections = []
    for section in reproduce_tables(tables or (), data, scores, keep or (), only or ()):
        print_note(f"{section.name}: {section.summary}")
        sections.append(section)
    rows = [row for section in sections for row in section.agreements]
    if agreement is not None:
        if not rows:
            raise RunError("--agreement has nothing to write: compute the table shipped-metrics, from data at hand")
        with atomic_write(agreement) as file:
            file.write(dump_agreements(rows))
    text = format_page(sections)
    if out is None:
        print_text(text.rstrip("\n"))
    else:
        with atomic_write(out) as file:
            file.write(text)
