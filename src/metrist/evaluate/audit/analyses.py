"""Does the judge make things up? A second LLM reads its reasons beside the texts and says yes or no (paper 001, Tables
22 and 23)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from metrist.evaluate.audit.card import Finding
from metrist.evaluate.audit.certainty import share, unmeasured
from metrist.llm import estimates
from metrist.llm.base import LLM
from metrist.llm.talk import Completion, Message, Sampling
from metrist.metrics.judge.grades import read_grades
from metrist.metrics.judge.judge import materials_of
from metrist.metrics.judge.rubrics import Aspect, Level
from metrist.metrics.llm_metric import Unreadable, ask, spent
from metrist.metrics.prompt_layout import REMINDER, Material, filled, lay_out
from metrist.records import Record
from metrist.scores import Scores

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
    told = _told(records, scores)
    if not told:
        return [unmeasured(_PART, _NAME, "the judge gave no reasons")], {}
    answers, marks, texts = _asked(second, told)
    read = map(_verdict, answers, marks, texts)
    verdicts = [one for one in read if one is not None]
    used = spent(answers)
    details = {"checked_by": str(second), "unread": len(told) - len(verdicts), **used}
    return [share(_PART, _NAME, sum(verdicts), len(verdicts), "analyses", above=0.1, details=details)], used


def _told(records: Sequence[Record], scores: Scores) -> list[tuple[Record, str]]:
    """The outputs whose analyses are checked, each with its analysis; a dry run counts on one for each output."""
    if estimates.current() is not None:
        return [(record, scores.explanations.get(i, estimates.TO_COME)) for i, record in enumerate(records)][:MOST]
    return [(records[i], said) for i, said in sorted(scores.explanations.items()) if i not in scores.failures][:MOST]


def _asked(
    second: LLM, told: Sequence[tuple[Record, str]]
) -> tuple[list[Completion], list[str], list[tuple[str, ...]]]:
    """The answers, with the mark that each is to carry and the texts that it is about."""
    materials = [
        [*materials_of(record, references=bool(record.references)), Material("analysis", said)] for record, said in told
    ]
    laid = [lay_out(one) for one in materials]
    asked = [(Message("user", filled(_prompt(), reminder=REMINDER, material=one.text, mark=one.mark)),) for one in laid]
    answers = ask(second, asked, Sampling())
    return answers, [one.mark for one in laid], [tuple(one.text for one in some) for some in materials]


def _verdict(answer: Completion, mark: str, texts: Sequence[str]) -> bool | None:
    if answer.failure is not None:
        return None
    try:
        found = read_grades(answer.text, [_MADE_UP], mark, texts)
    except Unreadable:
        return None
    level = found.levels.get(_MADE_UP.name)
    return None if level is None else bool(level.value)


def _prompt() -> str:
    return (resources.files("metrist.evaluate.audit") / "analysis.md").read_text(encoding="utf-8").strip()
