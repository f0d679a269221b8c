"""Filters of examples: what each of them removes, with a count and samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metrist.data.error_analysis import AnalysisExample, make_example
from metrist.data.error_analysis.filters import (
    FILTERS,
    SAMPLES,
    FilterStep,
    apply_filters,
    count_tokens,
    drop_duplicates,
    limit_length,
)
from metrist.metrics.errors.tigerscore import parse_tiger_answer
from metrist.ratings import Error
from metrist.records import Record

RECORD = Record(item="1", system="s", output="It is 12 km away.", source="The town is 15 km away.", task="summ")
ERROR = Error(
    aspect="Fact Consistency", severity="major", penalty=4.0, explanation="The number is wrong.", revision="15",
    text="12", start=6, end=8,
)  # fmt: skip


def find_step(example: AnalysisExample) -> str | None:
    """The step that removes an example."""
    steps: dict[str, FilterStep] = {}
    list(apply_filters([example], FILTERS, steps))
    return next((name for name, step in steps.items() if step.removed), None)


@pytest.mark.parametrize(
    ("change", "step"),
    [
        ({}, None),
        ({"explanation": " "}, "incomplete"),
        ({"aspect": ""}, "incomplete"),
        ({"penalty": None}, "incomplete"),
        ({"severity": "fatal"}, "severity"),
        ({"severity": None}, "severity"),
        ({"penalty": 0.25}, "penalty"),
        ({"penalty": 5.5}, "penalty"),
        # TIGERScore paper, 3.3: "if the score reduction exceeds 2.5 for an error with a severity of Minor".
        ({"severity": "minor", "penalty": 2.5}, None),
        ({"severity": "minor", "penalty": 3.0}, "minor penalty"),
        ({"aspect": "Terminology"}, "aspect"),
        ({"aspect": "unspecified"}, "aspect"),
        ({"explanation": "The reference says 15."}, "reference"),
        ({"explanation": "It differs from the reference translation."}, "reference"),
        ({"explanation": "The gold answer is 15."}, "reference"),
        ({"explanation": "The reference link is dead."}, None),
        ({"explanation": "“The gold standard” is wrong."}, None),
        ({"explanation": "With reference to the town it is wrong."}, None),
        ({"text": "made up entirely", "start": None, "end": None}, "location"),
        ({"text": "town is", "start": None, "end": None}, None),
        ({"revision": "12"}, "no change"),
    ],
)
def test_what_is_removed(change: dict[str, object], step: str | None) -> None:
    assert find_step(make_example(RECORD, [replace(ERROR, **change)], "human")) == step


def test_free_form_aspects_need_not_be_in_the_table() -> None:
    assert find_step(make_example(RECORD, [replace(ERROR, aspect="Wrong Number")], "freeform")) is None


def test_an_output_that_imitates_an_answer() -> None:
    imitation = (
        "Error location 1: 12\nError aspect 1: Fact Consistency\nExplanation 1: The number is wrong. Better: “15”."
    )
    record = replace(RECORD, output=f"It is 12 km away.\n{imitation}")
    example = make_example(record, [ERROR], "human")
    assert parse_tiger_answer(example.completion, example.prompt).failure is not None
    assert find_step(example) == "format"


def test_length_and_duplicates() -> None:
    short, long = make_example(RECORD, [], "human"), make_example(replace(RECORD, source="word " * 2000), [], "human")
    steps: dict[str, FilterStep] = {}
    rest = list(apply_filters([short, long, short], [limit_length(1024), drop_duplicates()], steps))
    assert rest == [short]
    assert {name: step.removed for name, step in steps.items()} == {"length": 1, "duplicate": 1}
    assert count_tokens(long) > 2500
    assert steps["length"].samples[0]["id"] == long.id


def test_samples_are_few() -> None:
    steps: dict[str, FilterStep] = {}
    examples = [
        make_example(replace(RECORD, item=str(number)), [replace(ERROR, penalty=9.0)], "human") for number in range(9)
    ]
    assert not list(apply_filters(examples, FILTERS, steps))
    assert steps["penalty"].removed == 9
    assert len(steps["penalty"].samples) == SAMPLES
    assert "9" in steps["penalty"].samples[0]["reason"]
