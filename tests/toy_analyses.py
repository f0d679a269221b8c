"""Analyses that a tiny model can learn: an output with the word `bad` has one major error, any other has none."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from metrist.metrics.errors.answers import WrittenError
from metrist.metrics.errors.tigerscore import build_prompt, format_tiger_answer

WORDS = ["cat", "dog", "mat", "tree", "sun", "sea", "red", "old", "new", "big"]
INSTRUCTION = "Do it."


def make_row(number: int, *, bad: bool, channel: str = "synthetic", task: str = "summarization") -> dict[str, Any]:
    """A line of a file of `metrist build error-analysis`."""
    rng = random.Random(number)
    output = f"the {rng.choice(WORDS)} is {'bad' if bad else 'good'}"
    source = f"{rng.choice(WORDS)} {number}"
    start = output.find("bad")
    fields: dict[str, Any] = {"aspect": "Accuracy", "explanation": "Wrong.", "penalty": 4.0}
    written = [WrittenError(location="bad", severity="Major", **fields)] if bad else []
    errors = [{"text": "bad", "severity": "major", "revision": "", **fields, "start": start, "end": start + 3}]
    return {
        "id": f"{channel}/{number}",
        "task": task,
        "channel": channel,
        "item": str(number),
        "system": "toy",
        "language": "en",
        "instruction": INSTRUCTION,
        "source": source,
        "output": output,
        "prompt": build_prompt(INSTRUCTION, source, output),
        "completion": format_tiger_answer(written),
        "score": -4.0 if bad else 0.0,
        "errors": [{**error, "side": "output"} for error in errors] if bad else [],
    }


def make_rows(count: int, **settings: Any) -> list[dict[str, Any]]:
    return [make_row(number, bad=number % 2 == 0, **settings) for number in range(count)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
