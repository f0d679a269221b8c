"""`metrist meta` and `prompts`: how far metrics agree with people, and which prompts of a metric do so best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from metrist.cli.options import (
    PAPER_FORMAT,
    TABLE_FORMAT,
    Format,
    LayoutOptions,
    Names,
    PaperFormat,
    ReadingOptions,
)
from metrist.cli.output import (
    print_note,
    print_tables,
    print_text,
    progress_bar,
    write_file,
)
from metrist.errors import RunError, SpecError
from metrist.evaluate.plans import JoinSettings, MetaPlan
from metrist.settings import ModelSettings, as_arguments, reuse_setting, setting


def meta(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE_OR_RUN…", help="Records with ratings and scores, run folders and result files, to be joined."
        ),
    ],
    *,
    plan: MetaPlan,
    joining: JoinSettings,
    show: Names = setting(
        (),
        "Add: matrix, tests, power, top-k, metrics, bias, systems, ratings, levels, inflation, ties, curve, "
        "agreement, disputes, label-space, errors, reductions, confusion, strengths, cost, advice; repeatable.",
        metavar="WHAT",
    ),
    agreement: bool = setting(False, "Same as --show agreement."),
    reading: ReadingOptions,
    json_out: Path | None = setting(None, "Write all figures here.", "--json", metavar="OUT"),
    form: PaperFormat = PAPER_FORMAT,
    appearance: LayoutOptions,
) -> None:
    from metrist.evaluate.meta import meta_evaluate
    from metrist.evaluate.meta.analyses import analyse
    from metrist.evaluate.meta.evaluate import needs_no_metric
    from metrist.evaluate.meta.join import join
    from metrist.evaluate.selection import list_names

    layout = appearance.layout()
    if layout is not None and form == "json":
        raise RunError("--format json gives all figures as they are: omit the options that change how a table looks")
    reading.check_system(inputs)
    analyses = list(dict.fromkeys([*show, *(["agreement"] if agreement else [])]))
    with progress_bar("reading", "rows") as progress:
        judged = join(
            inputs if len(inputs) > 1 else inputs[0],
            parts=joining.part,
            metrics=list_names(plan.metrics) or (),
            lengths=plan.length_units,
            progress=progress,
            **reading.keywords(),
        )
    settings = {**as_arguments(joining), **as_arguments(plan), "part": ()}
    if not plan.preferences and judged.preferences and not judged.ratings and plan.gold == "mean":
        print_note("the data hold preferences and no ratings: --preferences is assumed")
        settings["preferences"] = True
    if plan.metrics is None and needs_no_metric(judged, analyses):
        settings["metrics"] = ()
    with progress_bar("evaluating", "steps") as progress:
        evaluation = meta_evaluate(judged, progress=progress, **settings)
        by_analysis = {name: analyse(evaluation, name) for name in analyses}
        added = [table for tables in by_analysis.values() for table in tables]
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
        # Caption and label are those of the first table; those of the others begin like them.
        begin = f"{layout.caption}: " if layout.caption and evaluation.figures else ""
        added = []
        for name, own in by_analysis.items():
            for number, table in enumerate(map(evaluation.format_for_paper, own), 1):
                label = f"{layout.label}-{name}{number if len(own) > 1 else ''}" if layout.label else ""
                added.append(replace(table, title=f"{begin}{table.title}", label=label))
    # Without metrics there are no figures, only analyses of the human judgments.
    first = evaluation.table()
    first = evaluation.format_for_paper(first) if form == "latex" else first
    tables = [first, *added] if evaluation.figures else added
    print_tables(tables, form, layout, as_list=False)


def prompts(
    inputs: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="Records that people judged, on which prompts are compared.")
    ],
    *,
    metric: str = setting(..., "A likelihood metric, such as bartscore.", "-m", metavar="SPEC"),
    aspects: Names = reuse_setting(MetaPlan, "aspects"),
    prompt_set: str | None = setting(
        None,
        "source-output, reference-output, or a file with one phrase per line.",
        metavar="SET",
        shown="by the metric's direction",
    ),
    phrases: list[str] | None = setting(None, "Try this phrase; repeatable.", "--prompt", metavar="PHRASE"),
    measure: str | None = setting(
        None, "spearman, kendall_b, acc_eq, …", metavar="M", shown="spearman; for preferences darr_wmt17"
    ),
    group: str = reuse_setting(MetaPlan, "group"),
    gold: str = setting("mean", "mean, median, majority, z, or a rater's name.", metavar="HOW"),
    preferences: bool = setting(False, "Agree with choices between two outputs even where there are ratings."),
    groups: Mapping[str, str] = setting(
        {}, "Count an aspect in this group; repeatable.", "--aspect-group", metavar="A=GROUP"
    ),
    reading: ReadingOptions,
    models: ModelSettings,
    json_out: Path | None = setting(None, "Write all figures here.", "--json", metavar="OUT"),
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.evaluate.meta.prompts import search_prompts

    if phrases and prompt_set:
        raise SpecError("give either --prompt-set or --prompt, not both", code="conflict")
    with progress_bar("trying prompts") as progress:
        study = search_prompts(
            inputs if len(inputs) > 1 else inputs[0],
            metric,
            aspects,
            prompts=phrases or prompt_set,
            measure=measure,
            group=group,
            gold=gold,
            preferences=preferences or None,
            groups=groups,
            progress=progress,
            score_options=as_arguments(models),
            **reading.keywords(),
        )
    if json_out is not None:
        write_file(json_out, study.to_json() + "\n")
    if form == "json":
        print_text(study.to_json())
        return
    print_tables([study.table(), study.shares()], form)
    print_text(f"best prompt: {study.best}")
