"""Texts and ratings that lie inside published packages, whose files are read and whose code is never run.

Fetch the source archives by their names from PyPI, unpack them into one folder and name it in METRIST_RECIPE_DATA:

    blanc 0.3.4 (MIT)                                   ratings of news summaries by ten people each
    intel_extension_for_transformers 1.4.2 (Apache-2.0) CNN/DailyMail's validation articles with their highlights
    instructlab 0.26.1 (Apache-2.0 and MIT)             tasks with answers that a large language model wrote
    datasets 1.18.4 (Apache-2.0)                        Schema-Guided Dialogue, some of it (CC BY-SA 4.0)
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from preference_texts import Known

_RATED_NEWS = ("CNN_DailyMail_555.json", "DailyNews_300.json", "DailyNews_300_aspects.json")
_ARTICLES, _TASKS, _DIALOGUES = 3_000, 4_000, 600
_ARTICLE_WORDS = range(120, 900)
_TASK_WORDS, _ANSWER_WORDS = range(4, 90), range(4, 140)
_MOST_TURNS = 12


def _file(name: str, beside: str = "") -> Path:
    """A file of that name below a folder of that name."""
    root = Path(os.environ["METRIST_RECIPE_DATA"])
    return next(path for path in sorted(root.rglob(name)) if beside in path.parts or not beside)


def rated_news(known: Known) -> Iterator[dict[str, Any]]:
    """Summaries of news with what people gave them, as rows of the data sets that metrist reads."""
    for name in _RATED_NEWS:
        for number, row in enumerate(json.loads(_file(name).read_text(encoding="utf-8"))):
            scores = {"overall": row["scores"]} if "scores" in row else _by_aspect(row["map_quality_scores"])
            if not known.is_judged(row["text"]):
                yield {
                    "item": f"{name}:{row['text'][:120]}",
                    "system": str(number),
                    "source": row["text"],
                    "output": row["summary"],
                    "ratings": scores,
                }


def _by_aspect(told: dict[str, dict[str, list[int]]]) -> dict[str, list[int]]:
    return {aspect.lower(): found["scores"] for aspect, found in told.items()}


def highlighted_news(known: Known, rng: random.Random) -> dict[str, str]:
    """Some articles with their highlights, as one text."""
    found = json.loads(_file("cnn_validation.json").read_text(encoding="utf-8"))
    fit = [row for row in found if len(row["input"].split()) in _ARTICLE_WORDS]
    drawn = rng.sample(fit, _ARTICLES)
    return {row["input"]: row["output"].replace("\n", " ") for row in drawn if not known.is_judged(row["input"])}


def tasks(known: Known, rng: random.Random) -> dict[str, str]:
    """Some tasks of one turn with their answers."""
    found = {}
    for line in _file("train_all_pruned_SDG.jsonl").read_text(encoding="utf-8").splitlines():
        told = [one for one in json.loads(line)["messages"] if one["role"] != "system"]
        if [one["role"] for one in told] == ["user", "assistant"]:
            task, answer = (one["content"].strip() for one in told)
            if len(task.split()) in _TASK_WORDS and len(answer.split()) in _ANSWER_WORDS:
                found[task] = answer
    drawn = rng.sample(sorted(found), _TASKS)
    return {task: found[task] for task in drawn if not known.is_judged(task)}


def service_dialogues(rng: random.Random) -> list[tuple[str, ...]]:
    """Turns of people who order, book and ask, and of those who answer them."""
    found = []
    with ZipFile(_file("dummy_data.zip", beside="schema_guided_dstc8")) as packed:
        for name in sorted(one for one in packed.namelist() if one.endswith(".json") and "dialogues" in one):
            for dialogue in json.loads(packed.read(name)):
                if isinstance(dialogue, dict) and "turns" in dialogue:
                    found.append(tuple(turn["utterance"] for turn in dialogue["turns"][:_MOST_TURNS]))
    long_enough = sorted({turns for turns in found if len(turns) >= 4})
    return rng.sample(long_enough, min(_DIALOGUES, len(long_enough)))
