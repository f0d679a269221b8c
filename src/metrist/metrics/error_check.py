"""A second look at errors that were found: the LLM is asked of each whether it is real, and those that it does not hold
for real are dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metrist.llm.base import LLM
from metrist.llm.talk import Completion, Sampling
from metrist.metrics.analysis_prompts import Reference, check_question, user
from metrist.metrics.aspect_tables import AspectTable
from metrist.metrics.json_answers import Object, values
from metrist.metrics.judging import ask, reasons_among
from metrist.ratings import Error
from metrist.records import Record

_SAID = {"yes": True, "true": True, "no": False, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """The errors that stand, how many were refused, and what is odd about the answers."""

    kept: tuple[Error, ...]
    refused: int = 0
    notes: tuple[str, ...] = ()
    completions: tuple[Completion, ...] = ()


def checked_errors(
    llm: LLM,
    records: Sequence[Record],
    own: Sequence[AspectTable],
    found: Sequence[Sequence[Error]],
    reference: Reference,
    sampling: Sampling,
) -> list[Verdicts]:
    """One entry per record. An error whose answer is missing or cannot be read stands, and that is noted."""
    asked = [
        check_question(record, table, error, reference)
        for record, table, errors in zip(records, own, found, strict=True)
        for error in errors
    ]
    answers = iter(zip(ask(llm, [(user(text),) for text, _ in asked], sampling), asked, strict=True))
    return [_verdicts(errors, [next(answers) for _ in errors]) for errors in found]


def _verdicts(errors: Sequence[Error], answers: Sequence[tuple[Completion, tuple[str, str]]]) -> Verdicts:
    said = [is_real(answer.text, mark) if answer.failure is None else None for answer, (_, mark) in answers]
    silent = sum(one is None for one in said)
    why = reasons_among(answer.failure for answer, _ in answers)
    return Verdicts(
        kept=tuple(error for error, real in zip(errors, said, strict=True) if real is not False),
        refused=sum(one is False for one in said),
        notes=(f"{silent} errors could not be checked and stand{f' ({why})' if why else ''}",) if silent else (),
        completions=tuple(answer for answer, _ in answers),
    )


def is_real(answer: str, mark: str) -> bool | None:
    """The verdict of an answer: the last JSON object that carries the mark decides; None where there is none."""
    own = [value for value, _ in values(answer) if isinstance(value, Object) and value.get("mark") == mark]
    return _SAID.get(str(own[-1].get("real")).strip().lower()) if own else None
