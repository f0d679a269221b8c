"""Percentile bootstrap intervals of measures, over items, systems or both, and the paired bootstrap of two metrics.

Resample what the finding should generalise to: items, for other items and the same systems; systems, for other systems
on the same items; both (independent draws, an output counting as often as its item times its system was drawn), for
other items and systems (Deutsch, Dror and Roth 2021). Tie thresholds stay at their value on all data.

The rules for NaN, too few items and seeds are those of `resampling`. The same generator gives every metric the same
draws, so that two metrics' draws can be subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np

from metrist.errors import RunError, did_you_mean
from metrist.stats import Codes, Floats, resampling
from metrist.stats.grouping import Estimated, Estimator
from metrist.stats.measures import Measure
from metrist.stats.resampling import (
    OVER,
    Alternative,
    Over,
    count_extreme,
    explain_missing_interval,
    interval,
    p_values,
    resample_counts,
    rounding_slack,
)
from metrist.stats.samples import (
    Average,
    Draws,
    Grouping,
    MetricSets,
    Pairs,
    ScorePanel,
    batch_by_outputs,
    match_measures,
    number_groups,
    take_grouping,
)
from metrist.stats.significance import student_t_tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its interval and standard error; it rests on `groups` groups, `undefined` counts those left out.
    `reason` says why there are no limits."""

    value: float
    low: float
    high: float
    standard_error: float
    outputs: int
    groups: int
    undefined: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """By how much the first of two metrics exceeds the second on the `outputs` that both scored, from `items` items.
    `units` counts what was resampled (of both items and systems, the fewer). `p` is that of the paired bootstrap:
    resampled differences, centred on zero, represent the null hypothesis."""

    value: float
    low: float
    high: float
    p: float
    standard_error: float
    outputs: int
    items: int
    units: int


def bootstrap(
    measures: Measure | Sequence[Measure],
    panel: ScorePanel,
    grouping: Grouping | Codes = "none",
    average: Average = "macro",
    *,
    over: Over = "items",
    draws: int = 1000,
    rng: np.random.Generator,
    confidence: float = 0.95,
) -> list[Interval]:
    """Return each metric's interval, on the outputs that it scored, with one measure for all or one each."""
    intervals: dict[int, Interval] = {}
    sets = [(metric,) for metric in range(len(panel.metrics))]
    for batch, plain, resampled in _resample_batches(measures, panel, sets, grouping, average, over, draws, rng):
        units = _units(batch.panel, over)
        for column, metric in enumerate(batch.metrics):
            value, own = float(plain[column].values[0]), resampled[:, column]
            low, high = interval(own, confidence, units, value)
            intervals[metric] = Interval(
                value=value,
                low=low,
                high=high,
                standard_error=_standard_error(own, low),
                outputs=len(batch.panel.human),
                groups=int(plain[column].groups[0]),
                undefined=int(plain[column].undefined[0]),
                reason="" if math.isnan(value) else explain_missing_interval(own, confidence, units, over),
            )
    return [intervals[metric] for metric in range(len(panel.metrics))]


def bootstrap_gaps(
    measures: Measure | Sequence[Measure],
    panel: ScorePanel,
    pairs: Pairs,
    grouping: Grouping | Codes = "none",
    average: Average = "macro",
    *,
    over: Over = "items",
    draws: int = 1000,
    rng: np.random.Generator,
    confidence: float = 0.95,
    alternative: Alternative = "two-sided",
) -> list[Gap]:
    """Return the difference between the metrics of each pair, with its interval; both use the same draws."""
    gaps: dict[int, Gap] = {}
    for batch, plain, resampled in _resample_batches(measures, panel, pairs, grouping, average, over, draws, rng):
        units = _units(batch.panel, over)
        values = np.array([float(estimated.values[0]) for estimated in plain])
        for position, (first, second) in zip(batch.positions, batch.pairs, strict=True):
            observed = values[[first]] - values[[second]]
            differences = resampled[:, [first]] - resampled[:, [second]]
            low, high = interval(differences[:, 0], confidence, units, float(observed[0]))
            slack = rounding_slack(values[[first]], values[[second]])
            extreme = count_extreme(differences - observed, observed, alternative, slack)
            gaps[position] = Gap(
                value=float(observed[0]),
                low=low,
                high=high,
                p=float(p_values(extreme, len(resampled), observed, units)[0]),
                standard_error=_standard_error(differences[:, 0], low),
                outputs=len(batch.panel.human),
                items=number_groups(batch.panel.item)[0],
                units=units,
            )
    return [gaps[position] for position in range(len(pairs))]


