"""Ratings, preferences, errors and stored scores inline."""

from __future__ import annotations

import re
from typing import Any

import pytest

from error_codes import raises_code
from metrist.errors import InputError
from metrist.io import ParsedRow, StoredChoice, StoredError, StoredScore, read_records
from metrist.ratings import Error, Preference, Rating


def only(**fields: Any) -> ParsedRow:
    (entry,) = read_records(
        [{"item": 1, "system": "s", "output": "the cat", "source": "die Katze", **fields}]
    ).entries()
    return entry


def rating(aspect: str, rater: str | None, value: float) -> Rating:
    return Rating(item="1", system="s", aspect=aspect, rater=rater, value=value)


def test_ratings_are_lists_or_single_values_and_null_is_none() -> None:
    entry = only(
        ratings={"fluency": [1, None, 2.5], "sense": "yes", "tone": False, "length": "3", "none": None, "no": []}
    )
    assert entry.ratings == (
        rating("fluency", None, 1),
        rating("fluency", None, 2.5),
        rating("sense", None, 1),
        rating("tone", None, 0),
        rating("length", None, 3),
    )


def test_raters_are_matched_by_position() -> None:
    entry = only(ratings={"fluency": [1, None, 3]}, raters=["ann", "bob", 7])
    assert entry.ratings == (rating("fluency", "ann", 1), rating("fluency", "7", 3))
    assert entry.raters == ("ann", "bob", "7")
    assert only(ratings={"fluency": 1}, rater="ann").ratings == (rating("fluency", "ann", 1),)
    assert only(raters=["ann"]).raters == ("ann",)


def test_flat_columns_join_the_inline_ones() -> None:
    entry = only(**{"ratings": {"a": 1}, "rating:b": [2, 3], "rating:c": None, "score:bleu": 0.5, "scores": {"ter": 1}})
    assert [(r.aspect, r.value) for r in entry.ratings] == [("a", 1), ("b", 2), ("b", 3)]
    assert [(s.metric, s.value) for s in entry.scores] == [("ter", 1), ("bleu", 0.5)]
    assert entry.records[0].extra == {}


def test_a_pair_of_outputs_has_preferences_and_stored_choices() -> None:
    (entry,) = read_records(
        [
            {
                "item": 1,
                "systems": ["a", "b"],
                "outputs": ["x", "y"],
                "ratings": {"better": [1, 2, 0, "tie"]},
                "scores": {"gpt": "2", "judge": "garbage", "lm": 0, "quiet": None},
            }
        ]
    ).entries()
    assert [(record.system, record.output) for record in entry.records] == [("a", "x"), ("b", "y")]
    assert entry.keys == (("1", "a"), ("1", "b"))
    assert [preference.choice for preference in entry.preferences] == ["first", "second", "tie", "tie"]
    assert entry.preferences[0] == Preference(
        item="1", first="a", second="b", aspect="better", rater=None, choice="first"
    )
    assert [(c.metric, c.choice, c.answer) for c in entry.choices] == [
        ("gpt", "second", "2"),
        ("judge", None, "garbage"),
        ("lm", "tie", "0"),
    ]
    assert entry.choices[0] == StoredChoice(item="1", first="a", second="b", metric="gpt", choice="second", answer="2")
    assert entry.ratings == entry.scores == ()


def test_errors_in_full_and_in_part() -> None:
    full = {
        "start": 4,
        "end": 7,
        "text": "cat",
        "category": "Accuracy/Addition",
        "severity": "major",
        "penalty": 5,
        "explanation": "no cat",
        "correction": "dog",
        "side": "output",
        "rater": "r1",
    }
    entry = only(errors=[full, {"start": None, "end": None, "side": "source"}])
    assert entry.errors == (
        StoredError(
            item="1",
            system="s",
            error=Error(
                aspect="Accuracy/Addition",
                severity="major",
                penalty=5.0,
                explanation="no cat",
                revision="dog",
                text="cat",
                start=4,
                end=7,
                side="output",
                rater="r1",
            ),
        ),
        StoredError(item="1", system="s", error=Error(aspect="unspecified", severity=None, side="source")),
    )


def test_an_error_may_name_the_passage_of_the_source() -> None:
    row = {"item": 1, "system": "s", "output": "The cat.", "source": "The dog."}
    error = {"start": 4, "end": 7, "source_start": 4, "source_end": 7}
    (entry,) = read_records([{**row, "errors": [error]}]).entries()
    assert (entry.errors[0].error.source_start, entry.errors[0].error.source_end) == (4, 7)
    for wrong in ({"source_end": 9}, {"source_start": "4"}, {"source_start": 7, "source_end": 4}):
        with pytest.raises(InputError, match="source_"):
            list(read_records([{**row, "errors": [{**error, **wrong}]}]).entries())


