"""TellMeWhy, TimeTravel and defeasible inference as they were published; all texts are made up. The expected pairs
follow from the rules in metrist.data.heap.datasets, worked out by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from published_files import answers, defeasible, json_lines, ratings, table, update

from error_codes import raises_code
from metrist.data.heap import list_skipped, read_data_set
from metrist.errors import InputError

# --- TellMeWhy

WHY = ["narrative", "question", "answer", "is_ques_answerable", "question_meta", "val_ann", "gram_ann"]


def why(folder: Path, *rows: list[Any]) -> Path:
    return table(folder, WHY, *rows)


def test_tellmewhy_orders_answers_by_the_floor_of_the_mean_rating(tmp_path: Path) -> None:
    # Grammar: 2, floor(5/3) = 1, floor(-1/3) = -1. Validity: 1, 1, 2.
    path = why(
        tmp_path,
        ["A tale.", "Why?", "first", "Answerable", "q1", "[1, 1, 1]", "[2, 2, 2]"],
        ["A tale.", "Why?", "second", "Answerable", "q1", "[2, 1, 0]", "[2, 1, 2]"],
        ["A tale.", "Why?", "third", "Answerable", "q1", "[2, 2, 2]", "[-1, 0, 0]"],
    )
    result = read_data_set("TellMeWhy", path)
    assert answers(result, "AG") == [("first", "second"), ("first", "third"), ("second", "third")]
    assert ratings(result, "AG") == [(2, 1), (2, -1), (1, -1)]
    assert answers(result, "AV") == [("third", "first"), ("third", "second")]
    assert result[0].good == (("narrative", "A tale."), ("question", "Why?"), ("answer", "first"))
    assert result[0].item == "q1"


def test_tellmewhy_pairs_answerable_questions_of_a_narrative_row_by_row(tmp_path: Path) -> None:
    path = why(
        tmp_path,
        ["A tale.", "Why not?", "a", "Not Answerable", "q1", "", ""],
        ["A tale.", "Why?", "b", "Answerable", "q2", "", ""],
        ["Another.", "Why so?", "c", "Answerable", "q3", "", ""],
        ["A tale.", "Why?", "d", "Answerable", "q2", "", ""],
    )
    result = read_data_set("QA", path)
    assert answers(result, "QA") == [("Why?", "Why not?")] * 2
    assert result[0].good == (("narrative", "A tale."), ("question", "Why?"))


def test_tellmewhy_is_read_from_json_as_well(tmp_path: Path) -> None:
    rows = [
        {"narrative": "n", "question": "q", "answer": text, "question_meta": "m", "gram_ann": rated}
        for text, rated in (("bad", [0, 0, 1]), ("good", [1, 1, 1]))
    ]
    assert answers(read_data_set("AG", json_lines(tmp_path, *rows)), "AG") == [("good", "bad")]


@pytest.mark.parametrize(
    ("code", "row", "message"),
    [
        (
            "AG",
            ["n", "q", "a", "Answerable", "m", "[1]", "fine"],
            r"rows.csv:2: 'gram_ann' must be a list that is not empty, got 'fine'",
        ),
        (
            "QA",
            ["n", "q", "a", "Maybe", "m", "", ""],
            r":2: 'is_ques_answerable' must be Answerable or Not Answerable, got 'Maybe'",
        ),
        ("QA", ["n"] * 8, r"rows.csv:2: must have at most 7 cells like the header, got 8"),
    ],
)
def test_tellmewhy_names_the_field_at_fault(tmp_path: Path, code: str, row: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_data_set(code, why(tmp_path, row))


# --- TimeTravel

TURK = [
    *("HITId", "Input.STORY", "Input.X1", "Input.X2", "Input.Y", "Input.XX2", "Input.YY1", "Input.YY2"),
    *("Input.YY1_MODEL", "Input.YY2_MODEL"),
    *(f"Answer.{question}" for question in ("counterfactual", "ending", "plot", "premise", "second")),
    *("Approve", "Reject"),
]


def turk(*choices: str) -> list[str]:
    """A row as Mechanical Turk exports it: without cells for the last two columns."""
    return [
        "h",
        "s1",
        "Ann ran. ",
        "She won.",
        "She was glad.",
        "She fell.",
        "She cried.",
        "She sang.",
        "m1",
        "m2",
        *choices,
    ]


def test_timetravels_raters_choose_an_ending_for_each_criterion(tmp_path: Path) -> None:
    result = read_data_set(
        "TimeTravel", table(tmp_path, TURK, turk("A", "B", "A", "S", "IR"), turk("A", "S", "S", "B", "S"))
    )
    cried, sang = ("She cried.", "She sang."), ("She sang.", "She cried.")
    assert {code: answers(result, code) for code in ("SRC", "SRE", "SRPl", "SRPr", "SRS")} == {
        "SRC": [cried, cried],
        "SRE": [sang],
        "SRPl": [cried],
        "SRPr": [sang],
        "SRS": [],
    }
    assert result[0].good[0] == ("story", "Ann ran. She fell.")
    plot = next(pair for pair in result if pair.criterion == "SRPl")
    assert plot.good[1:] == (("original ending", "She was glad."), ("rewritten ending", "She cried."))
    assert (plot.systems, plot.item) == (("m1", "m2"), "s1")


def test_rows_without_an_answer_are_skipped_for_their_criterion_and_counted(tmp_path: Path) -> None:
    """As in the authors' test_comparison_eval.csv: 1,400 rows, 41 of which lack an answer, written as {}."""
    answered, open_ending, no_plot = ("A", "B", "A", "B", "A"), ("A", "{}", "A", "B", "A"), ("A", "B", "", "B", "A")
    rows = [open_ending if n % 35 == 0 else answered for n in range(1_399)]
    path = table(tmp_path, TURK, *(turk(*row) for row in (*rows, no_plot)))
    result = read_data_set("TimeTravel", path)
    assert {code: len(answers(result, code)) for code in ("SRC", "SRE", "SRPl", "SRPr", "SRS")} == {
        "SRC": 1_400,
        "SRE": 1_360,
        "SRPl": 1_399,
        "SRPr": 1_400,
        "SRS": 1_400,
    }
    assert list_skipped("TimeTravel", path) == [
        "SRE: 40 of 1,400 rows have no answer to Answer.ending and make no pair",
        "SRPl: 1 of 1,400 rows have no answer to Answer.plot and make no pair",
    ]
    assert list_skipped("SRC", path) == []


