"""`metrist meta`: how far metrics agree with people."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from metrist.cli.options import PAPER_FORMAT, LayoutOptions, Names, PaperFormat, ReadingOptions
from metrist.cli.output import print_note, print_table, print_tables, print_text
from metrist.cli.progress import progress_bar
from metrist.errors import RunError
from metrist.evaluate.plans import JoinSettings, MetaPlan
from metrist.settings import as_arguments, setting


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
    if len(tables) == 1:
        print_table(tables[0], form, layout)
    else:
        print_tables(tables, form, layout)
