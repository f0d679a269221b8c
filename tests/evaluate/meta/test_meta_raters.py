"""What raters mark and dispute, beside values computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from error_codes import raises_code
from metrist.errors import RunError
from metrist.evaluate.meta import meta_evaluate
from metrist.evaluate.meta.analyses import analyse
from metrist.io.writer import write_rows


def mark(rater: str, start: int, end: int) -> dict[str, Any]:
    return {"aspect": "fact", "severity": "minor", "start": start, "end": end, "rater": rater}


def make_row(item: str, *errors: dict[str, Any], **columns: Any) -> dict[str, Any]:
    row = {"item": item, "system": "s", "output": "abcdefghij", **columns}
    return {**row, "errors": list(errors)} if errors else row


def show(folder: Path, rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    file = folder / "rows.jsonl"
    write_rows(iter(rows), file)
    (table,) = analyse(meta_evaluate(str(file), metrics=(), draws=0), name)
    return list(table.to_dict()["rows"])


@pytest.fixture
def marked() -> list[dict[str, Any]]:
    """Both mark 4 characters and share 2 of them: 2 · 2 / (4 + 4) is a half. Then one alone, then neither."""
    raters = ["ann", "ben"]
    return [
        make_row("half", mark("ann", 0, 4), mark("ben", 2, 6), raters=raters),
        make_row("alone", mark("ann", 0, 4), raters=raters),
        make_row("neither", raters=raters),
        make_row("same", mark("ann", 1, 3), mark("ben", 1, 3), raters=raters),
    ]


def test_raters_agree_on_the_characters_that_they_mark(marked: list[dict[str, Any]], tmp_path: Path) -> None:
    (row,) = show(tmp_path, marked, "errors")
    assert (row["raters"], row["outputs"]) == ("ann and ben", 3)
    assert row["Dice"] == pytest.approx((0.5 + 0.0 + 1.0) / 3)


def test_errors_marked_beside_ratings_are_in_the_agreement(tmp_path: Path) -> None:
    """The same figures as from the marks alone, which are counted where a row has no ratings."""
    counts = [(1, 1), (0, 2), (0, 0), (2, 1)]
    rows = [
        make_row(
            str(number),
            *[mark(rater, i, i + 1) for rater, count in zip(("ann", "ben"), own, strict=True) for i in range(count)],
            raters=["ann", "ben"],
            errors=[],
        )
        for number, own in enumerate(counts)
    ]
    alone = show(tmp_path, rows, "agreement")
    both = show(tmp_path, [{**row, "ratings": {"fluency": [3, 4]}} for row in rows], "agreement")
    assert {row["aspect"] for row in both} == {"fluency", "errors"}
    assert [row for row in both if row["aspect"] == "errors"] == alone


def test_marks_beside_ratings_without_names_are_left_out_of_the_agreement(tmp_path: Path) -> None:
    rows = [make_row(str(n), mark("ann", 0, 4), ratings={"fluency": [n, n + 1]}) for n in range(3)]
    assert {row["aspect"] for row in show(tmp_path, rows, "agreement")} == {"fluency"}


def test_marks_of_nobody_in_particular_agree_with_nobody(tmp_path: Path) -> None:
    rows = [make_row("1", mark("ann", 0, 4), raters=["ann"], ratings={"fluency": [1]})]
    with raises_code(RunError, "no_data"):
        show(tmp_path, rows, "errors")


def test_outputs_that_raters_mark_differently_are_disputed(marked: list[dict[str, Any]], tmp_path: Path) -> None:
    rows = show(tmp_path, marked, "disputes")
    assert [(row["item"], row["disagreement"], row["raters said"]) for row in rows] == [
        ("alone", 1.0, "ann 4 characters, ben 0 characters"),
        ("half", 0.5, "ann 4 characters, ben 4 characters"),
    ]


def test_outputs_that_raters_grade_differently_are_disputed_most_of_all_first(tmp_path: Path) -> None:
    """On a scale from 1 to 5, the mean of |1 - 5|, |1 - 3| and |5 - 3| is 8 / 3, of a width of 4."""
    grades = {"agreed": [3, 3, 3], "wide": [1, 5, 3], "close": [4, 5, 4]}
    rows = show(tmp_path, [make_row(item, ratings={"fluency": own}) for item, own in grades.items()], "disputes")
    assert [(row["item"], row["aspect"], row["raters said"]) for row in rows] == [
        ("wide", "fluency", "1, 5, 3"),
        ("close", "fluency", "4, 5, 4"),
    ]
    assert [row["disagreement"] for row in rows] == [pytest.approx(8 / 3 / 4), pytest.approx(2 / 3 / 4)]
