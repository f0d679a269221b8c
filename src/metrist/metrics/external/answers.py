"""What a program answered, one JSON line per record: checked, and turned into scores."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metrist.errors import ModelError
from metrist.ratings import Error
from metrist.scores import Score

_WANTED = 'wanted {"value": NUMBER} or {"failure": "why"}, with "parts", "errors" and "explanation" as it likes'


def read_answers(name: str, path: Path, outputs: Sequence[str]) -> list[Score]:
    """One score per output. A line that cannot be read, or a wrong number of lines, is the program's fault."""
    if not path.exists():
        raise ModelError(
            f"{name} ended well but wrote no answers: wanted one JSON line per record in its second argument"
        )
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if len(lines) != len(outputs):
        raise ModelError(f"{name} gave {len(lines):,} answers to {len(outputs):,} records: wanted one each, in order")
    return [_score(name, at, line, output) for at, (line, output) in enumerate(zip(lines, outputs, strict=True), 1)]


def _score(name: str, at: int, line: str, output: str) -> Score:
    try:
        answer = json.loads(line)
        return _checked(name, answer, output)
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        shown = line if len(line) <= 200 else line[:200] + "…"
        raise ModelError(f"answer {at} of {name} cannot be read ({fault}): {_WANTED}, got {shown!r}") from None


def _checked(name: str, answer: Mapping[str, Any], output: str) -> Score:
    if (failure := answer.get("failure")) is not None:
        return Score(value=math.nan, failure=_text(failure, "failure"))
    value = _number(answer["value"], "value")
    if not math.isfinite(value):
        return Score(value=math.nan, failure=f"{name} gave {value}, which is no score")
    explanation = answer.get("explanation")
    return Score(
        value=value,
        parts={key: _number(part, key) for key, part in answer.get("parts", {}).items()},
        errors=tuple(_error(found, output) for found in answer.get("errors", ())),
        explanation=None if explanation is None else _text(explanation, "explanation"),
    )


def _number(value: Any, key: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{key!r} is no number")
    return float(value)


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{key!r} is no text")
    return value


def _error(found: Mapping[str, Any], output: str) -> Error:
    start, end = _place(found, len(output))
    return Error(
        aspect=_text(found["aspect"], "aspect"),
        severity=found.get("severity"),
        penalty=None if found.get("penalty") is None else _number(found["penalty"], "penalty"),
        explanation=found.get("explanation") or "",
        text=output[start:end] if start is not None else found.get("text") or "",
        start=start,
        end=end,
    )


def _place(found: Mapping[str, Any], length: int) -> tuple[int | None, int | None]:
    """Where in the output the error is; offsets outside it place nothing."""
    start, end = found.get("start"), found.get("end")
    placed = isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= length
    return (start, end) if placed else (None, None)
