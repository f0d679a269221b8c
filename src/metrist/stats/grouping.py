"""A measure over groups of outputs: within items, within systems, within a column's values, or of system means.

What is resampled and what is grouped meet here. A group that is drawn twice is there twice, as itself; outputs drawn
within a group are there twice in the group, where pairwise measures do not pair them with themselves. So items drawn
weigh whole groups where each group is of one item, and the outputs within groups where it is not; systems likewise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError, did_you_mean
from metrist.kernels.arranging import Floats, Places, segment_sums
from metrist.stats.measures import Measure
from metrist.stats.sample import Codes, Draws, Sample
from metrist.stats.system_level import system_level_values

Grouping = Literal["none", "item", "system", "system-level"]
Average = Literal["macro", "micro"]
GROUPINGS: tuple[Grouping, ...] = ("none", "item", "system", "system-level")


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
