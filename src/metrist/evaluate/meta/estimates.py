"""One aspect's figures in the making: gold, outputs, metrics, and the measures that each metric is judged by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.calibration import (
    Judging,
    Thresholds,
    flattery,
    of_slices,
    pair_average,
    parts_of,
    thresholds,
)
from metrist.evaluate.meta.dataset import Judged, Scored, Taken, taken
from metrist.evaluate.meta.results import GROUPS, Average, Plan
from metrist.evaluate.meta.slices import Slice, column_of, group_codes, grouping_of
from metrist.stats import Codes, Floats, resampling
from metrist.stats.bootstrap import drawn
from metrist.stats.gold import LeftOut, leave_one_out
from metrist.stats.grouping import Estimated, estimate
from metrist.stats.measures import Measure, measure
from metrist.stats.resampling import OVER, interval
from metrist.stats.samples import Grouping, Panel, Sample
from metrist.stats.tie_optimism import calibrated_interval
from metrist.stats.ties import groups_of

CALIBRATED = "acc_eq"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Laid:
    """A slice laid out for one measure: the metrics side by side, and the measure of each. `epsilons` are the tie
    thresholds to show, in the metrics' own units; `ties` the same in the panel's units. `thresholds` are what they
    were chosen on, empty for a measure that has none."""

    slice: Slice
    measure: str
    panel: Panel
    measures: tuple[Measure, ...]
    grouping: Grouping | Codes
    epsilons: Floats
    ties: Floats
    outputs: Codes
    thresholds: tuple[Thresholds, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """What all figures of one aspect share. `outputs` are those that take part."""

    judged: Judged
    plan: Plan
    aspect: str
    gold: Floats
    outputs: Codes
    metrics: tuple[Scored, ...]

    @cached_property
    def parts(self) -> Codes:
        """Which outputs share a tie threshold."""
        return parts_of(self.judged, self.plan, self.outputs)[0]

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """Each rater beside the gold of the others."""
        judged = self.judged
        ratings = judged.ratings[self.aspect]
        return leave_one_out(ratings, judged.items.codes, judged.systems.codes, self.plan.gold)

    @cached_property
    def _used(self) -> dict[tuple[str, str], Thresholds]:
        return {}

    def is_calibrated(self, name: str) -> bool:
        """Whether this measure, under the plan's grouping, has a tie threshold to be chosen."""
        return name == CALIBRATED and self.plan.group != "system-level"

    def used(self, scorer: str, human: Floats, metric: Floats, one: Slice) -> Thresholds:
        """The tie thresholds of a metric, or of a rater taken for one, at which a slice is judged. Chosen once for all
        slices of a column, best for their average, unless each slice is to have its own."""
        own = self.plan.epsilon_over == "slice"
        key = scorer, one.name if own else one.column
        if key not in self._used:
            slices = column_of(self.judged, one.column, self.outputs).codes if one.column and not own else None
            outputs = one.outputs if own else self.outputs
            self._used[key] = thresholds(self.judged, self.plan, human, metric, outputs, self.parts, slices)
        return self._used[key]

    def laid(self, one: Slice, name: str) -> Laid:
        """A slice made ready for one measure."""
        rated = one.outputs[np.isfinite(self.gold[one.outputs])]
        columns = [metric.signed() for metric in self.metrics]
        if not self.is_calibrated(name):
            plain = [Judging(column, measure(name), math.nan, parted=False) for column in columns]
            return self._laid(one, name, rated, plain, np.full(len(plain), np.nan), ())
        used = [self.used(metric.name, self.gold, metric.signed(), one) for metric in self.metrics]
        judging = [found.judging(column, rated) for found, column in zip(used, columns, strict=True)]
        return self._laid(one, name, rated, judging, np.array([self._shown(found, rated) for found in used]), used)

    def _shown(self, used: Thresholds, outputs: Codes) -> float:
        """Of several folds' thresholds the median is shown; those of several languages have no common number."""
        single = used.single(outputs)
        if single is not None:
            return single
        return float(np.median(used.epsilon)) if self.plan.epsilon_over == "crossfit" else math.nan

    def _laid(
        self,
        one: Slice,
        name: str,
        rated: Codes,
        judging: Sequence[Judging],
        epsilons: Floats,
        used: Sequence[Thresholds],
    ) -> Laid:
        part = taken(self.judged, self.gold, self.gold, rated)
        columns = [found.values[rated] for found in judging]
        metrics = np.stack([np.where(np.isfinite(column), column, np.nan) for column in columns])
        panel = Panel(human=self.gold[rated], metrics=metrics, item=part.sample.item, system=part.sample.system)
        parted = any(found.parted for found in judging)
        return Laid(
            slice=one,
            measure=name,
            panel=panel,
            measures=tuple(found.measure for found in judging),
            grouping=self.grouping(part, self.parts if parted else self.plan.group),
            epsilons=epsilons,
            ties=np.array([found.tie for found in judging]),
            outputs=rated,
            thresholds=tuple(used),
        )

    def grouping(self, part: Taken, group: str | Codes) -> Grouping | Codes:
        """The plan's grouping of these outputs; codes refine it, so that outputs with different ones are not paired."""
        if isinstance(group, str):
            return grouping_of(self.judged, group, part)
        own = group_codes(self.judged, self.plan.group, part)
        both = np.stack([own, group[part.outputs]])
        pairs, refined = np.unique(both, axis=1, return_inverse=True)
        # Whole items are what is resampled: they must not be taken for mere codes where no threshold parts them.
        if self.plan.group in GROUPS and pairs.shape[1] == len(np.unique(own)):
            return grouping_of(self.judged, self.plan.group, part)
        codes: Codes = refined.reshape(-1)
        return codes


