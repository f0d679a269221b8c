"""The memory of `meta` grows by a small number of bytes for each output."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from metrist.evaluate.meta.dataset import JudgedDataset, Labels, MetricScores
from metrist.evaluate.meta.evaluate import meta_evaluate
from metrist.stats import measures, resampling, tie_thresholds, ties
from metrist.stats.gold import Ratings

SYSTEMS = 10


def make_dataset(outputs: int, unrated: float = 0.0) -> JudgedDataset:
    rng = np.random.default_rng(0)
    ratings = rng.integers(0, 5, outputs).astype(np.float64)
    rated = np.where(rng.random(outputs) < unrated, np.nan, ratings)
    return JudgedDataset(
        items=Labels(codes=np.arange(outputs) // SYSTEMS, names=tuple(map(str, range(outputs // SYSTEMS)))),
        systems=Labels(codes=np.arange(outputs) % SYSTEMS, names=tuple(map(str, range(SYSTEMS)))),
        columns={},
        lengths={},
        raters=(),
        ratings={"quality": Ratings.of(np.arange(outputs), np.full(outputs, -1), rated)},
        scores={
            f"m{number}": MetricScores(name=f"m{number}", values=ratings + rng.normal(0, 1 + number, outputs))
            for number in range(6)
        },
    )


def peak_of_evaluation(outputs: int, unrated: float) -> int:
    dataset = make_dataset(outputs, unrated)
    tracemalloc.start()
    try:
        meta_evaluate(dataset, draws=20)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes what is done in parts, or only up to a limit, so for few outputs, as it is for very many."""

    def lower(limit: int) -> None:
        for module, name in (
            (measures, "_AT_A_TIME"),
            (resampling, "CHUNK"),
            (tie_thresholds, "_AT_A_TIME"),
            (tie_thresholds, "_SORTED"),
            (tie_thresholds, "_RUNGS"),
            (ties, "_AT_A_TIME"),
        ):
            monkeypatch.setattr(module, name, limit)

    return lower


@pytest.mark.parametrize(("unrated", "most"), [(0.0, 120), (0.1, 160)])
def test_memory_besides_the_data_is_a_few_bytes_an_output(
    parts: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, unrated: float, most: int
) -> None:
    parts(1 << 12)
    monkeypatch.setattr(tie_thresholds, "MAX_PAIRS", 1 << 12)
    peak_of_evaluation(1000, unrated)  # Modules are imported, caches are filled.
    small, large = (peak_of_evaluation(outputs, unrated) for outputs in (10_000, 30_000))
    assert (large - small) / 20_000 < most


@pytest.mark.parametrize("group", ["item", "system", "none"])
@pytest.mark.parametrize("average", ["macro", "micro"])
def test_parts_give_the_figures_of_the_whole(
    parts: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, group: str, average: str
) -> None:
    # Even few pairs take the search for many.
    monkeypatch.setattr(tie_thresholds, "_FEW", 4)

    def evaluate() -> str:
        settings: dict[str, Any] = {"group": group, "group_average": average, "draws": 20}
        # Groups differ in size.
        dataset = make_dataset(600, unrated=0.1)
        return meta_evaluate(dataset, measures=["acc_eq", "kendall_b", "pearson"], **settings).to_json()

    whole = evaluate()
    parts(40)
    assert evaluate() == whole
