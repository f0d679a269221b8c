"""Means over aspects, against separate evaluations and a bootstrap written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from judged_rows import Row, make_rows

from error_codes import raises_code
from metrist.errors import RunError
from metrist.evaluate.meta import meta_evaluate
from metrist.evaluate.meta.analyses import analyse
from metrist.evaluate.meta.results import MEAN

ASPECTS = ("quality", "tone")


def make_aspects(items: int = 12) -> list[Row]:
    rng = np.random.default_rng(3)
    rows = make_rows(items=items)
    for row in rows:
        row["ratings"]["tone"] = rng.integers(1, 6, 3).tolist()
    return rows


@pytest.mark.parametrize("average", ["macro", "micro"])
def test_the_mean_over_aspects_is_that_of_separate_evaluations(average: str) -> None:
    rows = make_aspects()
    rows[0]["ratings"] = {"quality": rows[0]["ratings"]["quality"]}  # Outputs may lack an aspect.
    settings: dict[str, Any] = {"measures": ["acc_eq", "pearson"], "slices": "task", "average": average, "draws": 0}
    result = meta_evaluate(rows, ASPECTS, mean_over="aspect", **settings)
    alone = [meta_evaluate(rows, aspect, **settings) for aspect in ASPECTS]
    names = {figure.slice for figure in alone[0].figures}
    assert names == {"all", "task=qa", "task=summary", f"task: {average} mean"}
    for measure in settings["measures"]:
        for name in names:
            mean = result.figure("far", aspect=MEAN, measure=measure, on=name)
            figures = [one.figure("far", measure=measure, on=name) for one in alone]
            assert mean.value == pytest.approx(np.mean([figure.value for figure in figures]))
            assert mean.chance == pytest.approx(np.mean([figure.chance for figure in figures]))
            assert (mean.n, mean.groups) == (sum(figure.n for figure in figures), 2)
            assert np.isnan(mean.epsilon) or len({figure.epsilon for figure in figures}) == 1


def test_the_interval_comes_from_resamples_that_the_aspects_share() -> None:
    rows, draws = make_aspects(), 60
    result = meta_evaluate(rows, ASPECTS, "pearson", group="none", mean_over="aspect", draws=draws, seed=4)
    items = list(dict.fromkeys(row["item"] for row in rows))
    # The first of two generators draws items, so many as there are, with replacement.
    picks = np.random.default_rng(4).spawn(2)[0].integers(0, len(items), size=(draws, len(items)))
    resampled = []
    for picked in picks:
        own = [row for number in picked for row in rows if row["item"] == items[number]]
        near = [row["scores"]["near"] for row in own]
        golds = [[np.mean(row["ratings"][aspect]) for row in own] for aspect in ASPECTS]
        resampled.append(np.mean([np.corrcoef(near, gold)[0, 1] for gold in golds]))
    figure = result.figure("near", aspect=MEAN)
    assert (figure.low, figure.high) == pytest.approx(tuple(np.quantile(resampled, [0.025, 0.975])))


def test_advice_is_given_by_aspect_and_notes_say_which_it_is() -> None:
    result = meta_evaluate(make_aspects(6), ASPECTS, slices="language", min_samples=12, mean_over="aspect", draws=20)
    assert MEAN not in str(analyse(result, "advice")[0])
    left_out = [note for note in result.notes if "Left out" in note]
    assert left_out == [f"{aspect}: Left out, fewer than 12 rated outputs: language=sv (8)." for aspect in ASPECTS]


def test_a_mean_needs_aspects_of_ratings() -> None:
    rows = make_aspects(3)
    with raises_code(RunError, "too_little_data", "mean_over='aspect'"):
        meta_evaluate(rows, "quality", mean_over="aspect", draws=0)
    with raises_code(RunError, "conflict", "mean_over='aspect'"):
        meta_evaluate(rows, preferences=True, mean_over="aspect", draws=0)
    with raises_code(RunError, "invalid_value", "`mean_over`"):
        meta_evaluate(rows, ASPECTS, mean_over="slice", draws=0)
