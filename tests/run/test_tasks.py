"""Scoring one shard: needs first, then what the metric returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import ErrorCode, MetristError, MissingExtra, RunError
from metrist.metrics.base import Metric, Shard
from metrist.records import Need, Record
from metrist.run.tasks import score_shard
from metrist.scores import Failure, Score, Scores


@dataclass(frozen=True)
class Words(Metric):
    """Counts the references' words; says how many records it was given."""

    catalog_name: ClassVar[str | None] = "words"
    needs: ClassVar[tuple[Need, ...]] = ("references",)

    def score(self, shard: Shard) -> Scores:
        return Scores.of(
            Score(value=len(r.references[0].split()), parts={"given": len(shard)}, stats=(1, 2, 3))
            for r in shard.records
        )


@dataclass(frozen=True)
class Returns(Metric):
    """Returns `what`, or raises it if it is an exception."""

    what: Any = None
    catalog_name: ClassVar[str | None] = "returns"

    @property
    def text(self) -> str:
        return "returns"

    def score(self, shard: Shard) -> Scores:
        assert len(shard)
        if isinstance(self.what, Exception):
            raise self.what
        scores: Scores = self.what() if callable(self.what) else self.what
        return scores


def record(item: str, *references: str) -> Record:
    return Record(item=item, system="nllb", output="o", references=references)


def test_a_record_that_lacks_a_need_has_a_failed_score_with_the_reason() -> None:
    shard = Shard([record("6", "a b"), record("7"), record("8", "a b c")])
    scores = score_shard(Words(), shard)
    assert scores.values.tolist() == pytest.approx([2, np.nan, 3], nan_ok=True)
    assert scores.failures == {1: "words needs references, but the record has none"}
    assert scores.stats.tolist() == [[1, 2, 3], [0, 0, 0], [1, 2, 3]]
    assert scores.parts["given"].tolist() == pytest.approx([2, np.nan, 2], nan_ok=True)


def test_a_shard_in_which_all_records_lack_a_need_fails_as_a_whole() -> None:
    scores = score_shard(Words(), Shard([record("7"), record("8")]))
    assert len(scores.failures) == 2
    assert not scores.stats.any()


def test_metrics_with_the_same_needs_share_the_smaller_shard() -> None:
    seen = []

    class Spy(Words):
        def score(self, shard: Shard) -> Scores:
            seen.append(shard)
            return super().score(shard)

    shard = Shard([record("6", "a"), record("7")])
    score_shard(Spy(), shard)
    score_shard(Spy(), shard)
    assert seen[0] is seen[1]


@pytest.mark.parametrize(
    ("what", "code", "value"),
    [
        (Scores.of([1.0]), "metric_failed", "item '6' of system 'nllb'"),
        ([1.0, 2.0], "invalid_value", "list"),
        (None, "invalid_value", "NoneType"),
        (ZeroDivisionError("oh"), "metric_failed", "item '6' of system 'nllb'): ZeroDivisionError: oh"),
        (lambda: Scores.of([1.0, np.nan]), "metric_failed", "ValueError: score 1"),
        (MissingExtra("x", "tables"), "missing_dependency", "[tables]"),
    ],
)
def test_a_faulty_metric_is_named_with_what_it_did(what: Any, code: ErrorCode, value: str) -> None:
    with raises_code(MetristError, code, value):
        score_shard(Returns(what), Shard([record("6"), record("7")]))


def test_what_a_metric_raised_stays_the_cause() -> None:
    with pytest.raises(RunError) as caught:
        score_shard(Returns(KeyError("k")), Shard([record("6")]))
    assert isinstance(caught.value.__cause__, KeyError)


def test_numbers_of_any_type_become_doubles() -> None:
    block = Scores(values=np.array([1, 2]), parts={"p": np.array([1, 0], np.float32)}, failures={})
    scores = score_shard(Returns(block), Shard([record("6"), record("7")]))
    assert {scores.values.dtype, scores.stats.dtype, scores.parts["p"].dtype} == {np.dtype(np.float64)}


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        (Scores.of([1.0, np.inf]), "the value inf with the statistics [inf, 1.0]"),
        (Scores.of([1.0, -np.inf]), "the value -inf with the statistics [-inf, 1.0]"),
        (Scores(values=np.ones(2), stats=np.array([[1.0], [np.nan]])), "the value 1.0 with the statistics [nan]"),
    ],
)
def test_a_score_that_cannot_be_pooled_is_refused_with_the_record(block: Scores, fault: str) -> None:
    with raises_code(RunError, "metric_failed", "item '7' of system 'nllb'", fault):
        score_shard(Returns(block), Shard([record("6"), record("7")]))


def test_statistics_of_a_failed_score_may_be_anything() -> None:
    failures = {1: Failure("other", "no answer")}
    block = Scores(values=np.array([1.0, np.nan]), stats=np.array([[1.0], [np.nan]]), failures=failures)
    assert score_shard(Returns(block), Shard([record("6"), record("7")])).failures == {1: "no answer"}
