"""Choose tie thresholds: the exact best one, accuracy as a function of it, and by how much the best one flatters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist import kernels
from metrist.errors import RunError
from metrist.kernels.columns import group_starts
from metrist.stats import Codes, Counts, Floats
from metrist.stats.estimation import estimate, is_constant_in_groups, split_weights
from metrist.stats.measures import accuracy_at
from metrist.stats.samples import Average, Draws, Grouping, Sample, number_groups
from metrist.stats.significance import student_t_tail
from metrist.stats.ties import Pairing, count_gaps, greatest_gap, pairing, some_gaps

# ---- The best threshold: of 0 and all gaps between two scores, the smallest that makes most pairs right
#
# Raising ε over a gap ties its pairs: those that humans tie become right, concordant ones become wrong. Few pairs are
# sorted and tried one by one. For many pairs, the number right at a single threshold takes O(n log n), and gives a
# bound for all thresholds between two known ones: compared with the lower one they gain at most what humans tie in
# between. Intervals that cannot contain the best are dropped and the others split at random gaps, until the remaining
# pairs are few enough to be counted in narrow buckets; only those in buckets that may hold the best are sorted.

#: Up to _FEW pairs are sorted directly; at most _SORTED are sorted at once.
_FEW = 1 << 12
_SORTED = 1 << 20
#: Buckets in a stretch of many pairs, and of few.
_MAX_BUCKETS, _MIN_BUCKETS = 1 << 15, 1 << 10
#: Random gaps at which intervals may be split.
_RUNGS = 1 << 16
_FIRST_RUNGS = 17
#: An interval is split, which takes a pass over all outputs, if it holds more pairs per output than this.
_MIN_DENSITY = 25
#: Thresholds times groups whose pairs are counted at a time.
_AT_A_TIME = 1 << 20


class Threshold(NamedTuple):
    """A tie threshold and the units (see `Pairing`) that it makes right."""

    epsilon: float
    right: int


def best_threshold(paired: Pairing) -> Threshold:
    """Return the threshold with the highest accuracy, the smallest of equals; NaN without any pair."""
    if not paired.total_units:
        return Threshold(math.nan, 0)
    return _ThresholdSearch(paired).run()


class _Known(NamedTuple):
    """Thresholds that were tried, ascending: position on the ladder, units won and lost up to there, and pairs."""

    at: NDArray[np.intp]
    epsilons: Floats
    won: Counts
    lost: Counts
    pairs: Counts


@dataclass(frozen=True, slots=True)
class _GapRange:
    """Thresholds above `low` and up to `high`, with the pairs between them and the units right at `low`."""

    low: float
    high: float
    right: int
    pairs: int


class _ThresholdSearch:
    def __init__(self, paired: Pairing) -> None:
        self._pairing = paired
        self._columns = paired.ranked, paired.units
        right = int(paired.at(0.0).right[0] @ paired.units)
        self._untied = right - int(paired.windows(np.zeros(1))[0, :, 0] @ paired.units)
        self.best = Threshold(0.0, right)

    def run(self) -> Threshold:
        pairs = count_gaps(self._pairing)
        everything = _GapRange(0.0, math.inf, self.best.right, pairs)
        for stretch in [everything] if pairs <= _FEW else self._narrow():
            self._exhaust(stretch)
        return self.best

    def _offer(self, epsilons: Floats, right: Counts) -> None:
        """Update the best with the first of the best of these ascending thresholds."""
        first = int(right.argmax())
        candidate = Threshold(float(epsilons[first]), int(right[first]))
        self.best = min(self.best, candidate, key=lambda threshold: (-threshold.right, threshold.epsilon))

    def _hopeful(self, bounds: Counts, lows: Floats | float) -> NDArray[np.bool_]:
        """Return whether thresholds above `lows` can be better than the best, or as good and smaller."""
        return bounds >= np.where(lows >= self.best.epsilon, self.best.right + 1, self.best.right)

    # ---- Narrowing down

    def _narrow(self) -> Iterator[_GapRange]:
        """Yield the stretches of gaps that may hold the best threshold."""
        # Gaps to try: 0, the greatest, and those of random pairs. They guide the search and do not change its result.
        # A gap that occurs twice may be that of very many pairs, so the number just below it is included too.
        some = some_gaps(self._pairing, min(_RUNGS, count_gaps(self._pairing) // 64))
        gaps, times = np.unique(some, return_counts=True)
        repeated = np.nextafter(gaps[(times > 1) & (gaps > 0)], 0.0)
        ladder = np.unique(np.concatenate([[0.0, greatest_gap(self._pairing)], gaps, repeated]))
        known = self._try(ladder, np.unique(np.linspace(0, len(ladder) - 1, _FIRST_RUNGS).astype(np.intp)))
        while True:
            right = self._untied + known.won - known.lost
            bounds = right[:-1] + np.diff(known.won)
            # There is no threshold between two adjacent numbers.
            roomy = known.epsilons[1:] > np.nextafter(known.epsilons[:-1], math.inf)
            hopeful = self._hopeful(bounds, known.epsilons[:-1]) & roomy
            below = known.at[:-1][hopeful]
            middles = (below + known.at[1:][hopeful]) // 2
            middles = middles[middles > below]
            remaining = int(np.diff(known.pairs)[hopeful].sum())
            if not len(middles) or remaining <= _MIN_DENSITY * len(middles) * len(self._pairing.ranked.scores):
                break
            tried = self._try(ladder, middles)
            order = np.argsort(np.concatenate([known.at, tried.at]), kind="stable")
            known = _Known(*(np.concatenate(columns)[order] for columns in zip(known, tried, strict=True)))
        # As few stretches as possible: neighbours are joined, and also those separated by little.
        small = np.diff(known.pairs) <= _MIN_DENSITY * len(self._pairing.ranked.scores)
        ahead, behind = np.logical_or.accumulate(hopeful), np.logical_or.accumulate(hopeful[::-1])[::-1]
        joined = hopeful | (small & ahead & behind)
        edges = np.diff(joined.astype(np.int8), prepend=0, append=0)
        for first, last in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True):
            if hopeful[first:last].any():
                right_before = self._untied + int(known.won[first]) - int(known.lost[first])
                pairs = int(known.pairs[last] - known.pairs[first])
                yield _GapRange(float(known.epsilons[first]), float(known.epsilons[last]), right_before, pairs)

    def _try(self, ladder: Floats, at: NDArray[np.intp]) -> _Known:
        # The counts of many groups are added up for a few thresholds at a time.
        rows = max(1, _AT_A_TIME // max(1, len(self._pairing.pairs)))
        sums = []
        for start in range(0, len(at), rows):
            counts = self._pairing.windows(ladder[at[start : start + rows]])
            won, lost = counts[:, :, 0] @ self._pairing.units, counts[:, :, 1] @ self._pairing.units
            sums.append((won, lost, counts[:, :, 2].sum(axis=1)))
        won, lost, pairs = map(np.concatenate, zip(*sums, strict=True))
        self._offer(ladder[at], self._untied + won - lost)
        return _Known(at, ladder[at], won, lost, pairs)

    # ---- Every threshold of a stretch

    def _exhaust(self, stretch: _GapRange) -> None:
        buckets = 1 if stretch.pairs <= _FEW else min(_MAX_BUCKETS, max(_MIN_BUCKETS, stretch.pairs // 4))
        scale = buckets / (stretch.high - stretch.low)
        cut = kernels.Stretch(stretch.low, stretch.high, stretch.low, scale)
        won, lost, _ = kernels.gap_histogram(*self._columns, cut, buckets).T
        histogram = _Buckets(cut, stretch.right, won, lost)
        hopeful = self._hopeful(histogram.bounds(), stretch.low) & (histogram.bounds() >= histogram.after().max())
        selected = np.flatnonzero(hopeful & (won + lost > 0))
        if len(selected):
            self._refine(histogram, stretch.pairs, selected)

    def _refine(self, histogram: _Buckets, pairs: int, selected: NDArray[np.intp]) -> None:
        """Sort the gaps of the selected buckets if they are few. Otherwise cut the buckets into finer ones: all at once
        if they lie close together, else in two parts."""
        inner = histogram.inner(int(selected[0]), int(selected[-1]), pairs)
        # Very many pairs may have few distinct gaps, if scores have few digits.
        limit = _SORTED if histogram.pairs_in(selected, pairs) <= _SORTED else _SORTED >> 4
        if self._sort(histogram, selected, inner, limit):
            return
        if inner.high - inner.low <= (histogram.cut.high - histogram.cut.low) / 2:
            self._exhaust(inner)
        elif len(selected) > 1:
            widest_gap = int(np.diff(selected).argmax()) + 1
            self._refine(histogram, pairs, selected[:widest_gap])
            self._refine(histogram, pairs, selected[widest_gap:])
        else:
            # It is too narrow for buckets: halve it between its floating-point numbers. Round up, so that the last
            # number is tried too.
            middle = _from_bits((_as_bits(inner.low) + _as_bits(inner.high) + 1) // 2)
            right = int(self._pairing.at(middle).right[0] @ self._pairing.units)
            self._offer(np.array([middle]), np.array([right]))
            if middle < inner.high:
                self._exhaust(replace(inner, high=middle))
                self._exhaust(replace(inner, low=middle, right=right))

    def _sort(self, histogram: _Buckets, selected: NDArray[np.intp], inner: _GapRange, limit: int) -> bool:
        """Return whether the gaps of these buckets were few enough; all of them have then been tried."""
        keep = np.zeros(len(histogram.won), np.bool_)
        keep[selected] = True
        part = histogram.cut._replace(low=inner.low, high=inner.high)
        listed = kernels.gaps_kept(*self._columns, part, keep, limit)
        if listed is None:
            return False
        order = np.argsort(listed[0])
        gaps, right = listed[0][order], np.cumsum(listed[1][order])
        # Add what the omitted buckets win and lose.
        missing = histogram.after() - np.cumsum(np.where(keep, histogram.won - histogram.lost, 0))
        right += missing[histogram.cut.buckets_of(gaps, len(keep))]
        # A threshold ties all pairs of a gap at once, so only the last of equal gaps counts.
        last = np.append(gaps[1:] != gaps[:-1], True)
        self._offer(gaps[last], right[last])
        return True


@dataclass(frozen=True, slots=True)
class _Buckets:
    """The pairs of a stretch by gap: units won and lost in each bucket, and the units right before the first."""

    cut: kernels.Stretch
    right: int
    won: Counts
    lost: Counts

    def after(self) -> Counts:
        return self.right + np.cumsum(self.won - self.lost)

    def bounds(self) -> Counts:
        return self.after() + self.lost

    def pairs_in(self, selected: NDArray[np.intp], pairs: int) -> float:
        """Estimate how many of the stretch's pairs these buckets hold, by their share of all units won or lost."""
        units = self.won + self.lost
        return pairs * float(units[selected].sum() / units.sum())

    def inner(self, first: int, last: int, pairs: int) -> _GapRange:
        """Return the stretch from the first of some buckets to the last."""
        right = int(self.after()[first] - self.won[first] + self.lost[first])
        inside = self.pairs_in(np.arange(first, last + 1), pairs)
        return _GapRange(self._edge(first), self._edge(last + 1), right, math.ceil(inside))

    def _edge(self, bucket: int) -> float:
        """Return the greatest number below the bucket, by bisection over the floating-point numbers."""
        low, high = _as_bits(self.cut.low), _as_bits(self.cut.high)
        if bucket in (0, len(self.won)):
            return _from_bits(low if bucket == 0 else high)
        while high - low > 1:
            middle = (low + high) // 2
            if (_from_bits(middle) - self.cut.origin) * self.cut.scale < bucket:
                low = middle
            else:
                high = middle
        return _from_bits(low)


