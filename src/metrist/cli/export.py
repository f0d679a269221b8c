"""`metrist export`: a run folder as one flat file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Where to: .jsonl, .csv or .parquet, also compressed.")],
) -> None:
    """Write a run folder as one flat file: a line per item, system and metric."""
    from metrist.cli.output import remark
    from metrist.run import export as export_run

    for note in export_run(run, out).notes:
        remark(note)
