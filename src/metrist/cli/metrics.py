"""Commands about metrics: `list` and `explain-metric` describe them, `meta`, `prompts` and `reproduce` measure how far
they agree with people."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from metrist.cli.options import (
    Format,
    LayoutOptions,
    ModelOptions,
    PaperFormat,
    PaperTableFormat,
    ReadingOptions,
    Seed,
    TableFormat,
    expand_options,
    parse_pairs,
)
from metrist.errors import RunError, SpecError, did_you_mean

#: Where standard output is no terminal.
_LIST_WIDTH = 100


class CardFormat(StrEnum):
    """How a metric is described."""

    text = "text"
    bibtex = "bibtex"


def list_metrics(
    family: Annotated[
        str | None, typer.Argument(metavar="FAMILY", help="Only the metrics of this family, one by one.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List all metrics one by one.")] = False,
    form: TableFormat = Format.text,
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
    if family is not None or every or form in (Format.json, Format.csv):
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
    if form is Format.text and not sys.stdout.isatty():
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
    form: Annotated[
        CardFormat, typer.Option("--format", help="The description, or the papers to cite.")
    ] = CardFormat.text,
) -> None:
    """Describe a metric: what it measures, its range, how to read it, when not to trust it, and whom to cite."""
    from metrist.cli.output import print_text
    from metrist.metrics.cards import describe, format_bibliography
    from metrist.metrics.registry import example

    metric = example(spec)
    print_text(format_bibliography([metric]) if form is CardFormat.bibtex else describe(metric).rstrip())


class Average(StrEnum):
    """How slices, or groups, are averaged."""

    macro = "macro"
    micro = "micro"


class SystemScore(StrEnum):
    """What a system's score is where a metric pools statistics: as in `metrist score`, or the mean over its outputs."""

    corpus = "corpus"
    mean = "mean"


class Resample(StrEnum):
    """What is resampled: intervals and tests then generalize to other items, other systems, or both."""

    items = "items"
    systems = "systems"
    both = "both"


class MetricTest(StrEnum):
    """The significance test between two metrics."""

    auto = "auto"
    permutation = "permutation"
    bootstrap = "bootstrap"
    sign = "sign"
    williams = "williams"
    none = "none"


class Correction(StrEnum):
    """How p-values are adjusted for many pairs of metrics."""

    holm = "holm"
    benjamini_hochberg = "benjamini-hochberg"
    none = "none"


Names = list[str] | None


