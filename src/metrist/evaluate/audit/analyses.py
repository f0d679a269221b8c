"""Audit a metric that lists errors: a second LLM checks its analyses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from typing import Any

from metrist.errors import RunError, SpecError
from metrist.evaluate.audit.card import (
    Finding,
    JudgeCard,
    build_share,
    build_unmeasured,
    check_card_path,
)
from metrist.evaluate.audit.sample import hash_record
from metrist.io import read_records
from metrist.io.reader import Reader, check_keywords
from metrist.llm import base
from metrist.llm.base import LLM
from metrist.llm.estimate import PLACEHOLDER, CallEstimate, current_estimate, estimate_calls
from metrist.llm.messages import Message, Sampling
from metrist.metrics.base import Metric, Shard
from metrist.metrics.errors.answers import WrittenError
from metrist.metrics.errors.span_alignment import is_grounded
from metrist.metrics.errors.tigerscore import format_tiger_answer
from metrist.metrics.judge.judge import parse_grades, record_texts
from metrist.metrics.judge.rubrics import Aspect, Level
from metrist.metrics.llm_metric import UnparsableAnswer, ask_llm, sum_usage
from metrist.metrics.prompt_layout import REMINDER, PromptText, fence_texts, fill_template
from metrist.metrics.registry import build as build_metric
from metrist.ratings import Error
from metrist.records import Record
from metrist.runtime import Runtime
from metrist.scores import Scores
from metrist.settings import LLMSettings, select_arguments
from metrist.spec import Spec

#: Analyses that are checked: enough for an interval, and twice as many as the paper's twenty.
_CHECKED_ANALYSES = 40
#: Outputs that are analysed for each analysis that is checked: many analyses list no error.
_DRAWN_PER_CHECKED = 3
_MADE_UP_NAMES = ("analyses", "made-up analyses")
_MADE_UP = Aspect("made_up", "Is anything made up?", (Level("yes", 1), Level("no", 0)), categorical=True)


def measure_analyses(
    second: LLM | None, records: Sequence[Record], scores: Scores
) -> tuple[list[Finding], Mapping[str, Any]]:
    """The share of the judge's analyses that contain made-up content according to a second LLM (TIGERScore paper,
    Tables 22 and 23), and the usage of its calls."""
    if second is None:
        return [build_unmeasured(*_MADE_UP_NAMES, "no second LLM was named (`second_llm`)")], {}
    if current_estimate() is not None:
        # A dry run assumes a reason for each grade.
        explanations = {i: scores.explanations.get(i, PLACEHOLDER) for i in range(len(records))}
    else:
        explanations = {i: text for i, text in sorted(scores.explanations.items()) if i not in scores.failures}
    checked = dict(list(explanations.items())[:_CHECKED_ANALYSES])
    if not checked:
        return [build_unmeasured(*_MADE_UP_NAMES, "the judge gave no reasons")], {}
    verdicts, usage = _check_analyses(second, records, checked)
    return [_build_made_up(_MADE_UP_NAMES[1], verdicts.values(), second, usage)], usage


def _check_analyses(
    second: LLM, records: Sequence[Record], analyses: Mapping[int, str]
) -> tuple[dict[int, bool | None], Mapping[str, Any]]:
    """Ask whether each analysis, by the number of its record, contains something made up; None where the answer cannot
    be read. Also return the usage of the calls."""
    template = (resources.files("metrist.evaluate.audit") / "analysis.md").read_text(encoding="utf-8").strip()
    texts = [
        [*record_texts(records[i], references=bool(records[i].references)), PromptText("analysis", analysis)]
        for i, analysis in analyses.items()
    ]
    fenced = [fence_texts(parts) for parts in texts]
    prompts = [fill_template(template, reminder=REMINDER, material=part.text, mark=part.mark) for part in fenced]
    answers = ask_llm(second, [(Message("user", prompt),) for prompt in prompts], Sampling())
    verdicts: dict[int, bool | None] = dict.fromkeys(analyses)
    for number, answer, fence, parts in zip(analyses, answers, fenced, texts, strict=True):
        if answer.failure is None:
            with suppress(UnparsableAnswer):
                grades = parse_grades(answer.text, [_MADE_UP], fence.mark, [part.text for part in parts])
                level = grades.levels.get(_MADE_UP.name)
                verdicts[number] = None if level is None else bool(level.value)
    return verdicts, sum_usage(answers)


def _build_made_up(
    name: str, verdicts: Iterable[bool | None], second: LLM, usage: Mapping[str, Any] | None = None
) -> Finding:
    answers = list(verdicts)
    readable = [verdict for verdict in answers if verdict is not None]
    details = {"checked_by": str(second), "unread": len(answers) - len(readable), **(usage or {})}
    part = _MADE_UP_NAMES[0]
    return build_share(part, name, sum(readable), len(readable), "analyses", above=0.1, details=details)


def audit_analyses(
    records: Any,
    metric: str | Metric,
    second_llm: str | Spec | LLM,
    *,
    per_task: int = 20,
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
    """Let a second LLM check whether the analyses of a metric that lists errors, such as a trained `tigerscore`, have
    anything made up in them: as in Table 22 of the TIGERScore paper, `per_task` outputs with errors of each task.

    Also counted, without an LLM: answers that can be read, and errors whose words are in the output or the source.
    Analyses without errors are not checked: there is nothing in them to be made up. The rest is as for `audit`.
    """
    check_keywords(audit_analyses, reading)
    if out is not None:
        check_card_path(out)
    analyst = build_metric(metric) if isinstance(metric, str) else metric
    if not analyst.reports_errors:
        raise SpecError(f"{analyst.label} lists no errors, so it has no analyses to check; expected tigerscore(llm=…)")
    second = base.build_llm(second_llm)
    runtime = Runtime.current().override(**select_arguments(LLMSettings, locals()))
    with runtime.activate():
        chosen = _draw_by_task(read_records(records, **reading), per_task * _DRAWN_PER_CHECKED)
        notify = on_part or (lambda _part: None)
        notify("analyses")
        scores = analyst.score(Shard(chosen))
        by_task: dict[str, dict[int, str]] = {}
        for number, record in enumerate(chosen):
            own = by_task.setdefault(record.task or "not stated", {})
            if len(own) == per_task:
                continue
            if current_estimate() is not None:
                own[number] = PLACEHOLDER  # A dry run assumes errors in each analysis.
            elif scores.errors.get(number):
                own[number] = format_tiger_answer([_write_error(error) for error in scores.errors[number]])
        notify("check")
        picked = {number: text for own in by_task.values() for number, text in own.items()}
        verdicts, usage = _check_analyses(second, chosen, picked) if picked else ({}, {})
    failed = sum(number in scores.failures for number in range(len(chosen)))
    errors = [error for listed in scores.errors.values() for error in listed]
    located = sum(is_grounded(error) for error in errors)
    findings = [
        build_share("failures", "answers that cannot be read", failed, len(chosen), "answers", above=0.02),
        build_share("analyses", "errors that are not in the texts", len(errors) - located, len(errors), "errors",
                    above=0.1),
    ]  # fmt: skip
    if not picked:
        findings.append(build_unmeasured(*_MADE_UP_NAMES, "no analysis lists an error"))
    else:
        findings.append(_build_made_up(_MADE_UP_NAMES[1], verdicts.values(), second, usage))
        if len(by_task) > 1:
            findings += [
                _build_made_up(f"{_MADE_UP_NAMES[1]}, {task}", [verdicts[number] for number in own], second)
                for task, own in by_task.items()
                if own
            ]
    card = JudgeCard(
        judge=analyst.text,
        signature=analyst.signature,
        data={"outputs": len(chosen), "analyses_checked": len(picked), "tasks": list(by_task)},
        findings=tuple(findings),
        usage=usage,
    )
    if out is not None:
        card.write(out)
    return card


def estimate_analyses(
    records: Any, metric: str | Metric, second_llm: str | Spec | LLM, **settings: Any
) -> CallEstimate:
    """Estimate the calls of `audit_analyses` with the same arguments, the metric's own included. Nothing is sent or
    written. Each analysis is assumed to list errors."""
    with estimate_calls() as estimate:
        audit_analyses(records, metric, second_llm, **{**settings, "out": None})
    return estimate


def _draw_by_task(reader: Reader, outputs: int) -> list[Record]:
    """Choose outputs of each task by hashes of their names, so that the same input gives the same sample."""
    by_task: dict[str | None, list[Record]] = {}
    for entry in reader.entries():
        for record in entry.new:
            by_task.setdefault(record.task, []).append(record)
    if not by_task:
        raise RunError(f"{', '.join(reader.names) or 'the input'}: none of the rows has an output", code="no_data")
    return [record for own in by_task.values() for record in sorted(own, key=hash_record)[:outputs]]


def _write_error(error: Error) -> WrittenError:
    return WrittenError(
        location=error.text,
        aspect=error.aspect,
        explanation=f"{error.explanation} {error.revision}".strip(),
        severity=(error.severity or "").capitalize(),
        penalty=error.penalty,
    )
