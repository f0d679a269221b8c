"""Estimate one measure of one scorer, a metric or a rater, on one slice or several, and on resamples of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from metrist.errors import RunError, format_count
from metrist.evaluate.meta.dataset import (
    ALL,
    JudgedDataset,
    MetricScores,
    SelectedSample,
    Slice,
    group_codes,
    make_slices,
    resolve_column,
    select_outputs,
    select_sample,
    system_means,
    take_outputs,
)
from metrist.evaluate.meta.thresholds import (
    CalibratedScores,
    Thresholds,
    assign_parts,
    choose_thresholds,
    estimate_optimism,
    join_thresholds,
    pair_average,
)
from metrist.evaluate.plans import EPSILON_OVER, MetaPlan
from metrist.evaluate.selection import list_some
from metrist.stats import Codes, Floats, resampling, ties
from metrist.stats.estimation import Estimator, count_units, draw_resamples, estimate
from metrist.stats.gold import LeftOut, leave_one_out
from metrist.stats.measures import Measure, mean_of_known, measure
from metrist.stats.resampling import explain_missing_interval, interval
from metrist.stats.samples import GROUPINGS, Average, CorpusStats, Grouping, Sample, ScorePanel, number_groups
from metrist.stats.significance import best_first
from metrist.stats.tie_thresholds import calibrated_interval

# ---- Samples of one aspect

CALIBRATED = "acc_eq"
#: Slices that are named in a note.
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlicePanel:
    """A slice laid out for one measure: the metrics side by side, each with its measure.

    `epsilons` are the tie thresholds to show, in the metrics' own units, `ties` the same in the panel's units, and
    `thresholds` how they were chosen (empty for a measure without thresholds).
    """

    slice: Slice
    measure: str
    panel: ScorePanel
    measures: tuple[Measure, ...]
    grouping: Grouping | Codes
    epsilons: Floats
    ties: Floats
    outputs: Codes
    thresholds: tuple[Thresholds, ...] = ()


class ChosenSlices(NamedTuple):
    """The slice of all outputs, then those of the plan's columns; and what was done to them."""

    slices: list[Slice]
    notes: list[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class AspectData:
    """What all figures of one rated aspect share. `outputs` are those that take part."""

    dataset: JudgedDataset
    plan: MetaPlan
    aspect: str
    gold: Floats
    outputs: Codes
    metrics: tuple[MetricScores, ...]
    #: Those that were needed so far, by scorer and slice.
    _thresholds: dict[tuple[str, str], Thresholds] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def parts(self) -> Codes:
        """Which outputs share a tie threshold."""
        return assign_parts(self.dataset, self.plan, self.members)

    @cached_property
    def chosen_slices(self) -> ChosenSlices:
        """The slices of the outputs that take part; those of columns have their own best systems."""
        dataset, plan, outputs = self.dataset, self.plan, self.outputs
        if plan.top_k is not None:
            outputs = select_outputs(dataset, systems=plan.systems, exclude_systems=plan.exclude_systems)

        def rank(members: Codes) -> list[int]:
            return best_first(system_means(dataset, self.gold, members))

        def keep(members: Codes, systems: Sequence[int]) -> Codes:
            return members[np.isin(dataset.systems.codes[members], systems)]

        def count(members: Codes) -> int:
            return int(np.isfinite(self.gold[members]).sum())

        slices = [Slice(name=ALL, outputs=self.outputs), *make_slices(dataset, plan.slices, outputs)[1:]]
        about = self.aspect if len(plan.aspects) > 1 else ""
        return limit_slices(plan, slices, rank, keep, count, "rated outputs", about)

    @property
    def slices(self) -> list[Slice]:
        """The slice of all outputs, then those of the plan's columns."""
        return self.chosen_slices.slices

    @cached_property
    def members(self) -> Codes:
        """The outputs of any slice: with `top_k` more than those of the first."""
        if self.plan.top_k is None:
            return self.outputs
        return np.unique(np.concatenate([part.outputs for part in self.slices]))

    @cached_property
    def epsilon_slices(self) -> list[Slice]:
        """The slices that thresholds are chosen on: those of the first column that leaves outputs to pair; or none."""
        if self.plan.epsilon_over == "slice":
            return []
        for column in self.plan.slices:
            members = [part for part in self.slices if part.column == column]
            for part in members:
                selected = select_sample(self.dataset, self.gold, self.gold, part.outputs)
                groups = number_groups(group_codes(self.dataset, self.plan.group, selected))[1]
                if np.bincount(groups).max(initial=0) > 1:
                    return members
        return []

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """Each rater together with the gold of the others."""
        items, systems = self.dataset.items.codes, self.dataset.systems.codes
        return leave_one_out(self.dataset.ratings[self.aspect], items, systems, self.plan.gold)

    def count_units(self, outputs: Codes) -> int:
        """Count the resampled units of these outputs; if both items and systems are resampled, the fewer."""
        items, systems = (take_outputs(side.codes, outputs) for side in (self.dataset.items, self.dataset.systems))
        return count_units(items, systems, self.plan.resample)

    def is_calibrated(self, name: str) -> bool:
        """Whether this measure, under the plan's grouping, needs a tie threshold."""
        return name == CALIBRATED and self.plan.group != "system-level"

    def corpus(self, metric: MetricScores) -> CorpusStats | None:
        """Return what the metric's system scores are pooled from; None if they are means, or systems not compared."""
        pooled = self.plan.group == "system-level" and self.plan.system_score == "corpus"
        return metric.signed_corpus() if pooled else None

    def thresholds(self, scorer: str, human: Floats, metric: Floats, part: Slice) -> Thresholds:
        """Return the tie thresholds of a scorer on a slice: the same for all, unless each has its own. Those that users
        give are not chosen: one for all parts, or one for each value of a column."""
        own = self.plan.epsilon_over == "slice"
        key = scorer, part.name if own else ""
        if key in self._thresholds:
            return self._thresholds[key]
        if (given := self.plan.epsilon.get(scorer)) is not None:
            epsilon = np.full(int(self.parts.max(initial=0)) + 1, math.nan)
            if isinstance(given, Mapping):
                for code, value in self.part_names().items():
                    if value not in given:
                        over = self.plan.epsilon_over
                        raise RunError(f"`epsilon` of {scorer!r} has none for {over}={value}", code="missing_value")
                    epsilon[code] = given[value]
            else:
                epsilon[:] = given
            self._thresholds[key] = Thresholds(part=self.parts, epsilon=epsilon, choices=(None,) * len(epsilon))
        else:
            outputs = part.outputs if own else self.members
            slices = None
            if self.epsilon_slices:
                slices = np.full(len(self.dataset), -1, dtype=np.intp)
                for code, one in enumerate(self.epsilon_slices):
                    slices[one.outputs] = code
            self._thresholds[key] = choose_thresholds(
                self.dataset, self.plan, human, metric, outputs, self.parts, slices
            )
        return self._thresholds[key]

    def part_names(self) -> dict[int, str]:
        """The parts of the outputs with a gold value: values of the column, or folds."""
        over = self.plan.epsilon_over
        used = np.unique(self.parts[self.members[np.isfinite(self.gold[self.members])]])
        if over in EPSILON_OVER:
            return {code: f"fold {code + 1}" for code in used.tolist()}
        names = resolve_column(self.dataset, over, self.members).names
        return {code: names[code] for code in used.tolist() if code >= 0}

    def panel(self, part: Slice, name: str, report: Callable[[int], None] = lambda _: None) -> SlicePanel:
        """Lay a slice out for one measure. `report` is called with the number of metrics that have a tie threshold."""
        is_rated = np.isfinite(take_outputs(self.gold, part.outputs))
        rated = part.outputs if is_rated.all() else part.outputs[is_rated]
        columns = [metric.signed() for metric in self.metrics]
        used: list[Thresholds] = []
        if self.is_calibrated(name):
            for metric, column in zip(self.metrics, columns, strict=True):
                used.append(self.thresholds(metric.name, self.gold, column, part))
                report(len(used))
            calibrated = [own.apply(column, rated) for own, column in zip(used, columns, strict=True)]
            epsilons = np.full(len(columns), np.nan)  # Thresholds of several languages have no common number.
            for number, own in enumerate(used):
                single = own.single(rated)
                if single is not None:
                    epsilons[number] = single
                elif self.plan.epsilon_over == "crossfit":
                    epsilons[number] = np.median(own.epsilon)
        else:
            calibrated = [CalibratedScores(column, measure(name), math.nan, parted=False) for column in columns]
            epsilons = np.full(len(columns), np.nan)
        values = [take_outputs(scores.values, rated) for scores in calibrated]
        values = [np.where(np.isinf(own), np.nan, own) if np.isinf(own).any() else own for own in values]
        selected = select_sample(self.dataset, self.gold, self.gold, rated)
        parted = any(scores.parted for scores in calibrated)
        return SlicePanel(
            slice=part,
            measure=name,
            panel=ScorePanel(
                human=take_outputs(self.gold, rated),
                metrics=values,
                item=selected.sample.item,
                system=selected.sample.system,
                corpus=tuple(stats and stats.take(rated) for stats in map(self.corpus, self.metrics)),
                weight=selected.sample.weight,
            ),
            measures=tuple(scores.measure for scores in calibrated),
            grouping=self.grouping(selected, self.parts if parted else self.plan.group),
            epsilons=epsilons,
            ties=np.array([scores.tie for scores in calibrated]),
            outputs=rated,
            thresholds=tuple(used),
        )

    def grouping(self, selected: SelectedSample, group: str | Codes) -> Grouping | Codes:
        """Return the grouping of these outputs; codes refine the plan's grouping and keep outputs apart."""
        name = self.plan.group
        if isinstance(group, str):
            return name if name in GROUPINGS else group_codes(self.dataset, name, selected)
        own = group_codes(self.dataset, name, selected)
        pairs, refined = np.unique(np.stack([own, group[selected.outputs]]), axis=1, return_inverse=True)
        # Keep the built-in grouping where the codes split nothing, so that whole items can be resampled.
        if name in GROUPINGS and pairs.shape[1] == len(np.unique(own)):
            return name
        codes: Codes = refined.reshape(-1)
        return codes


def check_groups(data: AspectData) -> None:
    """Raise RunError if the grouping leaves nothing to compare, or crossfit no pair of outputs in the other folds."""
    selected = select_sample(data.dataset, data.gold, data.gold, data.members)
    systems = number_groups(selected.sample.system)[0]
    if not len(selected.outputs):
        raise RunError(f"none of the {len(data.members):,} outputs that take part has a rating of {data.aspect!r}")
    if data.plan.group == "system-level" and systems < 2:
        name = data.dataset.systems.names[int(selected.sample.system[0])]
        raise RunError(
            f"system-level agreement needs two systems with ratings, found only {name!r}", code="too_little_data"
        )
    codes = group_codes(data.dataset, data.plan.group, selected)
    if np.bincount(number_groups(codes)[1]).max(initial=0) < 2:
        raise RunError(
            f"grouped by {data.plan.group}, no group has two rated outputs to compare ({len(selected.outputs):,} "
            f"outputs, {format_count(systems, 'system')}): try `group='none'`",
            code="too_little_data",
        )
    if data.plan.epsilon_over == "crossfit" and CALIBRATED in data.plan.measures and data.is_calibrated(CALIBRATED):
        folds = data.parts[selected.outputs]
        for fold in np.unique(folds):
            if np.unique(codes[folds != fold], return_counts=True)[1].max(initial=0) < 2:
                items = len(np.unique(selected.sample.item))
                raise RunError(
                    "`epsilon_over='crossfit'` chooses a threshold on other items than those it evaluates, and "
                    f"{format_count(items, 'item')} with ratings leave no pair of outputs to choose it on: "
                    "try `epsilon_over='all'`"
                )


# ---- Slices: each with its own best systems, small ones left out


def limit_slices(
    plan: MetaPlan,
    slices: Sequence[Slice],
    rank: Callable[[Codes], list[int]],
    keep: Callable[[Codes, Sequence[int]], Codes],
    count: Callable[[Codes], int],
    unit: str,
    aspect: str = "",
) -> ChosenSlices:
    """Keep the best systems of each slice but the first, which has them already; then leave out small slices.

    `rank` gives the systems of a slice's members, best first, `keep` its members that are of these systems only, and
    `count` how many of them people judged; `aspect` is named in notes.
    """
    if plan.top_k is None and not plan.min_samples:
        return ChosenSlices(list(slices), [])
    whole, *others = slices
    kept, small, short = list[Slice](), list[str](), list[str]()
    for part in others:
        members = part.outputs
        if plan.top_k is not None:
            ranked = rank(members)
            members = keep(members, ranked[: plan.top_k])
            if len(ranked) < plan.top_k:
                short.append(f"{part.name} ({len(ranked)})")
        size = count(members)
        if size < max(1, plan.min_samples):
            small.append(f"{part.name} ({size:,})")
        else:
            kept.append(replace(part, outputs=members))
    if max(count(part.outputs) for part in kept or [whole]) < plan.min_samples or (others and not kept):
        raise RunError(
            f"no slice has {plan.min_samples or 1:,} {unit} or more: lower `min_samples`", code="too_little_data"
        )
    if not count(whole.outputs):
        small.insert(0, f"{whole.name} (0)")
    notes, about = [], f"{aspect}: " if aspect else ""
    if small:
        few = f"fewer than {plan.min_samples:,}" if plan.min_samples else "no"
        notes.append(f"{about}Left out, {few} {unit}: {list_some(small, _MAX_LISTED)}.")
    if plan.top_k is not None and others:
        notes.append(f"Each slice has its own {plan.top_k} best systems; tables of single analyses keep those of all.")
    if short:
        notes.append(f"{about}Fewer than {plan.top_k} systems, so all of them: {list_some(short, _MAX_LISTED)}.")
    return ChosenSlices([whole, *kept] if count(whole.outputs) else kept, notes)


# ---- A scorer under one measure


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scorer:
    """A value per output of the data, and the human values to compare it with. Names are unique."""

    name: str
    human: Floats
    values: Floats
    corpus: CorpusStats | None = None


def make_scorer(data: AspectData, metric: MetricScores) -> Scorer:
    return Scorer(name=metric.name, human=data.gold, values=metric.signed(), corpus=data.corpus(metric))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredSample:
    """One measure of one sample under one grouping.

    `sample` holds the scores as the measure takes them, `selected` the original scores; `thresholds` is None for a
    measure without tie thresholds.
    """

    measure: Measure
    sample: Sample
    grouping: Grouping | Codes
    average: Average
    selected: SelectedSample
    thresholds: Thresholds | None = None

    def value(self) -> float:
        if not len(self.sample):
            return math.nan
        return float(estimate(self.measure, self.sample, self.grouping, average=self.average).values[0])

    def baselines(self) -> tuple[float, float]:
        """Return what guessing, and calling every pair a tie, would reach; NaN if that is undefined."""
        if not len(self.sample):
            return math.nan, math.nan
        at_chance = Estimator(self.measure.at_chance(), self.sample, self.grouping, self.average)
        chance = float(at_chance().values[0])
        if not self.measure.all_ties:
            return chance, math.nan
        return chance, float(at_chance.pooling(self.measure.at_all_ties())().values[0])

    def optimism(self, plan: MetaPlan) -> float:
        """Estimate by how much the value is too high because tie thresholds were chosen for it."""
        if self.thresholds is None:
            return 0.0
        groups = ties.group_codes(self.selected.sample, self.grouping)
        return estimate_optimism(plan, self.thresholds, self.selected, groups, self.average)


def measure_slice(data: AspectData, scorer: Scorer, part: Slice, name: str) -> MeasuredSample:
    """Return the sample of a scorer on one slice."""
    used = data.thresholds(scorer.name, scorer.human, scorer.values, part) if data.is_calibrated(name) else None
    return _measure_sample(data, scorer, part.outputs, name, used, apart=None, average=data.plan.group_average)


def measure_pool(data: AspectData, scorer: Scorer, slices: Sequence[Slice], name: str) -> MeasuredSample:
    """Return the sample of a scorer on several slices as one pool; outputs of different slices are not paired."""
    size = len(data.dataset)
    apart = np.full(size, -1, dtype=np.intp)
    for code, part in enumerate(slices):
        apart[part.outputs] = code
    used = None
    if data.is_calibrated(name):
        by_slice = [data.thresholds(scorer.name, scorer.human, scorer.values, part) for part in slices]
        own = data.plan.epsilon_over == "slice"
        used = join_thresholds(by_slice, [part.outputs for part in slices], size) if own else by_slice[0]
    outputs = np.flatnonzero(apart >= 0)
    return _measure_sample(data, scorer, outputs, name, used, apart=apart, average=pair_average(data.plan))


def _measure_sample(
    data: AspectData,
    scorer: Scorer,
    outputs: Codes,
    name: str,
    thresholds: Thresholds | None,
    *,
    apart: Codes | None,
    average: Average,
) -> MeasuredSample:
    if thresholds is None:
        selected = select_sample(data.dataset, scorer.human, scorer.values, outputs, scorer.corpus)
        grouping = data.grouping(selected, data.plan.group if apart is None else apart)
        return MeasuredSample(
            measure=measure(name), sample=selected.sample, grouping=grouping, average=average, selected=selected
        )
    has_part = thresholds.part >= 0
    values = scorer.values if has_part.all() else np.where(has_part, scorer.values, np.nan)
    selected = select_sample(data.dataset, scorer.human, values, outputs)
    calibrated = thresholds.apply(scorer.values, selected.outputs)
    keep_apart = [codes for codes in (apart, thresholds.part if calibrated.parted else None) if codes is not None]
    group: str | Codes = data.plan.group
    if keep_apart:
        group = np.unique(np.stack(keep_apart), axis=1, return_inverse=True)[1].reshape(-1)
    return MeasuredSample(
        measure=calibrated.measure,
        sample=replace(selected.sample, metric=take_outputs(calibrated.values, selected.outputs)),
        grouping=data.grouping(selected, group),
        average=average,
        selected=selected,
        thresholds=thresholds,
    )


# ---- Resampling


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResampledValue:
    """A value with its resamples, its optimism (NaN for a measure without tie thresholds), and the number of outputs
    that it rests on; outputs of several slices or raters count once each."""

    value: float
    draws: Floats
    optimism: float
    n: int

    def limits(self, data: AspectData, outputs: Codes) -> tuple[float, float, str]:
        """Return the interval, if these outputs were resampled, and why a value has none."""
        plan, units = data.plan, data.count_units(outputs)
        low, high = interval(self.draws, plan.confidence, units, self.value)
        missing = explain_missing_interval(self.draws, plan.confidence, units, plan.resample)
        reason = "" if math.isnan(self.value) else missing
        if math.isnan(self.optimism):
            return low, high, reason
        limits = calibrated_interval(
            self.value, low, high, optimism=self.optimism, units=units, confidence=plan.confidence
        )
        return *limits, reason


def resample_together(data: AspectData, measured: Sequence[MeasuredSample], outputs: Codes) -> list[ResampledValue]:
    """Estimate each sample on common resamples of these outputs' items or systems."""
    plan, dataset = data.plan, data.dataset
    values = np.full((plan.draws, len(measured)), np.nan)
    if len(outputs) and plan.draws:
        rows = max(1, resampling.CHUNK // len(outputs))
        items, systems = dataset.items.codes[outputs], dataset.systems.codes[outputs]
        chunks = draw_resamples(items, systems, plan.resample, plan.draws, plan.rng(), rows)
        estimators = [Estimator(entry.measure, entry.sample, entry.grouping, entry.average) for entry in measured]
        for start, chunk in zip(range(0, plan.draws, rows), chunks, strict=True):
            for column, entry in enumerate(measured):
                if len(entry.sample):
                    values[start : start + rows, column] = estimators[column](chunk).values
    return [
        ResampledValue(
            value=entry.value(),
            draws=values[:, column],
            optimism=math.nan if entry.thresholds is None else entry.optimism(plan),
            n=len(entry.sample),
        )
        for column, entry in enumerate(measured)
    ]


def average_values(values: Sequence[ResampledValue]) -> ResampledValue:
    """Return the mean, draw by draw, of those that have a value."""
    defined = [value for value in values if not math.isnan(value.value)]
    return ResampledValue(
        value=mean_of_known(np.array([value.value for value in values])).item(),
        draws=mean_of_known(np.stack([value.draws for value in values], axis=-1)),
        optimism=mean_of_known(np.array([value.optimism for value in defined])).item(),
        n=sum(value.n for value in values),
    )
