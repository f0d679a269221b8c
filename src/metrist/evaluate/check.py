"""Is this run good enough, and no worse than the last one? Made for CI: floors, ceilings, coverage, regressions."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.evaluate.regressions import lost_systems, regressions, unfinished_metrics
from metrist.evaluate.scales import decimals_of, scale_note
from metrist.evaluate.selection import chosen_systems, find_metric, opened
from metrist.evaluate.verdicts import Report, Verdict
from metrist.metrics.base import Metric
from metrist.report.cells import Number, Share
from metrist.stats.resampling import pooled

if TYPE_CHECKING:
    from metrist.run.results import Results


def check(
    run: Results | str | os.PathLike[str],
    minimum: Mapping[str, float] | None = None,
    maximum: Mapping[str, float] | None = None,
    against: Results | str | os.PathLike[str] | None = None,
    alpha: float = 0.05,
    systems: Sequence[str] | None = None,
    min_coverage: float | None = None,
    draws: int = 10_000,
    seed: int = 0,
) -> Report:
    """Verdicts on each system: its scores against floors and ceilings by metric, the share of its outputs that got a
    score against `min_coverage`, and whether it got significantly worse than in the run `against`. Unless
    `systems` names some, all are checked, and one that `against` has and the run has lost fails."""
    minimum, maximum = minimum or {}, maximum or {}
    if not (minimum or maximum or against is not None or min_coverage is not None):
        raise RunError("nothing to check: give a minimum, a maximum, a minimal coverage or a run to check against")
    _check_numbers(minimum, maximum, min_coverage, alpha, draws)
    named = [*minimum, *maximum]
    results = opened(run, named)
    chosen = chosen_systems(results.systems, systems)
    if not chosen:
        raise RunError("nothing to check: the run holds no outputs")
    verdicts, notes = _thresholds(results, chosen, minimum, maximum)
    if min_coverage is not None:
        verdicts += [_coverage(results, m, system, min_coverage) for m in results.metrics for system in chosen]
    baseline = None if against is None else opened(against, named)
    if baseline is not None:
        tested, remarks = regressions(results, baseline, chosen, alpha, draws, seed)
        verdicts += [*tested, *lost_systems(results, baseline)] if systems is None else tested
        notes += [*remarks, *(f"The baseline: {note}" for note in baseline.notes)]
    compared = baseline.scores if baseline is not None else ()
    awaited = [text for text in results.unfinished if min_coverage is not None or text in compared]
    verdicts += unfinished_metrics(awaited, chosen)
    return Report(verdicts=tuple(verdicts), notes=tuple(dict.fromkeys([*results.notes, *notes])))


def _check_numbers(
    minimum: Mapping[str, float], maximum: Mapping[str, float], coverage: float | None, alpha: float, draws: int
) -> None:
    for word, thresholds in (("minimum", minimum), ("maximum", maximum)):
        for name, value in thresholds.items():
            if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
                raise RunError(f"the {word} of {name} must be a number, got {value!r}")
    if coverage is not None and not 0 <= coverage <= 1:
        raise RunError(f"the minimal coverage must be a share between 0 and 1, got {coverage!r}")
    if not 0 < alpha < 1 or draws < 1:
        raise RunError(f"draws must be at least 1 and alpha between 0 and 1, got {draws} and {alpha}")


@dataclass(frozen=True, slots=True)
class _Standing:
    """How one system stands under one metric."""

    metric: Metric
    system: str
    score: float
    coverage: float

    @property
    def shown(self) -> Number:
        return Number(self.score, decimals_of(self.metric, self.score))


def _standing(results: Results, metric: Metric, system: str) -> _Standing:
    scores = results.scores[metric.text]
    mine, scored = _scored(results, metric, system)
    value = float(pooled(scores.stats[scored][None], metric.pool)[0]) if scored.any() else math.nan
    return _Standing(metric, system, value, float(scored.sum() / mine.sum()))


def _scored(results: Results, metric: Metric, system: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which records are the system's, and which of those have a score."""
    mine = np.fromiter((owner == system for owner in results.systems), dtype=np.bool_, count=len(results.systems))
    return mine, mine & ~np.isnan(results.scores[metric.text].values)


def _thresholds(
    results: Results, systems: Sequence[str], minimum: Mapping[str, float], maximum: Mapping[str, float]
) -> tuple[list[Verdict], list[str]]:
    verdicts, notes = [], []
    wanted: list[tuple[Literal["minimum", "maximum"], str, float]] = [
        *(("minimum", name, value) for name, value in minimum.items()),
        *(("maximum", name, value) for name, value in maximum.items()),
    ]
    for kind, name, threshold in wanted:
        metric = find_metric(results.metrics, name)
        standings = [_standing(results, metric, system) for system in systems]
        verdicts += [_threshold(standing, kind, threshold) for standing in standings]
        scores = [standing.score for standing in standings if not math.isnan(standing.score)]
        typical = float(np.median(scores)) if scores else math.nan
        if note := scale_note(metric, kind, threshold, typical):
            notes.append(note)
    return verdicts, notes


def _threshold(standing: _Standing, kind: Literal["minimum", "maximum"], threshold: float) -> Verdict:
    # Comparisons with NaN are false, so what has no score never passes.
    passed = standing.score >= threshold if kind == "minimum" else standing.score <= threshold
    if math.isnan(standing.score):
        why = "no output has a score"
    elif passed:
        why = ""
    else:
        missed = abs(standing.score - threshold)
        why = f"{standing.shown} is {missed:.3g} {'below' if kind == 'minimum' else 'above'} the {kind} {threshold:g}"
    return Verdict(
        kind=kind,
        system=standing.system,
        metric=standing.metric.text,
        passed=passed,
        wanted=f"{'>=' if kind == 'minimum' else '<='} {threshold:g}",
        found=standing.shown,
        coverage=standing.coverage,
        why=why,
        value=standing.score,
    )


def _coverage(results: Results, metric: Metric, system: str, least: float) -> Verdict:
    mine, scored = _scored(results, metric, system)
    coverage = float(scored.sum() / mine.sum())
    passed = coverage >= least and coverage > 0
    return Verdict(
        kind="coverage",
        system=system,
        metric=metric.text,
        passed=passed,
        wanted=f">= {100 * least:g} % scored",
        found=Share(coverage),
        coverage=coverage,
        why="" if passed else f"only {Share(coverage)} of the outputs have a score",
        value=coverage,
    )
