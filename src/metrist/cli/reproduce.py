"""`metrist reproduce`: published tables, computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    from metrist.cli.output import remark, say
    from metrist.io.writer import whole
    from metrist.studies.reproduce.page import as_markdown
    from metrist.studies.reproduce.page import reproduce as sections_of

    sections = []
    for section in sections_of(tables or (), data):
        remark(f"{section.name}: {section.summary}")
        sections.append(section)
    text = as_markdown(sections)
    if out is None:
        say(text.rstrip("\n"))
    else:
        with whole(out) as file:
            file.write(text)
