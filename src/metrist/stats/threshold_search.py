"""Find the exact best tie threshold: of 0 and all gaps between two scores, the smallest that makes most pairs right.

Raising ε over a gap ties its pairs: those that humans tie become right, concordant ones become wrong. Few pairs are
sorted and tried one by one. For many pairs, the number right at a single threshold takes O(n log n), and gives a bound
for all thresholds between two known ones: compared with the lower one they gain at most what humans tie in between.
Intervals that cannot contain the best are dropped and the others split at random gaps, until the remaining pairs are
few enough to be counted in narrow buckets; only those in buckets that may hold the best are sorted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist import kernels
from metrist.errors import RunError
from metrist.stats import Counts, Floats
from metrist.stats.ties import Pairing, count_gaps, greatest_gap, some_gaps

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


def best_threshold(pairing: Pairing) -> Threshold:
    """Return the threshold with the highest accuracy, the smallest of equals; NaN without any pair."""
    if not pairing.total_units:
        return Threshold(math.nan, 0)
    search = _Search(pairing)
    search.run()
    return search.best


class _Known(NamedTuple):
    """Thresholds that were tried, ascending: position on the ladder, units won and lost up to there, and pairs."""

    at: NDArray[np.intp]
    epsilons: Floats
    won: Counts
    lost: Counts
    pairs: Counts

    def merge(self, other: _Known) -> _Known:
        order = np.argsort(np.concatenate([self.at, other.at]), kind="stable")
        return _Known(*(np.concatenate([a, b])[order] for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Thresholds above `low` and up to `high`, with the pairs between them and the units right at `low`."""

    low: float
    high: float
    right: int
    pairs: int


class _Search:
    def __init__(self, pairing: Pairing) -> None:
        self._pairing = pairing
        self._columns = pairing.ranked, pairing.units
        right = int(pairing.at(0.0).right[0] @ pairing.units)
        self._untied = right - int(pairing.windows(np.zeros(1))[0, :, 0] @ pairing.units)
        self.best = Threshold(0.0, right)

    def run(self) -> None:
        pairs = count_gaps(self._pairing)
        everything = _Stretch(0.0, math.inf, self.best.right, pairs)
        for stretch in [everything] if pairs <= _FEW else self._narrow():
            self._exhaust(stretch)

    def _offer(self, epsilons: Floats, right: Counts) -> None:
        """Update the best with the first of the best of these ascending thresholds."""
        first = int(right.argmax())
        candidate = Threshold(float(epsilons[first]), int(right[first]))
        self.best = min(self.best, candidate, key=lambda threshold: (-threshold.right, threshold.epsilon))

    def _hopeful(self, bounds: Counts, lows: Floats | float) -> NDArray[np.bool_]:
        """Return whether thresholds above `lows` can be better than the best, or as good and smaller."""
        return bounds >= np.where(lows >= self.best.epsilon, self.best.right + 1, self.best.right)

    # ---- Narrowing down

    def _narrow(self) -> Iterator[_Stretch]:
        ladder = _ladder(self._pairing)
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
                return self._stretches(known, hopeful)
            known = known.merge(self._try(ladder, middles))

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

    def _stretches(self, known: _Known, hopeful: NDArray[np.bool_]) -> Iterator[_Stretch]:
        """Yield hopeful intervals as few stretches: neighbours are joined, and also those separated by little."""
        small = np.diff(known.pairs) <= _MIN_DENSITY * len(self._pairing.ranked.scores)
        ahead, behind = np.logical_or.accumulate(hopeful), np.logical_or.accumulate(hopeful[::-1])[::-1]
        joined = hopeful | (small & ahead & behind)
        edges = np.diff(joined.astype(np.int8), prepend=0, append=0)
        for first, last in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True):
            if hopeful[first:last].any():
                right = self._untied + int(known.won[first]) - int(known.lost[first])
                pairs = int(known.pairs[last] - known.pairs[first])
                yield _Stretch(float(known.epsilons[first]), float(known.epsilons[last]), right, pairs)

    # ---- Every threshold of a stretch

    def _exhaust(self, stretch: _Stretch) -> None:
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
            self._halve(inner)

    def _halve(self, stretch: _Stretch) -> None:
        """Split a stretch that is too narrow for buckets between its floating-point numbers."""
        # Round up, so that the last number is tried too.
        middle = _from_bits((_as_bits(stretch.low) + _as_bits(stretch.high) + 1) // 2)
        right = int(self._pairing.at(middle).right[0] @ self._pairing.units)
        self._offer(np.array([middle]), np.array([right]))
        if middle < stretch.high:
            self._exhaust(replace(stretch, high=middle))
            self._exhaust(replace(stretch, low=middle, right=right))

    def _sort(self, histogram: _Buckets, selected: NDArray[np.intp], inner: _Stretch, limit: int) -> bool:
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

    def inner(self, first: int, last: int, pairs: int) -> _Stretch:
        """Return the stretch from the first of some buckets to the last."""
        right = int(self.after()[first] - self.won[first] + self.lost[first])
        inside = self.pairs_in(np.arange(first, last + 1), pairs)
        return _Stretch(self._edge(first), self._edge(last + 1), right, math.ceil(inside))

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


def _ladder(pairing: Pairing) -> Floats:
    """Return gaps to try: 0, the greatest, and those of random pairs. They guide the search and do not change its
    result.

    A gap that occurs twice may be that of very many pairs, so the number just below it is included too.
    """
    gaps, times = np.unique(some_gaps(pairing, min(_RUNGS, count_gaps(pairing) // 64)), return_counts=True)
    repeated = gaps[(times > 1) & (gaps > 0)]
    return np.unique(np.concatenate([[0.0, greatest_gap(pairing)], gaps, np.nextafter(repeated, 0.0)]))


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
        raise RunError(f"a curve of accuracies needs at least 3 points, got {points}")
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
