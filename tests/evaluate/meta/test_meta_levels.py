from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import RunError
from metrist.evaluate.meta.analyses.systems import confusion, score_labels, system_levels
from metrist.metrics.base import Metric
from metrist.metrics.registry import build
from metrist.records import Record

# Doostmohammadi et al. (2024), Table 2: human and GPT-4 means per model, and the average difference in its last row.
TABLE_2 = {
    "natural": (
        [99, 99, 99, 99, 99, 99, 99, 98, 99, 99, 99, 99],
        [95, 94, 92, 92, 91, 88, 92, 89, 91, 92, 92, 85],
        7.8,
    ),
    "related": (
        [73, 76, 80, 80, 72, 65, 74, 66, 79, 66, 81, 68],
        [80, 76, 79, 76, 76, 68, 75, 68, 70, 67, 68, 63],
        4.2,
    ),
    "correct": (
        [47, 36, 47, 39, 40, 35, 41, 32, 35, 37, 35, 35],
        [51, 37, 47, 40, 44, 34, 43, 33, 36, 37, 35, 36],
        1.3,
    ),
}


def test_agreement_at_each_level_says_how_many_of_the_humans_1s_the_judge_gives_1() -> None:
    human = np.array([1, 1, 1, 1, 2, 3, 3, np.nan, 1])
    judge = np.array([1, 1, 1, 3, 3, 3, 3, 1, np.nan])
    result = confusion(human, judge, 100, np.random.default_rng(0))
    assert result.human.tolist() == [1, 2, 3]
    assert result.judge.tolist() == [1, 3]
    assert result.counts.tolist() == [[3, 1], [0, 1], [0, 2]]
    assert result.agreement.tolist() == [0.75, 0, 1]
    assert result.low[0] < 0.75 < result.high[0]
    # A level of one output is in too few resamples to have an interval.
    assert np.isnan(result.low[1])


def test_levels_are_resampled_by_item() -> None:
    human, judge = np.tile([1.0, 2.0], 30), np.repeat([1.0, 2.0], 30)
    by_output = confusion(human, judge, 100, np.random.default_rng(0))
    by_item = confusion(human, judge, 100, np.random.default_rng(0), np.arange(60) // 10)
    assert by_item.agreement.tolist() == by_output.agreement.tolist() == [0.5, 0.5]
    assert by_item.high[0] - by_item.low[0] > by_output.high[0] - by_output.low[0]


def test_values_without_levels_are_refused() -> None:
    with raises_code(RunError, "invalid_value", 50, 20):
        confusion(np.arange(50.0), np.ones(50), 10, np.random.default_rng(0))


@pytest.mark.parametrize("criterion", TABLE_2)
def test_the_average_gap_is_that_of_the_papers_table(criterion: str) -> None:
    human, judge, published = TABLE_2[criterion]
    # Ratings on 1 to 3 whose means, scaled to 0 to 100, are the printed ones.
    result = system_levels(1 + np.array(human) / 50, 1 + np.array(judge) / 50, np.arange(12), (1, 3))
    assert result.human == pytest.approx(human)
    assert result.judge == pytest.approx(judge)
    assert result.gap == pytest.approx(published, abs=0.05)


def test_a_systems_level_is_the_mean_of_outputs_that_both_rated() -> None:
    human, judge = np.array([1.0, 3, 2, np.nan]), np.array([2.0, 3, 1, 3])
    result = system_levels(human, judge, np.array([0, 0, 2, 2]), (1, 3))
    assert result.human[[0, 2]].tolist() == [50, 50]
    assert result.judge[[0, 2]].tolist() == [75, 0]
    assert np.isnan(result.human[1])
    assert (result.gap, result.bias) == (37.5, -12.5)


def test_a_wrong_answer_of_task_1615_earns_two_thirds() -> None:
    # Doostmohammadi et al. (2024), section 4.2: "a ROUGE-L score of 0.66".
    result = score_labels(dict.fromkeys(["B entails A", "B contradicts A", "B neutral A"], 1), build("rougeL"))
    assert (result.right, result.wrong, result.highest_wrong) == pytest.approx((1, 2 / 3, 2 / 3))
    assert result.inflation == pytest.approx(2 / 3)


@dataclass(frozen=True, kw_only=True)
class KnownScores(Metric):
    """The scores of answers (rows) where others are right (columns)."""

    needs = ("references",)

    def score_record(self, record: Record) -> float:
        scores = [[1.0, 0.0, 0.2], [0.4, 1.0, 0.2], [0.8, 0.0, 0.5]]
        return scores["abc".index(record.output)]["abc".index(record.references[0])]


def test_wrong_answers_are_weighted_by_label_frequency() -> None:
    result = score_labels({"a": 3, "b": 1, "c": 0}, KnownScores())
    # Wrong answers earn .6 on average where a is right, and nothing where b is.
    assert (result.right, result.wrong, result.highest_wrong) == pytest.approx((1, 0.45, 0.8))
