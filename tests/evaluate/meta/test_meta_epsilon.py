"""One ε per metric for every row: expected values by trying every threshold on every pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from judged_rows import Row, make_rows

from metrist.evaluate.meta import meta_evaluate
from metrist.evaluate.meta.results import MetaEvaluation

ROWS = make_rows(items=11)


def evaluate(rows: Sequence[Row] = ROWS, **settings: Any) -> MetaEvaluation:
    # A majority of few levels ties often, so that thresholds matter.
    return meta_evaluate(rows, **{"metrics": ["far"], "gold": "majority", "draws": 0, **settings})


def level(row: Row) -> float:
    """The level of most raters, of equal counts the middle of them."""
    ratings = row["ratings"]["quality"]
    counts = [ratings.count(value) for value in ratings]
    return float(np.mean([value for value in set(ratings) if ratings.count(value) == max(counts)]))


Pairs = list[tuple[float, bool, bool]]


def list_pairs(rows: Sequence[Row], group: str | None) -> list[Pairs]:
    """Per group the gap of each pair, whether people tie it, and whether they order it as the metric does."""
    groups: list[Pairs] = []
    for name in dict.fromkeys(row[group] if group else "" for row in rows):
        groups.append([])
        for one, two in combinations([row for row in rows if not group or row[group] == name], 2):
            gap, order = one["scores"]["far"] - two["scores"]["far"], level(one) - level(two)
            groups[-1].append((abs(gap), order == 0, gap * order > 0))
    return [pairs for pairs in groups if pairs]


def share_right(groups: list[Pairs], epsilon: float) -> float:
    """The mean over groups of the share of pairs that are right."""
    shares = [np.mean([tied if gap <= epsilon else ordered for gap, tied, ordered in pairs]) for pairs in groups]
    return float(np.mean(shares)) if shares else math.nan


def accuracy(rows: Sequence[Row], epsilon: float, group: str | None) -> float:
    return share_right(list_pairs(rows, group), epsilon)


def with_value(rows: Sequence[Row], column: str, value: str) -> list[Row]:
    return [row for row in rows if row.get(column) == value]


def best_epsilon(rows: Sequence[Row], column: str, group: str | None) -> float:
    """The smallest threshold with the best mean over the values of a column."""
    values = {row[column] for row in rows if column in row}
    parts = [groups for value in values if (groups := list_pairs(with_value(rows, column, value), group))]
    gaps = {0.0} | {gap for groups in parts for pairs in groups for gap, *_ in pairs}
    means = {epsilon: round(float(np.mean([share_right(own, epsilon) for own in parts])), 12) for epsilon in gaps}
    return max(sorted(gaps), key=lambda epsilon: (means[epsilon], -epsilon))


@pytest.mark.parametrize("group", ["item", "none"])
@pytest.mark.parametrize("slices", [("language", "task"), ("task", "language")])
def test_the_threshold_of_the_first_column_serves_every_row(slices: tuple[str, ...], group: str) -> None:
    inside = "item" if group == "item" else None
    epsilon = best_epsilon(ROWS, slices[0], inside)
    result = evaluate(group=group, slices=slices)
    assert {figure.epsilon for figure in result.figures if figure.metric == "far"} == {epsilon}
    for name in ("all", "task=qa", "task=summary", "language=sv", "language=en"):
        column, _, value = name.partition("=")
        own = with_value(ROWS, column, value) if value else ROWS
        assert result.figure("far", on=name).value == pytest.approx(accuracy(own, epsilon, inside))
    assert f"best for the mean over {slices[0]}, on the same outputs" in "\n".join(result.notes)


def test_thresholds_of_languages_are_those_of_their_tasks_in_all_rows() -> None:
    result = evaluate(group="none", slices=("task", "language"), epsilon_over="language")
    epsilons, shares = {}, []
    for language in ("sv", "en"):
        own = with_value(ROWS, "language", language)
        epsilons[language] = best_epsilon(own, "task", None)
        shares.append(accuracy(own, epsilons[language], None))
        assert result.figure("far", on=f"language={language}").epsilon == epsilons[language]
        assert result.figure("far", on=f"language={language}").value == pytest.approx(shares[-1])
    assert result.figure("far").value == pytest.approx(np.mean(shares))
    assert math.isnan(result.figure("far", on="task=qa").epsilon)
    qa = [
        accuracy(with_value(with_value(ROWS, "task", "qa"), "language", language), epsilon, None)
        for language, epsilon in epsilons.items()
    ]
    assert result.figure("far", on="task=qa").value == pytest.approx(np.mean(qa))


def test_a_column_whose_slices_leave_no_pair_does_not_choose() -> None:
    result = evaluate(slices=("system", "language"))
    assert result.figure("far").epsilon == best_epsilon(ROWS, "language", "item")
    assert math.isnan(result.figure("far", on="system=a").value)
    alone = evaluate(slices="system")
    assert alone.figure("far").epsilon == evaluate().figure("far").epsilon


@pytest.mark.parametrize("settings", [{}, {"resample": "both"}, {"epsilon_over": "language", "group": "none"}])
def test_outputs_without_a_slice_are_judged_at_the_threshold_of_the_others(settings: dict[str, Any]) -> None:
    rows = [{name: value for name, value in row.items() if name != "task" or row["language"] == "en"} for row in ROWS]
    result = evaluate(rows, slices="task", draws=50, **settings)
    row = result.figure("far")
    if not settings:
        epsilon = best_epsilon(rows, "task", "item")
        assert (row.epsilon, row.n) == (epsilon, len(rows))
        assert row.value == pytest.approx(accuracy(rows, epsilon, "item"))
    if "group" in settings:  # Swedish outputs have no task: all of their pairs choose their threshold.
        swedish, english = with_value(rows, "language", "sv"), with_value(rows, "language", "en")
        values = [accuracy(swedish, evaluate(swedish, group="none").figure("far").epsilon, None)]
        values.append(accuracy(english, result.figure("far", on="task=qa").epsilon, None))
        assert row.value == pytest.approx(np.mean(values))
    assert row.low <= row.value <= row.high