def check_groups(work: Work) -> None:
    """Refuse a grouping that leaves nothing to compare."""
    part = taken(work.judged, work.gold, work.gold, work.outputs)
    systems = len(np.unique(part.sample.system))
    if not len(part.outputs):
        raise RunError(f"none of the {len(work.outputs):,} outputs that take part has a rating of {work.aspect!r}")
    if work.plan.group == "system-level" and systems < 2:
        name = work.judged.systems.names[int(part.sample.system[0])]
        raise RunError(f"system-level agreement needs at least two systems with ratings, found only {name!r}")
    codes = group_codes(work.judged, work.plan.group, part)
    if np.bincount(np.unique(codes, return_inverse=True)[1].reshape(-1)).max(initial=0) < 2:
        raise RunError(
            f"grouped by {work.plan.group}, no group has two rated outputs to compare ({len(part.outputs):,} outputs, "
            f"{systems} system{'s' * (systems != 1)}): try --group none"
        )


def check_crossfit(work: Work) -> None:
    """Refuse to choose tie thresholds on held-out items where nothing can be held out: each fold needs a pair of
    outputs in the others."""
    plan = work.plan
    if plan.epsilon_over != "crossfit" or CALIBRATED not in plan.measures or plan.group == "system-level":
        return
    part = taken(work.judged, work.gold, work.gold, work.outputs)
    codes, folds = group_codes(work.judged, plan.group, part), work.parts[part.outputs]
    for fold in np.unique(folds):
        if np.unique(codes[folds != fold], return_counts=True)[1].max(initial=0) < 2:
            items = len(np.unique(part.sample.item))
            raise RunError(
                "--epsilon-over crossfit chooses a threshold on other items than those it judges, and "
                f"{items} item{'s' * (items != 1)} with ratings leave no pair of outputs to choose it on: "
                "try --epsilon-over all"
            )


# One scorer, a metric or a rater taken for one, on one slice or several: what is estimated, and on resamples too.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scorer:
    """A value per output of the data, beside the human values that it is judged by. Names are unique."""

    name: str
    human: Floats
    values: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """One measure of one sample under one grouping. `sample` has the scores as the measure takes them, `part` as they
    are; `used` are the tie thresholds, None for a measure without."""

    measure: Measure
    sample: Sample
    grouping: Grouping | Codes
    average: Average
    part: Taken
    used: Thresholds | None = None

    def estimate(self) -> Estimated | None:
        if not len(self.sample):
            return None
        return estimate(self.measure, self.sample, self.grouping, average=self.average)

    def value(self) -> float:
        found = self.estimate()
        return float(found.values[0]) if found else math.nan

    def baselines(self) -> tuple[float, float]:
        """What guessing, and calling every pair a tie, would reach; NaN where that has no meaning."""
        made = (self.measure.at_chance(), self.measure.at_all_ties() if self.measure.all_ties else None)
        chance, ties = (replace(self, measure=one).value() if one else math.nan for one in made)
        return chance, ties

    def flattery(self, work: Work) -> float:
        """How much too good the value is on average because tie thresholds were chosen for it."""
        if self.used is None:
            return 0.0
        groups = groups_of(self.part.sample, self.grouping)
        return flattery(work.plan, self.used, self.part, groups, self.average)


def scorer_of(work: Work, metric: Scored) -> Scorer:
    return Scorer(name=metric.name, human=work.gold, values=metric.signed())


def trial(work: Work, scorer: Scorer, one: Slice, name: str) -> Trial:
    """A scorer on one slice under the measure of this name."""
    used = work.used(scorer.name, scorer.human, scorer.values, one) if work.is_calibrated(name) else None
    return _trial(work, scorer, one.outputs, name, used, apart=None, average=work.plan.group_average)


