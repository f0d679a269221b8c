"""Fields of foreign JSON, taken with a check: an error names place and field, what was found and what was wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from metrist.errors import InputError
from metrist.io.place import shown

Row = dict[str, Any]


def wrong(place: str, field: str, found: Any, wanted: str) -> NoReturn:
    """Refuse a field's value."""
    raise InputError(f"{place}: {field!r} must be {wanted}, got {shown(found)}")


def text(place: str, holder: Mapping[str, Any], field: str) -> str:
    """A field that must be there and be a string."""
    if field not in holder:
        raise InputError(f"{place}: no field {field!r}; found {listed(holder)}")
    value = holder[field]
    if not isinstance(value, str):
        wrong(place, field, value, "a string")
    return value


def optional_text(place: str, holder: Mapping[str, Any], field: str) -> str | None:
    """A field that may be missing or null, and is a string otherwise."""
    return None if holder.get(field) is None else text(place, holder, field)


def texts(place: str, holder: Mapping[str, Any], field: str) -> list[str]:
    """A field that may be missing or null, and is a list of strings otherwise."""
    value = holder.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(element, str) for element in value):
        wrong(place, field, value, "a list of strings")
    return list(value)


def mapping(place: str, holder: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """A field that may be missing or null, and is an object otherwise."""
    value = holder.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        wrong(place, field, value, "an object")
    return value


def number(place: str, field: str, value: Any) -> float | None:
    """A number, also one written as a string; None where null, 'None' or NaN say that it is missing."""
    if value is None or value == "None":
        return None
    try:
        found = math.inf if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.inf
    if math.isinf(found):
        wrong(place, field, value, "a finite number or None")
    return None if math.isnan(found) else found


def listed(names: Any) -> str:
    """Names for a message, the first few of them."""
    quoted = [shown(name) for name in names]
    if not quoted:
        return "nothing"
    return ", ".join(quoted[:8]) + (f" and {len(quoted) - 8} more" if len(quoted) > 8 else "")


def filled(row: Mapping[str, Any]) -> Row:
    """The row without the fields that have nothing to say."""
    return {field: value for field, value in row.items() if value is not None and value != {} and value != []}
