"""`audit`: an LLM and data in, a judge card out."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrist.errors import RunError
from metrist.evaluate.audit import findings as parts
from metrist.evaluate.audit.findings import analysis_findings, choice_findings, people_findings
from metrist.evaluate.audit.intervals import Floats
from metrist.evaluate.audit.judge import Finding, Grader, JudgeCard, check_some_graded, checked_card_path
from metrist.evaluate.audit.sample import Material, gather, probe_findings
from metrist.io import read_records
from metrist.io.reader import check_keywords
from metrist.llm import base
from metrist.llm.base import LLM
from metrist.llm.budget import Estimate, estimate_calls
from metrist.metrics.comparator import Judgment
from metrist.metrics.judge.judge import Judge, Reference
from metrist.metrics.judge.pair import JudgePair
from metrist.metrics.judge.rubrics import ALL_ASPECTS
from metrist.metrics.llm_metric import merge_usage
from metrist.runtime import Runtime
from metrist.spec import Spec

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How large an audit is, and what it may look at."""

    items: int = 50
    outputs_per_item: int = 4
    repeats: int = 3
    own: str | None = None
    aspects: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("items", "outputs_per_item", "repeats"):
            if getattr(self, name) < 1:
                raise RunError(f"{name} must be at least 1, got {getattr(self, name)}")


def audit(
    records: Any,
    llm: str | Spec | LLM,
    *,
    rubric: str = "reliability",
    aspect: str = "all",
    reference: Reference = "hidden",
    temperature: float = 0.0,
    max_tokens: int = 1024,
    second_llm: str | Spec | LLM | None = None,
    plan: Plan | None = None,
    out: str | os.PathLike[str] | None = None,
    told: Told | None = None,
    max_cost: float | None = None,
    concurrency: int | None = None,
    rpm: int | None = None,
    tpm: int | None = None,
    **reading: Any,
) -> JudgeCard:
    """Audit an LLM as a judge by a rubric, on records with or without human ratings.

    `second_llm` checks the judge's reasons for what is made up. `plan` says how many items, outputs and repeats, which
    system is the judge's own (`own`) and which human ratings count (`aspects`). `out` is a .json or .md file. `told` is
    called with the name of each part before it is asked. The rest is as for `metrist.score`.
    """
    check_keywords(audit, reading)
    if out is not None:
        checked_card_path(out)
    judge = Judge(
        llm=base.build_llm(llm),
        rubric=rubric,
        aspect=aspect,
        reference=reference,
        temperature=temperature,
        max_tokens=max_tokens,
    )
    second = None if second_llm is None else base.build_llm(second_llm)
    runtime = Runtime.current().override(max_cost=max_cost, concurrency=concurrency, rpm=rpm, tpm=tpm)
    with runtime.activate():
        wanted = plan or Plan()
        reader = read_records(records, **reading)
        material = gather(reader, wanted.items, wanted.outputs_per_item, wanted.own, wanted.aspects)
        card = _Audit(judge, second, material, wanted, told or _silent).card()
    if out is not None:
        card.write(out)
    return card


def estimate_audit(records: Any, llm: str | Spec | LLM, **settings: Any) -> Estimate:
    """What `audit` with the same arguments would ask. Nothing is sent and nothing written. The second LLM is taken to
    check as many reasons as it may: an output without any would need no check."""
    with estimate_calls() as found:
        audit(records, llm, **{**settings, "out": None})
    return found


def _silent(_part: str) -> None:
    """Tells nobody."""


