"""Rows of judgments, written to a file and made into pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from metrist.data.build import BuildResult, build_pairs
from metrist.data.judgments import read_judgments
from metrist.data.pairs import Shape
from metrist.data.rules import Aim, Rules

Row = dict[str, Any]
AIM = Aim(aspect="fluency", criterion="fluency")
SOURCE = Shape(context=("source",))


def write(folder: Path, rows: list[Row], name: str = "judged.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def build(
    folder: Path, rows: list[Row], rules: Rules, aim: Aim = AIM, shape: Shape = SOURCE, **more: Any
) -> BuildResult:
    return build_pairs(read_judgments([write(folder, rows)]), [aim], rules, shape, **more)
