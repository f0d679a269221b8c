"""Tasks of Natural Instructions v2, in the layout of its repository (tasks/README.md); predictions are in the layout of
eval/automatic. All texts are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from error_codes import raises_code
from metrist.errors import InputError
from metrist.io.convert import convert, detect
from metrist.io.reader import read_records

EXAMPLE = {"input": "1+1", "output": "2", "explanation": "A sum."}


def write_task(folder: Path, name: str, *instances: dict[str, Any], indent: int | None = 4, **changed: Any) -> Path:
    document = {
        "Contributors": ["A"],
        "Categories": ["Question Answering"],
        "Definition": ["Add the", "numbers."],
        "Input_language": ["English"],
        "Output_language": ["English"],
        "Positive Examples": [EXAMPLE],
        "Negative Examples": [],
        "Instances": list(instances),
        **changed,
    }
    (folder / name).write_text(json.dumps(document, indent=indent), encoding="utf-8")
    return folder / name


@pytest.fixture
def tasks(tmp_path: Path) -> list[Path]:
    first = write_task(
        tmp_path,
        "task033_sums.json",
        {"id": "task033-1", "input": "2+3", "output": ["5", "five"]},
        {"id": "task033-2", "input": "2+2", "output": ["4"]},
    )
    second = write_task(
        tmp_path,
        "task190_summor.json",
        {"input": "1+2", "output": "3"},
        indent=None,
        Definition="Addera.",
        Output_language=["Swedish"],
    )
    return [first, second]


def test_each_instance_becomes_a_row_per_system(tasks: list[Path], tmp_path: Path) -> None:
    assert [detect(path) for path in tasks] == ["natural_instructions"] * 2
    answers = [{"id": "task033-1", "prediction": "6"}, {"id": "task190_summor/1", "prediction": "3"}]
    (tmp_path / "gpt.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    (tmp_path / "llama.txt").write_text("5\nfour\ntre\n")
    notes: list[str] = []
    outputs = {"gpt": tmp_path / "gpt.jsonl", "llama": tmp_path / "llama.txt"}
    rows = list(convert(*tasks, outputs=outputs, announce=notes.append))
    assert [(row["item"], row["system"], row["output"]) for row in rows] == [
        ("task033-1", "gpt", "6"),
        ("task033-1", "llama", "5"),
        ("task033-2", "llama", "four"),
        ("task190_summor/1", "gpt", "3"),
        ("task190_summor/1", "llama", "tre"),
    ]
    assert rows[0] == {
        "item": "task033-1",
        "system": "gpt",
        "task": "task033_sums",
        "language": "en",
        "instruction": "Add the numbers.",
        "source": "2+3",
        "references": ["5", "five"],
        "output": "6",
        "positive_examples": [EXAMPLE],
    }
    assert (rows[3]["language"], rows[3]["instruction"]) == ("sv", "Addera.")
    assert notes == ["gpt has no prediction for 1 instance"]
    assert len(list(read_records(rows))) == 5


def test_without_predictions_the_first_reference_is_the_output(tasks: list[Path]) -> None:
    notes: list[str] = []
    rows = list(convert(*tasks, limit=1, announce=notes.append))
    assert [(row["item"], row["system"], row["output"]) for row in rows] == [
        ("task033-1", "reference", "5"),
        ("task190_summor/1", "reference", "3"),
    ]
    assert len(notes) == 1


def test_what_is_no_task_and_predictions_that_fit_nothing_are_refused(tasks: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"id": "x", "prediction": "y"}\n')
    with raises_code(InputError, "no_data", "other.jsonl"):
        list(convert(tasks[0], outputs={"gpt": tmp_path / "other.jsonl"}))
    with raises_code(InputError, "invalid_value", "instance 1", "'output'"):
        list(convert(write_task(tmp_path, "bad.json", {"input": "x"})))
    (tmp_path / "data.json").write_text('{"1": {"sys_summs": {}}}')
    with raises_code(InputError, "conflict", "data.json"):
        convert(tmp_path / "data.json", outputs={"gpt": tmp_path / "other.jsonl"})
