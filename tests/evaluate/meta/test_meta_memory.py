"""The memory of `meta` grows by a small number of bytes for each output."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from metrist import columns
from metrist.evaluate.meta.dataset import JudgedDataset, Labels, MetricScores
from metrist.evaluate.meta.evaluate import meta_evaluate
from metrist.stats import measures, resampling, threshold_search, tie_optimism, ties
from metrist.stats.gold import Ratings

SYSTEMS = 10


def make_dataset(outputs: int) -> JudgedDataset:
    rng = np.random.default_rng(0)
    ratings = rng.integers(0, 5, outputs).astype(np.float64)
    return JudgedDataset(
        items=Labels(codes=np.arange(outputs) // SYSTEMS, names=tuple(map(str, range(outputs // SYSTEMS)))),
        systems=Labels(codes=np.arange(outputs) % SYSTEMS, names=tuple(map(str, range(SYSTEMS)))),
        columns={},
        lengths={},
        raters=(),
        ratings={"quality": Ratings.of(np.arange(outputs), np.full(outputs, -1), ratings)},
        scores={
            f"m{number}": MetricScores(name=f"m{number}", values=ratings + rng.normal(0, 1 + number, outputs))
            for number in range(6)
        },
    )


def peak_of_evaluation(outputs: int) -> int:
    dataset = make_dataset(outputs)
    tracemalloc.start()
    try:
        meta_evaluate(dataset, draws=20)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_besides_the_data_is_below_a_hundred_bytes_an_output(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is done in parts, or only up to a limit, is so here as for very many outputs.
    for module, name in (
        (columns, "_LARGE"),
        (measures, "_AT_A_TIME"),
        (resampling, "CHUNK"),
        (threshold_search, "_COUNTED"),
        (threshold_search, "_SORTED"),
        (threshold_search, "_RUNGS"),
        (tie_optimism, "MAX_PAIRS"),
        (ties, "_SORTED"),
    ):
        monkeypatch.setattr(module, name, 1 << 12)
    small, large = (peak_of_evaluation(outputs) for outputs in (10_000, 30_000))
    assert (large - small) / 20_000 < 100
