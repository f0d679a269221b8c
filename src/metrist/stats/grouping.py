"""Agreement about whole systems: correlation and accuracy over system means, and soft pairwise accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError, did_you_mean
from metrist.kernels.columns import Places, segment_sums
from metrist.stats import Codes, Floats
from metrist.stats.measures import Measure, group_means
from metrist.stats.resampling import coin_tosses
from metrist.stats.samples import GROUPINGS, Average, Draws, Grouping, Sample

#: Sums that were rounded on different paths differ by less than this share of their size.
_SLACK: Final = 1e-12
_AT_ONCE: Final = 1 << 21


def system_level_values(measure: Measure, sample: Sample, weights: Draws | Floats | None = None) -> Floats:
    """The measure between the systems' mean human and mean metric values, once per draw.

    Draws of items change the means, draws of systems which means are compared. A system none of whose outputs was
    drawn takes no part. With `acc_eq` this is system-level pairwise accuracy (Kocmi et al. 2021): of all pairs of
    systems, the share whose means differ in the same direction on both sides, or are equal on both.
    """
    order = np.argsort(sample.system, kind="stable")
    ordered = sample.take(order)
    systems, starts = np.unique(ordered.system, return_index=True)
    starts = np.append(starts, len(ordered))
    drawn, at, picked = _weights(ordered, weights, order, systems)
    means, size = group_means((ordered.human, ordered.metric), drawn, starts, at)
    human, metric = means[..., 0], means[..., 1]
    present = picked * (size > 0)
    if len(human) == 1:
        return measure.pool(measure.rows(human[0], metric[0], present))
    # Means change from draw to draw: each draw is a group of its own, all weighed once.
    ends = np.arange(len(human) + 1) * len(systems)
    stats = measure.grouped_rows(human.ravel(), metric.ravel(), np.ascontiguousarray(present).reshape(1, -1), ends)
    per_draw: Floats = measure.pool(stats)[0]
    return per_draw


def _weights(
    sample: Sample, weights: Draws | Floats | None, order: Places, systems: Codes
) -> tuple[Floats, Places | None, Floats]:
    """How often outputs, or items and so the outputs at them, were drawn, and how often each system was."""
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
    """Soft pairwise accuracy with what a metric reaches that cannot tell any two systems apart, and the p-values
    (systems, systems) that both were computed from."""

    value: float
    chance: float
    human_p: Floats
    metric_p: Floats


def soft_pairwise_accuracy(sample: Sample, draws: int, rng: np.random.Generator) -> SoftAccuracy:
    """Do humans and metric agree on how sure they are that one system beats another (Thompson et al. 2024)?

    Both sides see the same exchanges of outputs.
    """
    tosses = np.concatenate(list(coin_tosses(_items(sample), draws, rng, draws or 1)))
    human_p = superiority_p_values(system_by_item(sample, sample.human), tosses)
    metric_p = superiority_p_values(system_by_item(sample, sample.metric), tosses)
    half = np.full_like(human_p, 0.5)
    value, chance = soft_agreement(human_p, metric_p), soft_agreement(human_p, half)
    return SoftAccuracy(value=value, chance=chance, human_p=human_p, metric_p=metric_p)


def soft_agreement(human_p: Floats, metric_p: Floats) -> float:
    """One minus the mean gap between two tables of p-values, over all pairs of systems that have both."""
    upper = np.triu_indices(len(human_p), 1)
    gaps = np.abs(human_p - metric_p)[upper]
    known = ~np.isnan(gaps)
    return float(1.0 - gaps[known].mean()) if known.any() else float("nan")


def system_by_item(sample: Sample, values: Floats) -> Floats:
    """A sample's column as (systems, items), NaN where an output is missing; numbers without outputs are left out."""
    systems, row = np.unique(sample.system, return_inverse=True)
    items, column = np.unique(sample.item, return_inverse=True)
    cells = row * len(items) + column
    if len(np.unique(cells)) < len(cells):
        raise RunError("a paired test needs one output per system and item, but some item has two of one system")
    grid = np.full((len(systems), len(items)), np.nan)
    grid.ravel()[cells] = values
    return grid


