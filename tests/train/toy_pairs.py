"""Pairs whose better answer ends in a certain word, for tiny models."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from metrist.data.pairs import GoodBad
from metrist.models.devices import Options
from metrist.train.preference import PreferenceTask
from metrist.train.recipe import Recipe
from tiny_models import WORDS

#: The last words of good and bad answers.
ENDS = {"A": ("good", "bad"), "B": ("cat", "dog")}


def answer_pairs(count: int, criterion: str = "A", seed: int = 0, **facts: Any) -> list[GoodBad]:
    rng = random.Random(f"{seed} {criterion}")
    return [_pair(rng, criterion, facts) for _ in range(count)]


def _pair(rng: random.Random, criterion: str, facts: dict[str, Any]) -> GoodBad:
    source, start = (" ".join(rng.choices(WORDS[:30], k=rng.randint(1, most))) for most in (16, 5))
    good, bad = ((("source", source), ("answer", f"{start} {end}")) for end in ENDS[criterion])
    return GoodBad(**{"criterion": criterion, "good": good, "bad": bad, "instruction": "is it good ?", **facts})


def preference_request(out: Path, base: Path, **settings: Any) -> PreferenceTask:
    recipe = {"epochs": 3, "batch": 16, "lr": 3e-3, "dtype": "float32", **settings.pop("recipe", {})}
    defaults = {
        "train": [*answer_pairs(120), *answer_pairs(40, "B")],
        "dev": [*answer_pairs(20, seed=1), *answer_pairs(10, "B", seed=1)],
        "base": Options(model=str(base)),
        "out": out,
        "recipe": Recipe(**recipe),
        **settings,
    }
    return PreferenceTask(**defaults)
