"""Bootstrap and permutation of anything that is a function of summed rows: a system's score, or a measure.

A resample of the items is a row of counts, an exchange of two systems' items a row of zeros and ones; either way the
sums that are pooled are one matrix product `draws @ stats`. Nothing is scored again.

* `stats` are rows of numbers per item, `pool` turns sums of rows into scores along the last axis.
* The same generator state gives the same bits, whatever the size of the chunks, the number of cores or the BLAS: rows
  are split into whole numbers small enough that their sums are exact in any order.
* A draw that cannot be pooled (NaN) never supports a finding. It counts as at least as extreme as what was observed; an
  interval ignores such draws as long as they are fewer than either tail, and is (NaN, NaN) otherwise.
* An interval contains its value. Resamples add noise of their own: where that moves all of them to one side (a
  correlation of few systems' means, which noise lowers), the percentile interval ends short of the value. It is then
  extended to the value, never moved, so that it covers the truth at least as often.
* With fewer than two items there is no interval and no p-value, and neither for a score that is NaN: all are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.stats import Floats

Pool = Callable[[Floats], Floats]
Alternative = Literal["two-sided", "greater", "less"]
Test = Literal["bootstrap", "randomisation"]

#: Numbers in one chunk of draws (16 MiB); the draws do not depend on it.
CHUNK = 1 << 21
#: What a resample draws: items, systems, or both independently.
Over = Literal["items", "systems", "both"]
OVER: tuple[Over, ...] = ("items", "systems", "both")
#: Draws that equal what was observed must count, although their sums were rounded differently.
_SLACK = 1e-12
_MANTISSA = 53


class Difference(NamedTuple):
    """The difference of two systems (first minus second), with its interval and p-value."""

    value: float
    low: float
    high: float
    p: float


def pooled_interval(
    stats: Floats, pool: Pool, draws: int, rng: np.random.Generator, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the pooled score of rows (n, k), over resamples of the items."""
    value = float(pool_rows(stats[None], pool)[0])
    return interval(bootstrap_scores(stats[None], pool, draws, rng)[:, 0], confidence, len(stats), value)


def paired_bootstrap(
    first: Floats,
    second: Floats,
    pool: Pool,
    draws: int,
    rng: np.random.Generator,
    alternative: Alternative = "two-sided",
    confidence: float = 0.95,
) -> Difference:
    """Compare two systems on the same items, rows (n, k) each.

    The resampled differences, centred on zero, represent the null hypothesis.
    """
    stats = np.stack([first, second])
    scores = pool_rows(stats, pool)
    resampled = bootstrap_scores(stats, pool, draws, rng)
    differences, observed = resampled[:, :1] - resampled[:, 1:], scores[:1] - scores[1:]
    low, high = interval(differences[:, 0], confidence, len(first), float(observed[0]))
    extreme = count_extreme(differences - observed, observed, alternative, rounding_slack(scores[:1], scores[1:]))
    return Difference(float(observed[0]), low, high, float(p_values(extreme, draws, observed, len(first))[0]))


def paired_randomisation(
    first: Floats,
    second: Floats,
    pool: Pool,
    draws: int,
    rng: np.random.Generator,
    alternative: Alternative = "two-sided",
) -> float:
    """Return the p-value of approximate randomisation: how often would outputs that are exchanged at random, item by
    item, differ as much?"""
    stats = np.stack([first, second])
    scores = pool_rows(stats, pool)
    observed, slack = scores[:1] - scores[1:], rounding_slack(scores[:1], scores[1:])
    chunks = exchanged_differences(stats, [(0, 1)], pool, draws, rng)
    extreme = np.sum([count_extreme(null, observed, alternative, slack) for null in chunks], axis=0)
    return float(p_values(extreme, draws, observed, len(first))[0])


def pool_rows(stats: Floats, pool: Pool) -> Floats:
    """Return the scores (s,) of rows (s, n, k), summed exactly as the draws are."""
    sums = ExactSums(stats)(np.ones((1, stats.shape[1])))
    scores: Floats = pool(sums)[0]
    return scores


def bootstrap_scores(stats: Floats, pool: Pool, draws: int, rng: np.random.Generator) -> Floats:
    """Return scores (draws, s) of s systems on resamples of the n items that they share; rows are (s, n, k)."""
    sums = ExactSums(stats)
    chunks = [pool(sums(counts)) for counts in resample_counts(stats.shape[1], draws, rng, _chunk_rows(stats))]
    return np.concatenate(chunks) if chunks else np.empty((0, len(stats)))