def pooled_trial(work: Work, scorer: Scorer, slices: Sequence[Slice], name: str) -> Trial:
    """A scorer on several slices as one pool of groups, or of pairs; outputs of different slices are not paired."""
    size = len(work.judged)
    apart = np.full(size, -1, dtype=np.intp)
    for code, one in enumerate(slices):
        apart[one.outputs] = code
    used = None
    if work.is_calibrated(name):
        found = [work.used(scorer.name, scorer.human, scorer.values, one) for one in slices]
        own = work.plan.epsilon_over == "slice"
        used = of_slices(found, [one.outputs for one in slices], size) if own else found[0]
    outputs = np.flatnonzero(apart >= 0)
    return _trial(work, scorer, outputs, name, used, apart=apart, average=pair_average(work.plan))


def _trial(
    work: Work,
    scorer: Scorer,
    outputs: Codes,
    name: str,
    used: Thresholds | None,
    *,
    apart: Codes | None,
    average: Average,
) -> Trial:
    part = taken(work.judged, scorer.human, scorer.values, outputs)
    if used is None:
        return Trial(
            measure=measure(name),
            sample=part.sample,
            grouping=work.grouping(part, work.plan.group if apart is None else apart),
            average=average,
            part=part,
        )
    part = taken(work.judged, scorer.human, np.where(used.part >= 0, scorer.values, np.nan), outputs)
    judging = used.judging(scorer.values, part.outputs)
    parts = [codes for codes in (apart, used.part if judging.parted else None) if codes is not None]
    grouping = work.grouping(part, _together(parts) if parts else work.plan.group)
    sample = replace(part.sample, metric=judging.values[part.outputs])
    return Trial(measure=judging.measure, sample=sample, grouping=grouping, average=average, part=part, used=used)


def _together(parts: Sequence[Codes]) -> Codes:
    codes: Codes = np.unique(np.stack(parts), axis=1, return_inverse=True)[1].reshape(-1)
    return codes


def joint_draws(work: Work, trials: Sequence[Trial], outputs: Codes) -> Floats:
    """Values (draws, trials) on resamples of these outputs' items or systems that all trials share."""
    plan, judged = work.plan, work.judged
    values = np.full((plan.draws, len(trials)), np.nan)
    if not len(outputs) or not plan.draws:
        return values
    rows = max(1, resampling.CHUNK // len(outputs))
    rng = np.random.default_rng(plan.seed)
    items, systems = judged.items.codes[outputs], judged.systems.codes[outputs]
    start = 0
    for chunk in drawn(items, systems, plan.resample, plan.draws, rng, rows):
        size = min(rows, plan.draws - start)
        for column, one in enumerate(trials):
            if len(one.sample):
                found = estimate(one.measure, one.sample, one.grouping, chunk, one.average)
                values[start : start + size, column] = found.values
        start += size
    return values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resampled:
    """A value and its resamples, and how much too good it is because tie thresholds were chosen for it (NaN for a
    measure without); the outputs that it rests on, those of several slices or raters counted one by one."""

    value: float
    draws: Floats
    flattery: float
    n: int

    def interval(self, work: Work, outputs: Codes) -> tuple[float, float]:
        """The interval, where these outputs were resampled."""
        plan, units = work.plan, resampled_units(work, outputs)
        if math.isnan(self.value):
            return math.nan, math.nan
        low, high = interval(self.draws, plan.confidence, units)
        if math.isnan(self.flattery):
            return low, high
        return calibrated_interval(
            self.value, low, high, optimism=self.flattery, units=units, confidence=plan.confidence
        )


def resampled(work: Work, trials: Sequence[Trial], outputs: Codes) -> list[Resampled]:
    """Each trial on resamples of these outputs' items or systems."""
    draws = joint_draws(work, trials, outputs)
    return [
        Resampled(
            value=one.value(),
            draws=draws[:, column],
            flattery=one.flattery(work) if one.used is not None else math.nan,
            n=len(one.sample),
        )
        for column, one in enumerate(trials)
    ]


def mean_of(found: Sequence[Resampled]) -> Resampled:
    """The mean, draw by draw, of those that have a value there."""
    defined = [one for one in found if not math.isnan(one.value)]
    return Resampled(
        value=known_mean(np.array([one.value for one in found])).item(),
        draws=known_mean(np.stack([one.draws for one in found], axis=-1)),
        flattery=known_mean(np.array([one.flattery for one in defined])).item(),
        n=sum(one.n for one in found),
    )


def known_mean(values: Floats) -> Floats:
    """The mean over the last axis of the values that exist; NaN where none does."""
    known = ~np.isnan(values)
    count = known.sum(axis=-1)
    sums = np.where(known, values, 0.0).sum(axis=-1)
    means: Floats = np.divide(sums, count, out=np.full(np.shape(count), np.nan), where=count > 0)
    return means


def resampled_units(work: Work, outputs: Codes) -> int:
    """Of what is resampled, how many these outputs have; of both, the fewer."""
    items = len(np.unique(work.judged.items.codes[outputs]))
    systems = len(np.unique(work.judged.systems.codes[outputs]))
    return dict(zip(OVER, (items, systems, min(items, systems)), strict=True))[work.plan.resample]
