"""The questions of the two-step error analysis (paper 001, appendices A.2 and A.3): a free analysis, then the same as
JSON, and the check of a single error. The words are in the folder `prompts` beside this module."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from metrist.errors import SpecError
from metrist.llm.messages import Message
from metrist.metrics.errors.answers import MAX_PENALTY, MIN_PENALTY, SEVERITIES, WrittenError
from metrist.metrics.errors.aspect_tables import AspectTable
from metrist.metrics.prompt_layout import (
    REMINDER,
    PromptText,
    escape_control_tokens,
    fence_texts,
    fill_template,
    load_template,
)
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
class AnalysisQuestions:
    """What is asked about one record: `analysis` first, `as_json` next; `mark` shows an answer to be the LLM's own."""

    analysis: str
    as_json: str
    mark: str


def build_questions(record: Record, table: AspectTable, *, aspects: bool, reference: Reference) -> AnalysisQuestions:
    """The questions about a record. Without `aspects` the LLM is left to choose what to look at."""
    laid = fence_texts(_materials(record, table, reference))
    listed = f"These are the aspects to look at:\n\n{table.described()}" if aspects else _NO_ASPECTS
    names = f"one of {', '.join(table.names)}" if aspects else "what kind of error it is, in one or two words"
    return AnalysisQuestions(
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


def build_check_question(record: Record, table: AspectTable, error: Error, reference: Reference) -> tuple[str, str]:
    """The question whether an error is real, and the mark that its answer carries."""
    laid = fence_texts(_materials(record, table, reference))
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


def describe_errors(errors: Sequence[WrittenError]) -> str:
    """An analysis in words, for examples that come as errors alone."""
    if not errors:
        return "I find no errors."
    return "\n".join(
        f'{number}. "{error.location}" ({error.aspect}, {error.severity}): {error.explanation}'
        + (f" Better: {error.revision}." if error.revision else "")
        + f" It takes off {error.penalty:g}."
        for number, error in enumerate(errors, 1)
    )


def user_message(text: str) -> Message:
    """A question."""
    return Message("user", text)


def _materials(record: Record, table: AspectTable, reference: Reference) -> list[PromptText]:
    found = [PromptText("instruction", record.instruction or table.instruction)]
    if record.source is not None:
        found.append(PromptText("source", record.source))
    if reference == "shown":
        found += [PromptText("reference", text) for text in record.references]
    return [*found, PromptText(table.output, record.output)]


def _quoted(text: str) -> str:
    """Words of an earlier answer, which may repeat what the judged text says: on one line, in quotes."""
    return json.dumps(escape_control_tokens(text), ensure_ascii=False)


def _filled(name: str, **texts: str) -> str:
    return fill_template(load_template(name), **texts)


# Worked examples for an LLM that is to find errors: a JSONL file of outputs with their errors.
#
#     {"source": "…", "output": "…", "errors": [{"text": "…", "aspect": "…", "severity": "Minor", "penalty": 1,
#      "explanation": "…", "revision": "…"}], "analysis": "…"}
#
# `instruction`, `source`, `references`, `task`, `revision` and `analysis` may be left out. An output without errors is
# an example too.


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An output, its errors, and the analysis in words if there is one."""

    record: Record
    errors: tuple[WrittenError, ...]
    analysis: str = ""


def read_examples(path: str) -> tuple[Example, ...]:
    """The examples of a file; whatever is wrong with one is told with its line."""
    lines = [(number, line) for number, line in enumerate(_text(path).splitlines(), 1) if line.strip()]
    if not lines:
        raise SpecError(f"{path}: wanted one example a line, found none")
    return tuple(_example(line, f"{path}:{number}") for number, line in lines)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as fault:
        raise SpecError(f"the examples {path} cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: examples must be a JSONL file in UTF-8") from None


def _example(line: str, place: str) -> Example:
    try:
        row = json.loads(line)
    except ValueError as fault:
        raise SpecError(f"{place}: an example must be a JSON object: {fault}") from None
    if not isinstance(row, Mapping) or not isinstance(row.get("errors"), list):
        raise SpecError(f"{place}: an example must have 'output' and a list of 'errors'")
    texts = {name: _optional(row, name, place) for name in ("source", "instruction", "task", "analysis")}
    output, references = _optional(row, "output", place), row.get("references") or []
    if output is None:
        raise SpecError(f"{place}: an example must have 'output' and a list of 'errors'")
    if not isinstance(references, list) or not all(isinstance(one, str) for one in references):
        raise SpecError(f"{place}: 'references' must be a list of texts, got {references!r}")
    record = Record(
        item=place,
        system="example",
        output=output,
        source=texts["source"],
        instruction=texts["instruction"],
        task=texts["task"],
        references=tuple(references),
    )
    errors = tuple(_error(one, output, f"{place}: error {number}") for number, one in enumerate(row["errors"], 1))
    return Example(record=record, errors=errors, analysis=texts["analysis"] or "")


def _error(row: Any, output: str, place: str) -> WrittenError:
    if not isinstance(row, Mapping):
        raise SpecError(f"{place} must be an object, got {row!r}")
    found = {name: _optional(row, name, place) or "" for name in ("text", "aspect", "severity", "explanation")}
    for name, text in found.items():
        if not text.strip():
            raise SpecError(f"{place} must have {name!r}")
    severity = found["severity"].capitalize()
    if severity not in SEVERITIES:
        raise SpecError(f"{place}: 'severity' must be Major or Minor, got {found['severity']!r}")
    if found["text"] not in output:
        raise SpecError(f"{place}: 'text' must be words of the output, got {found['text']!r}")
    return WrittenError(
        location=found["text"],
        aspect=found["aspect"],
        explanation=found["explanation"],
        severity=severity,
        penalty=_penalty(row.get("penalty"), place),
        revision=_optional(row, "revision", place) or "",
    )


def _penalty(value: Any, place: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not MIN_PENALTY <= value <= MAX_PENALTY:
        raise SpecError(f"{place}: 'penalty' must be {MIN_PENALTY:g} to {MAX_PENALTY:g}, got {value!r}")
    return float(value)


def _optional(row: Mapping[str, Any], name: str, place: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise SpecError(f"{place}: {name!r} must be a text, got {value!r}")
    return value
