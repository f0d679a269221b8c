"""Synthetic rows with ratings and scores for the tests of meta-evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
SYSTEMS = ("a", "b", "c", "d")
TASKS = ("qa", "summary")


def make_rows(items: int = 24, seed: int = 1, levels: int = 5, raters: int = 3) -> list[Row]:
    """Four systems on some items. `near` follows the truth closely, `far` loosely, `noise` not at all, `judge` gives
    the rating's own level; every third item is of another language."""
    rng = np.random.default_rng(seed)
    rows = []
    for item in range(items):
        for number, system in enumerate(SYSTEMS):
            truth = number * 0.6 + rng.normal()
            ratings = [int(np.clip(np.rint(3 + truth + rng.normal(0, 0.5)), 1, levels)) for _ in range(raters)]
            rows.append(
                {
                    "item": f"i{item}",
                    "system": system,
                    "output": "x" * (5 + (7 * item + number) % 40),
                    "references": ["y" * (10 + item)],
                    "task": TASKS[item % 2],
                    "language": "sv" if item % 3 == 0 else "en",
                    "kind": "extractive" if number < 2 else "abstractive",
                    "ratings": {"quality": ratings},
                    "raters": [f"r{i}" for i in range(raters)],
                    "scores": {
                        "near": truth + rng.normal(0, 0.3),
                        "far": truth + rng.normal(0, 2),
                        "noise": rng.normal(),
                        "judge": float(np.clip(np.rint(3 + truth), 1, levels)),
                    },
                }
            )
    return rows


def write_rows(path: Path, rows: Iterable[Row]) -> Path:
    """Write the rows as a .jsonl file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def drop_fields(rows: Iterable[Row], *fields: str) -> list[Row]:
    """Remove some fields from the rows."""
    return [{name: value for name, value in row.items() if name not in fields} for row in rows]
