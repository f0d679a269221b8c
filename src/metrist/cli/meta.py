"""`metrist meta`: which metric can be trusted on this data?"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from metrist.cli.options import Fields, Format, ItemKey, Seed, SkipBad, System, TableFormat, item_key, named_values


class Average(StrEnum):
    """How slices, or groups, are averaged."""

    macro = "macro"
    micro = "micro"


class Resample(StrEnum):
    """What intervals and tests shall hold for: other items, other systems, or both."""

    items = "items"
    systems = "systems"
    both = "both"


class Test(StrEnum):
    """Which test tells one metric from another."""

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


def meta(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE_OR_RUN…", help="Records with ratings and scores, run folders, result files; joined."
        ),
    ],
    aspects: Annotated[
        Names, typer.Option("-a", "--aspect", metavar="A", help="The rating to agree with; repeatable.")
    ] = None,
    preferences: Annotated[
        bool, typer.Option("--preferences", help="Agree with choices between two outputs instead of ratings.")
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
            help="Figures for each value too: task, language, output_length:4, reference_length@80, a+b; repeatable.",
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
    metrics: Annotated[Names, typer.Option("-m", "--metric", metavar="NAME", help="Only these; repeatable.")] = None,
    part: Annotated[
        Names, typer.Option("--part", metavar="PART", help="A part of a run's scores, such as recall; repeatable.")
    ] = None,
    lower_is_better: Annotated[
        Names, typer.Option("--lower-is-better", metavar="NAME", help="A metric or aspect where lower is better.")
    ] = None,
    systems: Annotated[Names, typer.Option("--systems", metavar="A B …", help="Only these systems.")] = None,
    exclude_systems: Annotated[
        Names, typer.Option("--exclude-system", metavar="S", help="Leave a system out; repeatable.")
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
    resample: Annotated[Resample, typer.Option("--resample", help="What is resampled.")] = Resample.items,
    test: Annotated[Test, typer.Option("--test", help="How metrics are tested against each other.")] = Test.auto,
    correction: Annotated[Correction, typer.Option("--correction", help="For many tests at once.")] = Correction.holm,
    confidence: Annotated[float, typer.Option("--confidence", help="Of intervals.")] = 0.95,
    alpha: Annotated[float, typer.Option("--alpha", help="Largest p-value that counts as a difference.")] = 0.05,
    mark: Annotated[
        Names, typer.Option("--mark", metavar="FAMILY", help="Give metrics of this family the marks † and ‡.")
    ] = None,
    show: Annotated[
        Names,
        typer.Option(
            "--show",
            metavar="WHAT",
            help="Add: matrix, tests, power, top-k, metrics, bias, systems, levels, inflation, ties, curve, agreement, "
            "label-space, errors, reductions, confusion, strengths, cost, advice; repeatable.",
        ),
    ] = None,
    agreement: Annotated[bool, typer.Option("--agreement", help="The same as --show agreement.")] = False,
    item_fields: ItemKey = "",
    fields: Fields = None,
    system: System = None,
    skip_bad: SkipBad = False,
    draws: Annotated[int, typer.Option("--draws", min=0, help="Resamples behind intervals; 0: none.")] = 1000,
    seed: Seed = 0,
    json_out: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write all figures here.")] = None,
    form: TableFormat = Format.text,
) -> None:
    """Tell how far each metric agrees with human ratings or preferences, on which slice, and how surely."""
    from metrist.cli.output import say
    from metrist.cli.output import show as show_table
    from metrist.evaluate.meta import meta_evaluate
    from metrist.evaluate.meta.analyses import analyse
    from metrist.evaluate.meta.evaluate import needs_no_metric
    from metrist.evaluate.meta.join import join

    wanted = list(dict.fromkeys([*(show or []), *(["agreement"] if agreement else [])]))
    judged = join(
        inputs if len(inputs) > 1 else inputs[0],
        item_key=item_key(item_fields),
        fields=named_values(fields or [], "--field"),
        skip_bad=skip_bad,
        system=system,
        parts=part or (),
    )
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
        resample=resample.value,
        draws=draws,
        seed=seed,
        confidence=confidence,
        alpha=alpha,
        correction=correction.value,
        test=test.value,
        metrics=() if not metrics and needs_no_metric(judged, wanted) else metrics,
        systems=systems,
        exclude_systems=exclude_systems or (),
        top_k=top_k,
        lower_is_better=lower_is_better or (),
        marked=mark or (),
    )
    added = [table for name in wanted for table in analyse(evaluation, name)]
    if json_out is not None:
        evaluation.write(json_out, added)
    if form is Format.json:
        say(evaluation.to_json(added))
        return
    # Without a metric there are no figures to show, only what was asked for of the people.
    for number, table in enumerate([evaluation.table(), *added] if evaluation.figures else added):
        if number:
            say("")
        show_table(table, form)
