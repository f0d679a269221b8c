"""The sections of the page of published tables."""

from __future__ import annotations

from dataclasses import dataclass

from metrist.metrics.agreement import DatasetAgreement
from metrist.report.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageSection:
    """One computed table. `caption` says how it is computed, `summary` how many figures agree."""

    name: str
    title: str
    caption: str
    summary: str
    table: Table
    #: The figures of the shipped metrics, in the table of them.
    agreements: tuple[DatasetAgreement, ...] = ()
