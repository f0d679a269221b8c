"""`metrist report` and `metrist plot`: a run as one page, as Markdown for a pull request, and as figures."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from metrist.cli.options import Names, ReadingOptions
from metrist.cli.output import print_note, print_text, progress_bar, write_file
from metrist.errors import MissingExtra, RunError
from metrist.evaluate.plans import ComparisonSettings, MetaPlan
from metrist.settings import as_arguments, reuse_setting, setting

#: The form of a report.
ReportFormat = Literal["html", "pr"]
#: The figures of a report.
FigureKind = Literal[
    "scores",
    "differences",
    "distributions",
    "wins",
    "errors",
    "agreement",
    "slices",
    "scatter",
    "curves",
    "levels",
    "majority",
]
#: The width of a figure.
FigureWidth = Literal["column", "text", "page"]


Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN_OR_FILE…",
        help="Run folders and files that `metrist score` wrote; files with texts and ratings, or to score with -m.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """What a report or a figure is about, and how it is tested: keyword arguments of `build_report` and `plot`."""

    systems: Names | None = reuse_setting(ComparisonSettings, "systems")
    metrics: Names | None = setting(
        None, "Only these metrics; for files, those to score with; repeatable.", "-m", "--metric", metavar="SPEC"
    )
    baseline: str | None = reuse_setting(ComparisonSettings, "baseline")
    aspects: Names = setting((), "The ratings to agree with; repeatable.", "-a", "--aspect", metavar="A", shown="all")
    slices: Names = setting(
        (),
        "Agreement also for each value of this column; repeatable.",
        "--slice",
        metavar="COLUMN",
        shown="task and language",
    )
    group: str = reuse_setting(MetaPlan, "group")
    gold: str = reuse_setting(MetaPlan, "gold")
    epsilon_over: str = reuse_setting(MetaPlan, "epsilon_over")
    epsilon: Mapping[str, Any] = reuse_setting(MetaPlan, "epsilon")
    task_class: str | None = setting(
        None, "Levels: set tasks apart by this column.", "--class", metavar="COLUMN", shown="short and long answers"
    )
    draws: int = reuse_setting(ComparisonSettings, "draws")
    alpha: float = reuse_setting(ComparisonSettings, "alpha")
    seed: int = reuse_setting(ComparisonSettings, "seed")


def report(
    sources: Sources,
    *,
    out: Path | None = setting(None, "The page to write.", "-o", metavar="FILE", shown="print, for --format pr"),
    form: ReportFormat = setting("html", "One page of HTML, or Markdown for a pull request.", "--format"),
    title: str = setting("", "The title of the page.", metavar="TEXT"),
    judge_cards: list[Path] | None = setting(
        None, "A card that `metrist audit -o` wrote as JSON; repeatable.", "--judge-card", metavar="FILE"
    ),
    selection: SelectionOptions,
    reading: ReadingOptions,
) -> None:
    from metrist.evaluate.report import build_report
    from metrist.io.rows import check_own
    from metrist.io.writer import check_distinct, check_writable
    from metrist.report.html import PAGE_MARK

    reading.check_system(sources)
    if out is None and form == "html":
        raise RunError("no file to write the page to: add -o report.html", code="missing_value")
    if out is not None:
        check_writable(out)
        check_distinct(out, sources, "the report is")
        check_own(out, "report", mark=PAGE_MARK)
    with progress_bar("reporting", "draws") as progress:
        page = build_report(
            *sources,
            title=title,
            command=f"metrist {shlex.join(sys.argv[1:])}",
            judge_cards=judge_cards or (),
            reading=reading.keywords(),
            progress=progress,
            begin=progress.begin,
            **as_arguments(selection),
        )
        text = page.html() if form == "html" else page.markdown()
    if out is None:
        print_text(text.rstrip("\n"))
        return
    write_file(out, text)
    print_note(f"wrote {out}, {len(text.encode('utf-8', 'replace')) / 1e6:.1f} MB")


def plot(
    sources: Sources,
    *,
    kind: FigureKind = setting(..., "What to draw."),
    out: Path = setting(..., "The .svg, .pdf or .png file to write.", "-o", metavar="FILE"),
    width: FigureWidth = setting("column", "A paper's column, the width of its text, or that of a page."),
    selection: SelectionOptions,
    reading: ReadingOptions,
) -> None:
    from metrist.evaluate.report import plot as draw
    from metrist.io.writer import check_writable

    reading.check_system(sources)
    if out.suffix.lower() not in (".svg", ".pdf", ".png"):
        raise RunError(f"cannot write {out}: the name must end in .svg, .pdf or .png", code="cannot_write")
    check_writable(out)
    if out.suffix.lower() != ".svg" and find_spec("vl_convert") is None:  # Refuse it before the tests run.
        raise MissingExtra("a figure as PDF or PNG", "plots")
    with progress_bar("drawing"):
        drawing = draw(
            *sources,
            kind=kind,
            width=width,
            metric=selection.metrics[0] if selection.metrics else None,
            aspect=selection.aspects[0] if selection.aspects else None,
            reading=reading.keywords(),
            **as_arguments(selection),
        )
        drawing.write(out)
    print_note(f"wrote {out}, {drawing.style.width:g} × {drawing.height:.0f} points")
