"""`metrist heat`: which tokens a model did not expect."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from metrist.cli.options import RunPath


def heat(
    run: RunPath,
    metric: Annotated[
        str | None, typer.Option("-m", "--metric", metavar="SPEC", help="Only this metric.", show_default="all")
    ] = None,
    item: Annotated[str | None, typer.Option("--item", help="Only outputs for this item.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="Only outputs of this system.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most outputs of a metric, the worst first.")] = 20,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="PAGE", help="Write one HTML page instead of printing.")
    ] = None,
) -> None:
    """Colour each token by how little the model expected it; wants a run of `metrist score --tokens`."""
    from metrist.cli.output import remark, say
    from metrist.io.writer import whole
    from metrist.run import load

    found = load(run).heat(metric, item=item, system=system, limit=limit)
    if out is not None:
        with whole(out) as file:
            file.write(found.page())
        metrics = len({output.metric for output in found.outputs})
        of = f" of {metrics} metrics" if metrics > 1 else ""
        remark(f"wrote {len(found.outputs):,} outputs{of} to {out}")
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(found)
    else:
        say(found.text())
