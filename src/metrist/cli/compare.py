"""`metrist compare`: is one system better than another, or is it luck?"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from metrist.cli.options import Format, Seed, TableFormat


class Test(StrEnum):
    """Which test decides."""

    both = "both"
    bootstrap = "bootstrap"
    randomisation = "randomisation"


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Run folders, or .jsonl files that `metrist score` wrote.")
    ],
    systems: Annotated[
        list[str] | None, typer.Option("--systems", metavar="A B …", help="Only these systems.", show_default="all")
    ] = None,
    metrics: Annotated[
        list[str] | None, typer.Option("-m", "--metric", metavar="SPEC", help="Only these metrics; repeatable.")
    ] = None,
    baseline: Annotated[str | None, typer.Option("--baseline", help="Compare each system with this one only.")] = None,
    test: Annotated[Test, typer.Option("--test", help="Which test decides.")] = Test.both,
    alpha: Annotated[float, typer.Option("--alpha", min=0, max=1, help="Largest p that counts.")] = 0.05,
    draws: Annotated[int, typer.Option("--draws", min=100, help="Resamples behind each p-value.")] = 10_000,
    seed: Seed = 0,
    form: TableFormat = Format.text,
) -> None:
    """Test whether one system beats another: paired bootstrap and approximate randomisation, Holm-corrected."""
    from metrist.cli.output import show
    from metrist.evaluate.compare import compare as compare_runs

    comparison = compare_runs(
        runs,
        systems=systems or None,
        metrics=metrics or None,
        test=test.value,
        draws=draws,
        seed=seed,
        baseline=baseline,
        alpha=alpha,
    )
    show(comparison.table(), form)
