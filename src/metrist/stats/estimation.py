"""Estimate a measure over groups of outputs (items, systems, the values of a column) or between systems, on all data
and on resamples; percentile bootstrap intervals, and the paired bootstrap of two metrics.

Resampling and grouping meet here. A group that is drawn twice counts twice; outputs drawn within a group occur twice in
the group, where pairwise measures do not pair them with themselves. So drawn items weight whole groups if each group
belongs to one item, and outputs within groups otherwise; the same holds for systems.

Sampling weights of a sample (one over the probability of its choice) work alike. They weight whole groups if groups
were sampled: if each belongs to one item, and all its outputs have one weight. Otherwise they weight outputs within
groups, and pairs of outputs by the product of their weights: systems, say, were not sampled, only their outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.kernels.columns import Places, group_starts, segment_sums
from metrist.stats import Codes, Floats, resampling
from metrist.stats.measures import Measure, group_means, group_sums
from metrist.stats.resampling import (
    Over,
    count_extreme,
    explain_missing_interval,
    interval,
    p_values,
    resample_counts,
    rounding_slack,
)
from metrist.stats.samples import (
    Average,
    Draws,
    Grouping,
    MetricSets,
    Pairs,
    Sample,
    ScorePanel,
    batch_by_outputs,
    match_measures,
    number_groups,
    sort_codes,
    take_grouping,
    take_order,
)
from metrist.stats.significance import student_t_tail
from metrist.stats.ties import group_codes

# ---- Between systems


def system_level_values(measure: Measure, sample: Sample, weights: Draws | Floats | None = None) -> Floats:
    """Return the measure between the systems' human and metric scores (see `system_scores`), once per draw.

    Draws of items change the scores, draws of systems which scores are compared. A system without a drawn output takes
    no part. With `acc_eq` this is system-level pairwise accuracy (Kocmi et al. 2021): the share of pairs of systems
    whose scores differ in the same direction on both sides, or are equal on both.
    """
    human, metric, present = system_scores(sample, weights)
    if len(human) == 1:
        return measure.pool(measure.rows(human[0], metric[0], present))
    # Scores differ between draws: each draw becomes a group of its own.
    ends = np.arange(len(human) + 1) * human.shape[1]
    stats = measure.grouped_rows(human.ravel(), metric.ravel(), np.ascontiguousarray(present).reshape(1, -1), ends)
    per_draw: Floats = measure.pool(stats)[0]
    return per_draw


def system_scores(sample: Sample, weights: Draws | Floats | None = None) -> tuple[Floats, Floats, Floats]:
    """Return each system's mean human value, its score by the metric, and how often it takes part, once per draw:
    (draws, systems), or a single row if all draws have the same.

    The score is pooled from the metric's statistics if the sample has them, and the mean of its values otherwise. A
    system that has no score takes part 0 times.
    """
    order = np.argsort(sample.system, kind="stable")
    ordered = sample.take(order)
    systems, starts = np.unique(ordered.system, return_index=True)
    starts = np.append(starts, len(ordered))
    # How often outputs (or items, and so the outputs at them) were drawn, and how often each system was.
    drawn, at, picked = np.ones((1, len(sample))), None, np.ones((1, len(systems)))
    if isinstance(weights, Draws):
        if weights.systems is not None:
            picked = weights.systems.take(systems, axis=1)
        if weights.items is not None:
            drawn, at = weights.items, ordered.item
    elif weights is not None:
        drawn = weights.take(order, axis=1)
    if ordered.weight is not None:
        by_output = drawn if at is None else drawn.take(at, axis=1)
        drawn = by_output * ordered.weight
        at = None
    means, size = group_means((ordered.human, ordered.metric), drawn, starts, at)
    human, metric = means[..., 0], means[..., 1]
    present = picked * (size > 0)
    if ordered.corpus is not None:
        pooled = ordered.corpus.scores(group_sums(ordered.corpus.rows, drawn, starts, at))
        present = present * np.isfinite(pooled)
        metric = np.where(np.isfinite(pooled), pooled, 0.0)
    return human, metric, present


# ---- Groups


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimated:
    """One entry per draw: the value, the number of groups it rests on, and the number of groups left out because the
    measure is undefined in them (one output, or one side constant). Groups drawn twice count twice."""

    values: Floats
    groups: NDArray[np.int64]
    undefined: NDArray[np.int64]


def estimate(
    measure: Measure,
    sample: Sample,
    grouping: Grouping | Codes = "none",
    weights: Draws | Floats | None = None,
    average: Average = "macro",
) -> Estimated:
    """Return the measure of a sample, once per draw (once if there are none).

    `grouping` may be a column of codes, one per output. `weights` as an array (draws, outputs) weight outputs within
    their groups. Macro averages the values of the groups in which the measure is defined; micro pools the sum of all
    groups' rows, so that larger groups count more. The mean of no groups is NaN.
    """
    return Estimator(measure, sample, grouping, average)(weights)


class Estimator:
    """Estimates the measure of one sample on many draws, see `estimate`. Where draws take or leave whole groups, the
    groups' statistics are computed once, and nothing is kept that grows with the outputs."""

    def __init__(
        self, measure: Measure, sample: Sample, grouping: Grouping | Codes = "none", average: Average = "macro"
    ) -> None:
        self._measure, self._sample, self._grouping, self._mean = measure, sample, grouping, average
        self._groups: _WholeGroups | None = None

    def __call__(self, weights: Draws | Floats | None = None) -> Estimated:
        if isinstance(self._grouping, str) and self._grouping == "system-level":
            values = system_level_values(self._measure, self._sample, weights)
            unknown = np.isnan(values)
            return Estimated(values=values, groups=(~unknown).astype(np.int64), undefined=unknown.astype(np.int64))
        if self._groups is not None and (drawn := self._groups.draw(weights)) is not None:
            return self._average(self._groups.values, self._groups.stats, drawn, self._groups.worth)
        column = group_codes(self._sample, self._grouping)
        order = sort_codes(column)
        sample = self._sample if order is None else self._sample.take(order)
        starts = group_starts(take_order(column, order))
        within, between = _split(sample, weights, order, starts)
        is_whole = within is None
        within = np.broadcast_to(1.0, (1, len(sample))) if within is None else within
        worth = np.ones((1, len(starts) - 1))
        inside, whole = split_weights(sample, starts)
        if inside is not None:
            within = within * inside
        if whole is not None:
            worth = whole[None]
        stats = self._measure.grouped_rows(sample.human, sample.metric, within, starts)
        present = segment_sums(within, starts) > 0
        values = self._measure.pool(stats)
        if is_whole:
            units: list[Codes | slice | None] = [None, None]
            for side, codes in enumerate((sample.item, sample.system)):
                if is_constant_in_groups(codes, starts):
                    by_group = codes[starts[:-1]]
                    # Nothing is copied with a slice.
                    is_every = np.array_equal(by_group, np.arange(len(by_group)))
                    units[side] = slice(0, len(by_group)) if is_every else by_group
            self._groups = _WholeGroups(values, stats, present, worth, units[0], units[1])
        return self._average(values, stats, present * between, worth)

    def _average(self, values: Floats, stats: Floats, drawn: Floats, worth: Floats) -> Estimated:
        """Average groups with these values and statistics, each drawn so often and weighted by its worth."""
        if self._mean == "micro":
            defined = (drawn * ~np.isnan(values)).sum(axis=1)
            pooled = self._measure.pool(((drawn * worth)[..., None] * stats).sum(axis=1))
            undefined = drawn.sum(axis=1) - defined
            return Estimated(values=pooled, groups=defined.astype(np.int64), undefined=undefined.astype(np.int64))
        known = ~np.isnan(values)
        # With millions of groups, each pass over them counts.
        is_defined = len(drawn) >= len(values) and bool(known.all())
        counts = drawn if is_defined else drawn * known
        number = counts.sum(axis=1)
        is_plain = bool((worth == 1).all())
        weights = counts if is_plain else counts * worth
        total = (weights * (values if is_defined else np.where(known, values, 0.0))).sum(axis=1)
        divisor = number if is_plain else weights.sum(axis=1)
        mean = np.divide(total, divisor, out=np.full(len(total), np.nan), where=number > 0)
        undefined = np.zeros(len(number)) if is_defined else drawn.sum(axis=1) - number
        return Estimated(values=mean, groups=number.astype(np.int64), undefined=undefined.astype(np.int64))

    def pooling(self, measure: Measure) -> Estimator:
        """Return the estimator of another measure that pools the same statistics, which are not computed again."""
        other = Estimator(measure, self._sample, self._grouping, self._mean)
        if self._groups is not None:
            other._groups = replace(self._groups, values=measure.pool(self._groups.stats))
        return other


