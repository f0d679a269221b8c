"""The table of stress tests: which faults the shipped metrics see."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from metrist.evaluate.audit.stress import StressReport, StressTest, stress
from metrist.io import read_records
from metrist.records import Record
from metrist.report.cells import NOT_AVAILABLE
from metrist.report.tables import Column, Count, Share, Table
from metrist.studies.reproduce.figures import DataFolder
from metrist.studies.reproduce.published import NO_DATA, read_table_file

STRESS_TABLE = "shipped-stress"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StressTable:
    """The reports by the label of their texts; None where the data is missing."""

    title: str
    caption: str
    notes: tuple[str, ...]
    metrics: tuple[str, ...]
    reports: Mapping[str, StressReport | None]

    @property
    def summary(self) -> str:
        """How many faults each metric sees."""
        parts = []
        for label, report in self.reports.items():
            for metric in self.metrics if report else ():
                faults = [test for test in _list_tests(report, metric) if test.group == "fault"]
                seen = sum(test.passed for test in faults)
                if faults:
                    parts.append(f"{metric} {seen} of {len(faults)} ({label})")
        return f"Faults that are seen: {', '.join(parts)}." if parts else ""

    @property
    def table(self) -> Table:
        text = [Column("texts"), Column("test"), Column("items", "right")]
        rows: list[list[Any]] = []
        for label, report in self.reports.items():
            if report is None:
                rows.append([label, NO_DATA, Count(0), *[NOT_AVAILABLE for _ in self.metrics]])
                continue
            by_name: dict[str, dict[str, StressTest]] = {}
            for test in report.tests:
                by_name.setdefault(test.test, {})[test.metric] = test
            for name, tests in by_name.items():
                items = max(test.items for test in tests.values())
                cells = [_format_test(tests[metric]) if metric in tests else NOT_AVAILABLE for metric in self.metrics]
                rows.append([label, name, Count(items), *cells])
        columns = (*text, *(Column(metric) for metric in self.metrics))
        return Table(columns=columns, rows=rows, notes=self.notes)


def make_stress_table(folder: DataFolder, content: Mapping[str, Any] | None = None) -> StressTable:
    """Run the stress tests of a table file, by default those of the shipped metrics."""
    content = content or read_table_file(STRESS_TABLE)
    reports: dict[str, StressReport | None] = {}
    for entry in content["sets"]:
        records = None
        if "data" in entry:
            if not folder.has(entry["data"]):
                reports[entry["label"]] = None
                continue
            records = _read_references(folder, entry["data"], entry["items"])
        reports[entry["label"]] = stress(
            entry["metrics"], records, items=entry.get("items", 100), least=content["least"]
        )
    return StressTable(
        title=content["title"],
        caption=content["caption"].strip(),
        notes=tuple(content["notes"]),
        metrics=tuple(dict.fromkeys(test.metric for report in reports.values() if report for test in report.tests)),
        reports=reports,
    )


def _read_references(folder: DataFolder, data: str, items: int) -> list[Record]:
    """The first reference of each of the first items, as an output without references."""
    first: dict[str, Record] = {}
    for record in read_records(folder.path(data)):
        if record.references and record.item not in first:
            first[record.item] = replace(record, output=record.references[0], references=())
        if len(first) == items:
            break
    return list(first.values())


def _list_tests(report: StressReport | None, metric: str) -> list[StressTest]:
    return [test for test in report.tests if test.metric == metric and test.outcome != "too few"] if report else []


def _format_test(test: StressTest) -> str:
    return test.outcome if math.isnan(test.falls) else f"{test.outcome}, {Share(test.falls)}"
