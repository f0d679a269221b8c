"""Read texts and ratings from files inside published packages, without running their code.

Download the source archives from PyPI, unpack them into one folder and set METRIST_RECIPE_DATA to it:

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


def _find_file(name: str, folder: str = "") -> Path:
    """Return the file with this name below a folder with that name."""
    root = Path(os.environ["METRIST_RECIPE_DATA"])
    return next(path for path in sorted(root.rglob(name)) if folder in path.parts or not folder)


def rated_news(known: Known) -> Iterator[dict[str, Any]]:
    """Yield news summaries with their ratings, as rows of metrist's data sets."""
    for name in _RATED_NEWS:
        for number, row in enumerate(json.loads(_find_file(name).read_text(encoding="utf-8"))):
            scores = {"overall": row["scores"]} if "scores" in row else _by_aspect(row["map_quality_scores"])
            if not known.is_judged(row["text"]):
                yield {
                    "item": f"{name}:{row['text'][:120]}",
                    "system": str(number),
                    "source": row["text"],
                    "output": row["summary"],
                    "ratings": scores,
                }


def _by_aspect(scores: dict[str, dict[str, list[int]]]) -> dict[str, list[int]]:
    return {aspect.lower(): values["scores"] for aspect, values in scores.items()}


def highlighted_news(known: Known, rng: random.Random) -> dict[str, str]:
    """Return some articles with their highlights, as one text."""
    fit = [(article, text) for article, text in _read_news() if len(article.split()) in _ARTICLE_WORDS]
    drawn = rng.sample(fit, _ARTICLES)
    return {article: text for article, text in drawn if not known.is_judged(article)}


def news_highlights() -> dict[str, str]:
    """Return all articles with their highlights, as one text."""
    return dict(_read_news())


def _read_news() -> list[tuple[str, str]]:
    data = json.loads(_find_file("cnn_validation.json").read_text(encoding="utf-8"))
    return [(row["input"], row["output"].replace("\n", " ")) for row in data]


def tasks(known: Known, rng: random.Random) -> dict[str, str]:
    """Return some single-turn tasks with their answers."""
    answers = {
        task: answer
        for task, answer in task_answers().items()
        if len(task.split()) in _TASK_WORDS and len(answer.split()) in _ANSWER_WORDS
    }
    drawn = rng.sample(sorted(answers), _TASKS)
    return {task: answers[task] for task in drawn if not known.is_judged(task)}


def task_answers() -> dict[str, str]:
    """Return all single-turn tasks with their answers."""
    answers = {}
    for line in _find_file("train_all_pruned_SDG.jsonl").read_text(encoding="utf-8").splitlines():
        messages = [message for message in json.loads(line)["messages"] if message["role"] != "system"]
        if [message["role"] for message in messages] == ["user", "assistant"]:
            task, answer = (message["content"].strip() for message in messages)
            answers[task] = answer
    return answers


def service_dialogues(rng: random.Random) -> list[tuple[str, ...]]:
    """Return the turns of dialogues between customers and services."""
    dialogues = []
    with ZipFile(_find_file("dummy_data.zip", folder="schema_guided_dstc8")) as packed:
        for name in sorted(name for name in packed.namelist() if name.endswith(".json") and "dialogues" in name):
            for dialogue in json.loads(packed.read(name)):
                if isinstance(dialogue, dict) and "turns" in dialogue:
                    dialogues.append(tuple(turn["utterance"] for turn in dialogue["turns"][:_MOST_TURNS]))
    long_enough = sorted({turns for turns in dialogues if len(turns) >= 4})
    return rng.sample(long_enough, min(_DIALOGUES, len(long_enough)))
