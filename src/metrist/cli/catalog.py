"""`metrist list`: which metrics there are."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from metrist.cli.options import Format, TableFormat
from metrist.errors import SpecError


def list_metrics(form: TableFormat = Format.text) -> None:
    """Show the metrics: what each needs, its direction and range, and the extra to install."""
    from metrist.cli.output import print_table
    from metrist.metrics.registry import names
    from metrist.report.tables import Column, Table

    table = Table(
        columns=[Column("metric"), Column("needs"), Column("better"), Column("range"), Column("install")],
        rows=[_row(name) for name in names()],
        notes=["`metrist explain-metric NAME` says what a metric measures and how to read it."],
    )
    print_table(table, form)


def _row(name: str) -> list[Any]:
    from metrist.metrics.registry import example

    try:
        metric = example(name)
    except SpecError as fault:  # Another package's metric may be broken, or may want settings.
        return [name, "", "", "", str(fault)]
    better = {True: "higher", False: "lower", None: "describes"}[metric.higher_is_better]
    low, high = metric.bounds
    install = f"metrist[{metric.extra}]" if metric.extra else "metrist"
    return [metric.name, " ".join(("output", *metric.needs)), better, f"{low:g} to {high:g}", install]


# `metrist explain-metric`: what a metric measures and how to read its numbers.


def explain_metric(
    spec: Annotated[str, typer.Argument(metavar="NAME", help="A metric, such as rougeL or 'chrf(word_order=2)'.")],
) -> None:
    """Say what a metric measures, its range, how to read it, when not to trust it, and whom to cite."""
    from metrist.cli.output import print_text
    from metrist.metrics.cards import describe
    from metrist.metrics.registry import example

    print_text(describe(example(spec)).rstrip())
