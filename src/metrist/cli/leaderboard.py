"""`metrist leaderboard`: many systems in one order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrist.cli.options import TABLE_FORMAT, Format, ReadingOptions
from metrist.cli.output import print_table, print_tables, print_text
from metrist.cli.progress import progress_bar
from metrist.evaluate.plans import LeaderboardSettings
from metrist.settings import as_arguments, setting


def leaderboard(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE_OR_RUN…",
            help="Files with preferences, choices that `metrist prefer` wrote, run folders and result files.",
        ),
    ],
    *,
    settings: LeaderboardSettings,
    out: Path | None = setting(None, "Write a page of HTML here.", "-o", metavar="FILE"),
    title: str = setting("Leaderboard", "The title of the page.", metavar="TEXT"),
    json_out: Path | None = setting(None, "Write everything here.", "--json", metavar="OUT"),
    reading: ReadingOptions,
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.evaluate.leaderboard import build_page
    from metrist.evaluate.leaderboard import leaderboard as rank_systems
    from metrist.io.rows import check_own
    from metrist.io.writer import atomic_write, check_distinct, check_writable
    from metrist.report.html import PAGE_MARK

    reading.check_system(sources)
    for path in (out, json_out):
        if path is not None:
            check_writable(path)
            check_distinct(path, sources, "the votes are")
    if settings.into is not None and out is None:
        out = settings.into / "index.html"
    if out is not None:
        check_own(out, "page", mark=PAGE_MARK)
    with progress_bar("ranking", "draws") as progress:
        data = sources if len(sources) > 1 else sources[0]
        board = rank_systems(data, **as_arguments(settings), **reading.keywords(), progress=progress)
    if json_out is not None:
        with atomic_write(json_out) as file:
            file.write(board.to_json() + "\n")
    if out is not None:
        with atomic_write(out) as file:
            file.write(build_page(board, title).html())
    tables = board.tables()
    if form == "json":
        print_text(board.to_json())
    elif len(tables) == 1:
        print_table(tables[0], form)
    else:
        print_tables(tables, form)