@dataclass(frozen=True, slots=True, eq=False)
class _WholeGroups:
    """Groups of a sample: their values and statistics, whether they have outputs, and the item and the system that all
    outputs of each group have, as codes or, where each group has its own, as a slice; None if a group has several."""

    values: Floats
    stats: Floats
    present: NDArray[np.bool_]
    worth: Floats
    items: Codes | slice | None
    systems: Codes | slice | None

    def draw(self, weights: Draws | Floats | None) -> Floats | None:
        """Return how often each group was drawn, 0 if it has no outputs; None if draws do not take or leave whole
        groups."""
        drawn = None
        if weights is not None and not isinstance(weights, Draws):
            return None
        for codes, counts in ((self.items, weights.items), (self.systems, weights.systems)) if weights else ():
            if counts is None:
                continue
            if codes is None:
                return None
            most = codes.stop - 1 if isinstance(codes, slice) else codes.max(initial=-1)
            if most >= counts.shape[1]:
                return None
            own = counts[:, codes] if isinstance(codes, slice) else counts.take(codes, axis=1)
            drawn = own if drawn is None else drawn * own
        if drawn is None:
            return self.present * np.ones((1, self.present.shape[1]))
        return drawn if self.present.all() else self.present * drawn


def _split(
    sample: Sample, weights: Draws | Floats | None, order: Places | None, starts: Places
) -> tuple[Floats | None, Floats]:
    """Return weights of outputs within their groups (draws, outputs), None if each counts once, and of whole groups
    (draws, groups); one row if all draws have the same."""
    within, between = None, np.ones((1, len(starts) - 1))
    if weights is None:
        return within, between
    if not isinstance(weights, Draws):
        if weights.ndim != 2 or weights.shape[1] != len(sample):
            raise RunError(
                f"weights need a column per output, got {weights.shape} for {len(sample)} outputs", code="invalid_value"
            )
        return weights if order is None else weights.take(order, axis=1), between
    for codes, drawn in ((sample.item, weights.items), (sample.system, weights.systems)):
        if drawn is not None:
            if is_constant_in_groups(codes, starts):
                between = between * drawn.take(codes[starts[:-1]], axis=1)
            else:
                picked = drawn.take(codes, axis=1)  # Several times faster than drawn[:, codes].
                within = picked if within is None else within * picked
    return within, between


