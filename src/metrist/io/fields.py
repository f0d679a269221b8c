"""The names that columns go by, the ones that people use instead, and how to tell metrist which is which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from metrist.errors import InputError, did_you_mean
from metrist.io.place import shown

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
