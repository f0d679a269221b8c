"""`metrist check`: is this run good enough, and no worse than the last one?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrist.cli.options import Format, RunPath, Seed, TableFormat, numbers


def check(
    run: RunPath,
    minimum: Annotated[
        list[str] | None, typer.Option("--min", metavar="METRIC=X", help="Floor of a metric; repeatable.")
    ] = None,
    maximum: Annotated[
        list[str] | None, typer.Option("--max", metavar="METRIC=X", help="Ceiling of a metric; repeatable.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="RUN", help="Fail when a system got significantly worse."),
    ] = None,
    systems: Annotated[
        list[str] | None, typer.Option("--systems", metavar="A B …", help="Only these systems.", show_default="all")
    ] = None,
    min_coverage: Annotated[
        float | None,
        typer.Option("--min-coverage", min=0, max=1, help="Least share of outputs with a score."),
    ] = None,
    alpha: Annotated[float, typer.Option("--alpha", min=0, max=1, help="Largest p that counts as a loss.")] = 0.05,
    draws: Annotated[int, typer.Option("--draws", min=100, help="Resamples behind each p-value.")] = 10_000,
    seed: Seed = 0,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML here.")] = None,
    form: TableFormat = Format.text,
) -> None:
    """Exit with 1 when a floor is missed or a system got significantly worse; made for CI."""
    from metrist.cli.output import show
    from metrist.evaluate.check import check as check_run
    from metrist.io.writer import whole

    report = check_run(
        run,
        minimum=numbers(minimum or [], "--min"),
        maximum=numbers(maximum or [], "--max"),
        against=against,
        alpha=alpha,
        systems=systems or None,
        min_coverage=min_coverage,
        draws=draws,
        seed=seed,
    )
    show(report.table(), form)
    if junit is not None:
        with whole(junit) as file:
            file.write(report.junit())
    if not report.passed:
        raise typer.Exit(1)
