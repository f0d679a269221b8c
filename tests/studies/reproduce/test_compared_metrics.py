"""Metrics compared on the same outputs. Expected values by scipy, by hand, or by counting pairs one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invented_data import write_data
from scipy.stats import spearmanr

from metrist.evaluate.meta.dataset import JudgedDataset
from metrist.evaluate.meta.join import join
from metrist.studies.reproduce.figures import compare_metrics

MakeDataset = Callable[[list[dict[str, Any]]], JudgedDataset]


@pytest.fixture
def judged(tmp_path: Path) -> MakeDataset:
    def make(rows: list[dict[str, Any]]) -> JudgedDataset:
        write_data(tmp_path, "made", rows)
        return join(tmp_path / "made.jsonl.xz")

    return make


def rated(item: int, system: int, rating: float) -> dict[str, Any]:
    return {"item": str(item), "system": str(system), "source": "s", "output": "o", "ratings": {"good": [rating]}}


def chosen(item: int, votes: list[int], task: str = "x") -> dict[str, Any]:
    return {
        "item": str(item),
        "systems": ["a", "b"],
        "task": task,
        "source": "s",
        "outputs": ["one", "two"],
        "ratings": {"better": votes},
    }


def test_ratings_are_compared_within_items_and_constant_items_are_skipped(judged: MakeDataset) -> None:
    rng = np.random.default_rng(0)
    ratings = rng.integers(1, 4, (6, 5)).astype(float)
    ratings[2] = 3
    values = rng.normal(size=(6, 5))
    data = judged([rated(i, s, ratings[i, s]) for i in range(6) for s in range(5)])
    (agreement,) = compare_metrics(data, "good", "spearman", {"m": values.ravel()}, draws=50)
    expected = np.mean([spearmanr(ratings[i], values[i]).statistic for i in (0, 1, 3, 4, 5)])
    figure = agreement.figures["m"]
    assert figure.value == pytest.approx(expected)
    assert figure.low < figure.value < figure.high
    assert (agreement.part, agreement.n, agreement.chance) == ("", 30, 0.0)


def test_all_metrics_are_judged_on_the_outputs_that_all_have_scored(judged: MakeDataset) -> None:
    data = judged([rated(i, s, float(s)) for i in range(3) for s in range(3)])
    increasing = np.arange(9.0)
    gap = np.where(np.arange(9) == 4, np.nan, -increasing)
    (agreement,) = compare_metrics(data, "good", "spearman", {"increasing": increasing, "gap": gap}, draws=0)
    assert {name: figure.n for name, figure in agreement.figures.items()} == {"increasing": 8, "gap": 8}
    assert [figure.value for figure in agreement.figures.values()] == pytest.approx([1.0, -1.0])


def test_the_majority_decides_a_pair_and_undecided_ones_do_not_count(judged: MakeDataset) -> None:
    votes = [[1, 1, 2], [2, 2, 0], [0, 0, 1], [1, 2, 0], [1, 1, 1], [2, 2, 2]]
    data = judged([chosen(item, ratings) for item, ratings in enumerate(votes)])
    # By hand: of the pairs 0, 1, 4 and 5 the metric has 0 right, 1 wrong, ties 4 (wrong), and 5 right.
    leads = [3.0, 1.0, 9.0, 9.0, 0.0, -2.0]
    values = np.array([value for lead in leads for value in (lead, 0.0)])
    (agreement,) = compare_metrics(data, "better", "pair_accuracy", {"m": values}, draws=20)
    assert (agreement.figures["m"].value, agreement.n, agreement.chance) == (0.5, 4, 0.5)


def test_a_pair_with_an_output_without_score_counts_for_nobody(judged: MakeDataset) -> None:
    data = judged([chosen(0, [1]), chosen(1, [1])])
    scores = {"one": np.array([1.0, 0.0, 0.0, 1.0]), "other": np.array([1.0, 0.0, np.nan, 1.0])}
    (agreement,) = compare_metrics(data, "better", "pair_accuracy", scores, draws=0)
    assert {name: (figure.value, figure.n) for name, figure in agreement.figures.items()} == {
        "one": (1.0, 1),
        "other": (1.0, 1),
    }


def test_parts_follow_the_whole_and_a_family_precedes_its_parts(judged: MakeDataset) -> None:
    tasks = ["t/B/x", "t/B/y", "t/A/only", "t/B/y"]
    data = judged([chosen(item, [1], task) for item, task in enumerate(tasks)])
    values = np.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    agreements = compare_metrics(data, "better", "pair_accuracy", {"m": values}, subsets="task", draws=0)
    assert [(entry.part, entry.figures["m"].value, entry.n) for entry in agreements] == [
        ("", 0.75, 4),
        ("A/only", 1.0, 1),
        ("B", pytest.approx(2 / 3), 3),
        ("B/x", 1.0, 1),
        ("B/y", 0.5, 2),
    ]
