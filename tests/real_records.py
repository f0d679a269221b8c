"""Seeded samples of the human-judged data sets, as records."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path
from typing import Any

from metrist.records import Record


def record(output: str, *references: str, source: str | None = None) -> Record:
    return Record(item="0", system="a", output=output, references=references, source=source)


def sample(path: Path, count: int) -> list[Record]:
    """Draw `count` records of the data set, always the same ones."""
    return random.Random(11).sample([drawn for row in rows(path) for drawn in _records(row)], count)


def rows(path: Path) -> list[dict[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _records(row: dict[str, Any]) -> list[Record]:
    outputs = row.get("outputs") or [row["output"]]
    return [record(output, *row["references"], source=row.get("source")) for output in outputs]
