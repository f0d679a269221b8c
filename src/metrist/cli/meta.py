"""`metrist meta`: how far metrics agree with people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from metrist.cli.options import (
    LayoutOptions,
    PaperTableFormat,
    ReadingOptions,
    Seed,
    expand_options,
)
from metrist.errors import RunError

#: How slices, or groups, are averaged.
Average = Literal["macro", "micro"]
#: What a system's score is where a metric pools statistics: as in `metrist score`, or the mean over its outputs.
SystemScore = Literal["corpus", "mean"]
#: What is resampled: intervals and tests then generalize to other items, other systems, or both.
Resample = Literal["items", "systems", "both"]
#: The significance test between two metrics.
MetricTest = Literal["auto", "permutation", "bootstrap", "sign", "williams", "none"]
#: How p-values are adjusted for many pairs of metrics.
Correction = Literal["holm", "benjamini-hochberg", "none"]


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
    average: Annotated[Average, typer.Option("--average", help="How slices are averaged.")] = "macro",
    group_average: Annotated[
        Average, typer.Option("--group-average", help="How groups are averaged within a slice.")
    ] = "macro",
    system_score: Annotated[
        SystemScore,
        typer.Option(
            "--system-score",
            help="Between systems, compare scores as `metrist score` gives them (corpus BLEU, chrF and TER), or means.",
        ),
    ] = "corpus",
    resample: Annotated[Resample, typer.Option("--resample", help="What is resampled.")] = "items",
    test: Annotated[MetricTest, typer.Option("--test", help="How metrics are tested against each other.")] = "auto",
    one_sided: Annotated[
        bool, typer.Option("--one-sided", help="Test whether one metric is better (--test williams and sign).")
    ] = False,
    unweighted: Annotated[
        bool, typer.Option("--unweighted", help="Ignore the sampling weights of annotated outputs.")
    ] = False,
    correction: Annotated[Correction, typer.Option("--correction", help="Correction for many tests at once.")] = "holm",
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
    form: PaperTableFormat = "text",
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
    if layout is not None and form == "json":
        raise RunError("--format json gives all figures as they are: omit the options that change how a table looks")
    reading.check_system(inputs)
    analyses = list(dict.fromkeys([*(show or []), *(["agreement"] if agreement else [])]))
    with progress_bar("reading", "rows") as progress:
        judged = join(
            inputs if len(inputs) > 1 else inputs[0],
            parts=part or (),
            metrics=list_names(metrics) or (),
            progress=progress,
            **reading.keywords(),
        )
    if not preferences and judged.preferences and not judged.ratings and gold == "mean":
        print_note("the data hold preferences and no ratings: --preferences is assumed")
        preferences = True
    with progress_bar("evaluating", "steps") as progress:
        evaluation = meta_evaluate(
            judged,
            aspects or (),
            measures or (),
            group=group,
            slices=slices or (),
            gold=gold,
            preferences=preferences,
            epsilon_over=epsilon_over,
            average=average,
            group_average=group_average,
            system_score=system_score,
            resample=resample,
            draws=draws,
            seed=seed,
            confidence=confidence,
            alpha=alpha,
            correction=correction,
            test=test,
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
    if form == "json":
        print_text(evaluation.to_json(added))
        return
    if form == "bibtex":
        print_text(evaluation.bibliography())
        return
    if form == "latex":
        from metrist.report.tables import TableLayout

        chosen = layout or TableLayout()
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
    first = evaluation.format_for_paper(first) if form == "latex" else first
    tables = [first, *added] if evaluation.figures else added
    if len(tables) == 1:
        print_table(tables[0], form, layout)
    else:
        print_tables(tables, form, layout)


def _number_names(names: Sequence[str]) -> list[tuple[str, int, int]]:
    """Each name with its number among those that are the same, and how many they are."""
    return [(name, names[: at + 1].count(name), names.count(name)) for at, name in enumerate(names)]