def draw_resamples(
    item: Codes, system: Codes, over: Over, draws: int, rng: np.random.Generator, rows: int
) -> Iterator[Draws]:
    """Yield resamples of the items and systems of these outputs, at most `rows` draws at a time."""
    if over not in OVER:
        raise RunError(f"unknown resampling {over!r}; known are {', '.join(OVER)}{did_you_mean(over, OVER)}")
    # One generator per side, so that the draws of one do not depend on the number of draws of the other.
    for_items, for_systems = rng.spawn(2)
    items = _counts(item, draws, for_items, rows) if over != "systems" else None
    systems = _counts(system, draws, for_systems, rows) if over != "items" else None
    for _ in range(0, draws, rows):
        yield Draws(items=next(items) if items else None, systems=next(systems) if systems else None)


def _counts(codes: Codes, draws: int, rng: np.random.Generator, rows: int) -> Iterator[Floats]:
    present = np.flatnonzero(np.bincount(codes))
    for counts in resample_counts(len(present), draws, rng, rows):
        if len(present) and present[-1] == len(present) - 1:
            yield counts
            continue
        spread = np.zeros((len(counts), int(codes.max(initial=-1)) + 1))
        spread[:, present] = counts
        yield spread


def _resample_batches(
    measures: Measure | Sequence[Measure],
    panel: ScorePanel,
    sets: Sequence[tuple[int, ...]],
    grouping: Grouping | Codes,
    average: Average,
    over: Over,
    draws: int,
    rng: np.random.Generator,
) -> Iterator[tuple[MetricSets, list[Estimated], Floats]]:
    """Yield each batch of sets of metrics with its metrics' estimates, and their values (draws, metrics) on resamples
    that all metrics share."""
    own = match_measures(measures, panel)
    (source,) = rng.spawn(1)
    for batch in batch_by_outputs(panel, sets):
        groups, outputs = take_grouping(grouping, batch.outputs), len(batch.panel.human)
        estimators = [
            Estimator(own[metric], batch.panel.sample(column), groups, average)
            for column, metric in enumerate(batch.metrics)
        ]
        plain = [estimator() for estimator in estimators]
        chunks = [np.empty((0, len(estimators)))]
        rows = max(1, resampling.CHUNK // max(1, outputs))
        item, system = batch.panel.item, batch.panel.system
        for chunk in draw_resamples(item, system, over, draws if outputs else 0, deepcopy(source), rows):
            chunks.append(np.stack([estimator(chunk).values for estimator in estimators], axis=1))
        yield batch, plain, np.concatenate(chunks)


def _standard_error(resampled: Floats, low: float) -> float:
    """Return the standard deviation of the draws, if there are enough of them for an interval."""
    return math.nan if math.isnan(low) else float(np.nanstd(resampled, ddof=1))


def _units(panel: ScorePanel, over: Over) -> int:
    """Count what is resampled; of both, the fewer."""
    items, systems = number_groups(panel.item)[0], number_groups(panel.system)[0]
    return {"items": items, "systems": systems, "both": min(items, systems)}[over]


#: With fewer extreme draws, counting them gives no useful p-value.
_MIN_EXTREME = 10
#: With fewer units, p-values and intervals from resamples are rough.
FEW_UNITS = 20


def bootstrap_p_values(gaps: Sequence[Gap], draws: int) -> Floats:
    """Return two-sided p-values of paired bootstraps with `draws` draws each.

    Resampled differences vary less than samples would, especially with few units (five systems, for example), and
    counting them would reject far too many true null hypotheses. p is therefore the tail of Student's t with one degree
    of freedom less than there are units, at the difference over its standard error, which is widened for the same
    reason. p is never below the counted p as long as ten draws are as extreme.
    """
    return np.array([_bootstrap_p_value(gap, draws) for gap in gaps], dtype=np.float64)


def _bootstrap_p_value(gap: Gap, draws: int) -> float:
    if gap.units < 2 or math.isnan(gap.p):
        return math.nan
    least = 2.0 ** (1 - gap.units)
    if not gap.standard_error > 0:
        return max(gap.p, least)
    # The variance between resamples of n units is (n - 1) / n of that between samples.
    widened = gap.standard_error * math.sqrt(gap.units / (gap.units - 1))
    tail = 2 * student_t_tail(abs(gap.value) / widened, gap.units - 1)
    return max(tail, gap.p) if gap.p > _MIN_EXTREME / (draws + 1) else tail
