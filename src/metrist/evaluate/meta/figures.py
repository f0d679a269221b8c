"""The figures of one slice: every metric's value, interval and rank under one measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from metrist.evaluate.meta.dataset import taken
from metrist.evaluate.meta.estimates import (
    Laid,
    Resampled,
    Scorer,
    Trial,
    Work,
    known_mean,
    mean_of,
    pooled_trial,
    resampled,
    resampled_units,
    scorer_of,
    trial,
)
from metrist.evaluate.meta.metric_tests import tests_between
from metrist.evaluate.meta.results import HUMANS, Figure, Tests
from metrist.evaluate.meta.slices import Slice
from metrist.stats import Codes, Floats
from metrist.stats.bootstrap import Interval, bootstrap
from metrist.stats.gold import GOLDS, LeftOut
from metrist.stats.grouping import soft_pairwise_accuracy
from metrist.stats.significance import clusters, marks
from metrist.stats.tie_optimism import calibrated_interval

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


# The human ceiling as a row beside the metrics: each rater taken for a metric, judged by the gold of the others, with
# tie thresholds chosen as the metrics' are.


def has_ceiling(work: Work) -> bool:
    """Whether one rater can be judged by the others: raters are named, and the gold is made of all of them."""
    return work.plan.gold in GOLDS and work.judged.ratings[work.aspect].are_named()


def ceiling_figure(work: Work, one: Slice, name: str) -> Figure | None:
    """How well a rater who is left out of the gold agrees with the gold of the others, averaged over raters; None for
    soft pairwise accuracy, which is of systems."""
    if name == SOFT:
        return None
    trials = [trial(work, scorer, one, name) for scorer in rater_scorers(work)]
    return human_figure(work, name, one.name, resampled(work, trials, one.outputs), one.outputs)


def rater_scorers(work: Work) -> list[Scorer]:
    """Each rater as if it were a metric."""
    return [_scorer(work, rater) for rater in work.left_out]


def human_figure(work: Work, name: str, where: str, raters: Sequence[Resampled], outputs: Codes) -> Figure:
    """The row that averages over raters, where these outputs were resampled."""
    found = mean_of(raters)
    low, high = found.interval(work, outputs)
    undefined = sum(math.isnan(one.value) for one in raters)
    return Figure(
        metric=HUMANS,
        aspect=work.aspect,
        measure=name,
        group=work.plan.group,
        slice=where,
        value=found.value,
        low=low,
        high=high,
        n=found.n,
        groups=len(raters) - undefined,
        undefined=undefined,
    )


def _scorer(work: Work, rater: LeftOut) -> Scorer:
    human, values = np.full((2, len(work.judged)), np.nan)
    human[rater.outputs], values[rater.outputs] = rater.sample.human, rater.sample.metric
    return Scorer(name=f"{HUMANS} {rater.rater}", human=human, values=values)


# Averages over the slices of a column. Macro: the mean of the slices' values. Micro: the groups of all slices in one
# pool; without groups, or where pairs of groups are pooled (`--group-average micro`), all their pairs in one pool.
# Outputs of different slices are not paired either way. Of systems' means there is no pool: micro is macro there.


def mean_figures(work: Work, slices: Sequence[Slice], name: str, single: Sequence[Figure]) -> list[Figure]:
    """Per metric the average over the slices of one column, whose figures are `single`, and that of the raters."""
    outputs = np.unique(np.concatenate([one.outputs for one in slices]))
    where = f"{slices[0].column}: {work.plan.average} mean"
    rated = sum(int(np.isfinite(work.gold[one.outputs]).sum()) for one in slices)
    figures = []
    for metric in work.metrics:
        own = [figure for figure in single if figure.metric == metric.name]
        trials = _trials(work, scorer_of(work, metric), slices, name)
        made = _figure_slice_means(work, mean_of(resampled(work, trials, outputs)), own, outputs)
        chance, all_ties = known_mean(np.array([one.baselines() for one in trials]).T)
        coverage = made.n / rated if rated else math.nan
        figures.append(replace(made, slice=where, chance=float(chance), all_ties=float(all_ties), coverage=coverage))
    if has_ceiling(work):
        raters = [_mean(work, scorer, slices, name, outputs) for scorer in rater_scorers(work)]
        figures.append(human_figure(work, name, where, raters, outputs))
    return figures


def _trials(work: Work, scorer: Scorer, slices: Sequence[Slice], name: str) -> list[Trial]:
    """What is averaged: each slice by itself, or the one pool of all."""
    if work.plan.average == "micro" and work.plan.group != "system-level":
        return [pooled_trial(work, scorer, slices, name)]
    return [trial(work, scorer, one, name) for one in slices]


def _mean(work: Work, scorer: Scorer, slices: Sequence[Slice], name: str, outputs: Codes) -> Resampled:
    return mean_of(resampled(work, _trials(work, scorer, slices, name), outputs))


def _figure_slice_means(work: Work, found: Resampled, own: Sequence[Figure], outputs: Codes) -> Figure:
    low, high = found.interval(work, outputs)
    return replace(
        own[0],
        value=found.value,
        low=low,
        high=high,
        n=found.n,
        epsilon=own[0].epsilon if len({figure.epsilon for figure in own}) == 1 else math.nan,
        rank=0,
        mark="",
        groups=sum(not math.isnan(figure.value) for figure in own),
        undefined=sum(math.isnan(figure.value) for figure in own),
    )
