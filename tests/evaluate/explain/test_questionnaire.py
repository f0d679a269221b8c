"""The questionnaire about error analyses: its schema, and the results of the TIGERScore paper from its counts."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from error_codes import raises_code
from metrist.errors import InputError
from metrist.evaluate.explain.questionnaire import (
    TOTAL,
    load_questionnaire,
    read_answers,
    summarise_answers,
    tabulate_answers,
    tabulate_shares,
)

#: Table 5 of the TIGERScore paper: reasonable and other errors, then the levels of overlooked, revision, overall.
TABLE_5 = {
    "Summ": (70, 35, (2, 17, 15, 16), (6, 4, 19, 7, 14), (3, 10, 17, 7, 13)),
    "Trans": (54, 25, (3, 8, 17, 22), (2, 7, 17, 6, 18), (3, 6, 15, 9, 17)),
    "D2T": (19, 21, (1, 8, 10, 31), (11, 8, 9, 3, 19), (11, 10, 4, 7, 18)),
    "LF-QA": (42, 19, (4, 10, 11, 25), (5, 8, 14, 7, 16), (6, 8, 10, 6, 20)),
    "MathQA": (39, 26, (5, 12, 12, 21), (5, 7, 19, 5, 14), (4, 9, 10, 13, 14)),
    "Instruct": (5, 9, (5, 5, 8, 32), (21, 3, 5, 2, 19), (9, 4, 3, 7, 27)),
    "StoryGen": (66, 29, (7, 16, 13, 14), (7, 6, 16, 10, 11), (7, 12, 11, 9, 11)),
}


def make_rows() -> list[dict[str, Any]]:
    """Fifty analyses a task with these answers, in any order."""
    rows = []
    for task, (good, bad, *scales) in TABLE_5.items():
        answers = [[level for level, count in enumerate(counts, 1) for _ in range(count)] for counts in scales]
        errors = itertools.chain([True] * good, [False] * bad)
        for number, (overlooked, revision, overall) in enumerate(zip(*answers, strict=True)):
            row = {"item": f"{task} {number}", "system": "s", "task": task, "rater": "r"}
            own = list(errors) if number == 49 else list(itertools.islice(errors, 2))
            rows.append({**row, "errors": own, "overlooked": overlooked, "revision": revision, "overall": overall})
    return rows


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_results_are_those_of_the_paper(tmp_path: Path) -> None:
    answers = read_answers([write(tmp_path / "answers.jsonl", make_rows())])
    table = tabulate_answers(answers)
    rows = {row[0]: row[1:] for row in table.rows}
    for task, (good, bad, *scales) in TABLE_5.items():
        assert list(rows[task]) == [good, bad, *itertools.chain(*scales)]
    # The paper's last row.
    assert list(rows[TOTAL]) == [295, 164, 27, 76, 86, 161, 57, 43, 99, 40, 111, 43, 59, 70, 58, 120]
    shares = {share.question: share for share in summarise_answers(answers) if share.task == TOTAL}
    # Section 4.4: 64.3 % reasonable, 70.6 % nothing overlooked, 71.4 % helpful, 70.8 % good, 34.3 % best.
    expected = {
        "errors that are reasonable": 0.643,
        "overlooked 3 or better": 0.706,
        "revision 3 or better": 0.714,
        "overall 3 or better": 0.708,
        "overall 5": 0.343,
    }
    assert {name: share.value for name, share in shares.items()} == pytest.approx(expected, abs=0.001)
    assert all(share.low < share.value < share.high for share in shares.values())
    assert "350 rows of answers about 350 analyses by 1 rater" in tabulate_shares(answers).notes[0]


def test_the_schema_has_the_questions() -> None:
    questions = load_questionnaire()
    assert [sorted(scale.levels) for scale in questions.scales] == [[1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]
    schema = questions.schema()
    assert [choice["const"] for choice in schema["properties"]["overlooked"]["oneOf"]] == [1, 2, 3, 4]
    assert schema["required"] == ["item", "system"]
    json.dumps(schema)


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ([], ["[]"]),
        ({"system": "s", "overall": 3}, ["'item'"]),
        ({"item": "1", "overall": 3}, ["'system'"]),
        ({"item": "1", "system": "s"}, ["errors, overlooked"]),
        ({"item": "1", "system": "s", "overall": 6}, ["'overall'", "1 to 5", "6"]),
        ({"item": "1", "system": "s", "overlooked": 5}, ["'overlooked'", "1 to 4", "5"]),
        ({"item": "1", "system": "s", "overall": True}, ["'overall'", "True"]),
        ({"item": "1", "system": "s", "errors": [1]}, ["'errors'", "[1]"]),
        ({"item": "1", "system": ["s"], "overall": 3}, ["'system'", "['s']"]),
        ({"item": "0", "system": "s", "rater": "r", "overall": 3}, ["'r'", "answers.jsonl:1"]),
    ],
)
def test_answers_that_cannot_be_are_refused(tmp_path: Path, row: Any, values: list[str]) -> None:
    first = {"item": "0", "system": "s", "rater": "r", "overall": 3}
    path = write(tmp_path / "answers.jsonl", [first, row])
    with raises_code(InputError, "invalid_row", "answers.jsonl:2", *values):
        read_answers([path])


def test_few_answers_give_no_interval(tmp_path: Path) -> None:
    rows = [{"item": "1", "system": "s", "overall": 5}]
    (path,) = [write(tmp_path / "answers.jsonl", rows)]
    table = tabulate_shares(read_answers([path]))
    assert [list(row) for row in table.rows] == [
        ["not stated", "overall 3 or better", 1, "1.000", "", ""],
        ["not stated", "overall 5", 1, "1.000", "", ""],
    ]
    (tmp_path / "empty.jsonl").write_text("")
    with raises_code(InputError, "no_data"):
        read_answers([tmp_path / "empty.jsonl"])