def test_timetravels_rewritten_endings_are_paired_with_the_original_one(tmp_path: Path) -> None:
    story = {
        "story_id": "s1",
        "premise": "Ann ran. ",
        "counterfactual": "She fell.",
        "original_ending": "She won. Hurrah.",
    }
    single = {**story, "edited_ending": ["She lost.", "Alas."]}
    several = {**story, "edited_endings": [["She won.", "Hurrah."], ["She cried.", "Alas."]]}
    result = read_data_set("TimeTravel", json_lines(tmp_path, single, several, name="dev_data.json"))
    endings = [("She lost. Alas.", "She won. Hurrah."), ("She cried. Alas.", "She won. Hurrah.")]
    assert {code: answers(result, code) for code in ("SRC", "SRS")} == {"SRC": endings, "SRS": endings}
    assert len(result) == 4
    with raises_code(InputError, "no_data", "dev_data.json:1"):
        read_data_set("SRPl", tmp_path / "dev_data.json")


def test_timetravel_names_the_field_at_fault(tmp_path: Path) -> None:
    with raises_code(InputError, "unreadable", "rows.csv:2", "'Answer.ending'", "got 'C'"):
        read_data_set("SRE", table(tmp_path, TURK, turk("A", "C", "A", "A", "A")))
    story = {"story_id": "s1", "premise": "p", "counterfactual": "c", "original_ending": "o"}
    with raises_code(InputError, "unreadable", "rows.jsonl:1", "'edited_ending'", "'edited_endings'"):
        read_data_set("SRC", json_lines(tmp_path, story))
    with raises_code(InputError, "unreadable", "rows.jsonl:1", "'edited_endings'", "got 'x'"):
        read_data_set("SRC", json_lines(tmp_path, {**story, "edited_endings": ["x"]}))


# --- defeasible inference


def test_updates_are_ordered_within_what_they_were_meant_to_do(tmp_path: Path) -> None:
    result = read_data_set("Defeasible Inference", defeasible(tmp_path))
    # Attenuators: floor(-5/3) = -2, negated to 2; -2; 1.
    assert answers(result, "DIA") == [("roof", "swim"), ("roof", "hat"), ("hat", "swim")]
    assert ratings(result, "DIA") == [(2, -2), (2, 1), (1, -2)]
    assert answers(result, "DII") == [("sea", "walk")]
    assert result[0].good[:2] == (("premise", "Rain falls."), ("hypothesis", "Bo is wet."))
    assert result[0].systems == ("m-roof", "m-swim")


def written(kind: str, text: str, assignment: int = 1, **changed: Any) -> dict[str, Any]:
    shared = {"AssignmentIdAnon": assignment, "Premise": "Rain falls.", "Hypothesis": "Bo is wet."}
    return {**shared, "Update": text, "UpdateType": kind, "UpdateTypeImpossible": not text, **changed}


def test_one_persons_weakener_and_strengthener_make_a_pair_each_way(tmp_path: Path) -> None:
    path = json_lines(
        tmp_path,
        written("weakener", "roof"),
        written("strengthener", "sea"),
        written("weakener", "", 2),
        written("strengthener", "walk", 2),
        written("weakener", "no", 3, Premise=None),
        written("strengthener", "yes", 3, Premise=None),
    )
    result = read_data_set("Defeasible Inference", path)
    assert answers(result, "DIA") == [("roof", "sea"), ("no", "yes")]
    assert answers(result, "DII") == [("sea", "roof"), ("yes", "no")]
    assert result[1].good == (("premise", ""), ("hypothesis", "Bo is wet."), ("update sentence", "no"))


@pytest.mark.parametrize(
    ("row", "values"),
    [
        (update("x", "weakener", 1), ("rows.jsonl:1", "'pred_label'", "got 'weakener'")),
        (written("both", "x"), ("rows.jsonl:1", "'UpdateType'", "got 'both'")),
    ],
)
def test_defeasible_inference_names_the_field_at_fault(
    tmp_path: Path, row: dict[str, Any], values: tuple[str, ...]
) -> None:
    with raises_code(InputError, "unreadable", *values):
        read_data_set("DIA", json_lines(tmp_path, row))
