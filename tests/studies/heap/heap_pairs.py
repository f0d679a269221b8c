"""Invented pairs in the form of HEAP's that a tiny model can learn: good answers have a cat in them, bad ones a dog."""

from __future__ import annotations

import random
from pathlib import Path

from metrist.data.pairs import GoodBad, write_good_bad
from tiny_models import WORDS

_PLACES = [word for word in WORDS if word.isalpha() and word not in ("cat", "dog")]


def invent_pairs(codes: tuple[str, ...] = ("AG", "AV"), count: int = 40, seed: int = 0) -> list[GoodBad]:
    """Pairs of criteria with a narrative and a question; half of all contexts come twice, at most on two sides."""
    rng = random.Random(seed)
    pairs = []
    for code in codes:
        for number in range(count):
            story_rng = random.Random(f"{seed} {number % (count * 3 // 4)}")
            story = " ".join(story_rng.choice(_PLACES) for _ in range(8))
            sides = {}
            for side, word in (("good", "cat"), ("bad", "dog")):
                answer = " ".join([*(rng.choice(_PLACES) for _ in range(4)), word])
                sides[side] = (("narrative", story), ("question", "is it"), ("answer", answer))
            split = "train" if number < count * 6 // 10 else "dev" if number < count * 8 // 10 else "test"
            ratings = {"good_rating": 3.0, "bad_rating": 1.0} if code == "AG" else {}
            pairs.append(GoodBad(criterion=code, split=split, **sides, **ratings))
    return pairs


def write_pairs_file(folder: Path, codes: tuple[str, ...] = ("AG", "AV"), count: int = 40) -> Path:
    path = folder / "pairs.jsonl"
    write_good_bad(path, invent_pairs(codes, count))
    return path
