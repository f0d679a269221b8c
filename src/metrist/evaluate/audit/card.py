"""The judge card: each finding with its number, and what it is the number of; as a table, Markdown or JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from metrist.errors import RunError
from metrist.report.cells import Count, Estimate, or_none
from metrist.report.tables import Column, Table

_USUAL, _SMALL = 3, 0.1

Verdict = Literal["found", "not found", "told", "not measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One number of the card. `verdict` is 'found' where the interval lies wholly beyond `limit`, 'told' where the
    number is no fault in itself, 'not measured' where `reason` says why there is none. `beside` is what a number
    that is only told must be seen with; `details` stand behind it."""

    part: str
    name: str
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    unit: str = ""
    verdict: Verdict = "told"
    limit: str = ""
    reason: str = ""
    beside: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As plain data; NaN is null."""
        numbers = {name: or_none(getattr(self, name)) for name in ("value", "low", "high")}
        words = {
            name: getattr(self, name)
            for name in ("unit", "verdict", "limit", "beside", "reason")
            if getattr(self, name)
        }
        return {"part": self.part, "name": self.name, **numbers, "n": self.n, **words, **_details(self.details)}


def _details(details: Mapping[str, Any]) -> dict[str, Any]:
    return {"details": {k: or_none(v) if isinstance(v, float) else v for k, v in details.items()}} if details else {}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgeCard:
    """What an audit found. `judge` is the judge's text, `signature` all that is needed to ask the same again."""

    judge: str
    signature: str
    data: Mapping[str, Any]
    findings: tuple[Finding, ...]
    usage: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def finding(self, name: str) -> Finding:
        """The finding of that name."""
        for one in self.findings:
            if one.name == name:
                return one
        raise RunError(f"this card has no finding {name!r}; it has {', '.join(one.name for one in self.findings)}")

    @property
    def found(self) -> tuple[str, ...]:
        """The names of what was found to be amiss."""
        return tuple(one.name for one in self.findings if one.verdict == "found")

    def table(self) -> Table:
        """One row a finding."""
        return Table(
            title=f"Judge card of {self.judge}",
            columns=[
                *(Column("part"), Column("what"), Column("value", "right"), Column("n", "right")),
                *(Column("of"), Column("verdict"), Column("found means, or compare")),
            ],
            rows=[_row(one) for one in self.findings],
            notes=(*(f"{one.name}: not measured: {one.reason}" for one in self.findings if one.reason), *self._about()),
        )

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data."""
        return {
            "format": "metrist judge card 1",
            "judge": self.judge,
            "signature": self.signature,
            "data": dict(self.data),
            "findings": [one.to_dict() for one in self.findings],
            "usage": dict(self.usage),
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """The card as JSON."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False)

    def to_markdown(self) -> str:
        """The card as a page."""
        details = [line for one in self.findings if one.details for line in _detail_lines(one)]
        behind = ["", "## Behind the numbers", "", *details] if details else []
        return "\n".join([self.table().render("markdown"), *behind, "", f"Signature: `{self.signature}`", ""])

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a .json or .md file, whole or not at all."""
        from metrist.io.writer import whole

        text = self.to_json() + "\n" if checked_card_path(path).suffix == ".json" else self.to_markdown()
        with whole(path) as file:
            file.write(text)

    def _about(self) -> list[str]:
        data = ", ".join(f"{value} {name}" for name, value in self.data.items() if isinstance(value, int))
        return [
            f"Audited on {data}. Intervals are 95 %: Wilson's for shares, bootstrap over items for the rest.",
            *self.notes,
        ]

    def __repr__(self) -> str:
        return f"JudgeCard({self.judge}, found: {', '.join(self.found) or 'nothing amiss'})"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def checked_card_path(path: str | os.PathLike[str]) -> Path:
    """The path of a card to write; refused where its name does not say in which form, before anything is asked."""
    found = Path(path)
    if found.suffix not in (".json", ".md"):
        raise RunError(f"cannot tell how to write the card to {found}: wanted a name that ends in .json or .md")
    if not found.parent.is_dir():
        raise RunError(f"cannot write {found}: there is no folder {found.parent}")
    return found


def _row(one: Finding) -> Sequence[Any]:
    value = None if math.isnan(one.value) else Estimate(one.value, one.low, one.high, _decimals(one))
    told = one.limit or one.beside
    return [one.part, one.name, value, Count(one.n) if one.n else None, one.unit, one.verdict, told]


def _decimals(one: Finding) -> int:
    """Three, or as many as a small amount of money needs to be told from none."""
    small = one.part == "cost" and 0 < one.value < _SMALL
    return 1 - math.floor(math.log10(one.value)) if small else _USUAL


def _detail_lines(one: Finding) -> list[str]:
    shown = (
        f"{key}: {value:.3g}" if isinstance(value, float) else f"{key}: {value}" for key, value in one.details.items()
    )
    return [f"- **{one.name}**: " + "; ".join(shown)]