def test_a_row_without_a_text_still_has_ratings_and_scores() -> None:
    (entry,) = read_records([{"item": 1, "system": "s", "ratings": {"a": [1]}, "scores": {"bleu": 2}}]).entries()
    assert entry.records == ()
    assert entry.keys == (("1", "s"),)
    assert entry.ratings == (rating("a", None, 1),)
    assert entry.scores == (StoredScore(item="1", system="s", metric="bleu", value=2.0),)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ratings": [1]}, "'ratings' must be an object, got [1]"),
        ({"ratings": {"a": "good"}}, "the rating 'a' must be a finite number, got 'good'"),
        ({"ratings": {"a": float("-inf")}}, "the rating 'a' must be a finite number, got -Infinity"),
        ({"ratings": {"a": 10**400}}, "the rating 'a' must be a finite number, got 1000000"),
        ({"ratings": {"a": [1, 2]}, "raters": ["r"]}, "the rating 'a' must have a value for each of 1 rater, got 2"),
        ({"ratings": {"a": 1}, "raters": "r"}, "'raters' must be a list of names, got 'r'"),
        ({"raters": [[]]}, "'raters' must be a non-empty text or a number, got []"),
        ({"scores": {1: 3}}, "'scores' must have text keys, got 1"),
        ({"scores": {"bleu": "high"}}, "the score 'bleu' must be a finite number, got 'high'"),
        ({"errors": {"start": 1}}, "'errors' must be a list of objects, got {'start': 1}"),
        ({"errors": ["bad"]}, "'errors 1' must be an object, got 'bad'"),
        ({"errors": [{"start": 5, "end": 3}]}, "'start' and 'end' of error 1 must be offsets or null, got 5 and 3"),
        ({"errors": [{}, {"start": 5, "end": 8}]}, "'end' of error 2 must lie within a text of 7 characters, got 8"),
        ({"errors": [{"side": "left"}]}, "'side' of error 1 must be 'output' or 'source', got 'left'"),
        ({"errors": [{"text": 1.5}]}, "'text of error 1' must be a text, got 1.5"),
        ({"errors": [{"penalty": "much"}]}, "'penalty' of error 1 must be a finite number, got 'much'"),
    ],
)
def test_an_invalid_judgment_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"row 1: {message}")):
        only(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ratings": {"better": 3}}, "the rating 'better' must be 1 (first), 2 (second) or 0 (tie), got 3"),
        ({"ratings": {"better": True}}, "the rating 'better' must be 1 (first), 2 (second) or 0 (tie), got true"),
        ({"errors": [{}]}, "'errors' is only allowed in a row of one output"),
    ],
)
def test_an_invalid_judgment_of_a_pair_is_named(fields: dict[str, Any], message: str) -> None:
    row = {"item": 1, "systems": ["a", "b"], "outputs": ["x", "y"], **fields}
    with pytest.raises(InputError, match=re.escape(f"row 1: {message}")):
        list(read_records([row]).entries())


def test_scoring_does_not_check_ratings() -> None:
    assert len(list(read_records([{"item": 1, "output": "o", "ratings": {"a": "good"}}]))) == 1


def test_a_row_of_two_without_outputs_may_have_a_comparators_choice() -> None:
    rows = [
        {"item": 1, "systems": ["a", "b"], "comparator": "judge", "choice": choice, "explanation": "so"}
        for choice in ("first", "second", "tie", None)
    ]
    entries = list(read_records(rows).entries())
    assert [[choice.choice for choice in entry.choices] for entry in entries] == [["first"], ["second"], ["tie"], []]
    assert entries[0].keys == (("1", "a"), ("1", "b"))
    assert entries[0].records == ()
    assert entries[0].choices[0].metric == "judge"


def test_a_row_of_two_without_outputs_may_hold_peoples_preferences() -> None:
    (entry,) = read_records([{"item": 1, "systems": ["a", "b"], "ratings": {"good": 2}}]).entries()
    assert [preference.choice for preference in entry.preferences] == ["second"]


def test_a_row_of_two_systems_without_judgments_is_rejected() -> None:
    with raises_code(InputError, "invalid_row", "1", "'outputs'"):
        list(read_records([{"item": 1, "systems": ["a", "b"]}]).entries())
