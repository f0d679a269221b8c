"""Scores: columns that read as rows."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np
import pytest

from metrist.ratings import Error
from metrist.scores import Failure, FailureKind, Score, Scores, count_reasons


def test_plain_numbers_get_statistics_that_pool_to_their_mean() -> None:
    scores = Scores.of([1.0, 2.5])
    assert scores.stats.tolist() == [[1.0, 1.0], [2.5, 1.0]]


def test_rows_survive_a_round_trip() -> None:
    error = Error(aspect="accuracy", severity="major", start=0, end=3)
    rows = [
        Score(value=0.5, parts={"recall": 0.25}, stats=(1.0, 2.0, 3.0), errors=(error,), explanation="so", raw="{}"),
        Score(value=0.75, parts={"recall": 0.5}, stats=(4.0, 5.0, 6.0), tokens=[1], usage={"tokens": 7}),
    ]
    assert list(Scores.of(rows)) == rows


def test_a_failed_score_is_nan_with_a_row_of_zeros() -> None:
    scores = Scores.of([1.0, Score(value=math.nan, failure="the judge's answer could not be read")])
    assert scores.failures == {1: "the judge's answer could not be read"}
    assert scores.stats.tolist() == [[1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("row", [math.nan, Score(value=1.0, failure="why")])
def test_nan_without_a_reason_and_a_reason_without_nan_are_refused(row: float | Score) -> None:
    with pytest.raises(ValueError, match="score 1 must have"):
        Scores.of([0.0, row])


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="one row per output"):
        Scores(values=np.zeros(3), parts={"recall": np.zeros(2)})


def test_joined_blocks_keep_order_parts_and_sparse_fields() -> None:
    first = Scores.of([Score(value=1.0, parts={"p": 0.1}, stats=(1.0, 2.0, 3.0))])
    second = Scores.of([Score(value=math.nan, failure="too long"), Score(value=2.0, stats=(1.0, 1.0, 1.0))])
    joined = Scores.join([first, second])
    assert joined.values.tolist()[::2] == [1.0, 2.0]
    assert joined.failures == {1: "too long"}
    assert joined.stats.tolist() == [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]


def test_a_block_that_failed_as_a_whole_is_widened_when_joined() -> None:
    failed = Scores.of([Score(value=math.nan, failure="no reference")])
    counted = Scores.of([Score(value=1.0, stats=(1.0, 2.0, 3.0))])
    assert Scores.join([failed, counted]).stats.tolist() == [[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]


def test_spread_scores_leave_failures_in_the_places_between() -> None:
    spread = Scores.of([0.5, 0.25]).spread(4, [0, 2], {1: "no source", 3: "no source"})
    assert spread.values.tolist()[::2] == [0.5, 0.25]
    assert spread.failures == {1: "no source", 3: "no source"}
    assert spread.stats.tolist() == [[0.5, 1.0], [0.0, 0.0], [0.25, 1.0], [0.0, 0.0]]


def test_an_empty_block_is_valid() -> None:
    assert len(Scores.of([])) == 0
    assert len(Scores.join([Scores.of([]), Scores.of([1.0])])) == 1


def test_a_failure_is_text_with_a_kind() -> None:
    failure = Failure(FailureKind.transient, "the server is busy")
    assert (failure, failure.kind, failure.message) == ("the server is busy", "transient", "the server is busy")
    assert pickle.loads(pickle.dumps(failure)).kind is FailureKind.transient
    assert json.dumps([failure]) == '["the server is busy"]'
    with pytest.raises(ValueError, match="nonsense"):
        Failure("nonsense", "x")


def test_plain_text_is_a_failure_of_kind_other() -> None:
    assert Score(value=math.nan, failure="odd").failure.kind == "other"  # type: ignore[union-attr]
    scores = Scores(values=np.array([math.nan, 1.0]), failures={0: "odd"})  # type: ignore[dict-item]
    assert scores.failures[0].kind == "other"
    assert scores[0].failure == Score.failed("odd").failure
    assert Score.failed(Failure("filtered", "withheld")).failure.kind == "filtered"  # type: ignore[union-attr]
    assert Score.failed("", "too_long").failure.kind is FailureKind.too_long  # type: ignore[union-attr]


def test_combined_failures_are_retryable_if_one_of_them_is() -> None:
    busy, long, odd = Failure("transient", "busy"), Failure("too_long", "long"), Failure.of("odd")
    assert Failure.combine([odd, None, busy, odd]) == "odd; busy"
    assert Failure.combine([odd, None, busy]).kind.is_retryable
    assert Failure.combine([long, long]).kind == "too_long"
    assert Failure.combine([long, odd]).kind == "other"
    assert Failure.combine([]) == ""


def test_failures_are_counted_without_what_they_quote():
    unread = [Failure("unparsable", f"the server's answer is no number: {text!r}") for text in ("a", "it's b", "a")]
    counts = count_reasons([*unread, "item '1' took 10 s", Failure("refused", "item '1' took 10 s")])
    assert counts == [("the server's answer is no number: …", 3), ("item '1' took 10 s", 1), ("item '1' took 10 s", 1)]
    assert [failure.kind for failure, _ in counts] == ["unparsable", "other", "refused"]
    assert count_reasons([]) == []


def test_incomplete_scores_keep_their_positions() -> None:
    scores = Scores.of([1.0, Score(value=2.0, incomplete=True)])
    assert scores.incomplete == {1}
    assert scores[1].incomplete
    assert Scores.join([scores, scores]).incomplete == {1, 3}
    assert scores.spread(4, [1, 3], {0: "no", 2: "no"}).incomplete == {3}
