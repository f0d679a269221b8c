"""The figures of one slice: every metric's value, interval and rank under one measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from metrist.evaluate.meta.judged import Floats
from metrist.evaluate.meta.result import Figure, Tests
from metrist.evaluate.meta.samples import taken
from metrist.evaluate.meta.slices import Slice
from metrist.evaluate.meta.testing import tests_between
from metrist.evaluate.meta.trials import resampled_units, scorer_of, trial
from metrist.evaluate.meta.work import Laid, Work
from metrist.stats.certainty import Interval, bootstrap
from metrist.stats.ranking import clusters, marks
from metrist.stats.system_level import soft_pairwise_accuracy
from metrist.stats.tie_draws import calibrated_interval

#: Soft pairwise accuracy: between systems, and itself made of p-values, so it has no rows to resample.
SOFT = "spa"


def slice_figures(work: Work, one: Slice, name: str) -> tuple[list[Figure], Tests | None]:
    """The figures of all metrics on one slice under one measure, ranked, and the tests behind the ranks."""
    if name == SOFT:
        return [_soft(work, one, number) for number in range(len(work.metrics))], None
    laid = work.laid(one, name)
    found = bootstrap(
        laid.measures,
        laid.panel,
        laid.grouping,
        work.plan.group_average,
        over=work.plan.resample,
        draws=work.plan.draws,
        rng=np.random.default_rng(work.plan.seed),
        confidence=work.plan.confidence,
    )
    values = np.array([one.value for one in found])
    tests = tests_between(work, laid, values)
    tested = not np.isnan(tests.adjusted).all()
    rank = clusters(values, tests.adjusted, work.plan.alpha, tests.differences) * tested
    mark = _marks(work, values, tests)
    figures = [
        replace(_figure(work, laid, number, estimated), rank=int(rank[number]), mark=mark[number])
        for number, estimated in enumerate(found)
    ]
    return figures, tests


def _figure(work: Work, laid: Laid, number: int, estimated: Interval) -> Figure:
    metric = work.metrics[number]
    own = trial(work, scorer_of(work, metric), laid.slice, laid.measure)
    low, high = estimated.low, estimated.high
    if own.used is not None:
        low, high = calibrated_interval(
            estimated.value,
            low,
            high,
            optimism=own.flattery(work),
            units=resampled_units(work, own.part.outputs),
            confidence=work.plan.confidence,
        )
    chance, all_ties = own.baselines()
    return Figure(
        metric=metric.name,
        aspect=work.aspect,
        measure=laid.measure,
        group=work.plan.group,
        slice=laid.slice.name,
        value=estimated.value,
        low=low,
        high=high,
        n=estimated.outputs,
        coverage=estimated.outputs / len(laid.outputs) if len(laid.outputs) else math.nan,
        epsilon=float(laid.epsilons[number]),
        chance=chance,
        all_ties=all_ties,
        groups=estimated.groups,
        undefined=estimated.undefined,
    )


def _marks(work: Work, values: Floats, tests: Tests) -> Sequence[str]:
    """† and ‡ for the metrics of the families that were asked for; a family is all metrics whose name begins alike."""
    families = [
        next((family for family in work.plan.marked if metric.name.startswith(family)), metric.name)
        for metric in work.metrics
    ]
    return marks(values, tests.adjusted, families, work.plan.marked, work.plan.alpha, tests.differences)


def _soft(work: Work, one: Slice, number: int) -> Figure:
    metric = work.metrics[number]
    part = taken(work.judged, work.gold, metric.signed(), one.outputs)
    rng = np.random.default_rng(work.plan.seed)
    found = soft_pairwise_accuracy(part.sample, work.plan.draws or 1000, rng) if len(part.sample) else None
    return Figure(
        metric=metric.name,
        aspect=work.aspect,
        measure=SOFT,
        group="system-level",
        slice=one.name,
        value=found.value if found else math.nan,
        n=len(part.outputs),
        coverage=part.coverage,
        chance=found.chance if found else math.nan,
    )
