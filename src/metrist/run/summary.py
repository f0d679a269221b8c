"""Systems' scores out of records' statistics, and the table that shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.metrics.base import Metric
from metrist.report.cells import Count, Estimate, Share, decimals_for
from metrist.report.tables import Column, Table
from metrist.scores import Scores
from metrist.stats.resampling import CHUNK, ExactSums, interval, resample_counts

DRAWS = 1000
#: Characters of an answer that a message quotes.
_SHOWN = 200


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
    rows = []
    for system, at in positions(systems).items():
        found = _by_metric(at, metrics, scores, draws, seed, confidence)
        rows += [SystemScore(system, metric.text, *found[metric.text]) for metric in metrics]
    return rows


def positions(systems: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    """Where each system's records stand."""
    number = {name: i for i, name in enumerate(dict.fromkeys(systems))}
    numbers = np.fromiter((number[name] for name in systems), dtype=np.intp, count=len(systems))
    order = np.argsort(numbers, kind="stable")
    parts = np.split(order, np.searchsorted(numbers[order], np.arange(1, len(number))))
    return dict(zip(number, parts, strict=True))


_Row = tuple[float, float, float, int, float]


def _by_metric(
    at: NDArray[np.intp],
    metrics: Sequence[Metric],
    scores: Mapping[str, Scores],
    draws: int,
    seed: int,
    confidence: float,
) -> dict[str, _Row]:
    """One system's value, interval, number and coverage, by the metric's text."""
    alike: dict[bytes, list[Metric]] = {}
    for metric in metrics:
        alike.setdefault(np.isnan(scores[metric.text].values[at]).tobytes(), []).append(metric)
    found: dict[str, _Row] = {}
    for failed, group in alike.items():
        scored = at[~np.frombuffer(failed, dtype=np.bool_)]
        estimates = _estimates(scored, group, scores, draws, seed, confidence)
        for metric, estimate in zip(group, estimates, strict=True):
            found[metric.text] = (*estimate, len(scored), len(scored) / len(at))
    return found


def _estimates(
    scored: NDArray[np.intp],
    metrics: Sequence[Metric],
    scores: Mapping[str, Scores],
    draws: int,
    seed: int,
    confidence: float,
) -> list[tuple[float, float, float]]:
    """Value and interval by each of the metrics that have scored the same records. They share the resamples, the
    costly part; the generator starts anew for each group, so no interval depends on what else is asked for."""
    if not len(scored):
        return [(np.nan, np.nan, np.nan)] * len(metrics)
    sums = [ExactSums(scores[metric.text].stats[scored][None]) for metric in metrics]
    once = np.ones((1, len(scored)))
    values = [float(metric.pool(total(once))[0, 0]) for metric, total in zip(metrics, sums, strict=True)]
    drawn: list[list[NDArray[np.float64]]] = [[np.empty(0)] for _ in metrics]
    for counts in resample_counts(len(scored), draws, np.random.default_rng(seed), max(1, CHUNK // len(scored))):
        for metric, total, resampled in zip(metrics, sums, drawn, strict=True):
            resampled.append(metric.pool(total(counts))[:, 0])
    intervals = [interval(np.concatenate(resampled), confidence, items=len(scored)) for resampled in drawn]
    return [(value, low, high) for value, (low, high) in zip(values, intervals, strict=True)]


def summary_table(
    rows: Sequence[SystemScore], metrics: Sequence[Metric], scores: Mapping[str, Scores], notes: Sequence[str]
) -> Table:
    """One row a system, one column a metric. Coverage is the least of the system's metrics."""
    decimals = {metric.text: _decimals(metric, rows) for metric in metrics}
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


def _decimals(metric: Metric, rows: Sequence[SystemScore]) -> int:
    """By the metric's bounds, or by its scores where it declares none."""
    if np.isfinite(metric.bounds).all():
        return decimals_for(*metric.bounds)
    values = [row.value for row in rows if row.metric == metric.text and np.isfinite(row.value)]
    return decimals_for(min(values, default=0.0), max(values, default=0.0))


def _directions(metrics: Sequence[Metric]) -> list[str]:
    lower = [metric.text for metric in metrics if metric.higher_is_better is False]
    return [f"Lower is better: {', '.join(lower)}"] if lower else []


def _failures(scores: Mapping[str, Scores]) -> list[str]:
    """Why coverage is not complete, by the most frequent reason of each metric."""
    return [
        f"{text}: {len(block.failures):,} of {len(block):,} outputs not scored, {usual_reason(_reasons(block))}"
        for text, block in scores.items()
        if block.failures
    ]


def nothing_scored(text: str, scores: Scores) -> str | None:
    """What is to be said of a metric that scored none of its records; None where it scored some."""
    if len(scores.failures) < len(scores) or not len(scores):
        return None
    return failed_on_all(text, "records", _reasons(scores), [scores.raws[i] for i in sorted(scores.raws)])


def failed_on_all(text: str, what: str, reasons: Sequence[str], raws: Iterable[str]) -> str:
    """That nothing came of anything, why, and the beginning of an answer of which nothing could be made."""
    why = f": {reasons[0]}" if len(set(reasons)) == 1 else f", {usual_reason(reasons)}"
    return f"{text} failed on all {len(reasons):,} {what}{why}{first_answer(raws)}"


def _reasons(scores: Scores) -> list[str]:
    return [scores.failures[i] for i in sorted(scores.failures)]


def usual_reason(reasons: Sequence[str]) -> str:
    """The most frequent of some failures' reasons."""
    reason, times = Counter(reasons).most_common(1)[0]
    return f"most often ({times:,}): {reason}" if times > 1 else f"such as: {reason}"


def first_answer(raws: Iterable[str]) -> str:
    """The beginning of the first answer that says anything, to end a message with; nothing where there is none."""
    line = next((" ".join(raw.split()) for raw in raws if raw.strip()), "")
    shown = line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
    return f"; the first answer: {shown!r}" if line else ""
