"""The names that columns go by, the ones that people use instead, and how to tell metrist which is which."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from metrist.errors import InputError, did_you_mean
from metrist.io.row_model import Fault, shown

TEXTS = ("output", "source", "references", "reference", "instruction")
JUDGMENTS = ("ratings", "raters", "rater", "errors", "scores")
FIELDS = ("item", "system", *TEXTS, "task", "language", "systems", "outputs", *JUDGMENTS)
FAMILIES = ("rating:", "score:", "reference_")

_ALIASES = {
    "output": (
        "prediction predictions predicted pred hypothesis hypotheses hypo hyp candidate cand response mt translation "
        "summary generated generated_text generation completion answer model_output output_text decoded sys_out text"
    ),
    "source": "src input article document prompt context question",
    "references": "ref refs gold target targets label labels reference_text ground_truth",
    "system": "model model_name sys system_name engine",
    "item": "id idx index segment seg_id doc_id example_id",
}


def likely_column(field: str, columns: Iterable[str]) -> str | None:
    """The column that most likely holds what metrist calls `field`, if one does."""
    by_name = {column.lower(): column for column in columns if isinstance(column, str)}
    for alias in _ALIASES.get(field, "").split():
        if alias in by_name:
            return by_name[alias]
    near = get_close_matches(field, by_name, n=1, cutoff=0.75)
    return by_name[near[0]] if near else None


def check_fields(fields: Mapping[str, str]) -> None:
    """That each entry either names a column for a field that metrist knows, or leaves a column out."""
    for field, column in fields.items():
        if column and field not in FIELDS and not field.startswith(FAMILIES):
            raise InputError(f"metrist has no field named {shown(field)}{did_you_mean(field, FIELDS)}")


def renamed(row: dict[str, Any], fields: Mapping[str, str]) -> None:
    """Give each named column its field's name, in place; a column that is mapped to nothing is taken out."""
    found = {field: row[column] for field, column in fields.items() if column in row}
    for field, column in fields.items():
        row.pop(column or field, None)
    row.update(found)


# What a field may hold: each function gives the value in its one form, or the fault that names the field.


_YES_NO = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}


def as_text(field: str, value: Any) -> str:
    """A text. Whole numbers and truth values, as short answers often are, are taken as they are written; a number
    with a fraction could be written in several ways."""
    if type(value) is str:
        return value
    if isinstance(value, (str, int)):
        return _int_text(field, value) if type(value) is int else str(value)
    raise Fault(f"{field!r} must be a text, got {shown(value)}")


def as_optional_text(field: str, value: Any) -> str | None:
    return None if value is None else as_text(field, value)


def as_name(field: str, value: Any) -> str:
    """A name: a text that is not empty, or a number; 7, 7.0 and "7" are one name."""
    if isinstance(value, str) and value:
        return str(value)
    if type(value) is int:
        return _int_text(field, value)
    if type(value) is float and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    raise Fault(f"{field!r} must be a text that is not empty, or a number, got {shown(value)}")


def _int_text(field: str, value: int) -> str:
    try:
        return str(value)
    except ValueError:  # more digits than Python writes out
        raise Fault(f"{field!r} must be a text, got an integer of {value.bit_length()} bits") from None


def as_number(field: str, value: Any) -> float:
    """A finite number; also one written as text, as tables have it, and yes (1) and no (0)."""
    try:
        if isinstance(value, (int, float)):
            number = float(value)
        elif isinstance(value, str) and "_" not in value:
            number = _YES_NO.get(value.strip().lower(), math.nan)
            number = float(value) if math.isnan(number) else number
        else:
            raise ValueError
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise Fault(f"{field} must be a finite number, got {shown(value)}")
    return number


def as_texts(field: str, value: Any) -> tuple[str, ...]:
    """A list of texts."""
    if not isinstance(value, (list, tuple)):
        raise Fault(f"{field!r} must be a list of strings, got {shown(value)}{_single_hint(field, value)}")
    for position, text in enumerate(value, 1):
        if type(text) is not str:
            return _each_as_text(field, value, position)
    return tuple(value)


def _each_as_text(field: str, values: Any, position: int) -> tuple[str, ...]:
    try:
        return tuple(as_text(field, value) for value in values)
    except Fault:
        wrong = values[position - 1]
        raise Fault(f"{field!r} must be a list of strings, got {shown(wrong)} at position {position}") from None


def _single_hint(field: str, value: Any) -> str:
    return "; a single one goes into 'reference'" if field == "references" and isinstance(value, str) else ""


def as_mapping(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Fault(f"{field!r} must be an object of names and values, got {shown(value)}")
    wrong = next((name for name in value if not isinstance(name, str)), None)
    if wrong is not None:
        raise Fault(f"{field!r} must have texts for names, got {shown(wrong)}")
    return value
