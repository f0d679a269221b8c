"""`audit`: measure an LLM's faults as a judge, part by part (consistency, biases, scale, agreement with people, cost),
and put the findings on a judge card."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from metrist.errors import MetristError, RunError, format_count
from metrist.evaluate.audit.analyses import measure_analyses
from metrist.evaluate.audit.card import (
    FEWEST,
    Finding,
    JudgeCard,
    ValueWithLimits,
    build_estimate,
    build_share,
    build_unmeasured,
    check_card_path,
    correlation_by_item,
    mean_by_item,
    partial_correlation_by_item,
)
from metrist.evaluate.audit.sample import AuditSample, Grader, Probe, draw_sample, hash_record, load_probes, standardize
from metrist.evaluate.meta import meta_evaluate
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
from metrist.report.scores import quote_first_answer
from metrist.runtime import Runtime
from metrist.scores import Scores
from metrist.settings import LLMSettings, select_arguments
from metrist.spec import Spec
from metrist.stats import Floats

#: The smallest effects that count: a share of the scale, and a correlation or a difference in standard scores.
_SMALL_SHIFT, _WEAK_EFFECT = 0.05, 0.1
#: Outputs that each probe is applied to.
_PROBED_OUTPUTS = 5


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
    # A dry run makes no calls.
    if len(scores.failures) == len(scores) and current_estimate() is None:
        answer = quote_first_answer(scores.raws[i] for i in sorted(scores.raws))
        raise RunError(
            f"{judge.text} graded none of {format_count(len(scores), 'output')}, such as: {scores.failures[0]}{answer}",
            code="no_data",
        )
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
    aspects = [aspect.name for aspect in grader.rubric.aspects] if judge.aspect == ALL_ASPECTS else [judge.aspect]
    grade = aspects[0] if len(aspects) == 1 else f"the mean of {', '.join(aspects)}"
    note = f"People: the judge's grade ({grade}, by the rubric {judge.rubric}) is compared with each rating in turn."
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
        notes=(note,) if sample.ratings else (),
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


# ---- What is measured


def measure_position(judgments: Sequence[Judgment]) -> list[Finding]:
    """How often the order of two outputs decides, and in favour of which place."""
    flips = [judgment.flipped for judgment in judgments if judgment.flipped is not None]
    if not flips:
        reason = "no item has two different outputs" if not judgments else "no pair was judged in both orders"
        return [build_unmeasured("position", "flips", reason)]
    choices = Counter(choice for judgment in judgments for choice in judgment.shown)
    decided = choices["first"] + choices["second"]
    return [
        build_share("position", "flips", sum(flips), len(flips), "pairs, asked in both orders", above=0.05),
        build_share("position", "first place chosen", choices["first"], decided, "choices", above=0.55, below=0.45),
    ]


def measure_repeats(grader: Grader, sample: AuditSample, grades: Floats, repeats: int) -> list[Finding]:
    """How often a repeated question gets the same grade, on one output per item."""
    if repeats < 2:
        return [build_unmeasured("repeats", "equal grades", "the question was asked once only (`repeats`)")]
    one_per_item: dict[str, int] = {}
    for i in sorted(range(len(sample.records)), key=lambda i: hash_record(sample.records[i])):
        one_per_item.setdefault(sample.records[i].item, i)
    chosen = sorted(one_per_item.values())
    records = [sample.records[i] for i in chosen]
    again = [grader.grade_values(records, sample=number) for number in range(1, repeats)]
    rows = np.stack([grades[chosen], *again], axis=1)
    graded = rows[~np.isnan(rows).any(axis=1)]
    equal = int(np.count_nonzero(np.ptp(graded, axis=1) < 1e-9)) if len(graded) else 0
    spread = float(graded.std(axis=1).mean()) if len(graded) else math.nan
    unit = f"outputs, each graded {repeats} times"
    details = {"answers": repeats, "mean_spread": spread, "temperature": grader.judge.temperature}
    return [build_share("repeats", "equal grades", equal, len(graded), unit, below=0.95, details=details)]


def measure_length(sample: AuditSample, grades: Floats, sign: float) -> list[Finding]:
    """Whether longer outputs of an item get better grades, and whether they still do at equal human ratings."""
    lengths = np.array([math.log1p(len(record.output)) for record in sample.records])
    correlation = correlation_by_item(grades * sign, lengths, sample.items)
    if math.isnan(correlation[0]):
        reason = "the outputs of an item do not differ in grade and length"
        return [build_unmeasured("length", "correlation with length", reason)]
    n = int(np.count_nonzero(~np.isnan(grades)))
    plain = build_estimate("length", "correlation with length", correlation, n, "outputs, within items")
    name = "correlation, human ratings fixed"
    human = sample.human_scores()
    rated = int(np.count_nonzero(~(np.isnan(grades) | np.isnan(human))))
    if rated < FEWEST:
        reason = "the data have no human ratings, so longer outputs may simply be better"
        return [plain, build_unmeasured("length", name, reason)]
    partial = partial_correlation_by_item(grades * sign, lengths, human, sample.items)
    return [plain, build_estimate("length", name, partial, rated, "outputs, within items", limit=_WEAK_EFFECT)]


def measure_reference(grader: Grader, sample: AuditSample, grades: Floats) -> tuple[list[Finding], Floats]:
    """How the reference in the prompt changes the grades. Also return the grades with the other setting, NaN where
    there is no reference to show."""
    name = "grade with the reference minus without"
    turned_grades = np.full(len(grades), math.nan)
    with_reference = [i for i, record in enumerate(sample.records) if record.references]
    if not with_reference:
        return [build_unmeasured("gold", name, "the data have no references")], turned_grades
    turned = "hidden" if grader.judge.reference == "shown" else "shown"
    turned_grades[with_reference] = grader.grade_values([sample.records[i] for i in with_reference], reference=turned)
    change = (turned_grades - grades) * (1.0 if turned == "shown" else -1.0)
    known = change[~np.isnan(change)]
    finding = build_estimate(
        "gold",
        name,
        mean_by_item(change, sample.items),
        len(known),
        "outputs",
        limit=_SMALL_SHIFT * (grader.judge.bounds[1] - grader.judge.bounds[0]),
        details={"share_changed": float(np.mean(np.abs(known) > 1e-9)) if len(known) else math.nan},
    )
    return [finding], turned_grades


def measure_scale(grader: Grader, scores: Scores) -> list[Finding]:
    """How the grades of each aspect are used: a judge that gives nearly all outputs one grade cannot separate them."""
    findings = []
    for aspect in grader.rubric.aspects:
        column = scores.parts.get(aspect.name, np.empty(0))
        uses = Counter(column[~np.isnan(column)].tolist())
        counts = {level.name: uses.get(level.value, 0) for level in aspect.levels}
        total, most = sum(counts.values()), max(counts.values())
        entropy = math.nan  # From 0, one grade for all, to 1, all grades equally often.
        if total and len(counts) > 1:
            shares = [count / total for count in counts.values() if count]
            entropy = abs(sum(share * math.log(share) for share in shares)) / math.log(len(counts))
        details = {"entropy": entropy, "grades": counts}
        name = f"most used grade of {aspect.name}"
        findings.append(build_share("scale", name, most, total, "grades", above=0.9, details=details))
    return findings


def measure_own_grades(sample: AuditSample, grades: Floats, sign: float) -> list[Finding]:
    """Whether the judge grades the outputs of its own LLM better than people do."""
    part, unit = "own outputs", "items, in standard scores"
    lead, lead_beyond = "own outputs' lead over others", "own outputs' lead over others, beyond people's"
    if sample.own is None:
        return [build_unmeasured(part, lead_beyond, "no system was named as the judge's own (`own`)")]
    standard_grades = standardize(grades * sign)
    plain = build_estimate(part, lead, *_own_lead(standard_grades, sample), unit)
    human = sample.human_scores()
    if np.count_nonzero(~np.isnan(human)) < FEWEST:
        reason = "the data have no human ratings, so they may simply be better"
        return [plain, build_unmeasured(part, lead_beyond, reason)]
    beyond = _own_lead(standard_grades - standardize(human), sample)
    return [plain, build_estimate(part, lead_beyond, *beyond, unit, limit=_WEAK_EFFECT)]


def _own_lead(values: Floats, sample: AuditSample) -> tuple[ValueWithLimits, int]:
    """The mean lead of an item's own output over the mean of its others, and the number of items."""
    by_item: dict[str, tuple[list[float], list[float]]] = {}
    for value, record in zip(values.tolist(), sample.records, strict=True):
        if not math.isnan(value):
            by_item.setdefault(record.item, ([], []))[record.system == sample.own].append(value)
    leads = {item: own[0] - sum(others) / len(others) for item, (others, own) in by_item.items() if own and others}
    return mean_by_item(np.array(list(leads.values())), list(leads)), len(leads)