@expand_options
def meta(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE_OR_RUN…", help="Records with ratings and scores, run folders and result files, to be joined."
        ),
    ],
    *,
    aspects: Annotated[
        Names, typer.Option("-a", "--aspect", metavar="A", help="The rating to agree with; repeatable.")
    ] = None,
    preferences: Annotated[
        bool, typer.Option("--preferences", help="Agree with human choices between two outputs instead of ratings.")
    ] = False,
    measures: Annotated[
        Names,
        typer.Option(
            "--measure",
            metavar="M",
            help="acc_eq, pearson, spearman, kendall_b, …; repeatable.",
            show_default="acc_eq; for preferences accuracy, f1",
        ),
    ] = None,
    group: Annotated[
        str, typer.Option("--group", metavar="BY", help="item, none, system, system-level, or a column.")
    ] = "item",
    slices: Annotated[
        Names,
        typer.Option(
            "--slice",
            metavar="COLUMN",
            help="Also for each value of: task, language, output_length:4, reference_length@80, a+b; repeatable.",
        ),
    ] = None,
    gold: Annotated[
        str,
        typer.Option(
            "--gold",
            metavar="HOW",
            help="mean, median, majority, z, or a rater's name; from preferences win-rate or bradley-terry.",
        ),
    ] = "mean",
    metrics: Annotated[
        Names,
        typer.Option("-m", "--metric", metavar="NAME", help="Only these, or parts such as judge:fluency; repeatable."),
    ] = None,
    part: Annotated[
        Names,
        typer.Option(
            "--part",
            metavar="PART",
            help="Use a part of a run's scores, such as recall, instead of the whole; repeatable.",
        ),
    ] = None,
    lower_is_better: Annotated[
        Names, typer.Option("--lower-is-better", metavar="NAME", help="A metric or aspect where lower is better.")
    ] = None,
    where: Annotated[
        Names,
        typer.Option(
            "--where",
            metavar="CONDITION",
            help="Only outputs where language=en, task!=qa, year>2020, output_length<80, …; repeatable.",
        ),
    ] = None,
    systems: Annotated[Names, typer.Option("--systems", metavar="A B …", help="Only these systems.")] = None,
    exclude_systems: Annotated[
        Names, typer.Option("--exclude-system", metavar="S", help="Exclude a system; repeatable.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", metavar="K", help="Only the K systems that humans rate best.")
    ] = None,
    epsilon_over: Annotated[
        str,
        typer.Option(
            "--epsilon-over", metavar="WHAT", help="Choose thresholds over all, slice, crossfit, or a column."
        ),
    ] = "all",
    average: Annotated[Average, typer.Option("--average", help="How slices are averaged.")] = Average.macro,
    group_average: Annotated[
        Average, typer.Option("--group-average", help="How groups are averaged within a slice.")
    ] = Average.macro,
    system_score: Annotated[
        SystemScore,
        typer.Option(
            "--system-score",
            help="Between systems, compare scores as `metrist score` gives them (corpus BLEU, chrF and TER), or means.",
        ),
    ] = SystemScore.corpus,
    resample: Annotated[Resample, typer.Option("--resample", help="What is resampled.")] = Resample.items,
    test: Annotated[
        MetricTest, typer.Option("--test", help="How metrics are tested against each other.")
    ] = MetricTest.auto,
    one_sided: Annotated[
        bool, typer.Option("--one-sided", help="Test whether one metric is better (--test williams and sign).")
    ] = False,
    unweighted: Annotated[
        bool, typer.Option("--unweighted", help="Ignore the sampling weights of annotated outputs.")
    ] = False,
    correction: Annotated[
        Correction, typer.Option("--correction", help="Correction for many tests at once.")
    ] = Correction.holm,
    confidence: Annotated[float, typer.Option("--confidence", help="Confidence of the intervals.")] = 0.95,
    alpha: Annotated[float, typer.Option("--alpha", help="Largest p-value that counts as a difference.")] = 0.05,
    mark: Annotated[
        Names, typer.Option("--mark", metavar="FAMILY", help="Give metrics of this family the marks † and ‡.")
    ] = None,
    show: Annotated[
        Names,
        typer.Option(
            "--show",
            metavar="WHAT",
            help="Add: matrix, tests, power, top-k, metrics, bias, systems, ratings, levels, inflation, ties, curve, "
            "agreement, label-space, errors, reductions, confusion, strengths, cost, advice; repeatable.",
        ),
    ] = None,
    agreement: Annotated[bool, typer.Option("--agreement", help="Same as --show agreement.")] = False,
    reading: ReadingOptions,
    draws: Annotated[
        int,
        typer.Option("--draws", min=0, help="Resamples behind intervals, a tenth of those behind tests; 0: neither."),
    ] = 1000,
    seed: Seed = 0,
    json_out: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write all figures here.")] = None,
    form: PaperTableFormat = PaperFormat.text,
    appearance: LayoutOptions,
) -> None:
    """Measure how far each metric agrees with human ratings or preferences, per slice, with intervals and tests."""
    from metrist.cli.output import print_note, print_table, print_tables, print_text
    from metrist.cli.progress import progress_bar
    from metrist.evaluate.meta import meta_evaluate
    from metrist.evaluate.meta.analyses import analyse
    from metrist.evaluate.meta.evaluate import needs_no_metric
    from metrist.evaluate.meta.join import join
    from metrist.evaluate.selection import list_names

    layout = appearance.layout()
    if layout is not None and form is PaperFormat.json:
        raise RunError("--format json gives all figures as they are: omit the options that change how a table looks")
    analyses = list(dict.fromkeys([*(show or []), *(["agreement"] if agreement else [])]))
    judged = join(
        inputs if len(inputs) > 1 else inputs[0],
        parts=part or (),
        metrics=list_names(metrics) or (),
        **reading.keywords(),
    )
    if not preferences and judged.preferences and not judged.ratings and gold == "mean":
        print_note("the data hold preferences and no ratings: --preferences is assumed")
        preferences = True
    with progress_bar("evaluating", "slices") as progress:
        evaluation = meta_evaluate(
            judged,
            aspects or (),
            measures or (),
            group=group,
            slices=slices or (),
            gold=gold,
            preferences=preferences,
            epsilon_over=epsilon_over,
            average=average.value,
            group_average=group_average.value,
            system_score=system_score.value,
            resample=resample.value,
            draws=draws,
            seed=seed,
            confidence=confidence,
            alpha=alpha,
            correction=correction.value,
            test=test.value,
            one_sided=one_sided,
            where=where or (),
            metrics=() if not metrics and needs_no_metric(judged, analyses) else metrics,
            systems=systems,
            exclude_systems=exclude_systems or (),
            top_k=top_k,
            lower_is_better=lower_is_better or (),
            marked=mark or (),
            weighted=not unweighted,
            progress=progress,
        )
        by_analysis = [(name, table) for name in analyses for table in analyse(evaluation, name)]
        added = [table for _, table in by_analysis]
    if json_out is not None:
        evaluation.write(json_out, added)
    if form is PaperFormat.json:
        print_text(evaluation.to_json(added))
        return
    if form is PaperFormat.bibtex:
        print_text(evaluation.bibliography())
        return
    if form is PaperFormat.latex:
        from metrist.report.tables import Layout

        chosen = layout or Layout()
        layout = replace(chosen, rename={**evaluation.display_names(), **chosen.rename})
        papers = [evaluation.format_for_paper(table) for table in added]
        # Caption and label are those of the first table; those of the others begin like them.
        added = [
            replace(
                table,
                title=f"{layout.caption}: {table.title}" if layout.caption and evaluation.figures else table.title,
                label=f"{layout.label}-{name}{n if count > 1 else ''}" if layout.label else "",
            )
            for table, (name, n, count) in zip(papers, _number_names([name for name, _ in by_analysis]), strict=True)
        ]
    # Without metrics there are no figures, only analyses of the human judgments.
    first = evaluation.table()
    first = evaluation.format_for_paper(first) if form is PaperFormat.latex else first
    tables = [first, *added] if evaluation.figures else added
    if len(tables) == 1:
        print_table(tables[0], form, layout)
    else:
        print_tables(tables, form, layout)


def _number_names(names: Sequence[str]) -> list[tuple[str, int, int]]:
    """Each name with its number among those that are the same, and how many they are."""
    return [(name, names[: at + 1].count(name), names.count(name)) for at, name in enumerate(names)]


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
    form: TableFormat = Format.text,
) -> None:
    """Try prompts of a likelihood metric on rated data: which agree best with people, and which aspects they help."""
    from metrist.cli.output import print_tables, print_text
    from metrist.cli.progress import progress_bar
    from metrist.evaluate.prompts import search_prompts
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
    if form is Format.json:
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
