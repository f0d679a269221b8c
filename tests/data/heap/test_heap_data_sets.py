"""The data sets' own published files. Field names and layout are those of the public files; all texts are made up.

The expected pairs follow from the rules in metrist.data.heap.datasets, worked out by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from published_files import answers, defeasible, json_lines

from error_codes import raises_code
from metrist import criteria
from metrist.data.heap import list_data_sets, read_data_set, read_instructions
from metrist.errors import InputError, MetristError, SpecError

# --- the registry


def test_each_criterion_of_the_suite_has_a_reader() -> None:
    codes = [code for data_set in list_data_sets() for code in data_set.codes]
    assert tuple(codes) == criteria.suite("heap").codes


def test_a_code_gives_the_pairs_of_one_criterion(tmp_path: Path) -> None:
    path = defeasible(tmp_path)
    assert {pair.criterion for pair in read_data_set("dia", path)} == {"DIA"}
    assert {pair.criterion for pair in read_data_set("defeasibleinference", path)} == {"DIA", "DII"}


def test_pairs_have_the_chosen_wording_and_no_split(tmp_path: Path) -> None:
    result = read_data_set("DIA", defeasible(tmp_path), wording={"DIA": 2})
    assert {(pair.instruction, pair.split) for pair in result} == {(criteria.find("DIA").instructions[2], None)}


def test_an_unknown_name_is_an_error_that_names_near_ones(tmp_path: Path) -> None:
    with raises_code(SpecError, "unknown_name", "'CHASMS'", "'CHASM'"):
        read_data_set("CHASMS", tmp_path)
    with raises_code(SpecError, "unknown_name", "'?'"):
        read_data_set("?", tmp_path)


def test_no_file_and_a_file_without_pairs_are_errors(tmp_path: Path) -> None:
    with raises_code(InputError, "missing_value"):
        read_data_set("CHASM")
    with raises_code(InputError, "unreadable", "rows.jsonl"):
        read_data_set("Defeasible Inference", json_lines(tmp_path))
    with raises_code(InputError, "missing_file", "none.jsonl"):
        read_data_set("HS", tmp_path / "none.jsonl")


# --- TuringAdvice


def advice(**changed: Any) -> dict[str, Any]:
    return {
        "situation": {"title": "Lost keys", "selftext": "They fell into the sea.", "id": "s1", "score": 9},
        "best_advice": {"bestadvice_body": "Call a locksmith."},
        "model_advice": {"one": "Swim.", "two": "Change the lock."},
        "turk_ratings": {"one": {"is_preferred": False}, "two": {"is_preferred": True}},
        **changed,
    }


def test_turing_advice_compares_each_system_with_the_best_advice(tmp_path: Path) -> None:
    result = read_data_set("TuringAdvice", json_lines(tmp_path, advice()))
    assert answers(result, "AH") == [("Call a locksmith.", "Swim."), ("Change the lock.", "Call a locksmith.")]
    assert result[0].good[0] == ("situation", "Lost keysThey fell into the sea.")
    assert [pair.systems for pair in result] == [("best_advice", "one"), ("two", "best_advice")]
    assert (result[0].item, result[0].good_rating) == ("s1", None)


@pytest.mark.parametrize(
    ("changed", "values"),
    [
        ({"turk_ratings": {"one": {"is_preferred": 7}}}, (":1", "'turk_ratings.one.is_preferred'", "got 7")),
        ({"model_advice": "Swim."}, (":1", "'model_advice'", "got 'Swim.'")),
    ],
)
def test_turing_advice_names_the_field_at_fault(
    tmp_path: Path, changed: dict[str, Any], values: tuple[str, ...]
) -> None:
    with raises_code(InputError, "unreadable", *values):
        read_data_set("AH", json_lines(tmp_path, advice(**changed)))


# --- HellaSwag


def ending(**changed: Any) -> dict[str, Any]:
    return {"ind": 4, "ctx": "A man sits. he", "endings": ["flies", "stands", "melts", "sings"], "label": 1, **changed}


def test_hellaswag_pairs_the_true_ending_with_each_other_one(tmp_path: Path) -> None:
    result = read_data_set("HellaSwag", json_lines(tmp_path, ending(), ending(ind=5, label="0")))
    assert answers(result, "HS")[:3] == [("stands", "flies"), ("stands", "melts"), ("stands", "sings")]
    assert {pair.answers[0] for pair in result[3:]} == {"flies"}
    assert result[0].good == (("context", "A man sits. he"), ("follow up sentence", "stands"))
    assert [pair.item for pair in result] == ["4"] * 3 + ["5"] * 3


@pytest.mark.parametrize(
    ("changed", "values"),
    [
        ({"label": ""}, (":1", "'label'")),
        ({"label": 4}, (":1", "'label'", "got 4")),
        ({"endings": []}, (":1", "'endings'", "got []")),
        ({"endings": ["a", None]}, (":1", "'endings'", "got null")),
    ],
)
def test_hellaswag_names_the_field_at_fault(tmp_path: Path, changed: dict[str, Any], values: tuple[str, ...]) -> None:
    with raises_code(InputError, "unreadable", *values):
        read_data_set("HS", json_lines(tmp_path, ending(**changed)))


# --- CommonGen


def sheet(folder: Path, name: str, *lines: str) -> Path:
    head = ["Compare the sentences.,,", ",,", 'Sentence 1,Sentence 2,"Score {-1, 1}"', ",,"]
    (folder / name).write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    return folder / name


BLOCK = ["Concept set: dog ball,,", "Reference: A dog has a ball.,,"]


def test_commongen_favours_the_sentence_with_the_better_mean_over_the_sheets(tmp_path: Path) -> None:
    first = sheet(tmp_path, "1.csv", *BLOCK, "a,b,1", "a,c,0.5", "b,c,", '"d, too",c,0', ",,")
    second = sheet(
        tmp_path, "2.csv", *BLOCK, "a,b,-0.5", "a,c,-0.5", "b,c,-1", "Concept set: cat,,", "Reference: Cat.,,", "a,b,-1"
    )
    result = read_data_set("CommonGen", first, second)
    assert answers(result, "CR") == [("a", "b"), ("c", "b"), ("b", "a")]
    assert result[0].good == (
        ("concept set", "dog ball"),
        ("reference sentence", "A dog has a ball."),
        ("sentence", "a"),
    )
    assert result[2].item == "cat"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([*BLOCK, "a,b,much"], r"1.csv:7: 'score' must be a finite number, got 'much'"),
        ([*BLOCK, "a,,1"], r"1.csv:7: expected two sentences and a score, got \['a', '', '1'\]"),
        (["a,b,1"], r"1.csv: has no line 'Concept set: …'; expected a sheet"),
        ([*BLOCK, 'a,"b"c,1'], r"1.csv:7: not readable as CSV: "),
    ],
)
def test_commongen_names_the_line_at_fault(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_data_set("CR", sheet(tmp_path, "1.csv", *lines))


def test_instructions_of_a_file_take_the_place_of_ours(tmp_path: Path) -> None:
    own, data = tmp_path / "own.toml", defeasible(tmp_path)
    own.write_text('dia = "Does it weaken the inference?"\n', encoding="utf-8")
    assert read_instructions(own) == {"DIA": "Does it weaken the inference?"}
    pairs = read_data_set("DIA", data, wording=read_instructions(own))
    assert {pair.instruction for pair in pairs} == {"Does it weaken the inference?"}
    assert read_data_set("DII", data, wording=read_instructions(own)) == read_data_set("DII", data)
    for text, code in (("DIA = 3", "invalid_value"), ("DIA = ' '", "invalid_value"), ("AB = 'x'", "unknown_name")):
        own.write_text(text, encoding="utf-8")
        with raises_code(MetristError, code):
            read_instructions(own)
