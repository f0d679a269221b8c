"""The figures of one rated aspect: values, intervals and ranks on each slice, means over slices, the human ceiling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast, get_args

import numpy as np

from metrist.errors import RunError, SpecError
from metrist.evaluate.meta.dataset import select_sample
from metrist.evaluate.meta.estimates import (
    AspectData,
    ResampledValue,
    Scorer,
    SlicePanel,
    Trial,
    average_values,
    count_units,
    make_pooled_trial,
    make_scorer,
    make_trial,
    mean_of_known,
    resample_trials,
)
from metrist.evaluate.meta.metric_tests import compare_metrics, rank_figures
from metrist.evaluate.meta.notes import few_notes, missing_notes, skew_notes, system_notes
from metrist.evaluate.meta.results import HUMANS, Figure, Tests
from metrist.evaluate.meta.slices import Slice, make_slices
from metrist.spec import parse
from metrist.stats import Codes
from metrist.stats.bootstrap import Interval, bootstrap
from metrist.stats.gold import GOLDS
from metrist.stats.grouping import TieCount, soft_pairwise_accuracy, system_scores
from metrist.stats.samples import Sample
from metrist.stats.tie_optimism import calibrated_interval

#: The measure that says in which direction a metric orders outputs.
_ORDER = "kendall_b"
#: Measures that a tie lowers as much as an order against people.
_TIES_MISS = ("pair_accuracy", "darr_wmt17")
#: Soft pairwise accuracy compares systems and is computed from p-values, so it has no rows to resample.
SOFT = "spa"


def soft_ties(text: str) -> TieCount | None:
    """Return how `spa` or `spa(ties='strict')` counts ties of permutations; None for another measure."""
    spec = parse(text)
    if spec.name != SOFT:
        return None
    if unknown := spec.settings.keys() - {"ties"}:
        raise SpecError(f"{SOFT} has no setting {min(unknown)!r}")
    for known in get_args(TieCount):
        if spec.settings.get("ties", "mid") == known:
            return cast(TieCount, known)
    raise SpecError(f"{text}: expected ties='mid' or ties='strict', got {spec.settings['ties']!r}")


@dataclass(frozen=True)
class RatingAspect:
    """Evaluates metrics by the ratings of one aspect (see `preferences.PreferenceAspect` for preferences)."""

    data: AspectData

    @property
    def aspect(self) -> str:
        return self.data.aspect

    @property
    def steps(self) -> int:
        """The steps of a slice that are reported: of each metric the tie threshold, if it has one, and the figure."""
        return 2 * len(self.data.metrics)

    def slices(self) -> list[Slice]:
        return make_slices(self.data.dataset, self.data.plan.slices, self.data.outputs)

    def evaluate_slice(
        self, part: Slice, measure: str, report: Callable[[int], None]
    ) -> tuple[list[Figure], Tests | None]:
        """Return the figures of all metrics on one slice, ranked, the human ceiling, and the tests. `report` is called
        with the steps done."""
        data, plan = self.data, self.data.plan
        if soft_ties(measure):
            return [_soft_figure(data, part, number, measure) for number in range(len(data.metrics))], None
        panel = data.panel(part, measure, report)
        intervals = bootstrap(
            panel.measures,
            panel.panel,
            panel.grouping,
            plan.group_average,
            over=plan.resample,
            draws=plan.draws,
            rng=plan.rng(),
            confidence=plan.confidence,
        )
        tests = compare_metrics(data, panel, np.array([interval.value for interval in intervals]))
        figures = []
        for number, interval in enumerate(intervals):
            figures.append(_metric_figure(data, panel, number, interval))
            report(len(data.metrics) + number + 1)
        figures = [_mark_against(_find_opposition(data, part, figure)) for figure in rank_figures(plan, figures, tests)]
        if self._has_ceiling():
            trials = [make_trial(data, scorer, part, measure) for scorer in self._raters()]
            values = resample_trials(data, trials, part.outputs)
            figures.append(_human_figure(data, measure, part.name, values, part.outputs))
        return figures, tests

    def average_slices(self, slices: Sequence[Slice], measure: str, figures: Sequence[Figure]) -> list[Figure]:
        """Average each metric, and the raters, over the slices of one column, whose figures are given.

        Macro: the mean of the slices' values. Micro: the groups of all slices in one pool; without groups, or with
        pooled pairs (`--group-average micro`), all their pairs in one pool. Outputs of different slices are never
        paired. Systems' means have no pool: micro is macro there.
        """
        if soft_ties(measure):
            return []
        data = self.data
        outputs = np.unique(np.concatenate([part.outputs for part in slices]))
        name = f"{slices[0].column}: {data.plan.average} mean"
        rated = sum(int(np.isfinite(data.gold[part.outputs]).sum()) for part in slices)
        averages = []
        for metric in data.metrics:
            trials = _trials_to_average(data, make_scorer(data, metric), slices, measure)
            mean = average_values(resample_trials(data, trials, outputs))
            low, high = mean.interval(data, outputs)
            chance, all_ties = mean_of_known(np.array([trial.baselines() for trial in trials]).T)
            averages.append(
                average_figure(
                    [figure for figure in figures if figure.metric == metric.name],
                    slice=name,
                    value=mean.value,
                    low=low,
                    high=high,
                    n=mean.n,
                    coverage=mean.n / rated if rated else math.nan,
                    chance=float(chance),
                    all_ties=float(all_ties),
                    reason=mean.explain_missing(data, outputs),
                )
            )
        if self._has_ceiling():
            raters = [
                average_values(resample_trials(data, _trials_to_average(data, rater, slices, measure), outputs))
                for rater in self._raters()
            ]
            averages.append(_human_figure(data, measure, name, raters, outputs))
        return averages

    def notes(self, figures: Sequence[Figure]) -> list[str]:
        """What a reader must know about the ratings and scores of this aspect."""
        data = self.data
        return [
            *missing_notes(data),
            *few_notes(data, self.slices()),
            *system_notes(data, figures),
            *skew_notes(data, figures),
            *data.dataset.notes,
        ]

    def _has_ceiling(self) -> bool:
        """Whether raters can be compared with each other: they are named, and the gold is made of all of them."""
        return self.data.plan.gold in GOLDS and self.data.dataset.ratings[self.data.aspect].are_named()

    def _raters(self) -> list[Scorer]:
        """Each rater as if it were a metric, with the gold of the others."""
        scorers = []
        for rater in self.data.left_out:
            human, values = np.full((2, len(self.data.dataset)), np.nan)
            human[rater.outputs], values[rater.outputs] = rater.sample.human, rater.sample.metric
            scorers.append(Scorer(name=f"{HUMANS} {rater.rater}", human=human, values=values))
        return scorers


def _mark_against(figure: Figure) -> Figure:
    """Mark a figure whose interval lies below what chance reaches. A calibrated accuracy (with ε) and measures that
    count ties as misses hide the order of outputs behind ties (see `_find_opposition`)."""
    hidden = not math.isnan(figure.epsilon) or figure.measure in _TIES_MISS
    if figure.against or hidden or not figure.high < figure.chance:
        return figure
    chance = f", chance {figure.chance:.3f}" if figure.chance else ""
    return replace(figure, against=f"{figure.measure} {figure.value:.3f} [{figure.low:.3f}, {figure.high:.3f}]{chance}")


def _find_opposition(data: AspectData, part: Slice, figure: Figure) -> Figure:
    """Give a figure behind ties the evidence of Kendall's τ-b under the same grouping, if that is below 0."""
    if math.isnan(figure.epsilon) and not data.is_calibrated(figure.measure) and figure.measure not in _TIES_MISS:
        return figure
    metric = next(metric for metric in data.metrics if metric.name == figure.metric)
    trial = make_trial(data, make_scorer(data, metric), part, _ORDER)
    value = trial.value()
    # Few metrics are below 0: only those are resampled.
    if not data.plan.draws or not value < 0:
        return figure
    (order,) = resample_trials(data, [trial], part.outputs)
    low, high = order.interval(data, part.outputs)
    if not high < 0:
        return figure
    return replace(figure, against=f"{_ORDER} {order.value:.3f} [{low:.3f}, {high:.3f}]")


