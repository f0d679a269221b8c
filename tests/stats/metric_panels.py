"""Panels of metrics with random scores, for the tests of intervals and of tests between metrics."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from metrist.stats.measures import MEASURES
from metrist.stats.samples import Sample, ScorePanel

KENDALL, PEARSON = MEASURES["kendall_b"], MEASURES["pearson"]


def seeded(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def make_panel(items: int, metrics: int, systems: int = 5, seed: int = 1, slope: float = 1.0) -> ScorePanel:
    """Each system has an output for each item, whose scores rise with its rating."""
    rng = seeded(seed)
    human = rng.integers(0, 5, items * systems).astype(float)
    return ScorePanel(
        human=human,
        metrics=human * slope + rng.normal(0, 2, size=(metrics, items * systems)).round(1),
        item=np.repeat(np.arange(items), systems),
        system=np.tile(np.arange(systems), items),
    )


def make_sample(human: ArrayLike, metric: ArrayLike, item: Sequence[Hashable], system: Sequence[Hashable]) -> Sample:
    """A sample from names of items and systems."""
    items, systems = (
        np.array([list(dict.fromkeys(names)).index(name) for name in names], np.intp) for names in (item, system)
    )
    return Sample(
        human=np.asarray(human, np.float64), metric=np.asarray(metric, np.float64), item=items, system=systems
    )


def all_pairs(panel: ScorePanel) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(len(panel.metrics)), 2))
