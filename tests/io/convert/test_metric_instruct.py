"""MetricInstruct. Its layouts are those that finetune/format_data_v2.py of the TIGERScore repository reads: errors as a
text in the checkpoints' answer format, or structured; and the alpaca form of the checkpoints' training. All texts are
made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from error_codes import raises_code
from metrist.data.error_analysis import read_published_row
from metrist.errors import InputError
from metrist.io.convert import convert, detect, metric_instruct
from metrist.io.reader import read_records
from metrist.metrics.errors.answers import WrittenError
from metrist.metrics.errors.tigerscore import OPENING, build_prompt, format_tiger_answer, parse_tiger_answer
from metrist.train.analyses import read_analyses

WriteJson = Callable[..., Path]
TEXT = (
    "The model-generated output contains 2 errors, with a total score reduction of 4.5.\n"
    "Error location 1: cat\nError aspect 1: Accuracy\nExplanation 1: A dog.\nSeverity 1: Major\nScore reduction 1: 4\n"
    "Error location 2: sit\nError aspect 2: Fluency\nExplanation 2: sits\nSeverity 2: Minor\nScore reduction 2: 0.5"
)
STRUCTURED = {
    "error_1": {
        "error_location": "cat",
        "error_aspect": "Accuracy",
        "explanation": "A dog.",
        "severity": "Major",
        "score_reduction": 4,
    },
    "error_2": {
        "error_location": "sit",
        "error_aspect": "Fluency",
        "explanation": "sits",
        "severity": "Minor",
        "score_reduction": "0.5",
    },
}
ROW = {"task": "translation", "instruction": "Translate.", "input_context": "Der Hund", "hypo_output": "The cat sit"}
PROMPT = build_prompt("Translate.", "Der Hund", "The cat sit")
ALPACA = {"instruction": OPENING, "input": PROMPT.split("\n", 1)[1], "output": TEXT}
#: The places are counted by hand.
ERRORS = [
    {"text": "cat", "aspect": "Accuracy", "severity": "major", "penalty": 4.0, "start": 4, "end": 7},
    {"text": "sit", "aspect": "Fluency", "severity": "minor", "penalty": 0.5, "start": 8, "end": 11},
]


@pytest.mark.parametrize("errors", [TEXT, STRUCTURED, list(STRUCTURED.values())])
def test_all_forms_of_errors_say_the_same(write_json: WriteJson, errors: Any) -> None:
    path = write_json([{"id": "7", **ROW, "errors": errors}])
    (analysis,) = read_analyses(path)
    assert (analysis.prompt, analysis.completion) == (PROMPT, TEXT)
    assert (analysis.task, analysis.output, analysis.source) == ("translation", "The cat sit", "Der Hund")
    assert [(error.start, error.end, error.penalty) for error in analysis.errors] == [(4, 7, 4.0), (8, 11, 0.5)]
    assert detect(path) == "metric_instruct"
    (row,) = convert(path, read_analysis=read_published_row)
    assert [{name: error[name] for name in ERRORS[0]} for error in row["errors"]] == ERRORS
    assert (row["item"], row["system"], row["source"], row["output"]) == ("7", "unnamed", "Der Hund", "The cat sit")
    (entry,) = read_records([row]).entries()
    assert [stored.error.penalty for stored in entry.errors] == [4.0, 0.5]


def test_alpaca_rows_are_split_into_the_texts_of_the_prompt(write_json: WriteJson) -> None:
    path = write_json([ALPACA, {**ALPACA, "input": build_prompt("Write.", "", "x").split("\n", 1)[1]}])
    first, second = read_analyses(path)
    assert (first.prompt, first.completion, first.instruction) == (PROMPT, TEXT, "Translate.")
    assert (first.source, first.output) == ("Der Hund", "The cat sit")
    assert (second.source, second.output, second.instruction) == ("", "x", "Write.")
    assert detect(path) == "metric_instruct"
    rows = list(convert(path, read_analysis=read_published_row, system="nllb", task="translation"))
    assert [(row["item"], row["system"], row["task"]) for row in rows] == [
        ("1", "nllb", "translation"),
        ("2", "nllb", "translation"),
    ]


def test_a_text_of_errors_is_what_its_errors_format_to() -> None:
    answer = parse_tiger_answer(TEXT)
    whole = [WrittenError(location="cat", aspect="Accuracy", explanation="A dog.", severity="Major", penalty=4)]
    assert format_tiger_answer([*whole, answer.errors[1]]) == TEXT


def test_outputs_without_errors_keep_an_empty_list_and_repeated_items_get_numbers(write_json: WriteJson) -> None:
    path = write_json([{"id": "7", **ROW, "errors": {}}, {"id": "7", **ROW, "hypo_output": "x", "errors": []}])
    assert [(row["item"], row["errors"]) for row in convert(path, read_analysis=read_published_row)] == [
        ("7", []),
        ("7#2", []),
    ]


def test_the_first_line_of_the_prompt_is_that_of_tigerscore() -> None:
    assert metric_instruct.is_alpaca({"instruction": OPENING, "input": "", "output": ""})


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ({**ROW, "errors": "all is well"}, "errors"),
        ({**ROW, "errors": None}, "'errors'"),
        ({**ROW, "errors": {"error_1": {"score_reduction": "much"}}}, "'score_reduction'"),
        ({**ALPACA, "input": "Instruction: x"}, "'input'"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(write_json: WriteJson, row: dict[str, Any], value: str) -> None:
    path = write_json([{**ROW, "errors": TEXT}, row])
    with raises_code(InputError, "unreadable", "data.json:1", value):
        read_analyses(path)
    with raises_code(InputError, "invalid_row", "data.json:1", value):
        list(convert(path, kind="metric_instruct", read_analysis=read_published_row))
