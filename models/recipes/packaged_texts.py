"""Texts and ratings from files inside published packages, without running their code.

Download the source archives from PyPI, unpack them into one folder and set METRIST_RECIPE_DATA to it:

    blanc 0.3.4 (MIT)                                   ratings of news summaries by ten people each
    intel_extension_for_transformers 1.4.2 (Apache-2.0) CNN/DailyMail's validation articles with their highlights
    instructlab 0.26.1 (Apache-2.0 and MIT)             tasks with answers that a large language model wrote
    datasets 1.18.4 (Apache-2.0)                        Schema-Guided Dialogue, some of it (CC BY-SA 4.0)
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from zipfile import ZipFile

from sets import Row, read_lines

_MOST_TURNS = 12


def find_file(name: str, folder: str = "") -> Path:
    """Return the file with this name below a folder with that name."""
    root = Path(os.environ["METRIST_RECIPE_DATA"])
    return next(path for path in sorted(root.rglob(name)) if folder in path.parts or not folder)


@cache
def rated_news() -> list[Row]:
    """Return news summaries with their ratings, as rows of metrist's data sets."""
    rows = []
    for name in ("CNN_DailyMail_555.json", "DailyNews_300.json", "DailyNews_300_aspects.json"):
        for number, row in enumerate(json.loads(find_file(name).read_text(encoding="utf-8"))):
            aspects = {"overall": {"scores": row["scores"]}} if "scores" in row else row["map_quality_scores"]
            ratings = {aspect.lower(): values["scores"] for aspect, values in aspects.items()}
            item = f"{name}:{row['text'][:120]}"
            facts = {"source": row["text"], "output": row["summary"], "ratings": ratings}
            rows.append({"item": item, "system": str(number), **facts})
    return rows


@cache
def news() -> dict[str, tuple[str, ...]]:
    data = json.loads(find_file("cnn_validation.json").read_text(encoding="utf-8"))
    return {row["input"]: tuple(filter(None, map(str.strip, row["output"].split("\n")))) for row in data}


@cache
def task_answers() -> dict[str, str]:
    answers = {}
    for row in read_lines(find_file("train_all_pruned_SDG.jsonl")):
        messages = [message for message in row["messages"] if message["role"] != "system"]
        if [message["role"] for message in messages] == ["user", "assistant"]:
            task, answer = (message["content"].strip() for message in messages)
            answers[task] = answer
    return answers


def service_dialogues() -> list[tuple[str, ...]]:
    """Return the turns of dialogues between customers and services."""
    dialogues = set()
    with ZipFile(find_file("dummy_data.zip", folder="schema_guided_dstc8")) as packed:
        for name in sorted(name for name in packed.namelist() if name.endswith(".json") and "dialogues" in name):
            for dialogue in json.loads(packed.read(name)):
                if isinstance(dialogue, dict) and len(dialogue.get("turns", ())) >= 4:
                    dialogues.add(tuple(turn["utterance"] for turn in dialogue["turns"][:_MOST_TURNS]))
    return sorted(dialogues)
