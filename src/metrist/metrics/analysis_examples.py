"""Worked examples for an LLM that is to find errors: a JSONL file of outputs with their errors.

    {"source": "…", "output": "…", "errors": [{"text": "…", "aspect": "…", "severity": "Minor", "penalty": 1,
     "explanation": "…", "revision": "…"}], "analysis": "…"}

`instruction`, `source`, `references`, `task`, `revision` and `analysis` may be left out. An output without errors is an
example too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrist.errors import SpecError
from metrist.metrics.error_answers import LEAST_PENALTY, MOST_PENALTY, SEVERITIES, WrittenError
from metrist.records import Record


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
    if not number or not LEAST_PENALTY <= value <= MOST_PENALTY:
        raise SpecError(f"{place}: 'penalty' must be {LEAST_PENALTY:g} to {MOST_PENALTY:g}, got {value!r}")
    return float(value)


def _optional(row: Mapping[str, Any], name: str, place: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise SpecError(f"{place}: {name!r} must be a text, got {value!r}")
    return value
