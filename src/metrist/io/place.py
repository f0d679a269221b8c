"""Where a row stands, and what is wrong with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Place:
    """A row's place: `out.jsonl:17`, or `row 17` where the rows come from no file."""

    file: str | None
    line: int

    def __str__(self) -> str:
        return f"row {self.line}" if self.file is None else f"{self.file}:{self.line}"


class Fault(Exception):
    """What is wrong with one row, not yet saying where: whoever knows the place turns it into an `InputError`."""


def shown(value: Any) -> str:
    """A value as a message shows it: the way JSON spells it where Python differs, and never long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, str) and len(value) > _SHOWN:
        return repr(value[:_SHOWN]) + "…"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list nested thousands deep
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN + 2 else text[:_SHOWN] + "…"
