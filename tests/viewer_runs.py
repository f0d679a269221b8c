"""Small runs for tests of the viewer: hostile texts, errors, reasons, scores of tokens, failures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import metrist
from metrist import Error, Metric, Record, Score

ATTACK = "<script>document.title='hit'</script><img src=x onerror=\"document.title='hit'\">"
OVERRIDE = "left \u202eright to left\u202c end \u2066isolated\u2069"
CONTROLS = "nul \x00 escape \x1b[31mred\x1b]8;;http://evil.example\x07link\x7f"
LONG_LINE = "x" * 1_000_000


@dataclass(frozen=True)
class Critic(Metric):
    """Marks each "bad" as an error, gives reasons and scores of tokens, and fails on outputs with "unscored"."""

    def score_record(self, record: Record) -> Score:
        if "unscored" in record.output:
            return Score.failed(f"will not judge {ATTACK}")
        starts = [n for n in range(len(record.output)) if record.output.startswith("bad", n)]
        errors = tuple(
            Error(aspect=f"style {ATTACK}", severity="major", penalty=2, text="bad", start=start, end=start + 3)
            for start in starts
        )
        words = record.output.split()[:50]
        pieces = [f" {word}" for word in words]
        tokens = [
            {"condition": "", "target": "output", "pieces": pieces, "logprobs": [-3.0 * n for n in range(len(words))]}
        ]
        return Score(
            value=-2.0 * len(starts), errors=errors, explanation=f"Because {ATTACK}", tokens=tokens if words else None
        )


def write_records(path: Path, *, version: str = "") -> list[dict[str, Any]]:
    """Two systems on six items; `version` changes some outputs of the second."""
    outputs = {
        "plain": ("The cat sat on the mat.", f"The cat sat there{version}."),
        "bad words": ("A bad 😀 choice, a bad end.", "A good choice, a good end."),
        f"attack {ATTACK}": (f"Hello {ATTACK} there", "Hello there"),
        "override \u202eitem": (OVERRIDE, CONTROLS),
        "long": (LONG_LINE, "short"),
        "failed": ("unscored text", "scored text"),
    }
    rows: list[dict[str, Any]] = [
        {
            "item": item,
            "system": system,
            "task": "summarization" if number % 2 else "translation",
            "instruction": "Shorten it.",
            "source": f"Source of {item}. {ATTACK}",
            "references": [both[0][:200], "Another reference"],
            "output": output,
            "ratings": {"fluency": [number + 1, 3]},
            "origin": {"file": ATTACK},
        }
        for number, (item, both) in enumerate(outputs.items())
        for system, output in zip(("first", f"second {ATTACK}"), both, strict=True)
    ]
    rows[0]["errors"] = [{"aspect": "fact", "severity": "minor", "penalty": 1, "text": "cat", "start": 4, "end": 7}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return rows


def make_run(folder: Path, name: str = "run", *, version: str = "") -> Path:
    """A run folder with the file of records beside it."""
    write_records(folder / f"{name}.jsonl", version=version)
    metrist.score(folder / f"{name}.jsonl", ["chrf", Critic()], out=folder / name, tokens=True, executor="serial")
    return folder / name