def is_constant_in_groups(values: NDArray[np.generic], starts: Places) -> bool:
    """Return whether no group has two different values. Drawing by codes that are so takes or leaves whole groups."""
    changes = values[1:] != values[:-1]
    changes[starts[(starts > 0) & (starts < len(values))] - 1] = False
    return not changes.any()


def split_weights(sample: Sample, starts: Places) -> tuple[Floats | None, Floats | None]:
    """Return the sampling weights of outputs within their groups, and those of whole groups, of a sample that is sorted
    by groups; None for weights that change nothing."""
    weight = sample.weight
    if weight is None:
        return None, None
    if not is_constant_in_groups(weight, starts):
        return weight, None
    return None, weight[starts[:-1]] if is_constant_in_groups(sample.item, starts) else None


# ---- Intervals, and the paired bootstrap of two metrics
#
# Resample what the finding should generalise to: items, for other items and the same systems; systems, for other
# systems on the same items; both (independent draws, an output counting as often as its item times its system was
# drawn), for other items and systems (Deutsch, Dror and Roth 2021). Tie thresholds stay at their value on all data.
#
# The rules for NaN, too few items and seeds are those of `resampling`. The same generator gives every metric the same
# draws, so that two metrics' draws can be subtracted.


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapInterval:
    """A value with its interval; it rests on `groups` groups, `undefined` counts those left out. `reason` says why
    there are no limits."""

    value: float
    low: float
    high: float
    outputs: int
    groups: int
    undefined: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """By how much the first of two metrics exceeds the second on the outputs that both scored. `units` counts what was
    resampled; of both items and systems, the fewer. `p` is that of the paired bootstrap: resampled differences, centred
    on zero, represent the null hypothesis."""

    value: float
    p: float
    standard_error: float
    units: int


