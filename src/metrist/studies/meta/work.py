"""One aspect's figures in the making: gold, outputs, metrics, and the measures that each metric is judged by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from metrist.errors import RunError
from metrist.meta import resample
from metrist.meta.certainty import drawn
from metrist.meta.grouping import Grouping, estimate
from metrist.meta.measures import Measure, acc_eq, measure
from metrist.meta.panel import Panel
from metrist.meta.sample import Sample
from metrist.studies.meta.calibration import TIE, Thresholds, fit, parts_of, thresholds
from metrist.studies.meta.distinct import distinct
from metrist.studies.meta.grouped import group_codes, grouping_of
from metrist.studies.meta.judged import Codes, Floats, Judged, Scored
from metrist.studies.meta.plan import GROUPS, Plan
from metrist.studies.meta.samples import Taken, taken
from metrist.studies.meta.slices import Slice, column_of

CALIBRATED = "acc_eq"


class Trial(NamedTuple):
    """One measure of one sample under one grouping."""

    measure: Measure
    sample: Sample
    grouping: Grouping | Codes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Laid:
    """A slice laid out for one measure: the metrics side by side, and the measure of each. `epsilons` are the tie
    thresholds to show, in the metrics' own units; `ties` the same in the panel's units."""

    slice: Slice
    measure: str
    panel: Panel
    measures: tuple[Measure, ...]
    grouping: Grouping | Codes
    epsilons: Floats
    ties: Floats
    outputs: Codes


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
    def _thresholds(self) -> dict[str, tuple[Thresholds, ...]]:
        return {}

    def thresholds(self, column: str = "") -> tuple[Thresholds, ...]:
        """Each metric's tie thresholds over all outputs, best for the average of the slices of a column where one is
        named."""
        if column not in self._thresholds:
            slices = column_of(self.judged, column, self.outputs).codes if column else None
            self._thresholds[column] = tuple(self._fitted(metric, self.outputs, slices) for metric in self.metrics)
        return self._thresholds[column]

    def laid(self, one: Slice, name: str) -> Laid:
        """A slice made ready for one measure."""
        rated = one.outputs[np.isfinite(self.gold[one.outputs])]
        if name != CALIBRATED or self.plan.group == "system-level":
            values = [metric.signed() for metric in self.metrics]
            found = [distinct(measure(name))] * len(values)
            return self._laid(one, name, rated, values, found, np.full(len(values), np.nan), self.plan.group)
        if self.plan.epsilon_over == "slice":
            used = tuple(self._fitted(metric, one.outputs, None) for metric in self.metrics)
        else:
            used = self.thresholds(one.column)
        epsilons = [found.single(rated) for found in used]
        if all(epsilon is not None for epsilon in epsilons):
            known = np.array(epsilons, dtype=np.float64)
            measures = [distinct(acc_eq(_usable(epsilon))) for epsilon in known]
            values = [metric.signed() for metric in self.metrics]
            return self._laid(one, name, rated, values, measures, known, self.plan.group)
        scaled = [found.in_thresholds(metric.signed()) for found, metric in zip(used, self.metrics, strict=True)]
        measures = [distinct(acc_eq(TIE))] * len(used)
        # Of several folds' thresholds the median is shown; thresholds of several languages have no common number.
        middle = np.median if self.plan.epsilon_over == "crossfit" else _nothing
        shown = np.array([middle(found.epsilon) for found in used])
        return self._laid(one, name, rated, scaled, measures, shown, self.parts)

    def _laid(
        self,
        one: Slice,
        name: str,
        rated: Codes,
        values: Sequence[Floats],
        measures: Sequence[Measure],
        epsilons: Floats,
        grouping: str | Codes,
    ) -> Laid:
        part = taken(self.judged, self.gold, self.gold, rated)
        metrics = np.stack([np.where(np.isfinite(column[rated]), column[rated], np.nan) for column in values])
        panel = Panel(human=self.gold[rated], metrics=metrics, item=part.sample.item, system=part.sample.system)
        return Laid(
            slice=one,
            measure=name,
            panel=panel,
            measures=tuple(measures),
            grouping=self.grouping(part, grouping),
            epsilons=epsilons,
            ties=epsilons if isinstance(grouping, str) else np.full(len(epsilons), TIE),
            outputs=rated,
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

    def ceiling_threshold(self, sample: Sample, outputs: Codes) -> float:
        """The best threshold of a rater taken for a metric."""
        values = np.full(len(self.judged), np.nan)
        others = values.copy()
        values[outputs], others[outputs] = sample.metric, sample.human
        return _usable(fit(self.judged, self.plan, others, values, outputs))

    def joint_draws(self, trials: Sequence[Trial], outputs: Codes) -> Floats:
        """Values (draws, trials) on resamples of these outputs' items or systems that all trials share."""
        values = np.full((self.plan.draws, len(trials)), np.nan)
        if not len(outputs) or not self.plan.draws:
            return values
        items, systems = self.judged.items.codes[outputs], self.judged.systems.codes[outputs]
        rows = max(1, resample.CHUNK // len(outputs))
        rng = np.random.default_rng(self.plan.seed)
        start = 0
        for chunk in drawn(items, systems, self.plan.resample, self.plan.draws, rng, rows):
            size = min(rows, self.plan.draws - start)
            for column, trial in enumerate(trials):
                if len(trial.sample):
                    found = estimate(trial.measure, trial.sample, trial.grouping, chunk, self.plan.group_average)
                    values[start : start + size, column] = found.values
            start += size
        return values

    def _fitted(self, metric: Scored, outputs: Codes, slices: Codes | None) -> Thresholds:
        return thresholds(self.judged, self.plan, self.gold, metric.signed(), outputs, self.parts, slices)


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


def _nothing(_: Floats) -> float:
    return math.nan


def _usable(epsilon: float) -> float:
    """A threshold that a measure takes: without any pair none was found, and any will do."""
    return 0.0 if math.isnan(epsilon) else epsilon
