"""How the original TIGERScorer reads an answer, faults included: the header's number up to its decimal point is the
score, "1 error" and a cut-off tail lose everything, a field is one line, and the first header in the text wins, even
one in the prompt."""

from __future__ import annotations

import re
from typing import Any

_COUNT = re.compile(r"The model-generated output contains (\d+) errors")
_TOTAL = re.compile(r", with a total score reduction of (\d+)")
_PENALTY = re.compile(r"\nScore reduction \d+:[ \n]*(\d+\.\d+|\d+)")
_LINES = {
    "location": "Error location",
    "aspect": "Error aspect",
    "explanation": "Explanation",
    "severity": "Severity",
}


def legacy_result(text: str) -> dict[str, Any]:
    """The original's result for a text; all None where it gives up."""
    count, total = _COUNT.search(text), _TOTAL.search(text)
    columns = {name: _column(label, text) for name, label in _LINES.items()}
    penalties = _PENALTY.findall(text)
    if count is None or total is None or len({len(penalties), *map(len, columns.values())}) > 1:
        return {"score": None, "num_errors": None, "errors": None, "raw_output": text}
    errors = {
        f"error_{n}": {**{name: column[n] for name, column in columns.items()}, "score_reduction": penalty}
        for n, penalty in enumerate(penalties)
    }
    return {"num_errors": int(count[1]), "score": -float(total[1]), "errors": errors, "raw_output": text}


def _column(label: str, text: str) -> list[str]:
    """The lines behind a label. Where there is nothing behind it, the original finds the next line too and then finds
    that the counts differ."""
    found: list[str] = []
    for line in re.finditer(rf"{label} \d+:(.*)\n", text):
        found += [line[1].strip(" ")] if line[1].strip(" ") else ["", ""]
    return found