def _as_bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))


def _from_bits(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))


# ---- Accuracy as a function of ε


#: Pairs from whose gaps the points are taken.
_CURVE_PAIRS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TieCurve:
    """Ascending thresholds, with the accuracy and the share of tied pairs at each."""

    epsilons: Floats
    accuracies: Floats
    tie_shares: Floats


def tie_curve(paired: Pairing, points: int = 200) -> TieCurve:
    """Return at most `points` thresholds: 0, the best, the greatest gap, and gaps spread evenly over the pairs between
    them.

    Values are exact at each point. If there are few pairs and no more distinct gaps than that, all are included.
    """
    if points < 3:
        raise RunError(f"a curve of accuracies needs at least 3 points, got {points}", code="invalid_value")
    if not paired.total_units:
        return TieCurve(epsilons=np.empty(0), accuracies=np.empty(0), tie_shares=np.empty(0))
    gaps = some_gaps(paired, _CURVE_PAIRS)
    fixed = np.unique([0.0, best_threshold(paired).epsilon, greatest_gap(paired)])
    room, others = points - len(fixed), np.setdiff1d(gaps, fixed)
    if len(others) > room:
        others = gaps[np.linspace(0, len(gaps) - 1, room).round().astype(np.intp)]
    epsilons = np.union1d(fixed, others)
    counted = paired.at(epsilons)
    right, tied = (counts @ paired.units / paired.total_units for counts in counted)
    return TieCurve(epsilons=epsilons, accuracies=right, tie_shares=tied)