class _Audit:
    """One audit, part by part."""

    def __init__(self, judge: Judge, second: LLM | None, material: Material, plan: Plan, told: Told) -> None:
        self._judge, self._second, self._material, self._plan, self._told = judge, second, material, plan, told
        self._grader = Grader(judge)
        self._checks: Mapping[str, Any] = {}

    def card(self) -> JudgeCard:
        """Ask everything, and put it on a card."""
        self._told("grades")
        scores = self._grader.grade(self._material.records)
        check_some_graded(self._judge, scores)
        cost = _cost_findings(self._grader, len(scores))
        self._told("pairs")
        judgments = self._pairs()
        self._told("reference")
        gold, other = parts.gold_findings(self._grader, self._material, scores.values)
        findings = [
            *parts.position_findings(judgments),
            *self._repeats(scores.values),
            *parts.length_findings(self._material, scores.values, self._grader.sign),
            *self._probes(scores.values),
            *gold,
            *parts.scale_findings(self._grader, scores),
            *parts.own_findings(self._material, scores.values, self._grader.sign),
            *parts.own_pair_findings(self._material, self._material.pairs, judgments),
            *self._analyses(scores),
            *parts.failure_findings(self._grader, judgments),
            *people_findings(self._material, self._columns(scores.values, other), self._grader.sign < 0),
            *choice_findings(self._material, judgments),
            *cost,
        ]
        return self._made(findings, merge_usage([self._grader.used(), self._checks, *_used(judgments)]))

    def _pairs(self) -> list[Judgment]:
        judge, pairs = self._judge, self._material.pairs
        shown = judge.reference == "shown" and all(pair.first.references for pair in pairs)
        chooser = JudgePair(
            llm=judge.llm,
            rubric=judge.rubric,
            reference="shown" if shown else "hidden",
            temperature=judge.temperature,
            max_tokens=judge.max_tokens,
        )
        return chooser.prefer(pairs)

    def _repeats(self, grades: Floats) -> list[Finding]:
        self._told("repeats")
        at = self._material.one_each()
        records = [self._material.records[i] for i in at]
        return parts.repeat_findings(self._grader, records, grades[at], self._plan.repeats)

    def _probes(self, grades: Floats) -> list[Finding]:
        self._told("probes")
        return probe_findings(self._grader, self._material, grades)

    def _analyses(self, scores: Any) -> list[Finding]:
        self._told("analyses")
        findings, self._checks = analysis_findings(self._second, self._material.records, scores)
        return findings

    def _columns(self, grades: Floats, other: Floats) -> dict[str, Floats]:
        own = self._judge.reference
        turned = "shown" if own == "hidden" else "hidden"
        return {f"reference {own}": grades, f"reference {turned}": other}

    def _made(self, findings: Sequence[Finding], usage: Mapping[str, Any]) -> JudgeCard:
        material = self._material
        return JudgeCard(
            judge=self._judge.text,
            signature=self._judge.signature,
            data={
                "items": len(set(material.items)),
                "outputs": len(material.records),
                "pairs": len(material.pairs),
                "aspects": list(material.ratings),
            },
            findings=(*findings, _total_cost(usage)),
            usage=usage,
            notes=(_compared(self._judge),) if material.ratings else (),
        )


def _used(judgments: Sequence[Judgment]) -> list[Any]:
    return [one.usage for one in judgments]


def _compared(judge: Judge) -> str:
    """Which of the judge's grades stands against people's ratings, in words."""
    names = [aspect.name for aspect in judge.load_rubric().aspects] if judge.aspect == ALL_ASPECTS else [judge.aspect]
    grade = names[0] if len(names) == 1 else f"the mean of {', '.join(names)}"
    return f"People: the judge's grade ({grade}, by the rubric {judge.rubric}) is compared with each rating in turn."


def _total_cost(usage: Mapping[str, Any]) -> Finding:
    """What the whole audit took, the second LLM's answers with it."""
    name, unpriced = "US dollars in all", usage.get("unpriced", 0)
    if "cost" not in usage:
        return Finding(part="cost", name=name, verdict="not measured", reason="it is not known for this LLM")
    details = {"calls without a known price": unpriced} if unpriced else {}
    return Finding(part="cost", name=name, value=usage["cost"], n=usage["calls"], unit="calls", details=details)


def _cost_findings(grader: Grader, outputs: int) -> list[Finding]:
    """What one output took, by the answers that were really asked for."""
    used: Mapping[str, Any] = grader.used()
    asked = used.get("calls", 0) - used.get("cached", 0)
    whole = used.get("calls", 0)
    told = {
        "US dollars per output": (used.get("cost"), asked),
        "seconds per output": (used.get("seconds"), asked),
        "tokens in per output": (used.get("prompt_tokens"), whole),
        "tokens out per output": (used.get("completion_tokens"), whole),
    }
    return [_per_output(name, total, calls, outputs) for name, (total, calls) in told.items()]


def _per_output(name: str, total: float | None, calls: int, outputs: int) -> Finding:
    if total is None or not calls:
        why = "it is not known for this LLM" if total is None else "all answers came from the cache"
        return Finding(part="cost", name=name, verdict="not measured", reason=why)
    return Finding(
        part="cost", name=name, value=total / min(calls, outputs) if outputs else math.nan, n=calls, unit="calls"
    )
