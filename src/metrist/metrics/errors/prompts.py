"""The questions of the two-step error analysis (TIGERScore paper, appendices A.2 and A.3) and its worked examples.

The wording is in the folder `prompts` beside the metrics. Examples are a JSONL file of outputs with their errors:

    {"source": "…", "output": "…", "errors": [{"text": "…", "aspect": "…", "severity": "Minor", "penalty": 1,
     "explanation": "…", "revision": "…"}], "analysis": "…"}

`instruction`, `source`, `references`, `task`, `revision` and `analysis` are optional. An output without errors is an
example, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from metrist.errors import SpecError
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

# These texts are sent to the LLM: a change makes another metric.
_WITH_REFERENCE = (
    " The reference is one way to do the task well, not the only one: what differs from it is no error for that alone, "
    "and your reasons do not mention it."
)
_NO_ASPECTS = "Look at everything that matters for the task."


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisQuestions:
    """The two questions about a record, and the mark that identifies an answer as the LLM's own."""

    analysis: str
    as_json: str
    mark: str


def build_questions(record: Record, table: AspectTable, *, aspects: bool, reference: Reference) -> AnalysisQuestions:
    """The questions about a record. Without `aspects`, the LLM chooses what to look at."""
    fenced = fence_texts(_prompt_texts(record, table, reference))
    names = f"one of {', '.join(table.names)}" if aspects else "what kind of error it is, in one or two words"
    return AnalysisQuestions(
        analysis=fill_template(
            load_template(ANALYSIS),
            task=table.task.replace("_", " "),
            reminder=REMINDER,
            texts=fenced.text,
            mark=fenced.mark,
            output=table.output,
            aspects=f"These are the aspects to look at:\n\n{table.describe_aspects()}" if aspects else _NO_ASPECTS,
            reference=_WITH_REFERENCE if reference == "shown" and record.references else "",
        ),
        as_json=fill_template(load_template(AS_JSON), mark=fenced.mark, output=table.output, names=names),
        mark=fenced.mark,
    )


def build_check_question(record: Record, table: AspectTable, error: Error, reference: Reference) -> tuple[str, str]:
    """The question whether an error is real, and the mark that its answer must carry."""
    fenced = fence_texts(_prompt_texts(record, table, reference))
    question = fill_template(
        load_template(CHECK),
        task=table.task.replace("_", " "),
        reminder=REMINDER,
        texts=fenced.text,
        output=table.output,
        mark=fenced.mark,
        words=_quote(error.text),
        aspect=_quote(error.aspect),
        reason=_quote(error.explanation),
        severity=_quote(error.severity or ""),
    )
    return question, fenced.mark


def describe_errors(errors: Sequence[WrittenError]) -> str:
    """An analysis in words, for examples that have none."""
    if not errors:
        return "I find no errors."
    return "\n".join(
        f'{number}. "{error.location}" ({error.aspect}, {error.severity}): {error.explanation}'
        + (f" Better: {error.revision}." if error.revision else "")
        + f" It takes off {error.penalty:g}."
        for number, error in enumerate(errors, 1)
    )


def _prompt_texts(record: Record, table: AspectTable, reference: Reference) -> list[PromptText]:
    texts = [PromptText("instruction", record.instruction or table.instruction)]
    if record.source is not None:
        texts.append(PromptText("source", record.source))
    if reference == "shown":
        texts += [PromptText("reference", text) for text in record.references]
    return [*texts, PromptText(table.output, record.output)]


def _quote(text: str) -> str:
    """A text from an earlier answer, which may repeat the judged text, on one line and in quotes."""
    return json.dumps(escape_control_tokens(text), ensure_ascii=False)


# --- Worked examples


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptExample:
    """An output, its errors, and optionally an analysis in words. Its repr is part of the prompt's hash."""

    record: Record
    errors: tuple[WrittenError, ...]
    analysis: str = ""


def read_examples(path: str) -> tuple[PromptExample, ...]:
    """Read the examples of a file; SpecError with the line of whatever is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"the examples {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: examples must be a JSONL file in UTF-8") from None
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise SpecError(f"{path}: no examples; expected one per line")
    return tuple(_parse_example(line, f"{path}:{number}") for number, line in lines)


def _parse_example(line: str, place: str) -> PromptExample:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise SpecError(f"{place}: an example must be a JSON object: {error}") from None
    if not isinstance(row, Mapping) or not isinstance(row.get("errors"), list):
        raise SpecError(f"{place}: an example must have 'output' and a list of 'errors'")
    texts = {name: _get_text(row, name, place) for name in ("source", "instruction", "task", "analysis")}
    output, references = _get_text(row, "output", place), row.get("references") or []
    if output is None:
        raise SpecError(f"{place}: an example must have 'output' and a list of 'errors'")
    if not isinstance(references, list) or not all(isinstance(reference, str) for reference in references):
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
    errors = tuple(_parse_error(e, output, f"{place}: error {number}") for number, e in enumerate(row["errors"], 1))
    return PromptExample(record=record, errors=errors, analysis=texts["analysis"] or "")


def _parse_error(row: Any, output: str, place: str) -> WrittenError:
    if not isinstance(row, Mapping):
        raise SpecError(f"{place} must be an object, got {row!r}")
    texts = {name: _get_text(row, name, place) or "" for name in ("text", "aspect", "severity", "explanation")}
    for name, text in texts.items():
        if not text.strip():
            raise SpecError(f"{place} must have {name!r}")
    severity = texts["severity"].capitalize()
    if severity not in SEVERITIES:
        raise SpecError(f"{place}: 'severity' must be Major or Minor, got {texts['severity']!r}")
    if texts["text"] not in output:
        raise SpecError(f"{place}: 'text' must be words of the output, got {texts['text']!r}")
    penalty: Any = row.get("penalty")
    is_number = isinstance(penalty, int | float) and not isinstance(penalty, bool)
    if not is_number or not MIN_PENALTY <= penalty <= MAX_PENALTY:
        raise SpecError(f"{place}: 'penalty' must be {MIN_PENALTY:g} to {MAX_PENALTY:g}, got {penalty!r}")
    return WrittenError(
        location=texts["text"],
        aspect=texts["aspect"],
        explanation=texts["explanation"],
        severity=severity,
        penalty=float(penalty),
        revision=_get_text(row, "revision", place) or "",
    )


def _get_text(row: Mapping[str, Any], name: str, place: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise SpecError(f"{place}: {name!r} must be a text, got {value!r}")
    return value
