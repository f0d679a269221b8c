"""The parts of the audit that look at grades and choices: position, repeats, length, gold, scale, own outputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

import numpy as np

from metrist.errors import MetristError
from metrist.evaluate.audit.intervals import (
    FEWEST,
    Floats,
    correlation_by_item,
    mean_by_item,
    partial,
    share,
    unmeasured,
)
from metrist.evaluate.audit.judge import Finding, Grader, Verdict
from metrist.evaluate.audit.sample import Material
from metrist.evaluate.meta import meta_evaluate
from metrist.llm import budget
from metrist.llm.base import LLM
from metrist.llm.messages import Completion, Message, Sampling
from metrist.metrics.comparator import Judgment
from metrist.metrics.judge.grades import parse_grades
from metrist.metrics.judge.judge import record_texts
from metrist.metrics.judge.rubrics import Aspect, Level
from metrist.metrics.llm_metric import UnparsableAnswer, ask_llm, sum_usage
from metrist.metrics.prompt_layout import REMINDER, fence_texts, fill_template
from metrist.metrics.prompt_layout import PromptText as Material_prompt_layout
from metrist.records import Pair, Record
from metrist.scores import Scores

#: Shares of the scale: a difference of less matters to nobody.
_SMALL = 0.05
_WEAK = 0.1


def position_findings(judgments: Sequence[Judgment]) -> list[Finding]:
    """How often the order of two outputs decides, and for which place."""
    known = [one.flipped for one in judgments if one.flipped is not None]
    if not known:
        why = "no item has two different outputs" if not judgments else "no pair was judged in both orders"
        return [unmeasured("position", "flips", why)]
    shown = Counter(choice for one in judgments for choice in one.shown)
    named = shown["first"] + shown["second"]
    return [
        share("position", "flips", sum(known), len(known), "pairs, asked in both orders", above=0.05),
        share("position", "first place chosen", shown["first"], named, "choices", above=0.55, below=0.45),
    ]


def repeat_findings(grader: Grader, records: Sequence[Record], first: Floats, repeats: int) -> list[Finding]:
    """How often the same question gets the same grade."""
    if repeats < 2:
        return [unmeasured("repeats", "equal grades", "the question was asked once only (--repeats)")]
    again = [first, *(grader.values(records, sample=number) for number in range(1, repeats))]
    rows = np.stack(again, axis=1)
    graded = rows[~np.isnan(rows).any(axis=1)]
    equal = int(np.count_nonzero(np.ptp(graded, axis=1) < 1e-9)) if len(graded) else 0
    spread = float(graded.std(axis=1).mean()) if len(graded) else math.nan
    unit = f"outputs, each graded {repeats} times"
    told = {"mean_spread": spread, "temperature": grader.judge.temperature}
    return [share("repeats", "equal grades", equal, len(graded), unit, below=0.95, details=told)]


def length_findings(material: Material, grades: Floats, sign: float) -> list[Finding]:
    """Whether longer outputs of an item get better grades, and whether they do so when people rate them alike."""
    lengths = np.array([math.log1p(len(record.output)) for record in material.records])
    human = material.human()
    plain = correlation_by_item(grades * sign, lengths, material.items)
    if math.isnan(plain[0]):
        why = "the outputs of an item do not differ in grade and length"
        return [unmeasured("length", "correlation with length", why)]
    n = int(np.count_nonzero(~np.isnan(grades)))
    raw = _estimate("length", "correlation with length", plain, n, "outputs, within items")
    name = "correlation, human ratings fixed"
    both = int(np.count_nonzero(~(np.isnan(grades) | np.isnan(human))))
    if both < FEWEST:
        why = "the data have no human ratings, so longer outputs may simply be better"
        return [raw, unmeasured("length", name, why)]
    fixed = partial(grades * sign, lengths, human, material.items)
    return [raw, _estimate("length", name, fixed, both, "outputs, within items", limit=_WEAK)]


def gold_findings(grader: Grader, material: Material, grades: Floats) -> tuple[list[Finding], Floats]:
    """What the reference in the prompt does to the grades; and the grades with the other setting, NaN where there is no
    reference to show."""
    other = np.full(len(grades), math.nan)
    at = [i for i, record in enumerate(material.records) if record.references]
    if not at:
        return [unmeasured("gold", "grade with the reference less without", "the data have no references")], other
    turned = "hidden" if grader.judge.reference == "shown" else "shown"
    other[at] = grader.values([material.records[i] for i in at], reference=turned)
    change = (other - grades) * (1.0 if turned == "shown" else -1.0)
    known = change[~np.isnan(change)]
    found = _estimate(
        "gold",
        "grade with the reference less without",
        mean_by_item(change, material.items),
        len(known),
        "outputs",
        limit=_SMALL * grader.reach,
        details={"share_changed": float(np.mean(np.abs(known) > 1e-9)) if len(known) else math.nan},
    )
    return [found], other


def scale_findings(grader: Grader, scores: Scores) -> list[Finding]:
    """How the offered grades are used, aspect by aspect: one grade for nearly all tells outputs apart from nothing."""
    findings = []
    for aspect in grader.rubric.aspects:
        column = scores.parts.get(aspect.name, np.empty(0))
        given = Counter(column[~np.isnan(column)].tolist())
        counts = {level.name: given.get(level.value, 0) for level in aspect.levels}
        n = sum(counts.values())
        told = {"entropy": _entropy(list(counts.values())), "grades": counts}
        name = f"most used grade of {aspect.name}"
        findings.append(share("scale", name, max(counts.values()), n, "grades", above=0.9, details=told))
    return findings


def own_findings(material: Material, grades: Floats, sign: float) -> list[Finding]:
    """Whether the judge grades the outputs of its own LLM better than people do."""
    name = "own outputs' lead over others, beyond people's"
    if material.own is None:
        return [unmeasured("own outputs", name, "it was not said which system is the judge's own (--own)")]
    own = np.array([record.system == material.own for record in material.records])
    lead = _lead(_standard(grades * sign), own, material.items)
    raw = _estimate("own outputs", "own outputs' lead over others", *_by_item(lead), unit="items, in standard scores")
    human = material.human()
    if np.count_nonzero(~np.isnan(human)) < FEWEST:
        return [raw, unmeasured("own outputs", name, "the data have no human ratings, so they may simply be better")]
    beyond = _lead(_standard(grades * sign) - _standard(human), own, material.items)
    return [raw, _estimate("own outputs", name, *_by_item(beyond), unit="items, in standard scores", limit=_WEAK)]


def own_pair_findings(material: Material, pairs: Sequence[Pair], judgments: Sequence[Judgment]) -> list[Finding]:
    """How often the own output wins where it meets another."""
    if material.own is None:
        return []
    points = {"first": 1.0, "tie": 0.5, "second": 0.0}
    met = [
        (pair.first.item, points[one.preference] if pair.first.system == material.own else 1 - points[one.preference])
        for pair, one in zip(pairs, judgments, strict=True)
        if one.preference is not None and material.own in (pair.first.system, pair.second.system)
    ]
    if len(met) < FEWEST:
        return [unmeasured("own outputs", "own outputs' win rate", f"only {len(met)} pairs with an own output")]
    told = mean_by_item(np.array([won for _, won in met]), [item for item, _ in met])
    return [_estimate("own outputs", "own outputs' win rate", told, len(met), "pairs")]


def failure_findings(grader: Grader, judgments: Sequence[Judgment]) -> list[Finding]:
    """Answers that gave no grade, those of them that refuse to, and pairs without a choice."""
    reasons = Counter(grader.failures).most_common(3)
    told = {f"reason {i}": f"{reason} ({times})" for i, (reason, times) in enumerate(reasons, 1)}
    failed = sum(one.preference is None for one in judgments)
    pairs = share("failures", "pairs without a choice", failed, len(judgments), "pairs", above=0.02)
    return [
        share(
            "failures",
            "answers without a grade",
            len(grader.failures),
            grader.asked,
            "outputs",
            above=0.02,
            details=told,
        ),
        share("failures", "refusals", grader.refusals, grader.asked, "outputs", above=0.02),
        *([pairs] if judgments else []),
    ]


def _estimate(
    part: str,
    name: str,
    told: tuple[float, float, float],
    n: int,
    unit: str,
    limit: float | None = None,
    details: Mapping[str, object] | None = None,
) -> Finding:
    """A number with its interval; found where all of the interval lies further from 0 than the limit."""
    value, low, high = told
    if n < FEWEST or math.isnan(value):
        return unmeasured(part, name, f"only {n} {unit} that differ, wanted {FEWEST} or more")
    beyond = limit is not None and (low > limit or high < -limit)
    verdict: Verdict = "told" if limit is None else "found" if beyond else "not found"
    said = f"beyond ± {limit:.2g}" if limit is not None else ""
    return Finding(
        part=part,
        name=name,
        value=value,
        low=low,
        high=high,
        n=n,
        unit=unit,
        verdict=verdict,
        limit=said,
        details=details or {},
    )


def _standard(values: Floats) -> Floats:
    known = values[~np.isnan(values)]
    spread = known.std() if len(known) else 0.0
    found: Floats = (values - known.mean()) / spread if spread > 0 else np.where(np.isnan(values), math.nan, 0.0)
    return found


def _lead(values: Floats, own: np.ndarray[tuple[int], np.dtype[np.bool_]], items: Sequence[str]) -> dict[str, float]:
    """Per item, how far the own output lies above the mean of the others."""
    by_item: dict[str, tuple[list[float], list[float]]] = {}
    for value, mine, item in zip(values.tolist(), own.tolist(), items, strict=True):
        if not math.isnan(value):
            by_item.setdefault(item, ([], []))[mine].append(value)
    return {item: mine[0] - sum(rest) / len(rest) for item, (rest, mine) in by_item.items() if mine and rest}


def _by_item(lead: dict[str, float]) -> tuple[tuple[float, float, float], int]:
    return mean_by_item(np.array(list(lead.values())), list(lead)), len(lead)


def _entropy(counts: Sequence[int]) -> float:
    """From 0, one grade for all, to 1, all grades equally often."""
    total = sum(counts)
    if not total or len(counts) < 2:
        return math.nan
    shares = [count / total for count in counts if count]
    return abs(sum(one * math.log(one) for one in shares)) / math.log(len(counts))


# How far the judge agrees with people, with the reference in the prompt and without it.


_MEASURES = ("acc_eq", "spearman")


def people_findings(material: Material, grades: Mapping[str, Floats], lower_is_better: bool) -> list[Finding]:
    """Agreement of each column of grades, by aspect that people rated: pairwise accuracy with ties, and rank
    correlation, on all outputs together."""
    if not material.ratings:
        return [unmeasured("people", "agreement with ratings", "the data have no human ratings")]
    told = {name: column for name, column in grades.items() if not all(map(math.isnan, column))}
    if not told:
        return [unmeasured("people", "agreement with ratings", "no output has a grade")]
    try:
        found = meta_evaluate(
            list(_rows(material, told)),
            list(material.ratings),
            list(_MEASURES),
            group="none",
            test="none",
            lower_is_better=list(told) if lower_is_better else (),
        )
    except MetristError as fault:
        return [unmeasured("people", "agreement with ratings", str(fault))]
    return [
        Finding(
            part="people",
            name=f"{figure.measure} with {figure.aspect}, {figure.metric}",
            value=figure.value,
            low=figure.low,
            high=figure.high,
            n=figure.n,
            unit="outputs",
            beside=_baselines(figure.chance, figure.all_ties),
            details={} if math.isnan(figure.chance) else {"chance": figure.chance, "all_ties": figure.all_ties},
        )
        for figure in found.figures
        if figure.metric in told and not math.isnan(figure.value)
    ]


def _baselines(chance: float, all_ties: float) -> str:
    """What a metric reaches that knows nothing: pairwise accuracy is no share of which half would be chance."""
    if math.isnan(chance) or math.isnan(all_ties):
        return ""
    return f"chance {chance:.3f}, all ties {all_ties:.3f}"


def choice_findings(material: Material, judgments: Sequence[Judgment]) -> list[Finding]:
    """How often the judge chooses between two outputs as most people did."""
    findings = []
    for aspect, votes in material.votes.items():
        keys = [(pair.first.item, pair.first.system, pair.second.system) for pair in material.pairs]
        sides = zip(map(votes.choice, keys), (one.preference for one in judgments), strict=True)
        both = [(human, own) for human, own in sides if human is not None and own is not None]
        hits = sum(human == own for human, own in both)
        coin = sum(human != "tie" for human, _ in both) / 2 / len(both) if both else math.nan
        name = f"choices as people's by {aspect}"
        told = share("people", name, hits, len(both), "pairs", details={"chance": coin})
        findings.append(replace(told, beside="" if math.isnan(coin) else f"chance {coin:.3f}"))
    return findings


def _rows(material: Material, grades: Mapping[str, Floats]) -> list[dict[str, Any]]:
    rows = []
    for i, record in enumerate(material.records):
        key = (record.item, record.system)
        ratings = {aspect: column[key] for aspect, column in material.ratings.items() if key in column}
        scores = {name: float(column[i]) for name, column in grades.items() if not math.isnan(column[i])}
        rows.append(
            {
                "item": record.item,
                "system": record.system,
                "output": record.output,
                "ratings": ratings,
                "scores": scores,
            }
        )
    return rows


# Does the judge make things up? A second LLM reads its reasons beside the texts and says yes or no (paper 001, Tables
# 22 and 23).


#: Analyses that are checked: enough for an interval, and twice as many as the paper's twenty.
MOST = 40
_PART, _NAME = "analyses", "made-up analyses"
_MADE_UP = Aspect("made_up", "Is anything made up?", (Level("yes", 1), Level("no", 0)), categorical=True)


def analysis_findings(
    second: LLM | None, records: Sequence[Record], scores: Scores
) -> tuple[list[Finding], Mapping[str, Any]]:
    """The share of the judge's analyses that the second LLM holds to be made up in part, and what its answers took."""
    if second is None:
        return [unmeasured(_PART, _NAME, "no second LLM was named (--second-llm)")], {}
    told = _select_analyses(records, scores)
    if not told:
        return [unmeasured(_PART, _NAME, "the judge gave no reasons")], {}
    answers, marks, texts = _ask_about_analyses(second, told)
    read = map(_verdict, answers, marks, texts)
    verdicts = [one for one in read if one is not None]
    used = sum_usage(answers)
    details = {"checked_by": str(second), "unread": len(told) - len(verdicts), **used}
    return [share(_PART, _NAME, sum(verdicts), len(verdicts), "analyses", above=0.1, details=details)], used