# ---- By how much a threshold overstates the accuracy that it was chosen for, and intervals that account for it
#
# The best of many thresholds also fits the noise of the sample: the accuracy at it is higher than that of the same
# metric, at its best threshold, on unlimited data. The bootstrap estimates by how much (Efron 1983): in each resample ε
# is chosen again, and the accuracy there compared with that of all data at the same ε. The mean of these differences,
# `optimism`, is what `calibrated_interval` subtracts. It is a rough number, because resamples share the sample's noise:
# in simulations of 3 to 16 systems and 30 to 150 items the true value was between half of it and all of it. The
# interval is therefore a little wider too.
#
# If a draw takes or leaves whole groups (items under a grouping by item), the gaps of all pairs are sorted once and a
# draw is one pass of weighted sums over them. If it cuts across groups, the exact search is repeated for each draw.
# Beyond `MAX_PAIRS` sorted pairs, or `MAX_OUTPUTS` searched, the optimism is taken as 0: with so many pairs it is a
# small part of the interval's width. This depends only on the size of the data, so that a seed always gives the same
# result.

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
        if len(self.sample) > MAX_OUTPUTS:
            return None
        times = np.broadcast_to(between, (len(within), between.shape[1])).astype(np.int64)
        # A draw may leave a group without a pair, so groups are identified by one of their outputs.
        group_of = np.zeros(len(self.sample), np.intp)
        group_of[order] = np.repeat(np.arange(len(paired.pairs)), np.diff(starts))
        epsilons = np.empty(len(within))
        for draw, weights in enumerate(within):
            redrawn = self.pairing(weights)
            drawn = times[draw, group_of[redrawn.order[redrawn.ranked.starts[:-1]]]]
            epsilons[draw] = best_threshold(replace(redrawn, units=redrawn.units * drawn)).epsilon
        return epsilons