def exchanged_differences(
    stats: Floats, pairs: Sequence[tuple[int, int]], pool: Pool, draws: int, rng: np.random.Generator
) -> Iterator[Floats]:
    """Yield differences (some draws, pairs) between two systems whose outputs were exchanged at random, item by item.

    They come in chunks, because all draws of all pairs of many systems would not fit into memory.
    """
    first, second = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    sums = ExactSums(stats)
    total = sums(np.ones((1, stats.shape[1])))
    for tosses in coin_tosses(stats.shape[1], draws, rng, _chunk_rows(stats, len(pairs))):
        moved = sums(tosses)
        gained = moved[:, second] - moved[:, first]
        yield pool(total[:, first] + gained) - pool(total[:, second] - gained)


def count_extreme(null: Floats, observed: Floats, alternative: Alternative, slack: Floats) -> NDArray[np.intp]:
    """Count the draws from the null (draws, pairs) that are at least as extreme as the observed values (pairs)."""
    match alternative:
        case "two-sided":
            reached = np.abs(null) >= np.abs(observed) - slack
        case "greater":
            reached = null >= observed - slack
        case "less":
            reached = null <= observed + slack
    counts: NDArray[np.intp] = np.count_nonzero(reached | np.isnan(null), axis=0)
    return counts


def p_values(extreme: NDArray[np.intp], draws: int, observed: Floats, items: int) -> Floats:
    """Return p = (c + 1) / (n + 1), where c of the n draws are at least as extreme as what was observed."""
    tested = ~np.isnan(observed) & (items >= 2)
    return np.where(tested, (extreme + 1) / (draws + 1), np.nan)


def smallest_p(test: Test, items: int, alternative: Alternative = "two-sided") -> float:
    """Return the smallest p-value that a paired test can give on so many items, whatever the scores, with any number of
    draws.

    Of the 2^n exchanges of n items, the one that exchanges nothing always differs as much as what was observed, and in
    a two-sided test the one that exchanges everything does too. Resamples of a difference that is the same on all items
    do not vary, so that the bootstrap has no limit: on few items it is overconfident.
    """
    if test == "bootstrap":
        return 0.0
    return float(2.0 ** ((1 if alternative == "two-sided" else 0) - items))


def interval(resampled: Floats, confidence: float, items: int, value: float) -> tuple[float, float]:
    """Return the percentile interval of the resamples of a value, with the policies of this module."""
    tail = (1 - confidence) / 2
    missing = np.isnan(resampled)
    if math.isnan(value) or items < 2 or not len(resampled) or (missing.any() and missing.mean() >= tail):
        return math.nan, math.nan
    low, high = np.quantile(resampled[~missing], [tail, 1 - tail])
    return min(float(low), value), max(float(high), value)


def explain_missing_interval(resampled: Floats, confidence: float, units: int, over: Over) -> str:
    """Say why `interval` gives no limits for a value; empty if it gives them, or if nothing was resampled."""
    if not len(resampled):
        return ""
    unit = {"items": "item", "systems": "system", "both": "item or system"}[over]
    if units < 2:
        return f"there is only {units} {unit} to resample"
    missing = float(np.isnan(resampled).mean())
    if not missing or missing < (1 - confidence) / 2:
        return ""
    drawn = "items and systems" if over == "both" else over
    return f"{missing:.0%} of the resamples of {drawn} leave it undefined"


def rounding_slack(first: Floats, second: Floats) -> Floats:
    """Return by how much rounding alone may change the difference of two scores."""
    return _SLACK * np.maximum(np.abs(first), np.abs(second))


def resample_counts(items: int, draws: int, rng: np.random.Generator, rows: int) -> Iterator[Floats]:
    """Yield bootstrap weights: how often each item was picked, at most `rows` draws at a time."""
    for size in (min(rows, draws - start) for start in range(0, draws, rows)):
        picked = rng.integers(0, items, size=(size, items)) if items else np.empty((size, 0), np.int64)
        picked += np.arange(size)[:, None] * items
        yield np.bincount(picked.ravel(), minlength=size * items).reshape(size, items).astype(np.float64)


