"""Draft a table of aspects for a new task with an LLM, for a person to edit.

The three steps are those of the TIGERScore paper, A.1: twenty candidates; three to five that cover all of them and do
not overlap; a definition and five typical errors for each.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from metrist.errors import ModelError, RunError
from metrist.llm.base import LLM, build_llm
from metrist.llm.estimate import PLACEHOLDER, CallEstimate, estimate_calls
from metrist.llm.messages import Conversation, Message, Sampling
from metrist.metrics.answer_parsing import find_objects
from metrist.metrics.errors.aspect_tables import AspectTable, ErrorAspect, find_table, format_toml
from metrist.metrics.llm_metric import ask_llm
from metrist.metrics.prompt_layout import fill_template, load_template

CANDIDATES, FEWEST, MOST, ERRORS = 20, 3, 5, 5
_SAMPLING = Sampling(max_tokens=4096)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AspectDraft:
    """A drafted table, the candidates that it was chosen from, and notes for its editor."""

    table: AspectTable
    candidates: tuple[str, ...]
    llm: str
    notes: tuple[str, ...] = ()

    def toml(self) -> str:
        """The file for a person to edit."""
        return format_toml(
            self.table,
            [
                f"Aspects for: {self.table.task}",
                f"Drafted by {self.llm}, chosen from: {', '.join(self.candidates)}.".replace("\n", " "),
                "Edit this file: aspects should not overlap, should cover every kind of error, and should be clear",
                "from their definitions alone. Then: -m \"error_analysis(llm=…, aspects='THIS FILE')\"",
                *self.notes,
            ],
        )


def draft_aspects(task: str, llm: str | LLM) -> AspectDraft:
    """Ask an LLM for the aspects of a task."""
    if not task.strip():
        raise RunError("describe the task with `task`, such as 'Write a product description'", code="missing_value")
    client = build_llm(llm)
    conversation, answer = _request_object(client, (), _candidates_question(task))
    candidates = _parse_names(answer, "the candidates")
    conversation, answer = _request_object(client, conversation, _choice_question())
    chosen = _parse_names(answer, "the aspects chosen")
    _, answer = _request_object(client, conversation, _definitions_question(", ".join(chosen)))
    aspects = _parse_aspects(answer)
    table = AspectTable(
        task=" ".join(task.split()),
        aspects=aspects,
        output=_clean_text(answer.get("output")) or "output",
        instruction=_clean_text(answer.get("instruction")) or task.strip(),
    )
    notes = []
    if len(candidates) != CANDIDATES:
        notes.append(f"{CANDIDATES} candidates were requested, the LLM gave {len(candidates)}.")
    if not FEWEST <= len(aspects) <= MOST:
        notes.append(f"{FEWEST} to {MOST} aspects were requested, the LLM gave {len(aspects)}.")
    defined = {aspect.name.lower() for aspect in aspects}
    if undefined := [name for name in chosen if name.lower() not in defined]:
        notes.append(f"Chosen, but not defined: {', '.join(undefined)}.")
    notes += [
        f"{aspect.name} has {len(aspect.errors)} typical errors of {ERRORS}."
        for aspect in aspects
        if len(aspect.errors) != ERRORS
    ]
    return AspectDraft(table=table, candidates=candidates, llm=str(client), notes=tuple(notes))


def estimate_aspects(task: str, llm: str | LLM) -> CallEstimate:
    """Estimate the calls of `draft_aspects`. Nothing is sent; quoted answers count at their full length."""
    client = build_llm(llm)
    conversation: Conversation = ()
    with estimate_calls() as estimate:
        for question in (_candidates_question(task), _choice_question(), _definitions_question(PLACEHOLDER)):
            conversation = (*conversation, Message("user", question))
            answer = ask_llm(client, [conversation], _SAMPLING)[0].text
            conversation = (*conversation, Message("assistant", answer))
    return estimate


def find_shipped_table(task: str) -> str | None:
    """The name of the table that metrist ships for a task of this name."""
    table = find_table(task)
    return table.task if table else None


def _candidates_question(task: str) -> str:
    return fill_template(load_template("aspects_candidates"), task=task, count=str(CANDIDATES))


def _choice_question() -> str:
    return fill_template(load_template("aspects_choice"), fewest=str(FEWEST), most=str(MOST))


def _definitions_question(aspects: str) -> str:
    return fill_template(load_template("aspects_definitions"), aspects=aspects, count=str(ERRORS))


def _request_object(llm: LLM, conversation: Conversation, question: str) -> tuple[Conversation, dict[str, Any]]:
    """The conversation with the question and its answer, and the JSON object at the end of the answer."""
    conversation = (*conversation, Message("user", question))
    answer = ask_llm(llm, [conversation], _SAMPLING)[0]
    if answer.failure is not None:
        raise ModelError(f"{llm} did not answer: {answer.failure}", code="llm_failed")
    objects = find_objects(answer.text)
    if not objects:
        raise ModelError(
            f"{llm} answered without a JSON object: {answer.text[:200]!r}; try another LLM", code="llm_failed"
        )
    return (*conversation, Message("assistant", answer.text)), dict(objects[-1].values)


def _parse_names(answer: dict[str, Any], what: str) -> tuple[str, ...]:
    rows = answer.get("aspects")
    texts = [row.get("name") if isinstance(row, dict) else row for row in rows] if isinstance(rows, list) else []
    names = tuple(dict.fromkeys(filter(None, map(_clean_text, texts))))
    if not names:
        raise ModelError(
            f"{what} must be a list under 'aspects', got {json.dumps(answer)[:200]}: try another LLM",
            code="invalid_value",
        )
    return names


def _parse_aspects(answer: dict[str, Any]) -> tuple[ErrorAspect, ...]:
    rows = answer.get("aspects")
    aspects: dict[str, ErrorAspect] = {}
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict):
            continue
        name = _clean_text(row.get("name"))
        definition = _clean_text(row.get("definition"))
        errors = row.get("errors")
        if name and definition:
            typical = tuple(filter(None, map(_clean_text, errors if isinstance(errors, list) else ())))
            aspects.setdefault(name.lower(), ErrorAspect(name=name, definition=definition, errors=typical))
    if not aspects:
        raise ModelError(
            f"the answer defines no aspect, got {json.dumps(answer)[:200]}: try another LLM", code="invalid_value"
        )
    return tuple(aspects.values())


def _clean_text(value: Any) -> str:
    return " ".join(value.split()) if isinstance(value, str) else ""
