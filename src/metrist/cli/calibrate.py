"""`metrist calibrate`: what does this number mean, among outputs that are known?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from metrist.cli.options import Format, TableFormat
from metrist.errors import RunError


def calibrate(
    source: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run folder, a .jsonl file that `metrist score` wrote, or records."),
    ],
    metric: Annotated[
        str | None, typer.Option("-m", "--metric", metavar="SPEC", help="The metric; needed where there are several.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="The calibration to write; with --apply, a .jsonl file of percentiles."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="COLUMN", help="Fit one distribution per system, task, language or other column."),
    ] = None,
    apply: Annotated[
        Path | None,
        typer.Option("--apply", metavar="FILE", help="Do not fit: say where the scores stand in this calibration."),
    ] = None,
    form: TableFormat = Format.text,
) -> None:
    """Fit a metric's values on known outputs, or say as percentiles where other outputs stand among them."""
    from metrist.cli.output import show
    from metrist.evaluate import calibrate as study

    if apply is not None:
        if metric is not None or by is not None:
            raise RunError("--apply takes metric and groups from the calibration: leave out -m and --by")
        placed = study.place(source, apply)
        if out is not None:
            _write(out, "".join(json.dumps(row) + "\n" for row in placed.rows()), ".jsonl")
        show(placed.table(), form)
        return
    found = study.calibrate(source, metric, by)
    if out is None:
        raise RunError("say where the calibration goes, such as -o calibration.json")
    _write(out, found.calibration.to_json(), ".json")
    show(found.table(), form)


def _write(path: Path, text: str, suffix: str) -> None:
    from metrist.io.writer import whole

    if suffix not in path.suffixes:
        raise RunError(f"cannot write {path}: wanted a name that ends in {suffix}")
    with whole(path) as file:
        file.write(text)
