"""One scorer, a metric or a rater taken for one, on one slice or several: what is estimated, and on resamples too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from metrist.evaluate.meta.calibration import Thresholds, flattery, of_slices, pair_average
from metrist.evaluate.meta.judged import Codes, Floats, Scored
from metrist.evaluate.meta.plan import Average
from metrist.evaluate.meta.samples import Taken, taken
from metrist.evaluate.meta.slices import Slice
from metrist.evaluate.meta.work import Work
from metrist.stats import resample
from metrist.stats.certainty import OVER, drawn
from metrist.stats.grouping import Estimated, Grouping, estimate
from metrist.stats.measures import Measure, measure
from metrist.stats.resample import interval
from metrist.stats.sample import Sample
from metrist.stats.tie_draws import calibrated_interval
from metrist.stats.ties import groups_of


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
    rows = max(1, resample.CHUNK // len(outputs))
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
