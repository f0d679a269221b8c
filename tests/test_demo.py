"""The sample that ships with the project: complete, labelled as made for the demo, and readable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from metrist.io import read_records

DEMO = Path(__file__).resolve().parent.parent / "demo"
SYSTEMS = ("careful", "terse", "literal", "wordy")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DEMO / "sample.jsonl").read_text(encoding="utf-8").splitlines()]


def test_every_system_answers_every_item(rows: list[dict[str, Any]]) -> None:
    items = list(dict.fromkeys(row["item"] for row in rows))
    assert len(items) == 15
    assert [(row["item"], row["system"]) for row in rows] == [(item, system) for item in items for system in SYSTEMS]


def test_every_row_is_labelled_as_made_for_the_demo(rows: list[dict[str, Any]]) -> None:
    assert {row["made_for"] for row in rows} == {"metrist demo"}
    assert "invented" in (DEMO / "README.md").read_text(encoding="utf-8")


def test_each_rating_has_a_named_rater_and_lies_on_the_scale(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert set(row["ratings"]) == {"accuracy", "fluency"}
        for values in row["ratings"].values():
            assert len(values) == len(row["raters"]) >= 2
            assert all(1 <= value <= 5 for value in values)


def test_the_systems_differ_as_the_readme_says(rows: list[dict[str, Any]]) -> None:
    def mean(system: str, aspect: str) -> float:
        values = [v for row in rows if row["system"] == system for v in row["ratings"][aspect]]
        return sum(values) / len(values)

    assert mean("careful", "accuracy") > mean("terse", "accuracy") > mean("wordy", "accuracy")
    assert mean("wordy", "accuracy") > mean("literal", "accuracy")
    assert mean("literal", "fluency") == min(mean(system, "fluency") for system in SYSTEMS)


def test_the_sample_is_readable() -> None:
    records = list(read_records(DEMO / "sample.jsonl"))
    assert len(records) == 60
    assert all(record.source and record.instruction and record.references for record in records)
    ratings = [rating for entry in read_records(DEMO / "sample.jsonl").entries() for rating in entry.ratings]
    assert len(ratings) == 60 * 2 * 3 - 4 * 2