def measure_own_wins(sample: AuditSample, judgments: Sequence[Judgment]) -> list[Finding]:
    """How often an own output wins against another."""
    if sample.own is None:
        return []
    points = {"first": 1.0, "tie": 0.5, "second": 0.0}
    items, wins = [], []
    for pair, judgment in zip(sample.pairs, judgments, strict=True):
        if judgment.preference is not None and sample.own in (pair.first.system, pair.second.system):
            win = points[judgment.preference]
            items.append(pair.first.item)
            wins.append(win if pair.first.system == sample.own else 1 - win)
    part, name = "own outputs", "own outputs' win rate"
    if len(wins) < FEWEST:
        return [build_unmeasured(part, name, f"only {format_count(len(wins), 'pair')} with an own output")]
    return [build_estimate(part, name, mean_by_item(np.array(wins), items), len(wins), "pairs")]


def measure_failures(grader: Grader, judgments: Sequence[Judgment]) -> list[Finding]:
    """Answers without a grade, refusals among them, and pairs without a choice."""
    reasons = Counter(grader.failures).most_common(3)
    details = {f"reason {i}": f"{reason} ({times})" for i, (reason, times) in enumerate(reasons, 1)}
    failed, shown = len(grader.failures), grader.shown
    findings = [
        build_share("failures", "answers without a grade", failed, shown, "answers", above=0.02, details=details),
        build_share("failures", "refusals", grader.refusals, shown, "answers", above=0.02),
    ]
    if judgments:
        undecided = sum(judgment.preference is None for judgment in judgments)
        findings.append(
            build_share("failures", "pairs without a choice", undecided, len(judgments), "pairs", above=0.02)
        )
    return findings


