"""What a judge is asked: the rules and the rubric, the same for all records, then a record's texts between fences, then
the form of the answer with the fences' mark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrist.llm.talk import Conversation, Message
from metrist.metrics.instructions import instruction_of
from metrist.metrics.prompt_layout import REMINDER, Material, filled, lay_out, template
from metrist.metrics.rubrics import MARK, REASONS, Aspect, Rubric
from metrist.records import Record

RULES, QUESTION = "judge_rules", "judge_question"
_WITH_REASONS = (
    "Weigh the output against every aspect before you settle on a grade: the reasons come first, a few sentences with "
    "what is good and what is wrong, and the grades follow from them."
)
_WITHOUT_REASONS = "Give the grades alone, without reasons."
_SEVERAL = "Each of the references is a right answer in its own way. "
_ONE = "The reference is a right answer; there may be others. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A conversation about one record, the mark that the answer is to carry, and the record's texts in it."""

    conversation: Conversation
    mark: str
    texts: tuple[str, ...]


def question(record: Record, rubric: Rubric, *, references: bool, reasons: bool) -> Question:
    """What is asked of a record by all aspects of the rubric."""
    materials = materials_of(record, references=references)
    laid_out = lay_out(materials)
    text = filled(
        template(QUESTION),
        material=laid_out.text,
        mark=laid_out.mark,
        references=_of_references(record) if references else "",
        reasons="Reasons first, then grades. " if reasons else "",
        form=_form(rubric.aspects, laid_out.mark, reasons=reasons),
    )
    conversation = (Message("system", rules(rubric, reasons=reasons)), Message("user", text))
    return Question(conversation=conversation, mark=laid_out.mark, texts=tuple(one.text for one in materials))


def materials_of(record: Record, *, references: bool) -> list[Material]:
    """The record's texts in the order in which a judge reads them."""
    found = [Material("instruction", instruction_of(record)[0])]
    if record.source is not None:
        found.append(Material("source", record.source))
    if references:
        several = len(record.references) > 1
        named = [f"reference {n}" if several else "reference" for n in range(1, len(record.references) + 1)]
        found += map(Material, named, record.references)
    return [*found, Material("output", record.output)]


def rules(rubric: Rubric, *, reasons: bool) -> str:
    """What all records are judged by."""
    return filled(
        template(RULES),
        reminder=REMINDER,
        rubric="\n\n".join([*([f"For: {rubric.about}"] if rubric.about else []), *map(_described, rubric.aspects)]),
        answer=_WITH_REASONS if reasons else _WITHOUT_REASONS,
    )


def wording(rubric: Rubric, *, reasons: bool) -> str:
    """All that a judge is told by this rubric besides the records' texts."""
    defaults = template("judge_instructions", ".toml")
    form = _form(rubric.aspects, "", reasons=reasons)
    return "\n".join([rules(rubric, reasons=reasons), template(QUESTION), _SEVERAL, _ONE, form, defaults])


def schema(aspects: Sequence[Aspect], *, reasons: bool) -> Mapping[str, Any]:
    """The JSON schema of an answer, for servers that can be held to one."""
    grades = {aspect.name: {"enum": [_literal(aspect, n) for n in range(len(aspect.levels))]} for aspect in aspects}
    said: dict[str, Any] = {REASONS: {"type": "string"}} if reasons else {}
    properties = {**said, **grades, MARK: {"type": "string"}}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _described(aspect: Aspect) -> str:
    levels = [f"  {level.name}: {level.meaning}" for level in aspect.levels if level.meaning]
    offered = f" (grades: {aspect.offered})" if len(levels) < len(aspect.levels) else ""
    return "\n".join([f"{aspect.name}: {aspect.question}{offered}", *levels])


def _form(aspects: Sequence[Aspect], mark: str, *, reasons: bool) -> str:
    # The places for grades are no JSON: a judge that repeats the form has not graded anything.
    said = [f'"{REASONS}": "…"'] if reasons else []
    grades = [f'"{aspect.name}": <{_choices(aspect)}>' for aspect in aspects]
    return "{" + ", ".join([*said, *grades, f'"{MARK}": "{mark}"']) + "}"


def _choices(aspect: Aspect) -> str:
    return " or ".join(f'"{level.name}"' for level in aspect.levels) if aspect.categorical else aspect.offered


def _literal(aspect: Aspect, number: int) -> Any:
    level = aspect.levels[number]
    return level.name if aspect.categorical else json.loads(level.name)


def _of_references(record: Record) -> str:
    return _SEVERAL if len(record.references) > 1 else _ONE
