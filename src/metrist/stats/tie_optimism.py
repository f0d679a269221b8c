"""By how much a tie threshold overstates the accuracy it was chosen for, and intervals that account for it.

The best of many thresholds also fits the noise of the sample: the accuracy at it is higher than that of the same
metric, at its best threshold, on unlimited data. The bootstrap estimates by how much (Efron 1983): in each resample ε
is chosen again, and the accuracy there compared with that of all data at the same ε. The mean of these differences,
`optimism`, is what `calibrated_interval` subtracts. It is a rough number, because resamples share the sample's noise:
in simulations of 3 to 16 systems and 30 to 150 items the true value was between half of it and all of it. The interval
is therefore a little wider too.

If a draw takes or leaves whole groups (items under a grouping by item), the gaps of all pairs are sorted once and a
draw is one pass of weighted sums over them. If it cuts across groups, the exact search is repeated for each draw.
Beyond `MAX_PAIRS` sorted pairs, or `MAX_OUTPUTS` searched, the optimism is taken as 0: with so many pairs it is a small
part of the interval's width. This depends only on the size of the data, so that a seed always gives the same result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metrist import kernels
from metrist.kernels.columns import group_starts
from metrist.stats import Codes, Floats
from metrist.stats.grouping import estimate, is_constant_in_groups, split_weights
from metrist.stats.measures import accuracy_at
from metrist.stats.samples import Average, Draws, Grouping, Sample, number_groups
from metrist.stats.significance import normal_quantile, student_t_tail
from metrist.stats.threshold_search import best_threshold
from metrist.stats.ties import Pairing, pairing

MAX_PAIRS = 1 << 22
MAX_OUTPUTS = 600
#: Maximum worth of all pairs together where groups have weights: far enough from 2^63 for groups drawn several times.
_MAX_UNITS = 1 << 58


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ThresholdChoice:
    """The data that a threshold is chosen on: outputs, which of them are paired (those of one group and slice), and how
    the accuracy is averaged over groups and slices (see `pairing`)."""

    sample: Sample
    groups: Codes
    slices: Codes | None = None
    average: Average = "macro"
    slice_average: Average = "macro"

    def pairing(self, weights: Floats | None = None) -> Pairing:
        inside, whole = self._weights()
        if inside is not None:
            weights = inside if weights is None else weights * inside
        paired = pairing(
            self.sample.human,
            self.sample.metric,
            self.groups,
            slices=self.slices,
            average=self.average,
            slice_average=self.slice_average,
            weights=weights,
        )
        if whole is None or not len(paired.pairs):
            return paired
        units = paired.units * whole[paired.order[paired.ranked.starts[:-1]]]
        scale = _MAX_UNITS / float(np.dot(paired.pairs, units))
        return replace(paired, units=np.maximum(1, np.rint(units * scale)).astype(np.int64))

    def _weights(self) -> tuple[Floats | None, Floats | None]:
        """Return the sampling weights of outputs within groups, and those of the group of each output."""
        if self.sample.weight is None:
            return None, None
        order = np.argsort(self.groups, kind="stable")
        inside, whole = split_weights(self.sample.take(order), group_starts(self.groups[order]))
        return None if inside is None else self.sample.weight, None if whole is None else self.sample.weight

    def best(self) -> float:
        """Return the threshold; NaN without any pair."""
        return best_threshold(self.pairing()).epsilon

    def is_too_large(self) -> bool:
        """Return whether `choose_again` would surely take too long."""
        if self.sample.weight is not None or self.slices is not None or len(self.sample) <= MAX_OUTPUTS:
            return False
        sizes = np.bincount(number_groups(self.groups)[1])
        return int((sizes * (sizes - 1) // 2).sum()) > MAX_PAIRS

    def choose_again(self, draws: Draws) -> Floats | None:
        """Return the threshold chosen in each draw, NaN if it has no pair; None if that would take too long. Slices
        keep the share in the average that they have in the data."""
        paired = self.pairing()
        starts, order = paired.ranked.starts, paired.order
        within, between = None, np.ones((1, len(starts) - 1))
        sides = ((self.sample.item, draws.items), (self.sample.system, draws.systems))
        for codes, drawn in sides:
            if drawn is not None:
                if is_constant_in_groups(codes[order], starts):
                    between = between * drawn.take(codes[order[starts[:-1]]], axis=1)
                else:
                    within = drawn.take(codes, axis=1) * (1.0 if within is None else within)
        if within is None and self._weights()[0] is not None:
            within = np.ones((len(between), len(self.sample)))
        if within is None:
            return _choose_by_sorting(paired, between) if paired.pairs.sum() <= MAX_PAIRS else None
        return self._search(within, between, paired) if len(self.sample) <= MAX_OUTPUTS else None

    def _search(self, within: Floats, between: Floats, all_pairs: Pairing) -> Floats:
        times = np.broadcast_to(between, (len(within), between.shape[1])).astype(np.int64)
        # A draw may leave a group without a pair, so groups are identified by one of their outputs.
        group_of = np.zeros(len(self.sample), np.intp)
        group_of[all_pairs.order] = np.repeat(np.arange(len(all_pairs.pairs)), np.diff(all_pairs.ranked.starts))
        epsilons = np.empty(len(within))
        for draw, weights in enumerate(within):
            paired = self.pairing(weights)
            drawn = times[draw, group_of[paired.order[paired.ranked.starts[:-1]]]]
            epsilons[draw] = best_threshold(replace(paired, units=paired.units * drawn)).epsilon
        return epsilons


def optimism(
    choice: ThresholdChoice, evaluated: Sample, grouping: Grouping | Codes, draws: Draws, average: Average = "macro"
) -> float:
    """Return by how much the accuracy of `evaluated` at the threshold of `choice` exceeds, on average, what that
    threshold reaches on other data. The evaluated outputs are some, or all, of those it was chosen on."""
    epsilons, fixed = choice.choose_again(draws), choice.best()
    if epsilons is None or math.isnan(fixed) or not len(evaluated):
        return 0.0

    def above_all_data(epsilon: float, rows: NDArray[np.intp]) -> Floats:
        values = estimate(accuracy_at(epsilon), evaluated, grouping, _select_draws(draws, rows), average).values
        above: Floats = values[:-1] - values[-1]
        return above

    # At a fixed threshold the difference is pure chance: subtract it to reduce the noise.
    differences = -above_all_data(fixed, np.arange(len(epsilons)))
    differences[np.isnan(epsilons)] = np.nan
    for epsilon in np.unique(epsilons[~np.isnan(epsilons)]):
        rows = np.flatnonzero(epsilons == epsilon)
        differences[rows] += above_all_data(float(epsilon), rows)
    known = differences[~np.isnan(differences)]
    return float(known.mean()) if len(known) else 0.0


def calibrated_interval(
    value: float, low: float, high: float, *, optimism: float, units: int, confidence: float
) -> tuple[float, float]:
    """Shift a percentile interval of resamples at a fixed threshold by the optimism of choosing that threshold.

    It is widened twice: from the normal distribution's quantile to Student's, because resamples of few units vary less
    than samples do; and because the optimism is only known to half of itself, which is taken as its standard error. It
    stays within 0 to 1, and contains the value: where the shift is larger than the upper half of the interval, that
    half ends at the value, so that the interval covers the truth at least as often.
    """
    if units < 2 or math.isnan(low):
        return math.nan, math.nan
    tail = (1 - confidence) / 2
    wider = math.sqrt(units / (units - 1)) * _student_t_quantile(tail, units - 1) / normal_quantile(1 - tail)
    spread = (high - low) / 2 / normal_quantile(1 - tail)
    centre = value - optimism
    if spread > 0:
        wider *= math.hypot(1, optimism / 2 / spread)
        below, above = (value - low) * wider, (high - value) * wider
    else:  # All resamples agree, and the optimism is all that is in doubt.
        below = above = wider * normal_quantile(1 - tail) * abs(optimism) / 2
    return max(0.0, min(centre - below, value)), min(1.0, max(centre + above, value))


def _student_t_quantile(tail: float, freedom: int) -> float:
    """Return the value that Student's t exceeds with this probability, less than a half, by bisection."""
    low, high = 0.0, 1.0
    while student_t_tail(high, freedom) > tail:
        low, high = high, high * 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if student_t_tail(middle, freedom) > tail else (low, middle)
    return high


