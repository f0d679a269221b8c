"""The judge under audit, asked as often as the audit wants, with a tally of what came of it."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.llm import budget
from metrist.llm.messages import Sampling
from metrist.metrics.judge.judge import Judge
from metrist.metrics.judge.rubrics import Rubric
from metrist.metrics.llm_metric import FILTERED, merge_usage
from metrist.metrics.shard import Shard
from metrist.records import Record
from metrist.report.cells import Count, Estimate, or_none
from metrist.report.tables import Column, Table
from metrist.run.results import quote_first_answer
from metrist.run.tasks import describe_missing, score_shard
from metrist.scores import Scores

# Said instead of a grade, near the beginning of an answer. "I cannot find any fault" refuses nothing.
_REFUSED = (
    r"(?:assist|help|evaluate|judge|grade|rate|assess|score|review|comply|fulfill?|provide|do|answer|complete|process|"
    r"engage|continue)"
)
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) (?:very |so |really )?(?:sorry|unable|not able)|sorry,? (?:but )?i\b|i (?:must|have to) decline|"
    rf"i (?:can ?not|can't|could not|couldn't|won't|will not|am not going to)(?: \w+)? {_REFUSED}\b|"
    r"as an ai(?: language)?(?: model| assistant)?,? i\b|against my (?:guidelines|policy|policies))",
    re.IGNORECASE,
)
_BEGINNING = 200

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class AskedAgain(Judge):
    """The same judge with the same question; the number tells repeated draws apart, and so keeps each answer."""

    sample: int = 0

    def sampling(self, **more: Any) -> Sampling:
        return replace(super().sampling(**more), sample=self.sample)


@dataclass(slots=True)
class Grader:
    """Asks the judge, and counts outputs, failures and refusals. Direction and best grade are the rubric's."""

    judge: Judge
    asked: int = 0
    failures: list[str] = field(default_factory=list)
    refusals: int = 0
    usages: list[Mapping[str, Any] | None] = field(default_factory=list)

    @property
    def rubric(self) -> Rubric:
        return self.judge.load_rubric()

    @property
    def sign(self) -> float:
        return -1.0 if self.judge.higher_is_better is False else 1.0

    @property
    def best(self) -> float:
        return self.judge.bounds[self.sign > 0]

    @property
    def reach(self) -> float:
        """How far the scale goes from end to end."""
        low, high = self.judge.bounds
        return high - low

    def grade(self, records: Sequence[Record], **settings: Any) -> Scores:
        """The judge's scores, with some of its settings changed, or asked once more (`sample`)."""
        own = {f.name: getattr(self.judge, f.name) for f in fields(self.judge)}
        judge = AskedAgain(**{**own, **settings})
        scores = score_shard(judge, Shard(records))
        # An output that lacks what the judge needs was never shown to it: that is no failure of the judge.
        asked = [i for i, record in enumerate(records) if describe_missing(judge, record) is None]
        failed = [i for i in asked if i in scores.failures]
        self.asked += len(asked)
        self.failures += [scores.failures[i] for i in failed]
        self.refusals += sum(_refuses(scores.raws.get(i) or "", scores.usages.get(i)) for i in failed)
        self.usages += [scores.usages.get(i) for i in range(len(scores))]
        return scores

    def values(self, records: Sequence[Record], **settings: Any) -> Floats:
        """The grades alone."""
        return self.grade(records, **settings).values if records else Scores.of([]).values

    def used(self) -> dict[str, Any]:
        """What all answers took together."""
        return merge_usage(self.usages)


def check_some_graded(judge: Judge, scores: Scores) -> None:
    """A judge that never gives a grade is a fault of the whole audit, unless nothing is asked at all."""
    if len(scores.failures) == len(scores) and budget.current_estimate() is None:
        answer = quote_first_answer(scores.raws[i] for i in sorted(scores.raws))
        raise RunError(f"{judge.text} graded none of {len(scores):,} outputs, such as: {scores.failures[0]}{answer}")


def _refuses(raw: str, usage: Mapping[str, Any] | None) -> bool:
    """Whether an answer without a grade refuses to give one, in words or by a filter of the server."""
    return bool((usage or {}).get(FILTERED)) or bool(_REFUSAL.search(raw[:_BEGINNING].replace("’", "'")))


# The judge card: each finding with its number, and what it is the number of; as a table, Markdown or JSON.


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
    def problems(self) -> tuple[str, ...]:
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
        from metrist.io.writer import atomic_write

        text = self.to_json() + "\n" if checked_card_path(path).suffix == ".json" else self.to_markdown()
        with atomic_write(path) as file:
            file.write(text)

    def _about(self) -> list[str]:
        data = ", ".join(f"{value} {name}" for name, value in self.data.items() if isinstance(value, int))
        return [
            f"Audited on {data}. Intervals are 95 %: Wilson's for shares, bootstrap over items for the rest.",
            *self.notes,
        ]

    def __repr__(self) -> str:
        return f"JudgeCard({self.judge}, found: {', '.join(self.problems) or 'nothing amiss'})"

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
