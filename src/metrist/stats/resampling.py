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

import hashlib
import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.stats import Floats, Pool
from metrist.threads import parallel_map, thread_count

Alternative = Literal["two-sided", "greater", "less"]
Test = Literal["bootstrap", "randomisation"]

#: Numbers in one chunk of draws (16 MiB); the draws do not depend on it.
CHUNK = 1 << 21
#: What a resample draws: items, systems, or both independently.
Over = Literal["items", "systems", "both"]
#: Draws that equal what was observed must count, although their sums were rounded differently.
_SLACK = 1e-12
#: Scores whose spread is less than this share of them are centred before they are tested.
_FAR = 1e-6
_MANTISSA = 53
_NARROW = (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.int32))
#: Numbers up to which columns are kept as one matrix of doubles (16 MiB).
_MAX_MATRIX = 1 << 21
#: Items whose columns are summed at a time, and draws that are collected for them.
_BLOCK, _COLLECTED = 1 << 12, 64


def pooled_interval(
    stats: Floats, pool: Pool, draws: int, rng: np.random.Generator, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the pooled score of rows (n, k), over resamples of the items."""
    value = float(pool_rows(stats[None], pool)[0])
    return interval(bootstrap_scores(stats[None], pool, draws, rng)[:, 0], confidence, len(stats), value)


def pool_rows(stats: Floats, pool: Pool) -> Floats:
    """Return the scores (s,) of rows (s, n, k), summed exactly as the draws are."""
    scores: Floats = pool(ExactSums.of(stats)(np.ones((1, stats.shape[1]))))[0]
    return scores


def bootstrap_scores(stats: Floats, pool: Pool, draws: int, rng: np.random.Generator) -> Floats:
    """Return scores (draws, s) of s systems on resamples of the n items that they share; rows are (s, n, k)."""
    counts = resample_counts(stats.shape[1], draws, rng, _chunk_rows(stats.shape[1], len(stats), stats.shape[2]))
    chunks = [pool(sums) for (sums,) in draw_sums(counts, [ExactSums.of(stats)])]
    return np.concatenate(chunks) if chunks else np.empty((0, len(stats)))


def exchanged_differences(
    stats: Floats, pairs: Sequence[tuple[int, int]], pool: Pool, draws: int, rng: np.random.Generator
) -> Iterator[Floats]:
    """Yield differences (some draws, pairs) between two systems whose outputs were exchanged at random, item by item.

    They come in chunks, because all draws of all pairs of many systems would not fit into memory.
    """
    sums = ExactSums.of(stats)
    total = sums(np.ones((1, stats.shape[1])))
    rows = _chunk_rows(stats.shape[1], len(stats), stats.shape[2], len(pairs))
    for (moved,) in draw_sums(coin_tosses(stats.shape[1], draws, rng, rows), [sums]):
        yield _exchange(total, moved, pairs, pool)


def _exchange(total: Floats, moved: Floats, pairs: Sequence[tuple[int, int]], pool: Pool) -> Floats:
    """The differences (draws, pairs) after `moved` sums of rows have changed sides."""
    first, second = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    gained = moved[:, second] - moved[:, first]
    return pool(total[:, first] + gained) - pool(total[:, second] - gained)


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


def add_intervals(values: Floats, resampled: Floats, confidence: float, items: int) -> Floats:
    """Return values with the limits of their intervals (3, values); `resampled` is (draws, values)."""
    limits = [interval(resampled[:, n], confidence, items, value) for n, value in enumerate(values.tolist())]
    return np.stack([values, *np.array(limits).T])


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


def find_origin(values: Floats) -> float:
    """Return a number to subtract from scores before their means are tested, 0 for ordinary scores.

    Scores that lie a million times as far from 0 as from each other would differ by less than `rounding_slack`.
    """
    if not values.size:
        return 0.0
    low, high = float(values.min()), float(values.max())
    return low if 0 < high - low < min(abs(low), abs(high)) * _FAR else 0.0


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
    double. Such sums are exact in any order, and only their last step is rounded. Many rows are kept in narrow types,
    equal columns once, and summed block by block.
    """

    def __init__(self, systems: int, items: int, width: int, read: Callable[[int], NDArray[Any]]) -> None:
        """The rows are read system by system: `read(s)` is (n, k)."""
        self._shape = (systems, width)
        self.items = items
        self._room = _MANTISSA - items.bit_length()
        #: Distinct columns, and by digest where each is.
        self._columns: list[NDArray[Any]] = []
        self._places: dict[bytes, int] = {}
        #: The columns of whole numbers: each a column, or the rest that another one leaves of it, times a power of two.
        self._splits: list[tuple[int, int, int | None]] = []
        self._split_numbers: dict[tuple[int, int, int | None], int] = {}
        #: For each statistic: its coarse and its fine column of whole numbers (or -1).
        self._coarse: list[int] = []
        self._fine: list[int] = []
        for system in range(systems):
            self._add(read(system))
        self._places.clear()
        self.width = len(self._splits)
        #: All columns of whole numbers, if they are few enough.
        self.matrix: Floats | None = None
        if items * self.width <= _MAX_MATRIX:
            matrix = np.empty((items, self.width), order="F")
            self.fill(matrix, 0)
            self.matrix, self._columns = matrix, []

    @classmethod
    def of(cls, stats: NDArray[Any]) -> ExactSums:
        """The sums of rows that are in memory."""
        systems, items, width = stats.shape
        return cls(systems, items, width, lambda system: stats[system])

    def _add(self, rows: NDArray[Any]) -> None:
        for number in range(rows.shape[1]):
            column = narrow_numbers(np.ascontiguousarray(rows[:, number]))
            if not np.isfinite(column).all():
                raise RunError("statistics to pool must be finite numbers, got NaN or infinity", code="invalid_value")
            largest = max(float(column.max(initial=0)), -float(column.min(initial=0)))
            _, exponent = np.frexp(largest)
            if exponent + self.items.bit_length() > sys.float_info.max_exp:
                raise RunError(
                    f"{self.items:,} scores or statistics of up to {largest:.3g} cannot be added up, because no number "
                    f"is above {sys.float_info.max:.2g}: give the metric a smaller unit",
                    code="invalid_value",
                )
            shift, has_rest = self._room - int(exponent), False
            if column.dtype != np.float64 and shift < 0:  # Sums of small whole numbers only are exact as they are.
                column = column.astype(np.float64)
            if column.dtype == np.float64:
                has_rest = bool((np.ldexp(np.rint(np.ldexp(column, shift)), -shift) != column).any())
            else:
                shift = 0
            content = column.data.cast("B") if column.size else b""
            kind = column.dtype.str.encode("ascii")
            digest = hashlib.blake2b(content, digest_size=16, person=kind).digest()
            if digest not in self._places:
                self._places[digest] = len(self._columns)
                self._columns.append(column)
            place = self._places[digest]
            self._coarse.append(self._split(place, shift, None))
            self._fine.append(self._split(place, shift + self._room, self._coarse[-1]) if has_rest else -1)

    def _split(self, place: int, shift: int, rest_of: int | None) -> int:
        split = place, shift, rest_of
        if split not in self._split_numbers:
            self._split_numbers[split] = len(self._splits)
            self._splits.append(split)
        return self._split_numbers[split]

    @property
    def nbytes(self) -> int:
        """The memory that the columns take."""
        return sum(column.nbytes for column in self._columns) + (0 if self.matrix is None else self.matrix.nbytes)

    def fill(self, block: Floats, start: int) -> None:
        """Put the columns of whole numbers into a block, from the item `start` on."""
        stop = start + len(block)
        if self.matrix is not None:
            block[:] = self.matrix[start:stop]
            return
        for number, (place, shift, rest_of) in enumerate(self._splits):
            column, whole = self._columns[place][start:stop], block[:, number]
            if column.dtype != np.float64:
                whole[:] = column
                continue
            if rest_of is not None:
                _scale(block[:, rest_of], -self._splits[rest_of][1], whole)
                column = np.subtract(column, whole, out=whole)
            np.rint(_scale(column, shift, whole), out=whole)

    def __call__(self, weights: NDArray[Any]) -> Floats:
        return sum_together(weights, [self])[0]

    def combine(self, products: Floats) -> Floats:
        """The sums of the rows from those of whole numbers over all items."""
        shifts = np.array([shift for _, shift, _ in self._splits], np.int64)
        products = np.ldexp(products, -shifts)
        sums, fine = products[:, self._coarse], np.array(self._fine, np.intp)
        (fractional,) = np.nonzero(fine >= 0)
        sums[:, fractional] += products[:, fine[fractional]]
        per_system: Floats = sums.reshape(len(products), *self._shape)
        return per_system


def sum_together(weights: NDArray[Any], sums: Sequence[ExactSums]) -> list[Floats]:
    """The sums of each of `sums` for the same weights."""
    matrices = [each.matrix for each in sums if each.matrix is not None]
    if weights.size <= CHUNK and len(matrices) == len(sums):
        doubles = np.asarray(weights, np.float64)
        return [each.combine(doubles @ matrix) for each, matrix in zip(sums, matrices, strict=True)]
    # Sums of whole numbers are exact, whatever their order: the weights need not be doubles all at once. One product
    # of many columns is up to four times as fast as several of few.
    items, ends = weights.shape[1], np.cumsum([each.width for each in sums]).tolist()
    parts = [slice(end - each.width, end) for each, end in zip(sums, ends, strict=True)]

    def multiply(own: range) -> Floats:
        products, block = np.zeros((len(weights), ends[-1])), np.empty((_BLOCK, ends[-1]), order="F")
        for start in own:
            rows = block[: items - start]
            for each, part in zip(sums, parts, strict=True):
                each.fill(rows[:, part], start)
            products += np.asarray(weights[:, start : start + len(rows)], np.float64) @ rows
        return products

    count = thread_count()
    pieces = [range(first * _BLOCK, items, count * _BLOCK) for first in range(count)]
    products = np.sum(parallel_map(multiply, [piece for piece in pieces if piece]), axis=0)
    return [each.combine(products[:, part]) for each, part in zip(sums, parts, strict=True)]


def _scale(numbers: Floats, shift: int, out: Floats) -> Floats:
    """The numbers times a power of two; multiplying takes a fifth of the time of `np.ldexp`."""
    return np.multiply(numbers, 2.0**shift, out=out) if abs(shift) < 1000 else np.ldexp(numbers, shift, out=out)


def narrow_numbers(numbers: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers in the narrowest type that holds them all, others as doubles."""
    if numbers.dtype in _NARROW:
        return numbers
    numbers = np.asarray(numbers, np.float64)
    low, high = numbers.min(initial=0.0), numbers.max(initial=0.0)
    for dtype in _NARROW:
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            narrow = numbers.astype(dtype)
            return narrow if (narrow == numbers).all() else numbers
    return numbers


def draw_sums(draws: Iterator[Floats], sums: Sequence[ExactSums]) -> Iterator[list[Floats]]:
    """Yield the sums of each of `sums` for some draws at a time. Where there are many rows, draws are collected, so
    that the rows are read once for all of them."""
    if all(each.matrix is not None for each in sums):
        yield from (sum_together(weights, sums) for weights in draws)
        return
    collected: NDArray[np.uint8] | None = None
    count = 0
    for weights in draws:
        for row in weights:
            if collected is None:
                collected = np.empty((_COLLECTED, len(row)), np.uint8)
            if row.max(initial=0.0) > np.iinfo(np.uint8).max:
                before = [sum_together(collected[:count], sums)] if count else []
                blocks = zip(*before, sum_together(row[None], sums), strict=True)
                yield [np.concatenate(own) for own in blocks]
                count = 0
                continue
            collected[count] = row
            count += 1
            if count == _COLLECTED:
                yield sum_together(collected, sums)
                count = 0
    if count and collected is not None:
        yield sum_together(collected[:count], sums)


def _chunk_rows(items: int, systems: int, width: int, pairs: int = 0) -> int:
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


class Contestants(NamedTuple):
    """Systems under one metric, on items that all of them share, and the pairs of them to test. `origin` was subtracted
    from their scores, see `find_origin`."""

    sums: ExactSums
    pairs: Sequence[tuple[int, int]]
    pool: Pool
    origin: float = 0.0


def pair_tests(
    contestants: Sequence[Contestants],
    draws: int,
    rng: np.random.Generator,
    tests: Collection[Test] = ("bootstrap", "randomisation"),
    alternative: Alternative = "two-sided",
    confidence: float = 0.95,
    progress: Callable[[int], None] | None = None,
) -> list[list[PairTest]]:
    """Compare the pairs of several metrics, or of several groups of systems, on equally many items each.

    All share the draws, the costly part, so that a pair's numbers do not depend on the others. `progress` is called
    with the draws done since the call before.
    """
    for_resamples, for_tosses = rng.spawn(2)
    (items,) = {each.sums.items for each in contestants}
    all_sums = [each.sums for each in contestants]
    once = np.ones((1, items))
    totals = [sums(once) for sums in all_sums]
    rows = min(
        _chunk_rows(items, total.shape[1], total.shape[2], len(each.pairs))
        for total, each in zip(totals, contestants, strict=True)
    )
    scores = [each.pool(total)[0] for total, each in zip(totals, contestants, strict=True)]
    indices = [np.array(each.pairs, dtype=np.intp).reshape(-1, 2).T for each in contestants]
    observed = [own[first] - own[second] for own, (first, second) in zip(scores, indices, strict=True)]
    slack = [rounding_slack(own[first], own[second]) for own, (first, second) in zip(scores, indices, strict=True)]

    chunks: list[list[Floats]] = [[np.empty((0, len(own)))] for own in scores]
    for sums in draw_sums(resample_counts(items, draws, for_resamples, rows), all_sums):
        for each, own, collected in zip(contestants, sums, chunks, strict=True):
            collected.append(each.pool(own))
        if progress:
            progress(len(sums[0]))
    resampled = [np.concatenate(collected) for collected in chunks]

    p: list[dict[Test, Floats]] = [{} for _ in contestants]
    if "bootstrap" in tests:
        for n, each in enumerate(contestants):
            counts = [
                count_extreme(
                    resampled[n][:, a] - resampled[n][:, b] - observed[n][i], observed[n][i], alternative, slack[n][i]
                )
                for i, (a, b) in enumerate(each.pairs)
            ]
            p[n]["bootstrap"] = p_values(np.array(counts), draws, observed[n], items)
    if "randomisation" in tests:
        extreme = [np.zeros(len(each.pairs), np.intp) for each in contestants]
        for moved in draw_sums(coin_tosses(items, draws, for_tosses, rows), all_sums):
            for n, (each, own) in enumerate(zip(contestants, moved, strict=True)):
                null = _exchange(totals[n], own, each.pairs, each.pool)
                extreme[n] += count_extreme(null, observed[n], alternative, slack[n])
            if progress:
                progress(len(moved[0]))
        for n in range(len(contestants)):
            p[n]["randomisation"] = p_values(extreme[n], draws, observed[n], items)
    results: list[list[PairTest]] = [[] for _ in contestants]
    for n, each in enumerate(contestants):
        for i, (a, b) in enumerate(each.pairs):
            difference = float(observed[n][i])
            low, high = interval(resampled[n][:, a] - resampled[n][:, b], confidence, items, difference)
            results[n].append(
                PairTest(
                    first=float(scores[n][a]) + each.origin,
                    second=float(scores[n][b]) + each.origin,
                    difference=difference,
                    low=low,
                    high=high,
                    p={test: float(values[i]) for test, values in p[n].items()},
                )
            )
    return results
