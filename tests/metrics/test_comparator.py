"""Any metric as a comparator: expected choices are worked out by hand from the scores."""

from __future__ import annotations

import dataclasses
import pickle
import re

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import RunError, SpecError
from metrist.metrics.base import Metric, Shard
from metrist.metrics.comparator import ByScore, Comparator, Judgment, build_comparator
from metrist.metrics.registry import build
from metrist.records import Pair, Record
from metrist.scores import Score, Scores


@dataclasses.dataclass(frozen=True)
class NumberOfOutput(Metric):
    """The number that the output is; an output that is none fails."""

    higher_is_better = True

    def score(self, shard):
        def one(text):
            return float(text) if text else Score(value=float("nan"), failure="the output is empty")

        SHARD_SIZES.append(len(shard))
        return Scores.of(one(record.output) for record in shard.records)


class Loss(NumberOfOutput):
    higher_is_better = False


SHARD_SIZES: list[int] = []


def record(system: str, output: str, references: tuple[str, ...] = ()) -> Record:
    return Record(item="1", system=system, output=output, references=references)


def pair(first: str, second: str) -> Pair:
    return Pair(first=record("a", first), second=record("b", second))


@pytest.mark.parametrize(
    ("metric", "settings", "pairs", "choices"),
    [
        (NumberOfOutput(), {}, [("2", "1"), ("1", "2"), ("1", "1")], ["first", "second", "tie"]),
        (Loss(), {}, [("2", "1"), ("1", "2"), ("1", "1")], ["second", "first", "tie"]),
        (NumberOfOutput(), {"tie": 0.5}, [("1", "1.5"), ("1", "1.6"), ("1.5", "1")], ["tie", "second", "tie"]),
        (NumberOfOutput(), {"better": "lower"}, [("2", "1")], ["second"]),
        (Loss(), {"better": "higher"}, [("2", "1")], ["first"]),
    ],
)
def test_the_better_score_wins_unless_the_difference_is_within_the_tie(metric, settings, pairs, choices):
    judged = ByScore(metric=metric, **settings).prefer([pair(*both) for both in pairs])
    assert [one.preference for one in judged] == choices
    assert judged[0].explanation == " against ".join(pairs[0])


def test_an_output_without_a_score_fails_the_pair_and_says_which():
    judged = ByScore(metric=NumberOfOutput()).prefer([pair("1", ""), pair("", "1"), pair("1", "0")])
    assert judged[0].failure == "the second output has no score: the output is empty"
    assert judged[1].failure == "the first output has no score: the output is empty"
    assert judged[2].preference == "first"


def test_an_output_that_lacks_what_the_metric_needs_fails_the_pair():
    with_reference = record("a", "the cat", ("the cat",))
    judged = build_comparator("rougeL").prefer([Pair(first=with_reference, second=record("b", "a dog"))])
    assert re.search("second output .* rougeL needs references", judged[0].failure)
    assert judged[0].failure is not None
    assert judged[0].failure.kind == "missing_input"


def test_each_output_is_scored_once_however_many_pairs_it_is_in():
    SHARD_SIZES.clear()
    three = [record(system, output) for system, output in (("a", "1"), ("b", "2"), ("c", "3"))]
    ByScore(metric=NumberOfOutput()).prefer([Pair(first=x, second=y) for x in three for y in three if x is not y])
    assert SHARD_SIZES == [3]
    assert ByScore(metric=NumberOfOutput()).prefer([]) == []


def test_a_bare_metric_becomes_a_comparator_whose_text_reads_back():
    by_chrf = build_comparator("chrf(word_order=2)")
    assert by_chrf.text == "by_score(metric=chrf(word_order=2))"
    assert build(by_chrf.text) == by_chrf == build_comparator(by_chrf.text) == build_comparator(by_chrf)
    assert by_chrf.needs == ("references",)
    assert by_chrf.signature.startswith("by_score(metric=chrf(")
    assert pickle.loads(pickle.dumps(by_chrf)) == by_chrf


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("length", "invalid_value", ["by_score(metric=length, better='higher')"]),
        ("by_score(metric=rougeL, tie=-1)", "invalid_value", ["tie", -1]),
        ("by_score(metric=rougeL, better='up')", "invalid_value", ["better", "'higher'", "'up'"]),
        ("by_score(metric=by_score(metric=rougeL))", "invalid_value", ["by_score(metric=rougeL)"]),
        ("by_score", "missing_value", ["'metric'"]),
        ("rogueL", "unknown_name", ["'rogueL'", "'rougeL'"]),
    ],
)
def test_what_cannot_compare_is_refused(text, code, values):
    with raises_code(SpecError, code, *values):
        build_comparator(text)


def test_a_comparator_gives_no_scores_and_says_what_to_do():
    with raises_code(RunError, "run_failed", "by_score(metric=rougeL)", "metrist prefer"):
        build_comparator("rougeL").score(Shard([record("a", "x")]))


def test_a_class_without_prefer_is_told_what_is_missing():
    with pytest.raises(NotImplementedError, match=r"Comparator must define prefer\(self, pairs\)"):
        Comparator().prefer([])


@pytest.mark.parametrize("said", [{}, {"preference": "tie", "failure": "no"}])
def test_a_judgment_has_either_a_preference_or_a_failure(said):
    with pytest.raises(ValueError, match="either a preference or a failure"):
        Judgment(**said)


@dataclasses.dataclass(frozen=True)
class Paid(NumberOfOutput):
    def score(self, shard):
        return Scores.of(Score(value=float(r.output), usage={"calls": 1, "cost": 0.5}) for r in shard.records)


def test_what_scores_cost_is_counted_once_however_many_pairs_they_are_in():
    three = [record(system, output) for system, output in (("a", "1"), ("b", "2"), ("c", "3"))]
    judged = ByScore(metric=Paid()).prefer([Pair(first=x, second=y) for x in three for y in three if x is not y])
    assert sum((one.usage or {}).get("cost", 0) for one in judged) == 1.5


@dataclasses.dataclass(frozen=True)
class Remarking(NumberOfOutput):
    def remarks(self, scores):
        return [f"{len(scores)} outputs, {len(scores.failures)} failed, worth {np.nansum(scores.values):g}"]


def test_what_the_metric_within_remarks_is_told_of_each_output_once():
    by_score = ByScore(metric=Remarking())
    four = [record(system, output) for system, output in (("a", "1"), ("b", "2"), ("c", "3"), ("d", ""))]
    judged = by_score.prefer([Pair(first=x, second=y) for x in four for y in four if x is not y])
    assert by_score.observations(judged) == ["4 outputs, 1 failed, worth 6"]
    assert by_score.observations([]) == []
    # A judgment that was read back from a file does not know its scores.
    assert by_score.observations([Judgment(preference="tie")]) == []
