"""What a check found: single verdicts, and the report that gathers them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from metrist.report.cells import PValue, Share, or_none
from metrist.report.junit import Case, junit_xml
from metrist.report.tables import Column, Table

Kind = Literal["minimum", "maximum", "coverage", "regression", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One thing that was wanted of one system under one metric, what was found, and why that passes or fails."""

    kind: Kind
    system: str
    metric: str
    passed: bool
    wanted: str
    found: Any
    coverage: float
    why: str
    value: float
    p: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain data; NaN is None."""
        return {
            "check": self.kind,
            "system": self.system,
            "metric": self.metric,
            "passed": self.passed,
            "wanted": self.wanted,
            "value": or_none(self.value),
            "coverage": or_none(self.coverage),
            "p": None if self.p is None else or_none(self.p),
            "why": self.why,
        }


def missing(system: str, metric: str, wanted: str, why: str) -> Verdict:
    """The verdict on what should be there and is not: it fails."""
    return Verdict(
        kind="missing",
        system=system,
        metric=metric,
        passed=False,
        wanted=wanted,
        found="none",
        coverage=0.0,
        why=why,
        value=math.nan,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Report:
    """All verdicts of a check, failures first in its table."""

    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every verdict passed; nothing checked is nothing passed."""
        return bool(self.verdicts) and all(verdict.passed for verdict in self.verdicts)

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """The verdicts that failed."""
        return tuple(verdict for verdict in self.verdicts if not verdict.passed)

    @property
    def summary(self) -> str:
        """One line: how many checks there were and how many failed."""
        count, failed = len(self.verdicts), len(self.failures)
        checks = f"{count} check{'' if count == 1 else 's'}"
        return f"{checks}, {failed} failed" if failed else f"{checks}, all passed"

    def table(self) -> Table:
        """One row per verdict."""
        names = ("verdict", "check", "system", "metric", "wanted")
        ordered = sorted(self.verdicts, key=lambda verdict: verdict.passed)
        return Table(
            title=f"metrist check: {self.summary}",
            columns=[*map(Column, names), Column("found", "right"), Column("coverage", "right"), Column("why")],
            rows=[_row(verdict) for verdict in ordered],
            notes=self.notes,
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        verdicts = [verdict.to_dict() for verdict in self.verdicts]
        return {"passed": self.passed, "verdicts": verdicts, "notes": list(self.notes)}

    def junit(self, suite: str = "metrist") -> str:
        """The report as JUnit XML."""
        return junit_xml(suite, [_case(verdict, self.notes) for verdict in self.verdicts])

    def __str__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().render("html")


def _row(verdict: Verdict) -> Sequence[Any]:
    word = "passed" if verdict.passed else "FAILED"
    found = verdict.found
    return [
        word,
        verdict.kind,
        verdict.system,
        verdict.metric,
        verdict.wanted,
        found,
        Share(verdict.coverage),
        verdict.why,
    ]


def _case(verdict: Verdict, notes: Sequence[str]) -> Case:
    failure = None if verdict.passed else verdict.why
    p = [] if verdict.p is None else [f"p: {PValue(verdict.p)}"]
    facts = [f"wanted: {verdict.wanted}", f"found: {verdict.found}", f"coverage: {Share(verdict.coverage)}", *p]
    return Case(
        group=f"metrist.{verdict.kind}",
        name=f"{verdict.system}: {verdict.metric} {verdict.wanted}",
        failure=failure,
        details="\n".join([verdict.why, *facts, *notes]),
    )