def average_figure(figures: Sequence[Figure], **values: object) -> Figure:
    """Return a metric's mean over slices from its figures on them; a threshold is kept if all slices share it."""
    shared = len({figure.epsilon for figure in figures}) == 1
    undefined = sum(math.isnan(figure.value) for figure in figures)
    mean = replace(
        figures[0],
        epsilon=figures[0].epsilon if shared else math.nan,
        rank=0,
        systems=0,
        mark="",
        against="",
        groups=len(figures) - undefined,
        undefined=undefined,
        reason="",
    )
    return replace(mean, **values)  # type: ignore[arg-type]


def _trials_to_average(data: AspectData, scorer: Scorer, slices: Sequence[Slice], measure: str) -> list[Trial]:
    """Return a trial for each slice, or the one pool of all."""
    if data.plan.average == "micro" and data.plan.group != "system-level":
        return [make_pooled_trial(data, scorer, slices, measure)]
    return [make_trial(data, scorer, part, measure) for part in slices]


def _metric_figure(data: AspectData, panel: SlicePanel, number: int, estimated: Interval) -> Figure:
    metric = data.metrics[number]
    trial = make_trial(data, make_scorer(data, metric), panel.slice, panel.measure)
    low, high = estimated.low, estimated.high
    if trial.thresholds is not None:
        low, high = calibrated_interval(
            estimated.value,
            low,
            high,
            optimism=trial.optimism(data.plan),
            units=count_units(data, trial.selected.outputs),
            confidence=data.plan.confidence,
        )
    chance, all_ties = trial.baselines()
    return Figure(
        metric=metric.name,
        aspect=data.aspect,
        measure=panel.measure,
        group=data.plan.group,
        slice=panel.slice.name,
        value=estimated.value,
        low=low,
        high=high,
        n=estimated.outputs,
        systems=_count_systems(trial.sample) if data.plan.group == "system-level" else 0,
        coverage=estimated.outputs / len(panel.outputs) if len(panel.outputs) else math.nan,
        epsilon=float(panel.epsilons[number]),
        chance=chance,
        all_ties=all_ties,
        groups=estimated.groups,
        undefined=estimated.undefined,
        reason=estimated.reason,
    )


