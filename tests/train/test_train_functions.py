"""`metrist.train.train_preference` and `train_likelihood` from Python: the same as the commands, on tiny models."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path

import metrist
from error_codes import raises_code
from metrist.errors import RunError
from metrist.models.devices import Options
from metrist.models.loading import load_reward
from tiny_models import WORDS

Tiny = Callable[[str], Path]


def _words(rng: random.Random, most: int) -> str:
    return " ".join(rng.choices(WORDS[:30], k=rng.randint(2, most)))


def test_a_preference_model_is_trained_from_a_file_and_not_twice(tiny: Tiny, tmp_path: Path) -> None:
    rng = random.Random(0)
    with (tmp_path / "pairs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["prompt", "chosen", "rejected"])
        writer.writerows([_words(rng, 8), _words(rng, 8), _words(rng, 8)] for _ in range(40))
    settings = {"base": str(tiny("bert")), "epochs": 1, "batch": 8, "dtype": "float32", "dev": "0.2"}
    card = metrist.train.train_preference(tmp_path / "pairs.csv", tmp_path / "model", balance=0.5, **settings)
    assert card["kind"] == "preference"
    assert (card["recipe"]["epochs"], card["recipe"]["batch"], card["recipe"]["warmup"]) == (1, 8, 0.1)
    assert len(load_reward(Options(model=str(tmp_path / "model"))).rewards([]).values) == 0
    again = metrist.train.train_preference([tmp_path / "pairs.csv"], str(tmp_path / "model"), balance=0.5, **settings)
    assert again == card
    with raises_code(RunError, "invalid_value", "balance"):
        metrist.train.train_preference(tmp_path / "pairs.csv", tmp_path / "other", balance=2.0, **settings)


def test_a_likelihood_model_is_trained_from_a_file(tiny: Tiny, tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = [{"source": _words(rng, 8), "target": _words(rng, 5)} for _ in range(20)]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    card = metrist.train.train_likelihood(
        tmp_path / "pairs.jsonl", tmp_path / "model", base=str(tiny("bart")), batch=10, dtype="float32", pairs=0
    )
    assert card["kind"] == "likelihood"
    assert card["recipe"]["batch"] == 10
