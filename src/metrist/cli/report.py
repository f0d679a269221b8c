"""`metrist report` and `metrist plot`: what a run shows as one page, as Markdown for a pull request, and as figures."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from metrist.cli.options import ReadingOptions, Seed, expand_options
from metrist.errors import MissingExtra, RunError

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


Names = list[str] | None
Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN_OR_FILE…",
        help="Run folders and files that `metrist score` wrote; files with texts and ratings, or to score with -m.",
    ),
]
Systems = Annotated[Names, typer.Option("--systems", metavar="A B …", help="Only these systems.", show_default="all")]
Metrics = Annotated[
    Names,
    typer.Option(
        "-m", "--metric", metavar="SPEC", help="Only these metrics; for files, those to score with; repeatable."
    ),
]
Baseline = Annotated[str | None, typer.Option("--baseline", help="Compare each system with this one only.")]
Aspects = Annotated[
    Names,
    typer.Option("-a", "--aspect", metavar="A", help="The ratings to agree with; repeatable.", show_default="all"),
]
Slices = Annotated[
    Names,
    typer.Option(
        "--slice",
        metavar="COLUMN",
        help="Agreement also for each value of this column; repeatable.",
        show_default="task and language",
    ),
]
Draws = Annotated[int, typer.Option("--draws", min=100, help="Resamples behind each p-value.")]
Alpha = Annotated[float, typer.Option("--alpha", min=0, max=1, help="Largest p-value that counts as a difference.")]


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """What a report or a figure is about, and how it is tested."""

    systems: Systems = None
    metrics: Metrics = None
    baseline: Baseline = None
    aspects: Aspects = None
    slices: Slices = None
    draws: Draws = 10_000
    alpha: Alpha = 0.05
    seed: Seed = 0

    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of `build_report` and `plot`."""
        return {
            **vars(self),
            "systems": self.systems or None,
            "metrics": self.metrics or None,
            "aspects": tuple(self.aspects or ()),
            "slices": tuple(self.slices or ()),
        }


@expand_options
def report(
    sources: Sources,
    *,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="The page to write.", show_default="print, for --format pr"),
    ] = None,
    form: Annotated[
        ReportFormat, typer.Option("--format", help="One page of HTML, or Markdown for a pull request.")
    ] = "html",
    title: Annotated[str, typer.Option("--title", metavar="TEXT", help="The title of the page.")] = "",
    judge_cards: Annotated[
        list[Path] | None,
        typer.Option("--judge-card", metavar="FILE", help="A card that `metrist audit -o` wrote as JSON; repeatable."),
    ] = None,
    selection: SelectionOptions,
    reading: ReadingOptions,
) -> None:
    """Write one page with verdict, tables, figures, worst outputs and errors; it needs no network and no server."""
    from metrist.cli.output import print_note, print_text
    from metrist.cli.progress import progress_bar
    from metrist.evaluate.report import build_report
    from metrist.io.writer import atomic_write, check_distinct, check_writable

    reading.check_system(sources)
    if out is None and form == "html":
        raise RunError("no file to write the page to: add -o report.html")
    if out is not None:
        check_writable(out)
        check_distinct(out, sources, "the report is")
    with progress_bar("reporting", "draws") as progress:
        page = build_report(
            *sources,
            title=title,
            command=f"metrist {shlex.join(sys.argv[1:])}",
            judge_cards=judge_cards or (),
            reading=reading.keywords(),
            progress=progress,
            **selection.keywords(),
        )
        text = page.html() if form == "html" else page.markdown()
    if out is None:
        print_text(text.rstrip("\n"))
        return
    with atomic_write(out) as file:
        file.write(text)
    print_note(f"wrote {out}, {len(text.encode('utf-8', 'replace')) / 1e6:.1f} MB")


@expand_options
def plot(
    sources: Sources,
    *,
    kind: Annotated[FigureKind, typer.Option("--kind", help="What to draw.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The .svg, .pdf or .png file to write.")],
    width: Annotated[
        FigureWidth, typer.Option("--width", help="A paper's column, the width of its text, or that of a page.")
    ] = "column",
    selection: SelectionOptions,
    reading: ReadingOptions,
) -> None:
    """Draw one figure of the report for a paper, as SVG, PDF or PNG."""
    from metrist.cli.output import print_note
    from metrist.cli.progress import progress_bar
    from metrist.evaluate.report import plot as draw
    from metrist.io.writer import check_writable

    reading.check_system(sources)
    if out.suffix.lower() not in (".svg", ".pdf", ".png"):
        raise RunError(f"cannot write {out}: the name must end in .svg, .pdf or .png")
    check_writable(out)
    if out.suffix.lower() != ".svg" and find_spec("vl_convert") is None:  # Better now than after all the tests.
        raise MissingExtra("a figure as PDF or PNG", "plots")
    with progress_bar("drawing"):
        drawing = draw(
            *sources,
            kind=kind,
            width=width,
            metric=selection.metrics[0] if selection.metrics else None,
            aspect=selection.aspects[0] if selection.aspects else None,
            reading=reading.keywords(),
            **selection.keywords(),
        )
        drawing.write(out)
    print_note(f"wrote {out}, {drawing.style.width:g} × {drawing.height:.0f} points")