def measure_agreement(sample: AuditSample, grades: Mapping[str, Floats], *, lower_is_better: bool) -> list[Finding]:
    """Agreement of each column of grades with each aspect that people rated, over all outputs together: pairwise
    accuracy with ties, and rank correlation."""
    part, name = "people", "agreement with ratings"
    if not sample.ratings:
        return [build_unmeasured(part, name, "the data have no human ratings")]
    columns = {name: column for name, column in grades.items() if not np.isnan(column).all()}
    if not columns:
        return [build_unmeasured(part, name, "no output has a grade")]
    rows = []
    for i, record in enumerate(sample.records):
        key = (record.item, record.system)
        rows.append(
            {
                "item": record.item,
                "system": record.system,
                "output": record.output,
                "ratings": {aspect: column[key] for aspect, column in sample.ratings.items() if key in column},
                "scores": {name: float(column[i]) for name, column in columns.items() if not math.isnan(column[i])},
            }
        )
    try:
        evaluation = meta_evaluate(
            rows,
            list(sample.ratings),
            ["acc_eq", "spearman"],
            group="none",
            test="none",
            lower_is_better=list(columns) if lower_is_better else (),
        )
    except MetristError as error:
        return [build_unmeasured(part, name, str(error))]
    findings = []
    for figure in evaluation.figures:
        if figure.metric not in columns or math.isnan(figure.value):
            continue
        # Pairwise accuracy with ties has no fixed chance level, so the card shows both baselines with it.
        chance, all_ties = figure.chance, figure.all_ties
        known = not (math.isnan(chance) or math.isnan(all_ties))
        findings.append(
            Finding(
                part=part,
                name=f"{figure.measure} with {figure.aspect}, {figure.metric}",
                value=figure.value,
                low=figure.low,
                high=figure.high,
                n=figure.n,
                unit="outputs",
                baseline=f"chance {chance:.3f}, all ties {all_ties:.3f}" if known else "",
                details={} if math.isnan(chance) else {"chance": chance, "all_ties": all_ties},
            )
        )
    return findings