def coin_tosses(items: int, draws: int, rng: np.random.Generator, rows: int) -> Iterator[Floats]:
    """Yield fair zeros and ones per item, at most `rows` draws at a time."""
    # Each draw uses whole 64-bit words: narrower types buffer bits within a call, so that draws would depend on chunks.
    words = -(-items // 64)
    for size in (min(rows, draws - start) for start in range(0, draws, rows)):
        bits = rng.integers(0, 2**64 - 1, size=(size, words), dtype=np.uint64, endpoint=True)
        octets = bits.astype("<u8").view(np.uint8).reshape(size, words * 8)
        yield np.unpackbits(octets, axis=1, count=items).astype(np.float64)


class ExactSums:
    """Weighted sums of rows (s, n, k), for whole weights that add up to at most n: `sums(weights)` is (draws, s, k).

    Each column becomes one or two columns of whole numbers, so small that no sum of n of them exceeds the 53 bits of a
    double. Such sums are exact in any order, and only their last step is rounded.
    """

    def __init__(self, stats: Floats) -> None:
        systems, items, width = stats.shape
        if not np.isfinite(stats).all():
            raise RunError("statistics to pool must be finite numbers, got NaN or infinity")
        rows = np.ascontiguousarray(stats.transpose(1, 0, 2), dtype=np.float64).reshape(items, systems * width)
        room = _MANTISSA - items.bit_length()
        _, exponent = np.frexp(np.abs(rows).max(axis=0, initial=0.0))
        self._shape = (systems, width)
        self._shift = room - exponent
        self._fine_shift = self._shift + room
        coarse = np.rint(np.ldexp(rows, self._shift))
        rest = rows - np.ldexp(coarse, -self._shift)
        self._fractional = np.flatnonzero(rest.any(axis=0))
        fine = np.rint(np.ldexp(rest[:, self._fractional], self._fine_shift[self._fractional]))
        self._columns = np.concatenate([coarse, fine], axis=1)

    def __call__(self, weights: Floats) -> Floats:
        products = weights @ self._columns
        width = len(self._shift)
        sums = np.ldexp(products[:, :width], -self._shift)
        sums[:, self._fractional] += np.ldexp(products[:, width:], -self._fine_shift[self._fractional])
        per_system: Floats = sums.reshape(len(weights), *self._shape)
        return per_system


def _chunk_rows(stats: Floats, pairs: int = 0) -> int:
    systems, items, width = map(int, stats.shape)
    return max(1, CHUNK // max(1, items, max(systems, pairs) * width))


# ---- Many systems, tested pair by pair


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTest:
    """Two systems' scores, their difference (first minus second) with its interval, and a p-value per test."""

    first: float
    second: float
    difference: float
    low: float
    high: float
    p: dict[Test, float]


def pair_tests(
    stats: Floats,
    pairs: Sequence[tuple[int, int]],
    pool: Pool,
    draws: int,
    rng: np.random.Generator,
    tests: Collection[Test] = ("bootstrap", "randomisation"),
    alternative: Alternative = "two-sided",
    confidence: float = 0.95,
) -> list[PairTest]:
    """Compare each pair of systems on the items that all share, rows (systems, items, k).

    All pairs share the draws, so that a pair's numbers do not depend on the other pairs.
    """
    for_resamples, for_tosses = rng.spawn(2)
    items = int(stats.shape[1])
    first, second = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    scores = pool_rows(stats, pool)
    observed, slack = scores[first] - scores[second], rounding_slack(scores[first], scores[second])

    resampled = bootstrap_scores(stats, pool, draws, for_resamples)
    spreads = [
        interval(resampled[:, a] - resampled[:, b], confidence, items, float(observed[i]))
        for i, (a, b) in enumerate(pairs)
    ]
    p: dict[Test, Floats] = {}
    if "bootstrap" in tests:
        nulls = (resampled[:, a] - resampled[:, b] - observed[i] for i, (a, b) in enumerate(pairs))
        counts = [count_extreme(null, observed[i], alternative, slack[i]) for i, null in enumerate(nulls)]
        p["bootstrap"] = p_values(np.array(counts), draws, observed, items)
    if "randomisation" in tests:
        chunks = exchanged_differences(stats, pairs, pool, draws, for_tosses)
        extreme = np.sum([count_extreme(null, observed, alternative, slack) for null in chunks], axis=0)
        p["randomisation"] = p_values(extreme, draws, observed, items)
    return [
        PairTest(
            first=float(scores[a]),
            second=float(scores[b]),
            difference=float(observed[i]),
            low=spreads[i][0],
            high=spreads[i][1],
            p={test: float(values[i]) for test, values in p.items()},
        )
        for i, (a, b) in enumerate(pairs)
    ]
