"""What is resampled where outputs are grouped by a column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import RunError
from metrist.evaluate.meta import meta_evaluate


def rows(documents: int, items: int) -> list[dict[str, Any]]:
    """Documents of a few items each, ten systems: the metric follows the ratings with some noise."""
    rng = np.random.default_rng(3)
    built = []
    for item in range(documents * items):
        for system in range(10):
            quality = float(rng.normal())
            built.append(
                {
                    "item": f"i{item}",
                    "system": f"s{system}",
                    "doc": f"d{item // items}",
                    "output": "x",
                    "ratings": {"quality": [quality]},
                    "scores": {"m": quality + float(rng.normal())},
                }
            )
    return built


@pytest.mark.parametrize("measure", ["acc_eq", "pearson", "kendall_b"])
def test_an_interval_by_documents_of_two_items_holds_its_value(measure: str) -> None:
    result = meta_evaluate(rows(60, 2), ["quality"], [measure], group="doc", draws=300)
    (row,) = [row for row in result.rows() if row["metric"] == "m"]
    assert row["low"] < row["value"] < row["high"]
    assert any("60 values of doc are resampled" in note for note in result.notes)


def test_ratings_and_scores_of_different_items_are_refused() -> None:
    scored = [{"item": f"a{n}", "system": "s", "output": "x", "scores": {"m": 1.0 * n}} for n in range(3)]
    rated = [{"item": f"b{n}", "system": "s", "output": "x", "ratings": {"quality": [n]}} for n in range(3)]
    with raises_code(RunError, "run_failed", "'a0'", "'b2'"):
        meta_evaluate([*scored, *rated], ["quality"], ["pearson"], group="none")


MEASURES = ["acc_eq", "pearson", "spearman", "kendall_b", "kendall_c", "gamma", "pair_accuracy"]


@pytest.mark.parametrize("resample", ["items", "systems", "both"])
@pytest.mark.parametrize("group", ["item", "none", "system-level"])
def test_every_value_has_an_interval_that_contains_it_or_a_reason(group: str, resample: Any) -> None:
    """Random grids, tiny ones included, where resamples lose systems or pull a correlation to one side."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        systems, items, levels = int(rng.integers(2, 7)), int(rng.integers(2, 12)), int(rng.integers(2, 5))
        quality = rng.normal(size=(items, systems))
        human = np.clip(np.rint(quality * levels / 4 + levels / 2), 0, levels)
        metric = np.round(rng.uniform(0, 2) * quality + rng.normal(size=quality.shape), int(rng.integers(0, 3)))
        grid = [
            {
                "item": f"i{item}",
                "system": f"s{system}",
                "ratings": {"quality": [float(human[item, system])]},
                "scores": {"m": float(metric[item, system])},
            }
            for item in range(items)
            for system in range(systems)
        ]
        result = meta_evaluate(grid, "quality", MEASURES, group=group, resample=resample, draws=100, test="none")
        for row in result.rows():
            if row["low"] is not None:
                assert row["low"] <= row["value"] <= row["high"]
                assert row["reason"] == ""
            elif row["value"] is not None:
                assert row["reason"]
                assert any(row["reason"] in note for note in result.notes)


def test_two_large_ratings_are_a_rating() -> None:
    grid = [
        {"item": f"i{n}", "system": s, "ratings": {"quality": [value, value]}, "scores": {"m": score}}
        for n in range(3)
        for s, value, score in (("a", 1.6e308, 1.0), ("b", 1.0, 0.0))
    ]
    result = meta_evaluate(grid, "quality", "kendall_b", draws=10)
    assert result.figure("m").value == 1
    assert not any("no quality rating" in note for note in result.notes)
