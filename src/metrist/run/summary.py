"""Systems' scores out of records' statistics, and the table that shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.meta.resample import pooled, pooled_interval
from metrist.metrics.base import Metric
from metrist.report.cells import Count, Estimate, Share, decimals_for
from metrist.report.tables import Column, Table
from metrist.scores import Scores

DRAWS = 1000


class SystemScore(NamedTuple):
    """One system's score by one metric: pooled over the `n` outputs that could be scored, `coverage` of all."""

    system: str
    metric: str
    value: float
    low: float
    high: float
    n: int
    coverage: float


def system_scores(
    systems: Sequence[str],
    metrics: Sequence[Metric],
    scores: Mapping[str, Scores],
    draws: int,
    seed: int,
    confidence: float,
) -> list[SystemScore]:
    """All systems by all metrics, in the order in which they appear."""
    if draws < 0 or not 0 < confidence < 1:
        raise RunError(f"wanted draws of at least 0 and a confidence between 0 and 1, got {draws} and {confidence}")
    return [
        _system_score(system, at, metric, scores[metric.text], draws, seed, confidence)
        for system, at in positions(systems).items()
        for metric in metrics
    ]


def positions(systems: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    """Where each system's records stand."""
    number = {name: i for i, name in enumerate(dict.fromkeys(systems))}
    numbers = np.fromiter((number[name] for name in systems), dtype=np.intp, count=len(systems))
    order = np.argsort(numbers, kind="stable")
    parts = np.split(order, np.searchsorted(numbers[order], np.arange(1, len(number))))
    return dict(zip(number, parts, strict=True))


def _system_score(
    system: str,
    at: NDArray[np.intp],
    metric: Metric,
    scores: Scores,
    draws: int,
    seed: int,
    confidence: float,
) -> SystemScore:
    scored = at[~np.isnan(scores.values[at])]
    if not len(scored):
        return SystemScore(system, metric.text, np.nan, np.nan, np.nan, 0, 0.0)
    stats = scores.stats[scored]
    value = float(pooled(stats[None], metric.pool)[0])
    # A generator of its own for each number: no interval depends on which others are asked for.
    low, high = pooled_interval(stats, metric.pool, draws, np.random.default_rng(seed), confidence)
    return SystemScore(system, metric.text, value, low, high, len(scored), len(scored) / len(at))


def summary_table(
    rows: Sequence[SystemScore], metrics: Sequence[Metric], scores: Mapping[str, Scores], notes: Sequence[str]
) -> Table:
    """One row a system, one column a metric. Coverage is the least of the system's metrics."""
    decimals = {metric.text: decimals_for(*metric.bounds) for metric in metrics}
    by_system: dict[str, list[SystemScore]] = {}
    for row in rows:
        by_system.setdefault(row.system, []).append(row)
    return Table(
        title="System scores",
        columns=[
            Column("system"),
            *(Column(text, "right") for text in decimals),
            Column("scored", "right"),
            Column("coverage", "right"),
        ],
        rows=[[system, *_cells(row_group, decimals)] for system, row_group in by_system.items()],
        notes=(*_directions(metrics), *notes, *_failures(scores)),
    )


def _cells(rows: Sequence[SystemScore], decimals: Mapping[str, int]) -> list[object]:
    estimates = [Estimate(row.value, row.low, row.high, decimals[row.metric]) for row in rows]
    least = min(rows, key=lambda row: row.coverage)
    return [*estimates, Count(least.n), Share(least.coverage)]


def _directions(metrics: Sequence[Metric]) -> list[str]:
    lower = [metric.text for metric in metrics if metric.higher_is_better is False]
    return [f"Lower is better: {', '.join(lower)}"] if lower else []


def _failures(scores: Mapping[str, Scores]) -> list[str]:
    """Why coverage is not complete, by an example of each metric."""
    return [
        f"{text}: {len(block.failures):,} of {len(block):,} outputs not scored, such as: {block.failures[first]}"
        for text, block in scores.items()
        if block.failures and (first := min(block.failures)) is not None
    ]
