"""`metrist list`: which metrics there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metrist.cli.options import Format, TableFormat

if TYPE_CHECKING:
    from metrist.metrics.base import Metric


def list_metrics(form: TableFormat = Format.text) -> None:
    """Show the metrics: what each needs, its direction and range, and the extra to install."""
    from metrist.cli.output import show
    from metrist.metrics.catalog import build, names
    from metrist.report.tables import Column, Table

    table = Table(
        columns=[Column("metric"), Column("needs"), Column("better"), Column("range"), Column("install")],
        rows=[_row(build(name)) for name in names()],
        notes=["`metrist explain-metric NAME` says what a metric measures and how to read it."],
    )
    show(table, form)


def _row(metric: Metric) -> list[Any]:
    better = {True: "higher", False: "lower", None: "describes"}[metric.higher_is_better]
    low, high = metric.bounds
    install = f"metrist[{metric.extra}]" if metric.extra else "metrist"
    return [metric.name, " ".join(("output", *metric.needs)), better, f"{low:g} to {high:g}", install]
