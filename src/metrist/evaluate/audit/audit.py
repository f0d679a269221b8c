"""`audit`: measure an LLM's faults as a judge, part by part, and put the findings on a judge card."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from metrist.errors import RunError, format_count
from metrist.evaluate.audit.analyses import measure_analyses
from metrist.evaluate.audit.card import (
    Finding,
    JudgeCard,
    build_unmeasured,
    check_card_path,
)
from metrist.evaluate.audit.measures import (
    measure_agreement,
    measure_choices,
    measure_failures,
    measure_length,
    measure_own_grades,
    measure_own_wins,
    measure_position,
    measure_probes,
    measure_reference,
    measure_repeats,
    measure_scale,
)
from metrist.evaluate.audit.sample import AuditSample, Grader, draw_sample
from metrist.evaluate.plans import AuditPlan
from metrist.io import read_records
from metrist.io.reader import check_keywords
from metrist.llm import base
from metrist.llm.base import LLM
from metrist.llm.estimate import CallEstimate, current_estimate, estimate_calls
from metrist.metrics.comparator import Judgment
from metrist.metrics.judge.judge import Judge, Reference
from metrist.metrics.judge.pair import JudgePair
from metrist.metrics.judge.rubrics import ALL_ASPECTS
from metrist.metrics.llm_metric import merge_usage
from metrist.run.results import quote_first_answer
from metrist.runtime import Runtime
from metrist.scores import Scores
from metrist.settings import LLMSettings, select_arguments
from metrist.spec import Spec


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
    plan: AuditPlan | None = None,
    out: str | os.PathLike[str] | None = None,
    on_part: Callable[[str], None] | None = None,
    max_cost: float | None = None,
    concurrency: int | None = None,
    rpm: int | None = None,
    tpm: int | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    **reading: Any,
) -> JudgeCard:
    """Audit an LLM as a judge by a rubric, on records with or without human ratings.

    `second_llm` checks the judge's reasons for made-up content. `plan` sets the number of items, outputs and repeats,
    the judge's own system (`own`) and the human ratings to use (`aspects`). `out` is a .json or .md file. `on_part` is
    called with the name of each part before its calls are made. The rest is as for `metrist.score`.
    """
    check_keywords(audit, reading)
    if out is not None:
        check_card_path(out)
    judge = Judge(
        llm=base.build_llm(llm),
        rubric=rubric,
        aspect=aspect,
        reference=reference,
        temperature=temperature,
        max_tokens=max_tokens,
    )
    second = None if second_llm is None else base.build_llm(second_llm)
    runtime = Runtime.current().override(**select_arguments(LLMSettings, locals()))
    with runtime.activate():
        plan = plan or AuditPlan()
        reader = read_records(records, **reading)
        sample = draw_sample(reader, plan.items, plan.outputs_per_item, plan.own, plan.aspects)
        card = _run_audit(judge, second, sample, plan.repeats, on_part or (lambda _part: None))
    if out is not None:
        card.write(out)
    return card


def estimate_audit(records: Any, llm: str | Spec | LLM, **settings: Any) -> CallEstimate:
    """Estimate the calls of `audit` with the same arguments. Nothing is sent or written. The second LLM is assumed to
    check a reason for each grade, up to its limit."""
    with estimate_calls() as estimate:
        audit(records, llm, **{**settings, "out": None})
    return estimate


def _run_audit(
    judge: Judge, second: LLM | None, sample: AuditSample, repeats: int, on_part: Callable[[str], None]
) -> JudgeCard:
    grader = Grader(judge)
    on_part("grades")
    scores = grader.grade(sample.records)
    _check_some_graded(judge, scores)
    cost = measure_cost(grader.total_usage(), len(scores))
    on_part("pairs")
    judgments = _judge_pairs(judge, sample)
    on_part("reference")
    reference, turned = measure_reference(grader, sample, scores.values)
    on_part("repeats")
    repeated = measure_repeats(grader, sample, scores.values, repeats)
    on_part("probes")
    probed = measure_probes(grader, sample, scores.values)
    on_part("analyses")
    analyses, checking = measure_analyses(second, sample.records, scores)
    usage = merge_usage([grader.total_usage(), checking, *(judgment.usage for judgment in judgments)])
    columns = {
        f"reference {judge.reference}": scores.values,
        f"reference {'shown' if judge.reference == 'hidden' else 'hidden'}": turned,
    }
    findings = (
        *measure_position(judgments),
        *repeated,
        *measure_length(sample, scores.values, grader.sign),
        *probed,
        *reference,
        *measure_scale(grader, scores),
        *measure_own_grades(sample, scores.values, grader.sign),
        *measure_own_wins(sample, judgments),
        *analyses,
        *measure_failures(grader, judgments),
        *measure_agreement(sample, columns, lower_is_better=grader.sign < 0),
        *measure_choices(sample, judgments),
        *cost,
        _total_cost(usage),
    )
    return JudgeCard(
        judge=judge.text,
        signature=judge.signature,
        data={
            "items": len(set(sample.items)),
            "outputs": len(sample.records),
            "pairs": len(sample.pairs),
            "aspects": list(sample.ratings),
        },
        findings=findings,
        usage=usage,
        notes=(_describe_grade(judge),) if sample.ratings else (),
    )


def _check_some_graded(judge: Judge, scores: Scores) -> None:
    """Stop the audit if the judge graded nothing, unless this is a dry run, which makes no calls."""
    if len(scores.failures) == len(scores) and current_estimate() is None:
        answer = quote_first_answer(scores.raws[i] for i in sorted(scores.raws))
        raise RunError(
            f"{judge.text} graded none of {format_count(len(scores), 'output')}, such as: {scores.failures[0]}{answer}"
        )


def _judge_pairs(judge: Judge, sample: AuditSample) -> list[Judgment]:
    shown = judge.reference == "shown" and all(pair.first.references for pair in sample.pairs)
    pair_judge = JudgePair(
        llm=judge.llm,
        rubric=judge.rubric,
        reference="shown" if shown else "hidden",
        temperature=judge.temperature,
        max_tokens=judge.max_tokens,
    )
    return pair_judge.prefer(sample.pairs)


def _describe_grade(judge: Judge) -> str:
    """Say which of the judge's grades is compared with human ratings."""
    names = [aspect.name for aspect in judge.load_rubric().aspects] if judge.aspect == ALL_ASPECTS else [judge.aspect]
    grade = names[0] if len(names) == 1 else f"the mean of {', '.join(names)}"
    return f"People: the judge's grade ({grade}, by the rubric {judge.rubric}) is compared with each rating in turn."


