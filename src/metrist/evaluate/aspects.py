"""A table of aspects for a new task, in the three steps of paper 001, A.1: twenty candidates, three to five that cover
all of them and do not overlap, and for each a definition and five errors. A draft for a person to edit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from metrist.errors import ModelError, RunError
from metrist.llm.base import LLM, build_llm
from metrist.llm.budget import PLACEHOLDER, Estimate, estimate_calls
from metrist.llm.messages import Conversation, Message, Sampling
from metrist.metrics.answer_parsing import find_objects
from metrist.metrics.errors.aspect_tables import Aspect, AspectTable, find_table, format_toml
from metrist.metrics.llm_metric import ask_llm
from metrist.metrics.prompt_layout import fill_template, load_template

CANDIDATES, FEWEST, MOST, ERRORS = 20, 3, 5, 5
_ROOM = 4096


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A table, the candidates that it was chosen from, and what its reader should know."""

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
                "Read and change it: aspects should not overlap, should leave nothing out, and should be told apart",
                "by their definitions alone. Then: -m \"error_analysis(llm=…, aspects='THIS FILE')\"",
                *self.notes,
            ],
        )


def draft_aspects(task: str, llm: str | LLM) -> Draft:
    """Ask an LLM for the aspects of a task."""
    if not task.strip():
        raise RunError("say what the task is, such as --task 'Write a product description from a list of features'")
    asked = build_llm(llm)
    talk: Conversation = ()
    talk, first = _ask_for_object(
        asked, talk, fill_template(load_template("aspects_candidates"), task=task, count=str(CANDIDATES))
    )
    candidates = _names(first, "aspects", "the candidates")
    limits = {"fewest": str(FEWEST), "most": str(MOST)}
    talk, second = _ask_for_object(asked, talk, fill_template(load_template("aspects_choice"), **limits))
    chosen = _names(second, "aspects", "the aspects chosen")
    listed = ", ".join(chosen)
    _, third = _ask_for_object(
        asked, talk, fill_template(load_template("aspects_definitions"), aspects=listed, count=str(ERRORS))
    )
    aspects = _aspects(third)
    table = AspectTable(
        task=" ".join(task.split()),
        aspects=aspects,
        output=_text(third.get("output")) or "output",
        instruction=_text(third.get("instruction")) or task.strip(),
    )
    return Draft(table=table, candidates=candidates, llm=str(asked), notes=tuple(_doubts(candidates, chosen, aspects)))


def estimate_aspects(task: str, llm: str | LLM) -> Estimate:
    """What `draft_aspects` would ask. Nothing is sent; what a question quotes of answers to come is counted at its
    longest."""
    asked, sizes = build_llm(llm), {"fewest": str(FEWEST), "most": str(MOST)}
    questions = [
        fill_template(load_template("aspects_candidates"), task=task, count=str(CANDIDATES)),
        fill_template(load_template("aspects_choice"), **sizes),
        fill_template(load_template("aspects_definitions"), aspects=PLACEHOLDER, count=str(ERRORS)),
    ]
    talk: Conversation = ()
    with estimate_calls() as found:
        for question in questions:
            talk = (*talk, Message("user", question))
            talk = (*talk, Message("assistant", ask_llm(asked, [talk], Sampling(max_tokens=_ROOM))[0].text))
    return found


def _ask_for_object(llm: LLM, talk: Conversation, question: str) -> tuple[Conversation, dict[str, Any]]:
    """The conversation with the question and its answer, and the JSON object that the answer ends with."""
    asked = (*talk, Message("user", question))
    answer = ask_llm(llm, [asked], Sampling(max_tokens=_ROOM))[0]
    if answer.failure is not None:
        raise ModelError(f"{llm} did not answer: {answer.failure}")
    objects = find_objects(answer.text)
    if not objects:
        raise ModelError(f"{llm} was asked for a JSON object and answered {answer.text[:200]!r}: try another LLM")
    return (*asked, Message("assistant", answer.text)), dict(objects[-1].values)


def _names(found: dict[str, Any], key: str, what: str) -> tuple[str, ...]:
    rows = found.get(key)
    names = [_text(row.get("name") if isinstance(row, dict) else row) for row in rows] if isinstance(rows, list) else []
    kept = tuple(dict.fromkeys(name for name in names if name))
    if not kept:
        raise ModelError(f"{what} must be a list under {key!r}, got {json.dumps(found)[:200]}: try another LLM")
    return kept


def _aspects(found: dict[str, Any]) -> tuple[Aspect, ...]:
    rows = found.get("aspects")
    made: dict[str, Aspect] = {}
    for row in rows if isinstance(rows, list) else ():
        name, definition = (_text(row.get(key)) if isinstance(row, dict) else "" for key in ("name", "definition"))
        if name and definition:
            errors = row.get("errors")
            typical = tuple(filter(None, map(_text, errors if isinstance(errors, list) else ())))
            made.setdefault(name.lower(), Aspect(name=name, definition=definition, errors=typical))
    if not made:
        raise ModelError(f"the answer defines no aspect, got {json.dumps(found)[:200]}: try another LLM")
    return tuple(made.values())


def _doubts(candidates: Sequence[str], chosen: Sequence[str], aspects: Sequence[Aspect]) -> list[str]:
    doubts = []
    if len(candidates) != CANDIDATES:
        doubts.append(f"Of {CANDIDATES} candidates that were asked for {len(candidates)} came.")
    if not FEWEST <= len(aspects) <= MOST:
        doubts.append(f"{FEWEST} to {MOST} aspects were asked for, {len(aspects)} came.")
    if lost := [name for name in chosen if name.lower() not in {aspect.name.lower() for aspect in aspects}]:
        doubts.append(f"Chosen, but not defined: {', '.join(lost)}.")
    doubts += [
        f"{aspect.name} has {len(aspect.errors)} typical errors of {ERRORS}."
        for aspect in aspects
        if len(aspect.errors) != ERRORS
    ]
    return doubts


def shipped(task: str) -> str | None:
    """The name of the table that metrist already has for a task of this name."""
    found = find_table(task)
    return found.task if found else None


def _text(value: Any) -> str:
    return " ".join(value.split()) if isinstance(value, str) else ""
