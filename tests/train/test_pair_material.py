"""Pairs from files, set apart for training and for judging."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from toy_pairs import answer_pairs

from metrist import criteria
from metrist.data.pairs import GoodBad, write_good_bad
from metrist.errors import InputError
from metrist.train.dataset import load_preference_pairs

Write = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    def write(pairs: list[GoodBad], name: str = "pairs.jsonl") -> Path:
        write_good_bad(tmp_path / name, pairs)
        return tmp_path / name

    return write


def called(split: str | None, count: int, seed: int = 0) -> list[GoodBad]:
    return answer_pairs(count, split=split, seed=seed)


def test_the_files_own_splits_are_kept_and_test_pairs_left_alone(written: Write) -> None:
    path = written([*called("train", 5), *called("dev", 3, 1), *called("test", 4, 2), *called(None, 2, 3)])
    material = load_preference_pairs([path], None, seed=0)
    assert (len(material.train), len(material.dev), material.left_alone) == (7, 3, 4)
    assert material.remarks()[0] == "4 pairs of other splits are left alone"
    (file,) = material.described()["files"]
    assert file == {
        "file": "pairs.jsonl",
        "sha256": sha256(path.read_bytes()).hexdigest(),
        "pairs": 14,
        "train": 5,
        "dev": 3,
        "test": 4,
        "unsplit": 2,
    }


def test_another_file_may_be_what_is_judged_by(written: Write) -> None:
    path = written([*called("train", 5), *called("dev", 3, 1)])
    whole = written(called(None, 6, 4), "whole.jsonl")
    assert len(load_preference_pairs([path], str(whole), seed=0).dev) == 6
    split = written([*called("dev", 2, 4), *called("test", 6, 5)], "split.jsonl")
    material = load_preference_pairs([path], str(split), seed=0)
    assert (len(material.dev), material.left_alone) == (2, 3 + 6)
    tests = written(called("test", 6), "tests.jsonl")
    with pytest.raises(InputError, match=r"tests\.jsonl: none of its 6 pairs is called 'dev'; give pairs to judge by"):
        load_preference_pairs([path], str(tests), seed=0)


def numbered(number: int, split: str | None = None) -> GoodBad:
    """Every fourth pair has a new context; no other text is shared."""
    (pair,) = answer_pairs(1, seed=number, split=split)
    source = ("source", " ".join(f"context{number // 4}word{word}" for word in range(6)))
    good, bad = ((source, ("answer", f"{side}{number} says {side}{number} only")) for side in ("good", "bad"))
    return replace(pair, good=good, bad=bad)


def test_a_share_is_set_apart_with_whole_contexts(written: Write) -> None:
    """Each context has four pairs, so a share of 12 of 80 takes three contexts."""
    path = written([numbered(number) for number in range(80)])
    material = load_preference_pairs([path], "0.15", seed=0)
    assert (len(material.train), len(material.dev), material.leaking, material.between) == (68, 12, 0, 0)
    seen = {text for pair in material.train for text in pair.contexts}
    assert seen.isdisjoint(text for pair in material.dev for text in pair.contexts)
    assert load_preference_pairs([path], "0.15", seed=0) == material
    assert load_preference_pairs([path], "0.15", seed=1) != material


def test_pairs_that_cannot_be_parted_are_refused(written: Write) -> None:
    path = written([numbered(number % 4) for number in range(8)])
    with pytest.raises(InputError, match=r"no share of the 8 pairs can be set apart, as too many are joined by texts"):
        load_preference_pairs([path], "0.2", seed=0)


def test_contexts_that_training_sees_too_are_counted(written: Write) -> None:
    path = written([*(numbered(number, "train") for number in range(5)), numbered(7, "dev"), numbered(9, "dev")])
    material = load_preference_pairs([path], None, seed=0)
    assert material.leaking == 1
    assert material.remarks() == ["1 of 2 development pairs share a text with the training data"]
    assert material.described()["development_pairs_that_share_a_text"] == 1


def test_instructions_come_from_the_file_or_from_the_table_of_criteria(written: Write) -> None:
    known = criteria.find("grammaticality").instructions[0]
    blank = answer_pairs(1, instruction="")[0]
    path = written([*called(None, 1), replace(blank, criterion="grammaticality"), replace(blank, criterion="mine")])
    material = load_preference_pairs([path], None, seed=0)
    assert [pair.instruction for pair in material.train] == ["is it good ?", known, ""]
    assert material.unasked == ("mine",)
    assert material.remarks() == ["no instruction is known for 'mine'; the model is given none"]


def test_impossible_wishes_are_refused(written: Write, tmp_path: Path) -> None:
    path = written([*called("train", 5), *called("dev", 3, 1)])
    with pytest.raises(InputError, match=r"the data has 3 development pairs of its own; leave --dev 0\.1 out"):
        load_preference_pairs([path], "0.1", seed=0)
    with pytest.raises(InputError, match=r"--dev must be a file or a share of the pairs between 0 and 1"):
        load_preference_pairs([path], "1.5", seed=0)
    with pytest.raises(InputError, match=r"tests\.jsonl: no pair is left to train on; all are of other splits"):
        load_preference_pairs([written(called("test", 3), "tests.jsonl")], None, seed=0)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match=r"empty\.jsonl: has no pairs; wanted lines with 'task', 'good' and 'bad'"):
        load_preference_pairs([tmp_path / "empty.jsonl"], None, seed=0)


def test_a_file_to_learn_from_is_not_given_as_what_is_judged_by_too(written: Write) -> None:
    path = written([*called("train", 5), *called("dev", 3, 1)])
    with pytest.raises(InputError, match=r"pairs\.jsonl is also --data: .*; leave --dev out"):
        load_preference_pairs([path], str(path), seed=0)