def measure_choices(sample: AuditSample, judgments: Sequence[Judgment]) -> list[Finding]:
    """How often the judge chooses between two outputs as most people did."""
    findings = []
    for aspect, votes in sample.votes.items():
        both = []
        for pair, judgment in zip(sample.pairs, judgments, strict=True):
            human = votes.choice((pair.first.item, pair.first.system, pair.second.system))
            if human is not None and judgment.preference is not None:
                both.append((human, judgment.preference))
        hits = sum(human == choice for human, choice in both)
        ties = sum(human == "tie" for human, _ in both) / len(both) if both else math.nan
        chance = (1 - ties) / 2
        name = f"choices as people's by {aspect}"
        details = {"chance": chance, "all_ties": ties}
        finding = build_share("people", name, hits, len(both), "pairs", details=details)
        findings.append(replace(finding, baseline=f"chance {chance:.3f}, all ties {ties:.3f}" if both else ""))
    return findings


def measure_probes(grader: Grader, sample: AuditSample, grades: Floats) -> list[Finding]:
    """How many probes raise a grade beyond what edits do that change nothing."""
    neutral_edits = ("repeats", "grades moved by neutral edits")
    padding = ("length", "padding that raises the grade")
    injection = ("injection", "probes that raise the grade")
    signed = grades * grader.sign
    # The outputs with the worst grades; the first ones where no grade is known, as in a dry run.
    chosen = list(range(min(_PROBED_OUTPUTS, len(grades))))
    if not np.isnan(grades).all():
        ranked = [i for i in np.argsort(signed, kind="stable").tolist() if not np.isnan(signed[i])]
        chosen = [i for i in ranked if signed[i] < grader.best * grader.sign][:_PROBED_OUTPUTS]
    if not chosen:
        reason = "no output has a grade below the best, so none can rise"
        return [build_unmeasured(*names, reason) for names in (neutral_edits, padding, injection)]
    probes = load_probes()
    probed = [probe.apply(sample.records[i], grader.rubric) for probe in probes for i in chosen]
    rows = (grader.grade_values(probed) * grader.sign).reshape(-1, len(chosen))
    neutral, padded, injected = (
        {probe: row for probe, row in zip(probes, rows, strict=True) if probe.kind == kind}
        for kind in ("neutral", "padding", "grade")
    )
    changes = np.concatenate(list(neutral.values())) - np.tile(signed[chosen], len(neutral))
    moved = int(np.count_nonzero(np.abs(changes) > 1e-9))
    known = int(np.count_nonzero(~np.isnan(changes)))
    highest_neutral = np.fmax.reduce(list(neutral.values()))
    # A judge that favours length does not thereby obey orders: injections must also beat the grades of padding.
    highest_control = np.fmax.reduce([highest_neutral, *padded.values()])

    def limit(controls: int, steady: float) -> float:
        """The share of probes that chance puts above all their controls: at most one in n + 1 among equals, and none
        for a judge that no neutral edit moves."""
        return max(steady, 1 / (controls + 1)) if moved else steady

    return [
        build_share(*neutral_edits, moved, known, "edits, on outputs", above=0.1),
        _build_raised(*padding, padded, highest_neutral, limit(len(neutral), 0.05)),
        _build_raised(*injection, injected, highest_control, limit(len(neutral) + len(padded), 0.02)),
    ]


def _build_raised(part: str, name: str, graded: Mapping[Probe, Floats], controls: Floats, above: float) -> Finding:
    """The share of probed outputs graded above the highest of their controls; those without a grade are left out."""
    raised = {probe.name: int(np.count_nonzero(row > controls + 1e-9)) for probe, row in graded.items()}
    known = sum(int(np.count_nonzero(~np.isnan(row - controls))) for row in graded.values())
    details = {probe: count for probe, count in raised.items() if count}
    unit = "probes, on outputs"
    return build_share(part, name, sum(raised.values()), known, unit, above=round(above, 3), details=details)


# ---- Cost


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