def _choose_by_sorting(paired: Pairing, weights: Floats) -> Floats:
    """Return the threshold of each row of group weights (draws, groups)."""
    scores, levels, _, starts = paired.ranked
    sizes = np.diff(starts)
    group = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(scores)) - starts[group]
    later = np.repeat(np.arange(len(scores)), place)
    earlier = np.arange(len(later)) - np.repeat(np.cumsum(place) - place, place) + starts[group[later]]
    gaps, climb = scores[later] - scores[earlier], np.sign(levels[later] - levels[earlier])
    # Pairs that a tie makes right or wrong, by ascending gap.
    moving = np.flatnonzero((gaps > 0) & (climb >= 0))
    moving = moving[np.argsort(gaps[moving], kind="stable")]
    gaps, groups = gaps[moving], group[later[moving]].astype(np.int32)
    gains = (np.where(climb[moving] == 0, 1, -1) * paired.units[groups]).astype(np.float64)
    lasts = np.flatnonzero(np.append(gaps[1:] != gaps[:-1], True)) if len(gaps) else np.zeros(0, np.int64)
    _, at = kernels.best_prefixes(gains, groups, lasts.astype(np.int64), np.ascontiguousarray(weights))
    # Index -1, if no tie helps, is the 0 at the end.
    epsilons = np.append(gaps[lasts], 0.0)[at]
    return np.where(weights.any(axis=1), epsilons, np.nan)


def _select_draws(draws: Draws, rows: NDArray[np.intp]) -> Draws:
    """Return some of the draws, followed by one that has everything once."""

    def with_all(counts: Floats | None) -> Floats | None:
        return None if counts is None else np.concatenate([counts[rows], np.ones((1, counts.shape[1]))])

    return Draws(items=with_all(draws.items), systems=with_all(draws.systems))