def superiority_p_values(values: Floats, tosses: Floats) -> Floats:
    """How surely each system (row) beats each other (column): the p-value, one-sided, of a paired permutation test on
    the items that both have. Small where the row's system is better; NaN where two share no item.

    `tosses` (draws, items) are zeros and ones: where 1, the two systems' outputs are exchanged. A draw whose difference
    equals the observed one counts half, so that p[a, b] + p[b, a] = 1 and the order of systems does not matter.
    """
    present = ~np.isnan(values)
    filled = _near_one(np.where(present, values, 0.0))
    counts = np.zeros((len(values), len(values)))
    observed = _differences(np.ones((1, values.shape[1])), filled, present)[0]
    size = np.abs(filled) @ present.T
    slack = _SLACK * (size + size.T)
    rows = max(1, _AT_ONCE // max(1, len(values) ** 2))
    for start in range(0, len(tosses), rows):
        gap = _differences(1.0 - 2.0 * tosses[start : start + rows], filled, present) - observed
        counts += (gap > slack).sum(axis=0) + 0.5 * (np.abs(gap) <= slack).sum(axis=0)
    shared = present.astype(np.float64) @ present.T.astype(np.float64) > 0
    return np.where(shared & ~np.eye(len(values), dtype=bool), counts / max(len(tosses), 1), np.nan)


def _differences(signs: Floats, filled: Floats, present: NDArray[np.bool_]) -> Floats:
    """Sums over shared items of sign times difference: (draws, systems, systems)."""
    if present.all():
        sums = signs @ filled.T
        return sums[:, :, None] - sums[:, None, :]
    shared = np.stack([signs @ (row[:, None] * present.T) for row in filled], axis=1)
    differences: Floats = shared - shared.transpose(0, 2, 1)
    return differences


def _near_one(values: Floats) -> Floats:
    """Times a power of two, so that no sum overflows."""
    _, exponent = np.frexp(np.abs(values).max(initial=0.0))
    scaled: Floats = np.ldexp(values, -exponent)
    return scaled


def _items(sample: Sample) -> int:
    return len(np.unique(sample.item))


# A measure over groups of outputs: within items, within systems, within a column's values, or of system means.
#
# What is resampled and what is grouped meet here. A group that is drawn twice is there twice, as itself; outputs drawn
# within a group are there twice in the group, where pairwise measures do not pair them with themselves. So items drawn
# weigh whole groups where each group is of one item, and the outputs within groups where it is not; systems likewise.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimated:
    """One entry per draw: the value, how many groups it rests on, and how many were left out because the measure is
    undefined in them (one output, or one side constant). Groups drawn twice count twice."""

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
    """The measure of a sample, once per draw (once where there are none).

    `grouping` may be a column: a number per output. `weights` as an array (draws, outputs) weigh outputs within their
    groups. Macro averages the values of the groups where the measure is defined; micro pools the sum of all groups'
    rows, so that groups count by what they hold. The mean of no groups is NaN.
    """
    if average not in ("macro", "micro"):
        raise RunError(f"no average {average!r}; known are macro and micro")
    if isinstance(grouping, str) and grouping == "system-level":
        values = system_level_values(measure, sample, weights)
        return Estimated(values=values, groups=_whole(~np.isnan(values)), undefined=_whole(np.isnan(values)))
    column = _column(sample, grouping)
    order = np.argsort(column, kind="stable")
    sample, column = sample.take(order), column[order]
    starts = _starts(column)
    within, between = _split(sample, weights, order, starts)
    stats = measure.grouped_rows(sample.human, sample.metric, within, starts)
    drawn = (segment_sums(within, starts) > 0) * between
    return (_macro if average == "macro" else _micro)(measure, stats, drawn)


def _column(sample: Sample, grouping: Grouping | Codes) -> Codes:
    if isinstance(grouping, str):
        known = {"none": np.zeros(len(sample), np.intp), "item": sample.item, "system": sample.system}
        if grouping not in known:
            raise RunError(f"no grouping {grouping!r}{did_you_mean(grouping, GROUPINGS)}")
        return known[grouping]
    if len(grouping) != len(sample):
        raise RunError(f"a column to group by needs one entry per output, got {len(grouping)} for {len(sample)}")
    return np.asarray(grouping)


def _starts(column: Codes) -> Places:
    first = np.ones(len(column), dtype=bool)
    first[1:] = column[1:] != column[:-1]
    return np.append(np.flatnonzero(first), len(column))


def _split(sample: Sample, weights: Draws | Floats | None, order: Places, starts: Places) -> tuple[Floats, Floats]:
    """Weights of outputs within their groups (draws, outputs), and of whole groups (draws, groups); one row each where
    all draws have the same."""
    within, between = np.ones((1, len(sample))), np.ones((1, len(starts) - 1))
    if weights is None:
        return within, between
    if not isinstance(weights, Draws):
        if weights.ndim != 2 or weights.shape[1] != len(sample):
            raise RunError(f"weights need a column per output, got {weights.shape} for {len(sample)} outputs")
        return weights.take(order, axis=1), between
    sides = ((sample.item, weights.items, weights.of_items), (sample.system, weights.systems, weights.of_systems))
    for codes, drawn, of_outputs in sides:
        if drawn is not None:
            if draws_whole_groups(codes, starts):
                between = between * drawn.take(codes[starts[:-1]], axis=1)
            else:
                within = within * of_outputs(sample)
    return within, between


def draws_whole_groups(codes: Codes, starts: Places) -> bool:
    """Whether drawing what has these codes takes or leaves whole groups: no group has outputs with two of them."""
    changes = np.flatnonzero(np.diff(codes)) + 1
    return bool(np.isin(changes, starts).all())


def _macro(measure: Measure, stats: Floats, drawn: Floats) -> Estimated:
    values = measure.pool(stats)
    defined = ~np.isnan(values)
    counts = drawn * defined
    number = counts.sum(axis=1)
    total = (counts * np.where(defined, values, 0.0)).sum(axis=1)
    mean = np.divide(total, number, out=np.full(len(total), np.nan), where=number > 0)
    return Estimated(values=mean, groups=_whole(number), undefined=_whole(drawn.sum(axis=1) - number))


def _micro(measure: Measure, stats: Floats, drawn: Floats) -> Estimated:
    defined = (drawn * ~np.isnan(measure.pool(stats))).sum(axis=1)
    values = measure.pool((drawn[..., None] * stats).sum(axis=1))
    return Estimated(values=values, groups=_whole(defined), undefined=_whole(drawn.sum(axis=1) - defined))


def _whole(counts: Floats | NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.asarray(counts).astype(np.int64)
