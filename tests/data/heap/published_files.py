"""Small files in the formats of the published data sets, and accessors of the pairs made of them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from metrist.data.pairs import GoodBad


def json_lines(folder: Path, *rows: Any, name: str = "rows.jsonl") -> Path:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder / name


def table(folder: Path, header: list[str], *rows: list[Any], name: str = "rows.csv") -> Path:
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    (folder / name).write_text(text.getvalue(), encoding="utf-8", newline="")
    return folder / name


def answers(pairs: list[GoodBad], code: str) -> list[tuple[str, str]]:
    return [pair.answers for pair in pairs if pair.criterion == code]


def ratings(pairs: list[GoodBad], code: str) -> list[tuple[float | None, float | None]]:
    return [(pair.good_rating, pair.bad_rating) for pair in pairs if pair.criterion == code]


def update(text: str, label: str, *human: int) -> dict[str, Any]:
    shared = {"premise": "Rain falls.", "hypothesis": "Bo is wet.", "model": f"m-{text}"}
    return {**shared, "update": text, "pred_label": label, "human_label": human}


def defeasible(folder: Path) -> Path:
    return json_lines(
        folder,
        update("roof", "attenuator", -2, -2, -1),
        update("swim", "attenuator", 2, 2, 2),
        update("walk", "intensifier", 1, 1, 2),
        update("hat", "attenuator", -1, -1, -1),
        update("sea", "intensifier", 2, 2, 2),
    )
