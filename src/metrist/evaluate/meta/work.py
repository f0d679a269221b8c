"""One aspect's figures in the making: gold, outputs, metrics, and the measures that each metric is judged by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.calibration import Judging, Thresholds, parts_of, thresholds
from metrist.evaluate.meta.grouped import group_codes, grouping_of
from metrist.evaluate.meta.judged import Codes, Floats, Judged, Scored
from metrist.evaluate.meta.plan import GROUPS, Plan
from metrist.evaluate.meta.samples import Taken, taken
from metrist.evaluate.meta.slices import Slice, column_of
from metrist.stats.ceiling import LeftOut, leave_one_out
from metrist.stats.grouping import Grouping
from metrist.stats.measures import Measure, measure
from metrist.stats.panel import Panel

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
