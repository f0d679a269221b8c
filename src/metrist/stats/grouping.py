"""Estimate a measure over groups of outputs: within items, systems or a column's values, or between system means.

Resampling and grouping meet here. A group that is drawn twice counts twice; outputs drawn within a group occur twice in
the group, where pairwise measures do not pair them with themselves. So drawn items weight whole groups if each group
belongs to one item, and outputs within groups otherwise; the same holds for systems.

Sampling weights of a sample (one over the probability of its choice) work alike. They weight whole groups if groups
were sampled: if each belongs to one item, and all its outputs have one weight. Otherwise they weight outputs within
groups, and pairs of outputs by the product of their weights: systems, say, were not sampled, only their outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.kernels.columns import Places, group_starts, segment_sums
from metrist.stats import Codes, Floats
from metrist.stats.measures import Measure, group_means, group_sums
from metrist.stats.resampling import coin_tosses
from metrist.stats.samples import Average, Draws, Grouping, Sample, sort_codes, take_order
from metrist.stats.ties import group_codes

#: Relative rounding error of sums that were added in different orders.
_SLACK: Final = 1e-12
_CHUNK: Final = 1 << 21
#: How a permutation that leaves the observed difference counts: half, or fully.
TieCount = Literal["mid", "strict"]


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
    drawn, at, picked = _weights(ordered, weights, order, systems)
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


def _weights(
    sample: Sample, weights: Draws | Floats | None, order: Places, systems: Codes
) -> tuple[Floats, Places | None, Floats]:
    """Return how often outputs (or items, and so the outputs at them) were drawn, and how often each system was."""
    every = np.ones((1, len(systems)))
    if weights is None:
        return np.ones((1, len(sample))), None, every
    if not isinstance(weights, Draws):
        return weights.take(order, axis=1), None, every
    picked = every if weights.systems is None else weights.systems.take(systems, axis=1)
    if weights.items is None:
        return np.ones((1, len(sample))), None, picked
    return weights.items, weights.items_at(sample), picked


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoftAccuracy:
    """Soft pairwise accuracy, the value that a metric reaches that cannot distinguish any two systems, and the p-values
    (systems, systems) that both were computed from."""

    value: float
    chance: float
    human_p: Floats
    metric_p: Floats


def soft_pairwise_accuracy(
    sample: Sample, draws: int, rng: np.random.Generator, ties: TieCount = "mid"
) -> SoftAccuracy:
    """Measure whether humans and metric agree on how certain it is that one system beats another (Thompson et al.
    2024).

    Both sides use the same exchanges of outputs. `ties` says how an exchange counts that leaves the observed
    difference, see `superiority_p_values`.
    """
    tosses = np.concatenate(list(coin_tosses(len(np.unique(sample.item)), draws, rng, draws or 1)))
    human_p = superiority_p_values(system_by_item(sample, sample.human), tosses, ties)
    metric_p = superiority_p_values(system_by_item(sample, sample.metric), tosses, ties)
    half = np.full_like(human_p, 0.5)
    value, chance = soft_agreement(human_p, metric_p), soft_agreement(human_p, half)
    return SoftAccuracy(value=value, chance=chance, human_p=human_p, metric_p=metric_p)


def soft_agreement(human_p: Floats, metric_p: Floats) -> float:
    """Return one minus the mean difference between two tables of p-values, over all pairs of systems that have both."""
    upper = np.triu_indices(len(human_p), 1)
    gaps = np.abs(human_p - metric_p)[upper]
    known = ~np.isnan(gaps)
    return float(1.0 - gaps[known].mean()) if known.any() else float("nan")


def system_by_item(sample: Sample, values: Floats) -> Floats:
    """Arrange a column of a sample as (systems, items), NaN for missing outputs; unused numbers are left out."""
    systems, row = np.unique(sample.system, return_inverse=True)
    items, column = np.unique(sample.item, return_inverse=True)
    cells = row * len(items) + column
    if len(np.unique(cells)) < len(cells):
        raise RunError("a paired test needs one output per system and item, but some item has two of one system")
    grid = np.full((len(systems), len(items)), np.nan)
    grid.ravel()[cells] = values
    return grid


def superiority_p_values(values: Floats, tosses: Floats, ties: TieCount = "mid") -> Floats:
    """Return how certainly each system (row) beats each other (column): the one-sided p-value of a paired permutation
    test on the items that both have. Small if the row's system is better; NaN if two share no item.

    `tosses` (draws, items) are zeros and ones: where 1, the two systems' outputs are exchanged. A draw whose difference
    equals the observed one counts half ("mid"), so that p[a, b] + p[b, a] = 1 and the order of systems does not matter,
    or fully ("strict"), as in mt-metrics-eval, where the earlier system of a pair is the row.
    """
    share = 0.5 if ties == "mid" else 1.0
    present = ~np.isnan(values)
    filled = np.where(present, values, 0.0)
    # A power of two, so that no sum overflows.
    filled = np.ldexp(filled, -np.frexp(np.abs(filled).max(initial=0.0))[1])
    counts = np.zeros((len(values), len(values)))
    observed = _differences(np.ones((1, values.shape[1])), filled, present)[0]
    size = np.abs(filled) @ present.T
    slack = _SLACK * (size + size.T)
    rows = max(1, _CHUNK // max(1, len(values) ** 2))
    for start in range(0, len(tosses), rows):
        gap = _differences(1.0 - 2.0 * tosses[start : start + rows], filled, present) - observed
        counts += (gap > slack).sum(axis=0) + share * (np.abs(gap) <= slack).sum(axis=0)
    shared = present.astype(np.float64) @ present.T.astype(np.float64) > 0
    return np.where(shared & ~np.eye(len(values), dtype=bool), counts / max(len(tosses), 1), np.nan)


def _differences(signs: Floats, filled: Floats, present: NDArray[np.bool_]) -> Floats:
    """Sum sign times difference over shared items: (draws, systems, systems)."""
    if present.all():
        sums = signs @ filled.T
        return sums[:, :, None] - sums[:, None, :]
    shared = np.stack([signs @ (row[:, None] * present.T) for row in filled], axis=1)
    differences: Floats = shared - shared.transpose(0, 2, 1)
    return differences


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
        if average not in ("macro", "micro"):
            raise RunError(f"unknown average {average!r}; known are macro and micro")
        self._measure, self._sample, self._grouping = measure, sample, grouping
        self._pool = _macro if average == "macro" else _micro
        self._groups: _WholeGroups | None = None

    def __call__(self, weights: Draws | Floats | None = None) -> Estimated:
        if isinstance(self._grouping, str) and self._grouping == "system-level":
            values = system_level_values(self._measure, self._sample, weights)
            unknown = np.isnan(values)
            return Estimated(values=values, groups=(~unknown).astype(np.int64), undefined=unknown.astype(np.int64))
        if self._groups is not None and (drawn := self._groups.draw(weights)) is not None:
            return self._pool(self._groups.values, self._groups.stats, drawn, self._groups.worth)
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
        pooled = Pooled(self._measure, self._measure.pool(stats))
        if is_whole:
            codes = [
                _share_codes(codes[starts[:-1]]) if is_constant_in_groups(codes, starts) else None
                for codes in (sample.item, sample.system)
            ]
            self._groups = _WholeGroups(pooled, stats, present, worth, codes[0], codes[1])
        return self._pool(pooled, stats, present * between, worth)

    def pooling(self, measure: Measure) -> Estimator:
        """Return the estimator of another measure that pools the same statistics, which are not computed again."""
        other = Estimator(measure, self._sample, self._grouping)
        other._pool, groups = self._pool, self._groups
        if groups is not None:
            other._groups = replace(groups, values=Pooled(measure, measure.pool(groups.stats)))
        return other


class Pooled(NamedTuple):
    """A measure, and its value in each group."""

    measure: Measure
    groups: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _WholeGroups:
    """Groups of a sample: their values and statistics, whether they have outputs, and the item and the system that all
    outputs of each group have, as codes or, where each group has its own, as a slice; None if a group has several."""

    values: Pooled
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


def _share_codes(codes: Codes) -> Codes | slice:
    """Return codes from 0 in order as a slice, with which nothing is copied."""
    return slice(0, len(codes)) if np.array_equal(codes, np.arange(len(codes))) else codes


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
            raise RunError(f"weights need a column per output, got {weights.shape} for {len(sample)} outputs")
        return weights if order is None else weights.take(order, axis=1), between
    sides = ((sample.item, weights.items, weights.of_items), (sample.system, weights.systems, weights.of_systems))
    for codes, drawn, of_outputs in sides:
        if drawn is not None:
            if is_constant_in_groups(codes, starts):
                between = between * drawn.take(codes[starts[:-1]], axis=1)
            else:
                picked = of_outputs(sample)
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


def _macro(pooled: Pooled, stats: Floats, drawn: Floats, worth: Floats) -> Estimated:  # noqa: ARG001
    values = pooled.groups
    defined = ~np.isnan(values)
    # With millions of groups, each pass over them counts.
    is_defined = len(drawn) >= len(values) and bool(defined.all())
    counts = drawn if is_defined else drawn * defined
    number = counts.sum(axis=1)
    is_plain = bool((worth == 1).all())
    weights = counts if is_plain else counts * worth
    total = (weights * (values if is_defined else np.where(defined, values, 0.0))).sum(axis=1)
    divisor = number if is_plain else weights.sum(axis=1)
    mean = np.divide(total, divisor, out=np.full(len(total), np.nan), where=number > 0)
    undefined = np.zeros(len(number)) if is_defined else drawn.sum(axis=1) - number
    return Estimated(values=mean, groups=number.astype(np.int64), undefined=undefined.astype(np.int64))


def _micro(pooled: Pooled, stats: Floats, drawn: Floats, worth: Floats) -> Estimated:
    defined = (drawn * ~np.isnan(pooled.groups)).sum(axis=1)
    values = pooled.measure.pool(((drawn * worth)[..., None] * stats).sum(axis=1))
    undefined = drawn.sum(axis=1) - defined
    return Estimated(values=values, groups=defined.astype(np.int64), undefined=undefined.astype(np.int64))
