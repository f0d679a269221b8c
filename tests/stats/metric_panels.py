"""Panels of metrics with random scores, for the tests of intervals and of tests between metrics."""

from __future__ import annotations

import itertools

import numpy as np

from metrist.stats.measures import MEASURES
from metrist.stats.samples import ScorePanel

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


def all_pairs(panel: ScorePanel) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(len(panel.metrics)), 2))
