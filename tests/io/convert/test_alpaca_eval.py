"""AlpacaEval's lists of outputs and of judgments. Field names are those of its public repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metrist.errors import InputError
from metrist.io import read_records
from metrist.io.convert import convert, detect, write_rows

WriteJson = Callable[..., Path]
PAIR = {
    "instruction": "Say hello.",
    "output_1": "Hello.",
    "output_2": "Hi!",
    "generator_1": "base",
    "generator_2": "new",
    "annotator": "judge-1",
    "preference": 2.0,
    "price_per_example": 0.01,
    "dataset": "made_up",
}


def test_lists_of_several_systems_are_joined_by_instruction(write_json: WriteJson) -> None:
    echo = [{"instruction": f"Say {what}.", "output": what, "generator": "echo", "dataset": "d"} for what in "ab"]
    other = [{"instruction": f"Say {what}.", "output": "no", "generator": "rude", "input": "please"} for what in "b"]
    other.append({"instruction": "Say b.", "output": "never", "generator": "rude", "input": ""})
    paths = write_json(echo, "echo.json"), write_json(other, "rude.json")
    assert [detect(path) for path in paths] == ["alpaca_eval", "alpaca_eval"]
    assert list(convert(*paths)) == [
        {"dataset": "d", "item": "1", "system": "echo", "task": "instruction", "instruction": "Say a.", "output": "a"},
        {"dataset": "d", "item": "2", "system": "echo", "task": "instruction", "instruction": "Say b.", "output": "b"},
        {
            "item": "3",
            "system": "rude",
            "task": "instruction",
            "instruction": "Say b.",
            "source": "please",
            "output": "no",
        },
        {"item": "2", "system": "rude", "task": "instruction", "instruction": "Say b.", "output": "never"},
    ]


def test_an_instruction_that_one_system_answers_twice_is_two_items(write_json: WriteJson) -> None:
    entry = {"instruction": "Say it.", "output": "it", "generator": "a"}
    path = write_json([entry, {**entry, "output": "IT"}, {**entry, "generator": "b"}])
    assert [(row["item"], row["system"]) for row in convert(path)] == [("1", "a"), ("1#2", "a"), ("1", "b")]


def test_a_judgment_becomes_a_pair_with_a_preference(write_json: WriteJson) -> None:
    path = write_json([PAIR])
    assert detect(path) == "alpaca_eval"
    assert list(convert(path)) == [
        {
            "item": "1",
            "systems": ["base", "new"],
            "outputs": ["Hello.", "Hi!"],
            "task": "instruction",
            "instruction": "Say hello.",
            "ratings": {"preference": [2]},
            "raters": ["judge-1"],
            "dataset": "made_up",
        }
    ]


@pytest.mark.parametrize(
    ("preference", "choice", "certainty"),
    [
        *((1, 1, None), (2, 2, None), (0, 0, None), (1.5, 0, None), (1.02, 1, 1.02), (1.999, 2, 1.999), ("1", 1, None)),
        *((None, None, None), (float("nan"), None, None), ("None", None, None)),  # The judgment failed.
    ],
)
def test_a_preference_is_first_second_or_tie(
    write_json: WriteJson, preference: object, choice: int | None, certainty: float | None
) -> None:
    (row,) = convert(write_json([{**PAIR, "preference": preference}]))
    assert row.get("ratings") == (None if choice is None else {"preference": [choice]})
    assert row.get("scores") == (None if certainty is None else {"judge-1": certainty})
    assert row["outputs"] == ["Hello.", "Hi!"]


def test_an_unnamed_judge_has_no_rater(write_json: WriteJson) -> None:
    (row,) = convert(write_json([{**PAIR, "annotator": None, "preference": 1.2}]))
    assert "raters" not in row
    assert row["scores"] == {"preference": 1.2}


def test_judgments_of_several_judges_are_read_as_preferences_of_one_item(tmp_path: Path, write_json: WriteJson) -> None:
    path = write_json([PAIR, {**PAIR, "annotator": 17, "preference": 1}])
    write_rows(convert(path), tmp_path / "rows.jsonl")
    preferences = [p for entry in read_records(tmp_path / "rows.jsonl").entries() for p in entry.preferences]
    assert [(p.item, p.first, p.second, p.rater, p.choice) for p in preferences] == [
        ("1", "base", "new", "judge-1", "second"),
        ("1", "base", "new", "17", "first"),
    ]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"output": "o", "generator": "g"}, r"data.json:1: no field 'instruction'; found 'output', 'generator'"),
        ({"instruction": "i", "output": None, "generator": "g"}, r"data.json:1: 'output' must be a string, got null"),
        ({"instruction": "i", "output": "o"}, r"data.json:1: no 'generator'.* `system`"),
        ({**PAIR, "output_2": 3}, r"data.json:1: 'output_2' must be a string, got 3"),
        ({**PAIR, "preference": 3}, r"'preference' must be 0 or 1.5 for a tie, or a number from 1 .*, got 3"),
        ({**PAIR, "preference": "first"}, r"'preference' must be a finite number or None, got 'first'"),
        ("x", r"data.json:1: must be a JSON object, got 'x'"),
    ],
)
def test_a_wrong_field_is_named_with_its_place(write_json: WriteJson, entry: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(convert(write_json([entry]), kind="alpaca_eval"))


def test_outputs_without_a_generator_use_the_given_system(write_json: WriteJson) -> None:
    path = write_json([{"instruction": "i", "output": "o"}])
    assert [row["system"] for row in convert(path, system="mine")] == ["mine"]