def _count_systems(sample: Sample) -> int:
    """Count the systems that have a score."""
    return int(np.count_nonzero(system_scores(sample)[2])) if len(sample) else 0


def _human_figure(
    data: AspectData, measure: str, slice_name: str, raters: Sequence[ResampledValue], outputs: Codes
) -> Figure:
    """Return the mean over raters, each compared with the gold of the others, if these outputs were resampled."""
    mean = average_values(raters)
    low, high = mean.interval(data, outputs)
    undefined = sum(math.isnan(rater.value) for rater in raters)
    return Figure(
        metric=HUMANS,
        aspect=data.aspect,
        measure=measure,
        group=data.plan.group,
        slice=slice_name,
        value=mean.value,
        low=low,
        high=high,
        n=mean.n,
        groups=len(raters) - undefined,
        undefined=undefined,
        reason=mean.explain_missing(data, outputs),
    )


def _soft_figure(data: AspectData, part: Slice, number: int, name: str) -> Figure:
    metric = data.metrics[number]
    if data.dataset.weight is not None:
        raise RunError(f"{name} has no form for outputs with sampling weights: leave it out, or use `weighted=False`")
    selected = select_sample(data.dataset, data.gold, metric.signed(), part.outputs)
    draws = data.plan.draws or 1000
    sample, ties = selected.sample, soft_ties(name) or "mid"
    soft = soft_pairwise_accuracy(sample, draws, data.plan.rng(), ties) if len(sample) else None
    return Figure(
        metric=metric.name,
        aspect=data.aspect,
        measure=name,
        group="system-level",
        slice=part.name,
        value=soft.value if soft else math.nan,
        n=len(selected.outputs),
        systems=_count_systems(sample),
        coverage=selected.coverage,
        chance=soft.chance if soft else math.nan,
    )
