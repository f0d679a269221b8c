"""Agreement about whole systems: correlation and accuracy over system means, and soft pairwise accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.kernels.columns import Floats, Places
from metrist.stats.measures import Measure
from metrist.stats.moments import group_means
from metrist.stats.resample import coin_tosses
from metrist.stats.sample import Codes, Draws, Sample

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
