"""`metrist meta`: how far metrics agree with people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from metrist.cli.options import PAPER_FORMAT, SEED, LayoutOptions, PaperFormat, ReadingOptions
from metrist.errors import RunError
from metrist.settings import setting

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


def meta(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE_OR_RUN…", help="Records with ratings and scores, run folders and result files, to be joined."
        ),
    ],
    *,
    aspects: Names = setting(None, "The rating to agree with; repeatable.", "-a", "--aspect", metavar="A"),
    preferences: bool = setting(False, "Agree with human choices between two outputs instead of ratings."),
    measures: Names = setting(
        None,
        "acc_eq, pearson, spearman, kendall_b, …; repeatable.",
        "--measure",
        metavar="M",
        shown="acc_eq; for preferences accuracy, f1",
    ),
    group: str = setting("item", "item, none, system, system-level, or a column.", metavar="BY"),
    slices: Names = setting(
        None,
        "Also for each value of: task, language, output_length:4, reference_length@80, a+b; repeatable.",
        "--slice",
        metavar="COLUMN",
    ),
    gold: str = setting(
        "mean",
        "mean, median, majority, z, or a rater's name; from preferences win-rate or bradley-terry.",
        metavar="HOW",
    ),
    metrics: Names = setting(
        None, "Only these, or parts such as judge:fluency; repeatable.", "-m", "--metric", metavar="NAME"
    ),
    part: Names = setting(
        None, "Use a part of a run's scores, such as recall, instead of the whole; repeatable.", metavar="PART"
    ),
    lower_is_better: Names = setting(None, "A metric or aspect where lower is better.", metavar="NAME"),
    where: Names = setting(
        None,
        "Only outputs where language=en, task!=qa, year>2020, output_length<80, …; repeatable.",
        metavar="CONDITION",
    ),
    systems: Names = setting(None, "Only these systems.", metavar="A B …"),
    exclude_systems: Names = setting(None, "Exclude a system; repeatable.", "--exclude-system", metavar="S"),
    top_k: int | None = setting(None, "Only the K systems that humans rate best.", metavar="K"),
    epsilon_over: str = setting("all", "Choose thresholds over all, slice, crossfit, or a column.", metavar="WHAT"),
    average: Average = setting("macro", "How slices are averaged."),
    group_average: Average = setting("macro", "How groups are averaged within a slice."),
    system_score: SystemScore = setting(
        "corpus", "Between systems, compare scores as `metrist score` gives them (corpus BLEU, chrF and TER), or means."
    ),
    resample: Resample = setting("items", "What is resampled."),
    test: MetricTest = setting("auto", "How metrics are tested against each other."),
    one_sided: bool = setting(False, "Test whether one metric is better (--test williams and sign)."),
    unweighted: bool = setting(False, "Ignore the sampling weights of annotated outputs."),
    correction: Correction = setting("holm", "Correction for many tests at once."),
    confidence: float = setting(0.95, "Confidence of the intervals."),
    alpha: float = setting(0.05, "Largest p-value that counts as a difference."),
    mark: Names = setting(None, "Give metrics of this family the marks † and ‡.", metavar="FAMILY"),
    show: Names = setting(
        None,
        "Add: matrix, tests, power, top-k, metrics, bias, systems, ratings, levels, inflation, ties, curve, "
        "agreement, label-space, errors, reductions, confusion, strengths, cost, advice; repeatable.",
        metavar="WHAT",
    ),
    agreement: bool = setting(False, "Same as --show agreement."),
    reading: ReadingOptions,
    draws: int = setting(1000, "Resamples behind intervals, a tenth of those behind tests; 0: neither.", min=0),
    seed: int = SEED,
    json_out: Path | None = setting(None, "Write all figures here.", "--json", metavar="OUT"),
    form: PaperFormat = PAPER_FORMAT,
    appearance: LayoutOptions,
) -> None:
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
    first = evaluation.format_for_paper(first) if form == "latex" else first
    tables = [first, *added] if evaluation.figures else added
    if len(tables) == 1:
        print_table(tables[0], form, layout)
    else:
        print_tables(tables, form, layout)


def _number_names(names: Sequence[str]) -> list[tuple[str, int, int]]:
    """Each name with its number among those that are the same, and how many they are."""
    return [(name, names[: at + 1].count(name), names.count(name)) for at, name in enumerate(names)]
