"""Names of the fields that metrist reads, common aliases of them, and checks of their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from metrist.errors import InputError, did_you_mean
from metrist.io.row_model import RowError, format_value

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


def guess_column(field: str, columns: Iterable[str]) -> str | None:
    """Return the column that most likely holds `field`, or None."""
    by_name = {column.lower(): column for column in columns if isinstance(column, str)}
    for alias in _ALIASES.get(field, "").split():
        if alias in by_name:
            return by_name[alias]
    near = get_close_matches(field, by_name, n=1, cutoff=0.75)
    return by_name[near[0]] if near else None


def check_fields(fields: Mapping[str, str]) -> None:
    """Check that each entry maps a field of metrist to a column, or drops a column."""
    for field, column in fields.items():
        if column and field not in FIELDS and not field.startswith(FAMILIES):
            raise InputError(f"metrist has no field named {format_value(field)}{did_you_mean(field, FIELDS)}")


def rename_columns(row: dict[str, Any], fields: Mapping[str, str]) -> None:
    """Rename columns to the fields they hold, in place; drop columns that are mapped to \"\"."""
    values = {field: row[column] for field, column in fields.items() if column in row}
    for field, column in fields.items():
        row.pop(column or field, None)
    row.update(values)


_YES_NO = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}


def as_text(field: str, value: Any) -> str:
    """Return a text. Integers and booleans are accepted as short answers; floats are not, since their spelling is
    ambiguous."""
    if type(value) is str:
        return value
    if isinstance(value, (str, int)):
        return _int_text(field, value) if type(value) is int else str(value)
    raise RowError(f"{field!r} must be a text, got {format_value(value)}")


def as_optional_text(field: str, value: Any) -> str | None:
    return None if value is None else as_text(field, value)


def as_name(field: str, value: Any) -> str:
    """Return a name from a non-empty text or a number; 7, 7.0 and "7" give the same name."""
    if isinstance(value, str) and value:
        return str(value)
    if type(value) is int:
        return _int_text(field, value)
    if type(value) is float and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    raise RowError(f"{field!r} must be a non-empty text or a number, got {format_value(value)}")


def _int_text(field: str, value: int) -> str:
    try:
        return str(value)
    except ValueError:  # more digits than Python converts
        raise RowError(f"{field!r} must be a text, got an integer of {value.bit_length()} bits") from None


def as_number(field: str, value: Any) -> float:
    """Return a finite number; accepts text, as tables have it, and yes/true (1) and no/false (0)."""
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
        raise RowError(f"{field} must be a finite number, got {format_value(value)}")
    return number


def as_texts(field: str, value: Any) -> tuple[str, ...]:
    """Return a list of texts."""
    if not isinstance(value, (list, tuple)):
        raise RowError(f"{field!r} must be a list of strings, got {format_value(value)}{_single_hint(field, value)}")
    for position, text in enumerate(value, 1):
        if type(text) is not str:
            return _each_as_text(field, value, position)
    return tuple(value)


def _each_as_text(field: str, values: Any, position: int) -> tuple[str, ...]:
    try:
        return tuple(as_text(field, value) for value in values)
    except RowError:
        wrong = values[position - 1]
        raise RowError(
            f"{field!r} must be a list of strings, got {format_value(wrong)} at position {position}"
        ) from None


def _single_hint(field: str, value: Any) -> str:
    return "; use 'reference' for a single one" if field == "references" and isinstance(value, str) else ""


def as_mapping(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RowError(f"{field!r} must be an object, got {format_value(value)}")
    wrong = next((name for name in value if not isinstance(name, str)), None)
    if wrong is not None:
        raise RowError(f"{field!r} must have text keys, got {format_value(wrong)}")
    return value