def bootstrap(
    measures: Measure | Sequence[Measure],
    panel: ScorePanel,
    grouping: Grouping | Codes = "none",
    average: Average = "macro",
    *,
    over: Over = "items",
    draws: int = 1000,
    rng: np.random.Generator,
    confidence: float = 0.95,
) -> list[BootstrapInterval]:
    """Return each metric's interval, on the outputs that it scored, with one measure for all or one each."""
    intervals: dict[int, BootstrapInterval] = {}
    sets = [(metric,) for metric in range(len(panel.metrics))]
    for batch, plain, resampled in _resample_batches(measures, panel, sets, grouping, average, over, draws, rng):
        units = count_units(batch.panel.item, batch.panel.system, over)
        for column, metric in enumerate(batch.metrics):
            value, own = float(plain[column].values[0]), resampled[:, column]
            low, high = interval(own, confidence, units, value)
            intervals[metric] = BootstrapInterval(
                value=value,
                low=low,
                high=high,
                outputs=len(batch.panel.human),
                groups=int(plain[column].groups[0]),
                undefined=int(plain[column].undefined[0]),
                reason="" if math.isnan(value) else explain_missing_interval(own, confidence, units, over),
            )
    return [intervals[metric] for metric in range(len(panel.metrics))]


def bootstrap_gaps(
    measures: Measure | Sequence[Measure],
    panel: ScorePanel,
    pairs: Pairs,
    grouping: Grouping | Codes = "none",
    average: Average = "macro",
    *,
    over: Over = "items",
    draws: int = 1000,
    rng: np.random.Generator,
) -> list[Gap]:
    """Return the difference between the metrics of each pair; both use the same draws."""
    gaps: dict[int, Gap] = {}
    for batch, plain, resampled in _resample_batches(measures, panel, pairs, grouping, average, over, draws, rng):
        units = count_units(batch.panel.item, batch.panel.system, over)
        values = np.array([float(estimated.values[0]) for estimated in plain])
        for position, (first, second) in zip(batch.positions, batch.pairs, strict=True):
            observed = values[[first]] - values[[second]]
            differences = resampled[:, [first]] - resampled[:, [second]]
            slack = rounding_slack(values[[first]], values[[second]])
            extreme = count_extreme(differences - observed, observed, "two-sided", slack)
            # Where there are too few draws for an interval, they have no spread either.
            low, _ = interval(differences[:, 0], 0.95, units, float(observed[0]))
            gaps[position] = Gap(
                value=float(observed[0]),
                p=float(p_values(extreme, len(resampled), observed, units)[0]),
                standard_error=math.nan if math.isnan(low) else float(np.nanstd(differences, ddof=1)),
                units=units,
            )
    return [gaps[position] for position in range(len(pairs))]