# ---- The analyses of a metric that lists errors


def measure_cost(usage: Mapping[str, Any], outputs: int) -> list[Finding]:
    """Cost per output. Answers from the cache count with what they would cost; time counts only the others."""
    calls = usage.get("calls", 0)
    uncached = calls - usage.get("cached", 0)
    totals = {
        "US dollars per output": (_full_cost(usage), calls - usage.get("repeated", 0), "calls"),
        "seconds per output": (usage.get("seconds"), uncached, "timed"),
        "tokens in per output": (usage.get("prompt_tokens"), calls, "answers"),
        "tokens out per output": (usage.get("completion_tokens"), calls, "answers"),
    }
    findings = []
    for name, (total, n, unit) in totals.items():
        if total is None or not n:
            reason = "no price is known for this LLM" if "dollars" in name else "it is not known for this LLM"
            reason = reason if total is None else "all answers came from the cache"
            findings.append(build_unmeasured("cost", name, reason))
        elif unit == "timed" and 2 * n < calls - usage.get("repeated", 0):
            # The few that were left over may be those that failed or took longest.
            reason = f"only {n:,} of {calls:,} answers were timed, the others came from the cache"
            findings.append(build_unmeasured("cost", name, reason))
        else:
            value = total / min(n, outputs) if outputs else math.nan
            findings.append(Finding(part="cost", name=name, value=value, n=n, unit=unit))
    return findings


def _full_cost(usage: Mapping[str, Any]) -> float | None:
    """What the calls would cost without the cache; None if no price is known."""
    replayed = usage.get("cached", 0) - usage.get("repeated", 0)
    if "cost" not in usage or (replayed and "saved" not in usage):
        return None
    return float(usage["cost"] + usage.get("saved", 0.0))


def _total_cost(usage: Mapping[str, Any]) -> Finding:
    """The cost of the whole audit, including the second LLM, as if no answer had come from the cache."""
    name, unpriced = "US dollars in all", usage.get("unpriced", 0)
    cost = _full_cost(usage)
    if cost is None:
        return build_unmeasured("cost", name, "no price is known for this LLM")
    details = {"paid now": usage["cost"]} if usage.get("saved") else {}
    details |= {"calls without a known price": unpriced} if unpriced else {}
    calls = usage["calls"] - usage.get("repeated", 0)
    return Finding(part="cost", name=name, value=cost, n=calls, unit="calls", details=details)
