"""`metrist run`: a scoring, with its comparison and check, from one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrist.cli.options import Format, TableFormat


def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file; docs/ci.md describes it.")],
    allow_import: Annotated[
        bool,
        typer.Option(
            "--allow-import",
            help="Let the file name code to run (import paths, programs) and environment variables that hold keys.",
        ),
    ] = False,
    form: TableFormat = Format.text,
) -> None:
    """Score, compare and check as a TOML file says; exit with 1 when a check fails."""
    from metrist.cli.output import remark, show_all
    from metrist.cli.progress import progress_bar
    from metrist.evaluate.config import run_config

    with progress_bar("scoring") as progress:
        outcome = run_config(config, allow_import=allow_import, progress=progress)
    if outcome.skipped:
        remark(f"skipped {outcome.skipped:,} bad rows")
    show_all(outcome.tables(), form)
    if not outcome.passed:
        raise typer.Exit(1)
