"""Preference pairs from files, split into training and development data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from toy_pairs import answer_pairs

from error_codes import raises_code
from metrist import criteria
from metrist.data.pairs import GoodBad, write_good_bad
from metrist.errors import InputError
from metrist.train.answer_pairs import load_preference_pairs

Write = Callable[..., Path]


@pytest.fixture
def write_pairs(tmp_path: Path) -> Write:
    def write(pairs: list[GoodBad], name: str = "pairs.jsonl") -> Path:
        write_good_bad(tmp_path / name, pairs)
        return tmp_path / name

    return write


def with_split(split: str | None, count: int, seed: int = 0) -> list[GoodBad]:
    return answer_pairs(count, split=split, seed=seed)


def test_splits_in_files_are_used_and_test_pairs_are_not(write_pairs: Write) -> None:
    pairs = [*with_split("train", 5), *with_split("dev", 3, 1), *with_split("test", 4, 2), *with_split(None, 2, 3)]
    path = write_pairs(pairs)
    data = load_preference_pairs([path], None, seed=0)
    assert (len(data.train), len(data.dev), data.other_splits) == (7, 3, 4)
    assert data.remarks()[0] == "4 pairs of other splits are not used"
    (file,) = data.describe()["files"]
    assert file == {
        "file": "pairs.jsonl",
        "sha256": sha256(path.read_bytes()).hexdigest(),
        "pairs": 14,
        "train": 5,
        "dev": 3,
        "test": 4,
        "unsplit": 2,
    }


def test_development_pairs_may_come_from_another_file(write_pairs: Write) -> None:
    path = write_pairs([*with_split("train", 5), *with_split("dev", 3, 1)])
    unsplit = write_pairs(with_split(None, 6, 4), "unsplit.jsonl")
    assert len(load_preference_pairs([path], str(unsplit), seed=0).dev) == 6
    split = write_pairs([*with_split("dev", 2, 4), *with_split("test", 6, 5)], "split.jsonl")
    data = load_preference_pairs([path], str(split), seed=0)
    assert (len(data.dev), data.other_splits) == (2, 3 + 6)
    tests = write_pairs(with_split("test", 6), "tests.jsonl")
    with raises_code(InputError, "unreadable", "tests.jsonl", "'dev'"):
        load_preference_pairs([path], str(tests), seed=0)


def numbered(number: int, split: str | None = None) -> GoodBad:
    """Every fourth pair has a new context; no other text is shared."""
    (pair,) = answer_pairs(1, seed=number, split=split)
    source = ("source", " ".join(f"context{number // 4}word{word}" for word in range(6)))
    good, bad = ((source, ("answer", f"{side}{number} says {side}{number} only")) for side in ("good", "bad"))
    return replace(pair, good=good, bad=bad)


def test_a_development_share_keeps_contexts_together(write_pairs: Write) -> None:
    """Each context has four pairs, so a share of 12 of 80 takes three contexts."""
    path = write_pairs([numbered(number) for number in range(80)])
    data = load_preference_pairs([path], "0.15", seed=0)
    assert (len(data.train), len(data.dev), data.leaking, data.straddling) == (68, 12, 0, 0)
    seen = {text for pair in data.train for text in pair.contexts}
    assert seen.isdisjoint(text for pair in data.dev for text in pair.contexts)
    assert load_preference_pairs([path], "0.15", seed=0) == data
    assert load_preference_pairs([path], "0.15", seed=1) != data


def test_pairs_that_cannot_be_split_are_refused(write_pairs: Write) -> None:
    path = write_pairs([numbered(number % 4) for number in range(8)])
    with raises_code(InputError, "too_little_data"):
        load_preference_pairs([path], "0.2", seed=0)


def test_development_pairs_with_training_contexts_are_counted(write_pairs: Write) -> None:
    path = write_pairs([*(numbered(number, "train") for number in range(5)), numbered(7, "dev"), numbered(9, "dev")])
    data = load_preference_pairs([path], None, seed=0)
    assert data.leaking == 1
    assert data.remarks() == ["1 of 2 development pairs share a text with the training data"]
    assert data.describe()["development_pairs_that_share_a_text"] == 1


def test_instructions_come_from_the_file_or_from_the_table_of_criteria(write_pairs: Write) -> None:
    known = criteria.find("grammaticality").instructions[0]
    blank = answer_pairs(1, instruction="")[0]
    path = write_pairs(
        [*with_split(None, 1), replace(blank, criterion="grammaticality"), replace(blank, criterion="mine")]
    )
    data = load_preference_pairs([path], None, seed=0)
    assert [pair.instruction for pair in data.train] == ["is it good ?", known, ""]
    assert data.no_instruction == ("mine",)
    assert data.remarks() == ["no instruction is known for 'mine'; the model gets none"]


def test_impossible_requests_are_refused(write_pairs: Write, tmp_path: Path) -> None:
    path = write_pairs([*with_split("train", 5), *with_split("dev", 3, 1)])
    with raises_code(InputError, "conflict", "`dev=0.1`"):
        load_preference_pairs([path], "0.1", seed=0)
    with raises_code(InputError, "invalid_value", "`dev`"):
        load_preference_pairs([path], "1.5", seed=0)
    with raises_code(InputError, "too_little_data", "tests.jsonl"):
        load_preference_pairs([write_pairs(with_split("test", 3), "tests.jsonl")], None, seed=0)
    (tmp_path / "empty.jsonl").write_text("")
    with raises_code(InputError, "no_data", "empty.jsonl"):
        load_preference_pairs([tmp_path / "empty.jsonl"], None, seed=0)


def test_the_training_file_cannot_be_the_development_file(write_pairs: Write) -> None:
    path = write_pairs([*with_split("train", 5), *with_split("dev", 3, 1)])
    with raises_code(InputError, "conflict", "pairs.jsonl", "`data`", "`dev`"):
        load_preference_pairs([path], str(path), seed=0)


def test_a_table_of_chosen_and_rejected_answers_is_read_as_pairs(tmp_path: Path) -> None:
    """The two answers are ordered without regard to the choice, so each must end up on its own side again."""
    rows = [f"What is {n}?,{n} it is,{'no idea' if n % 2 else 'a number'}" for n in range(6)]
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join(["prompt,chosen,rejected", *rows]) + "\n")
    data = load_preference_pairs([path], None, seed=0)
    assert sorted(pair.answers for pair in data.train) == sorted(
        (f"{n} it is", "no idea" if n % 2 else "a number") for n in range(6)
    )
    assert {pair.contexts for pair in data.train} == {(f"What is {n}?",) for n in range(6)}
    assert {(pair.criterion, pair.instruction) for pair in data.train} == {
        ("overall", "Judge how good the output is on the whole.")
    }
    assert data.remarks()[-1] == f"{path}: 6 pairs of 'overall'; context: source"
    named = load_preference_pairs([path], None, seed=0, criterion="fluency", learned={"fluency": "Is it fluent?"})
    assert {(pair.criterion, pair.instruction) for pair in named.train} == {("fluency", "Is it fluent?")}


def test_columns_of_other_names_are_read_and_bad_rows_skipped(tmp_path: Path, write_pairs: Write) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("frage;gut;schlecht\n" + "".join(f"f{n};richtig {n};falsch {n}\n" for n in range(4)) + "f4;x;x;y\n")
    fields = {"source": "frage", "chosen": "gut", "rejected": "schlecht"}
    data = load_preference_pairs([path], None, seed=0, fields=fields, delimiter=";", skip_bad=True)
    assert [(pair.contexts, pair.answers) for pair in data.train] == [
        ((f"f{n}",), (f"richtig {n}", f"falsch {n}")) for n in range(4)
    ]
    assert f"{path}: 1 bad row skipped" in data.remarks()
    with raises_code(InputError, "unknown_name", "'güt'"):
        load_preference_pairs([path], None, seed=0, fields={**fields, "chosen": "güt"})
    made = write_pairs([*with_split("train", 3)])
    made.write_text(made.read_text() + '{"task": "A"}\n')
    assert len(load_preference_pairs([made], None, seed=0, skip_bad=True).train) == 3


def test_a_share_is_held_out_by_default_only_where_the_file_has_no_development_pairs(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("chosen,rejected\n" + "".join(f"good {n},bad {n}\n" for n in range(40)))
    data = load_preference_pairs([path], None, seed=0, default_dev="0.2")
    assert (len(data.train), len(data.dev)) == (32, 8)


def test_a_file_without_judgments_says_what_training_reads(tmp_path: Path) -> None:
    (tmp_path / "half.csv").write_text("prompt,chosen\na,b\n")
    with raises_code(InputError, "unreadable", "'prompt'", "'chosen'", "'rejected'"):
        load_preference_pairs([tmp_path / "half.csv"], None, seed=0)