def draw_resamples(
    item: Codes, system: Codes, over: Over, draws: int, rng: np.random.Generator, rows: int
) -> Iterator[Draws]:
    """Yield resamples of the items and systems of these outputs, at most `rows` draws at a time."""
    # One generator per side, so that the draws of one do not depend on the number of draws of the other.
    for_items, for_systems = rng.spawn(2)
    items = _counts(item, draws, for_items, rows) if over != "systems" else None
    systems = _counts(system, draws, for_systems, rows) if over != "items" else None
    for _ in range(0, draws, rows):
        yield Draws(items=next(items) if items else None, systems=next(systems) if systems else None)


def _counts(codes: Codes, draws: int, rng: np.random.Generator, rows: int) -> Iterator[Floats]:
    present = np.flatnonzero(np.bincount(codes))
    for counts in resample_counts(len(present), draws, rng, rows):
        if len(present) and present[-1] == len(present) - 1:
            yield counts
            continue
        spread = np.zeros((len(counts), int(codes.max(initial=-1)) + 1))
        spread[:, present] = counts
        yield spread


def _resample_batches(
    measures: Measure | Sequence[Measure],
    panel: ScorePanel,
    sets: Sequence[tuple[int, ...]],
    grouping: Grouping | Codes,
    average: Average,
    over: Over,
    draws: int,
    rng: np.random.Generator,
) -> Iterator[tuple[MetricSets, list[Estimated], Floats]]:
    """Yield each batch of sets of metrics with its metrics' estimates, and their values (draws, metrics) on resamples
    that all metrics share."""
    own = match_measures(measures, panel)
    (source,) = rng.spawn(1)
    for batch in batch_by_outputs(panel, sets):
        groups, outputs = take_grouping(grouping, batch.outputs), len(batch.panel.human)
        estimators = [
            Estimator(own[metric], batch.panel.sample(column), groups, average)
            for column, metric in enumerate(batch.metrics)
        ]
        plain = [estimator() for estimator in estimators]
        chunks = [np.empty((0, len(estimators)))]
        rows = max(1, resampling.CHUNK // max(1, outputs))
        item, system = batch.panel.item, batch.panel.system
        for chunk in draw_resamples(item, system, over, draws if outputs else 0, deepcopy(source), rows):
            chunks.append(np.stack([estimator(chunk).values for estimator in estimators], axis=1))
        yield batch, plain, np.concatenate(chunks)


def count_units(item: Codes, system: Codes, over: Over) -> int:
    """Count what is resampled of some outputs; of both items and systems, the fewer."""
    items, systems = number_groups(item)[0], number_groups(system)[0]
    return {"items": items, "systems": systems, "both": min(items, systems)}[over]


#: With fewer extreme draws, counting them gives no useful p-value.
MIN_EXTREME = 10
#: With fewer units, p-values and intervals from resamples are rough.
FEW_UNITS = 20


def bootstrap_p_values(gaps: Sequence[Gap], draws: int) -> Floats:
    """Return two-sided p-values of paired bootstraps with `draws` draws each.

    Resampled differences vary less than samples would, especially with few units (five systems, for example), and
    counting them would reject far too many true null hypotheses. p is therefore the tail of Student's t with one degree
    of freedom less than there are units, at the difference over its standard error, which is widened for the same
    reason. p is never below the counted p as long as ten draws are as extreme.
    """
    p = np.full(len(gaps), np.nan)
    for number, gap in enumerate(gaps):
        if gap.units < 2 or math.isnan(gap.p):
            continue
        if not gap.standard_error > 0:
            p[number] = max(gap.p, 2.0 ** (1 - gap.units))
            continue
        # The variance between resamples of n units is (n - 1) / n of that between samples.
        widened = gap.standard_error * math.sqrt(gap.units / (gap.units - 1))
        tail = 2 * student_t_tail(abs(gap.value) / widened, gap.units - 1)
        p[number] = max(tail, gap.p) if gap.p > MIN_EXTREME / (draws + 1) else tail
    return p