def optimism(
    choice: ThresholdChoice, evaluated: Sample, grouping: Grouping | Codes, draws: Draws, average: Average = "macro"
) -> float:
    """Return by how much the accuracy of `evaluated` at the threshold of `choice` exceeds, on average, what that
    threshold reaches on other data. The evaluated outputs are some, or all, of those it was chosen on."""
    epsilons, fixed = choice.choose_again(draws), choice.best()
    if epsilons is None or math.isnan(fixed) or not len(evaluated):
        return 0.0

    def add_all(counts: Floats | None, rows: NDArray[np.intp]) -> Floats | None:
        return None if counts is None else np.concatenate([counts[rows], np.ones((1, counts.shape[1]))])

    def above_all_data(epsilon: float, rows: NDArray[np.intp]) -> Floats:
        chosen = Draws(items=add_all(draws.items, rows), systems=add_all(draws.systems, rows))
        values = estimate(accuracy_at(epsilon), evaluated, grouping, chosen, average).values
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
    reach = NormalDist().inv_cdf(1 - tail)
    wider = math.sqrt(units / (units - 1)) * _student_t_quantile(tail, units - 1) / reach
    spread = (high - low) / 2 / reach
    centre = value - optimism
    if spread > 0:
        wider *= math.hypot(1, optimism / 2 / spread)
        below, above = (value - low) * wider, (high - value) * wider
    else:  # All resamples agree, and the optimism is all that is in doubt.
        below = above = wider * reach * abs(optimism) / 2
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
