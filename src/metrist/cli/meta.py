"""`metrist meta`: which metric can be trusted on this data?"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from metrist.cli.options import (
    BatchTokens,
    Cache,
    Device,
    Fields,
    Format,
    ItemKey,
    Seed,
    SkipBad,
    System,
    TableFormat,
    parse_item_key,
    parse_pairs,
)


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
    from metrist.cli.output import print_table, print_text
    from metrist.evaluate.meta import meta_evaluate
    from metrist.evaluate.meta.analyses import analyse
    from metrist.evaluate.meta.evaluate import needs_no_metric
    from metrist.evaluate.meta.join import join

    wanted = list(dict.fromkeys([*(show or []), *(["agreement"] if agreement else [])]))
    judged = join(
        inputs if len(inputs) > 1 else inputs[0],
        item_key=parse_item_key(item_fields),
        fields=parse_pairs(fields or [], "--field"),
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
        print_text(evaluation.to_json(added))
        return
    # Without a metric there are no figures to show, only what was asked for of the people.
    for number, table in enumerate([evaluation.table(), *added] if evaluation.figures else added):
        if number:
            print_text("")
        print_table(table, form)


# `metrist prompts`: which prompts help a likelihood metric on data that people have judged.


def prompts(
    inputs: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="Records with ratings: the data on which prompts are chosen.")
    ],
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
            help="source-output, reference-output, or a file with one phrase a line.",
            show_default="as suits the direction",
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
    item_fields: ItemKey = "",
    fields: Fields = None,
    system: System = None,
    skip_bad: SkipBad = False,
    device: Device = None,
    batch_tokens: BatchTokens = None,
    cache: Cache = None,
    json_out: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write all figures here.")] = None,
    form: TableFormat = Format.text,
) -> None:
    """Try each prompt on judged data: which agree best with people, and on which aspects prompts help at all."""
    from metrist.cli.output import print_tables, print_text
    from metrist.cli.progress import progress_bar
    from metrist.errors import SpecError
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
            score_options={"device": device, "batch_tokens": batch_tokens, "cache": cache},
            item_key=parse_item_key(item_fields),
            fields=parse_pairs(fields or [], "--field"),
            system=system,
            skip_bad=skip_bad,
        )
    if json_out is not None:
        with atomic_write(json_out) as file:
            file.write(study.to_json() + "\n")
    if form is Format.json:
        print_text(study.to_json())
        return
    print_tables([study.table(), study.shares()], form)
    print_text(f"best prompt: {study.best}")


# `metrist reproduce`: published tables, computed again.


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
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Markdown file.", show_default="standard output")
    ] = None,
) -> None:
    """Compute tables of papers again, the paper's number beside ours, from data with human judgments."""
    from metrist.cli.output import print_note, print_text
    from metrist.io.writer import atomic_write
    from metrist.studies.reproduce.page import as_markdown
    from metrist.studies.reproduce.page import reproduce as sections_of

    sections = []
    for section in sections_of(tables or (), data):
        print_note(f"{section.name}: {section.summary}")
        sections.append(section)
    text = as_markdown(sections)
    if out is None:
        print_text(text.rstrip("\n"))
    else:
        with atomic_write(out) as file:
            file.write(text)
