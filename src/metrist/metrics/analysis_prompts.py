"""The questions of the two-step error analysis (paper 001, appendices A.2 and A.3): a free analysis, then the same as
JSON, and the check of a single error. The words are in the folder `prompts` beside this module."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from metrist.llm.talk import Message
from metrist.metrics.aspect_tables import AspectTable
from metrist.metrics.error_answers import WrittenError
from metrist.metrics.prompt_layout import REMINDER, Material, defused, filled, lay_out, template
from metrist.ratings import Error
from metrist.records import Record

Reference = Literal["hidden", "shown"]
ANALYSIS, AS_JSON, CHECK = "error_analysis", "error_analysis_json", "error_analysis_check"

_WITH_REFERENCE = (
    " The reference is one way to do the task well, not the only one: what differs from it is no error for that alone, "
    "and your reasons do not mention it."
)
_NO_ASPECTS = "Look at everything that matters for the task."


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is asked about one record: `analysis` first, `as_json` next; `mark` shows an answer to be the LLM's own."""

    analysis: str
    as_json: str
    mark: str


def questions(record: Record, table: AspectTable, *, aspects: bool, reference: Reference) -> Questions:
    """The questions about a record. Without `aspects` the LLM is left to choose what to look at."""
    laid = lay_out(_materials(record, table, reference))
    listed = f"These are the aspects to look at:\n\n{table.described()}" if aspects else _NO_ASPECTS
    names = f"one of {', '.join(table.names)}" if aspects else "what kind of error it is, in one or two words"
    return Questions(
        analysis=_filled(
            ANALYSIS,
            task=table.task.replace("_", " "),
            reminder=REMINDER,
            texts=laid.text,
            mark=laid.mark,
            output=table.output,
            aspects=listed,
            reference=_WITH_REFERENCE if reference == "shown" and record.references else "",
        ),
        as_json=_filled(AS_JSON, mark=laid.mark, output=table.output, names=names),
        mark=laid.mark,
    )


def check_question(record: Record, table: AspectTable, error: Error, reference: Reference) -> tuple[str, str]:
    """The question whether an error is real, and the mark that its answer carries."""
    laid = lay_out(_materials(record, table, reference))
    text = _filled(
        CHECK,
        task=table.task.replace("_", " "),
        reminder=REMINDER,
        texts=laid.text,
        output=table.output,
        mark=laid.mark,
        words=_quoted(error.text),
        aspect=_quoted(error.aspect),
        reason=_quoted(error.explanation),
        severity=_quoted(error.severity or ""),
    )
    return text, laid.mark


def shown_analysis(errors: Sequence[WrittenError]) -> str:
    """An analysis in words, for examples that come as errors alone."""
    if not errors:
        return "I find no errors."
    return "\n".join(
        f'{number}. "{error.location}" ({error.aspect}, {error.severity}): {error.explanation}'
        + (f" Better: {error.revision}." if error.revision else "")
        + f" It takes off {error.penalty:g}."
        for number, error in enumerate(errors, 1)
    )


def user(text: str) -> Message:
    """A question."""
    return Message("user", text)


def _materials(record: Record, table: AspectTable, reference: Reference) -> list[Material]:
    found = [Material("instruction", record.instruction or table.instruction)]
    if record.source is not None:
        found.append(Material("source", record.source))
    if reference == "shown":
        found += [Material("reference", text) for text in record.references]
    return [*found, Material(table.output, record.output)]


def _quoted(text: str) -> str:
    """Words of an earlier answer, which may repeat what the judged text says: on one line, in quotes."""
    return json.dumps(defused(text), ensure_ascii=False)


def _filled(name: str, **texts: str) -> str:
    return filled(template(name), **texts)
