"""The figures of one slice: every metric's, the mean over slices, and the human ceiling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from metrist.meta.ceiling import LeftOut, leave_one_out, mean_over_raters
from metrist.meta.certainty import Interval, bootstrap
from metrist.meta.gold import GOLDS
from metrist.meta.grouping import estimate
from metrist.meta.measures import Measure, acc_eq, measure
from metrist.meta.ranking import clusters, marks
from metrist.meta.resample import interval
from metrist.meta.system_level import soft_pairwise_accuracy
from metrist.studies.meta.analyses.raters import are_named
from metrist.studies.meta.distinct import distinct
from metrist.studies.meta.judged import Floats, Mask
from metrist.studies.meta.result import HUMANS, Figure, Tests
from metrist.studies.meta.samples import Taken, taken
from metrist.studies.meta.slices import Slice
from metrist.studies.meta.testing import tests_between
from metrist.studies.meta.work import CALIBRATED, Laid, Trial, Work

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
    own = laid.measures[number]
    scored = laid.panel.scored([number])
    sample = laid.panel.take(scored, [number]).sample(0)
    grouping = laid.grouping if isinstance(laid.grouping, str) else laid.grouping[scored]

    def baseline(made: Measure) -> float:
        if not len(sample):
            return math.nan
        return float(estimate(made, sample, grouping, average=work.plan.group_average).values[0])

    return Figure(
        metric=work.metrics[number].name,
        aspect=work.aspect,
        measure=laid.measure,
        group=work.plan.group,
        slice=laid.slice.name,
        value=estimated.value,
        low=estimated.low,
        high=estimated.high,
        n=estimated.outputs,
        coverage=estimated.outputs / len(laid.outputs) if len(laid.outputs) else math.nan,
        epsilon=float(laid.epsilons[number]),
        chance=baseline(own.at_chance()),
        all_ties=baseline(own.at_all_ties()) if own.all_ties else math.nan,
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


def mean_figures(work: Work, slices: Sequence[Slice], name: str, single: Sequence[Figure]) -> list[Figure]:
    """Per metric the average over the slices of one column. Macro: the mean of the slices' values. Micro: all their
    groups in one pool; outputs of different slices are not paired either way."""
    column, outputs = slices[0].column, np.unique(np.concatenate([one.outputs for one in slices]))
    laid = [work.laid(one, name) for one in slices]
    trials = [_trial(one, number) for number in range(len(work.metrics)) for one in laid]
    shape = (len(work.metrics), len(slices))
    values, groups = _plain(work, trials)
    draws = work.joint_draws(trials, outputs).reshape(work.plan.draws, *shape)
    weights = groups.reshape(shape) if work.plan.average == "micro" else np.ones(shape)
    means, resampled = _weighted(values.reshape(shape), weights), _weighted(draws, weights)
    units = len(np.unique(work.judged.items.codes[outputs]))
    rated = sum(len(one.outputs) for one in laid)
    figures = []
    for number, metric in enumerate(work.metrics):
        own = [figure for figure in single if figure.metric == metric.name]
        low, high = interval(resampled[:, number], work.plan.confidence, units)
        figures.append(
            replace(
                own[0],
                slice=f"{column}: {work.plan.average} mean",
                value=float(means[number]),
                low=low if not math.isnan(means[number]) else math.nan,
                high=high if not math.isnan(means[number]) else math.nan,
                n=sum(figure.n for figure in own),
                coverage=sum(figure.n for figure in own) / rated if rated else math.nan,
                epsilon=own[0].epsilon if len({figure.epsilon for figure in own}) == 1 else math.nan,
                chance=float(_weighted(np.array([f.chance for f in own]), weights[number])),
                all_ties=float(_weighted(np.array([f.all_ties for f in own]), weights[number])),
                rank=0,
                mark="",
                groups=sum(not math.isnan(figure.value) for figure in own),
                undefined=sum(math.isnan(figure.value) for figure in own),
            )
        )
    return figures


def _trial(laid: Laid, number: int) -> Trial:
    scored = laid.panel.scored([number])
    grouping = laid.grouping if isinstance(laid.grouping, str) else laid.grouping[scored]
    return Trial(laid.measures[number], laid.panel.take(scored, [number]).sample(0), grouping)


def _plain(work: Work, trials: Sequence[Trial]) -> tuple[Floats, Floats]:
    found = [
        estimate(t.measure, t.sample, t.grouping, average=work.plan.group_average) if len(t.sample) else None
        for t in trials
    ]
    values = np.array([one.values[0] if one else math.nan for one in found])
    return values, np.array([float(one.groups[0]) if one else 0.0 for one in found])


def _weighted(values: Floats, weights: Floats) -> Floats:
    """The weighted mean over the last axis of the values that exist."""
    known = ~np.isnan(values) & (weights > 0)
    total = np.where(known, weights, 0.0).sum(axis=-1)
    sums = np.where(known, np.nan_to_num(values) * weights, 0.0).sum(axis=-1)
    means: Floats = np.divide(sums, total, out=np.full(np.shape(total), np.nan), where=total > 0)
    return means


def has_ceiling(work: Work) -> bool:
    """Whether one rater can be judged by the others: raters are named, and the gold is made of all of them."""
    return work.plan.gold in GOLDS and are_named(work.judged.ratings[work.aspect])


def ceiling_figure(work: Work, one: Slice, name: str) -> Figure | None:
    """How well a rater who is left out of the gold agrees with the gold of the others, averaged over raters."""
    if name == SOFT:
        return None
    judged, plan = work.judged, work.plan
    raters = leave_one_out(judged.ratings[work.aspect], judged.items.codes, judged.systems.codes, plan.gold)
    inside = np.zeros(len(judged), dtype=np.bool_)
    inside[one.outputs] = True
    trials = {rater.rater: _rater_trial(work, rater, inside, name) for rater in raters}
    draws = dict(zip(trials, work.joint_draws(list(trials.values()), one.outputs).T, strict=True))
    plain = dict(zip(trials, _plain(work, list(trials.values()))[0], strict=True))
    ceiling = mean_over_raters(raters, lambda rater: np.append(plain[rater.rater], draws[rater.rater]))
    value, spread = float(ceiling.values[0]), ceiling.values[1:]
    units = len(np.unique(judged.items.codes[one.outputs]))
    low, high = interval(spread, plan.confidence, units) if not math.isnan(value) else (math.nan, math.nan)
    return Figure(
        metric=HUMANS,
        aspect=work.aspect,
        measure=name,
        group=plan.group,
        slice=one.name,
        value=value,
        low=low,
        high=high,
        n=sum(len(trial.sample) for trial in trials.values()),
        groups=ceiling.raters,
        undefined=ceiling.undefined,
    )


def _rater_trial(work: Work, rater: LeftOut, inside: Mask, name: str) -> Trial:
    kept = np.flatnonzero(inside[rater.outputs])
    sample, outputs = rater.sample.take(kept), rater.outputs[kept]
    part = Taken(sample=sample, outputs=outputs, rated=len(outputs), scored=len(outputs))
    own = distinct(measure(name))
    if name == CALIBRATED and work.plan.group != "system-level":
        own = distinct(acc_eq(work.ceiling_threshold(sample, outputs)))
    return Trial(own, sample, work.grouping(part, work.plan.group))