def _select_analyses(records: Sequence[Record], scores: Scores) -> list[tuple[Record, str]]:
    """The outputs whose analyses are checked, each with its analysis; a dry run counts on one for each output."""
    if budget.current_estimate() is not None:
        return [(record, scores.explanations.get(i, budget.PLACEHOLDER)) for i, record in enumerate(records)][:MOST]
    return [(records[i], said) for i, said in sorted(scores.explanations.items()) if i not in scores.failures][:MOST]


def _ask_about_analyses(
    second: LLM, told: Sequence[tuple[Record, str]]
) -> tuple[list[Completion], list[str], list[tuple[str, ...]]]:
    """The answers, with the mark that each is to carry and the texts that it is about."""
    materials = [
        [*record_texts(record, references=bool(record.references)), Material_prompt_layout("analysis", said)]
        for record, said in told
    ]
    laid = [fence_texts(one) for one in materials]
    asked = [
        (Message("user", fill_template(_prompt(), reminder=REMINDER, material=one.text, mark=one.mark)),)
        for one in laid
    ]
    answers = ask_llm(second, asked, Sampling())
    return answers, [one.mark for one in laid], [tuple(one.text for one in some) for some in materials]


def _verdict(answer: Completion, mark: str, texts: Sequence[str]) -> bool | None:
    if answer.failure is not None:
        return None
    try:
        found = parse_grades(answer.text, [_MADE_UP], mark, texts)
    except UnparsableAnswer:
        return None
    level = found.levels.get(_MADE_UP.name)
    return None if level is None else bool(level.value)


def _prompt() -> str:
    return (resources.files("metrist.evaluate.audit") / "analysis.md").read_text(encoding="utf-8").strip()
