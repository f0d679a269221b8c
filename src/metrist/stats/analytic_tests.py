"""Tests between two metrics without simulation: an exact sign test of pairs of outputs, and Williams' test.

The sign test asks whether one metric is right about more pairs of outputs than another, exactly where mt-metrics-eval
samples. Its PairwisePermutation exchanges at random, pair by pair of outputs, whether either metric was right. Pairs
that both got right, or both wrong, do not change, so only the D pairs where exactly one was right count: of them the
first metric wins Binomial(D, 1/2). If groups hold unequal numbers of pairs, a macro average weights a pair by 1 /
(pairs of its group), and the null is a sum of such binomials with known weights.

Pairs are treated as independent, although they share outputs: the test is about these outputs and these metrics, not
about other outputs of the same kind. For those, resample or exchange items (`bootstrap`, `permutation`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.stats import Codes, Counts, Floats
from metrist.stats.resampling import Alternative
from metrist.stats.significance import coin_tail, student_t_tail

#: With more outcomes, a sum of binomials is sampled instead of enumerated.
_MAX_OUTCOMES = 1 << 20
#: Draws for a sampled sum.
_DRAWS = 20_000
#: A binomial farther than this many standard deviations from its mean has a probability below 1e-30.
_REACH = 12.0
#: Pairs of outputs in one chunk, for all metrics together.
_CHUNK = 1 << 20


class SignTest(NamedTuple):
    """The difference of two accuracies (first minus second) and its p-value. `standard_error` is that of p: 0 if it is
    exact."""

    difference: float
    p: float
    standard_error: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairWins:
    """Pairs of outputs where one metric was right and another wrong, by size of group.

    `wins[c, a, b]`: in all groups of class c, how many pairs a got right and b wrong; each group of that class holds
    `pairs[c]` pairs, and there are `groups[c]` of them.
    """

    wins: Counts
    pairs: Counts
    groups: Counts


def sign_test(
    wins: PairWins, first: int, second: int, rng: np.random.Generator, alternative: Alternative = "two-sided"
) -> SignTest:
    """Test two metrics by their numbers. `rng` is used only if four or more group sizes leave too many outcomes to add
    up."""
    up, down = wins.wins[:, first, second], wins.wins[:, second, first]
    groups = int(wins.groups.sum())
    if not groups:
        return SignTest(math.nan, math.nan, math.nan)
    difference = float(((up - down) / wins.pairs).sum()) / groups
    used = up + down > 0
    if not used.any():
        return SignTest(difference, 1.0, 0.0)
    # Weights are whole numbers in proportion to 1 / pairs, so that equal sums are exactly equal.
    pairs, tosses = wins.pairs[used].tolist(), (up + down)[used].tolist()
    multiple = math.lcm(*pairs)
    divisor = math.gcd(*(multiple // count for count in pairs))
    weights = [multiple // count // divisor for count in pairs]
    lead = sum(weight * gap for weight, gap in zip(weights, (up - down)[used].tolist(), strict=True))
    match alternative:
        case "two-sided":
            share, error = _tail(abs(lead), weights, tosses, rng)
            return SignTest(difference, min(1.0, 2 * share) if lead else 1.0, 2 * error)
        case "greater":
            return SignTest(difference, *_tail(lead, weights, tosses, rng))
        case "less":
            return SignTest(difference, *_tail(-lead, weights, tosses, rng))


def pair_wins(human: Floats, metrics: Floats, epsilons: Floats, groups: NDArray[np.intp] | None = None) -> PairWins:
    """Count all metrics (m, n) against each other on the pairs of outputs within a group (None: all n in one).

    A metric is right about a pair if it ties the pair (its values at most epsilon apart) when humans do, and otherwise
    orders it as they do. All values are finite.
    """
    codes = np.zeros(len(human), np.intp) if groups is None else groups
    by_group = np.argsort(codes, kind="stable")
    members = np.split(by_group, np.flatnonzero(np.diff(codes[by_group])) + 1)
    sizes = np.array(sorted({len(group) for group in members if len(group) > 1}), dtype=np.int64)
    wins = np.zeros((len(sizes), len(metrics), len(metrics)), dtype=np.int64)
    for index, size in enumerate(sizes):
        selected = np.stack([group for group in members if len(group) == size])
        for left, right in _pairs(selected, max(1, _CHUNK // max(1, len(metrics)))):
            gaps = metrics[:, left] - metrics[:, right]
            predicted = np.where(np.abs(gaps) <= epsilons[:, None], 0.0, np.sign(gaps))
            correct = (predicted == np.sign(human[left] - human[right])).astype(np.float32)
            # Counts of one chunk are far below 2^24, up to which single precision is exact.
            wins[index] += np.rint(correct @ (1 - correct).T).astype(np.int64)
    counted = np.array([sum(len(group) == size for group in members) for size in sizes], dtype=np.int64)
    return PairWins(wins=wins, pairs=sizes * (sizes - 1) // 2, groups=counted)


def _pairs(groups: NDArray[np.intp], at_once: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield all pairs of outputs within each row, as two lists of outputs: one column against those to its right,
    collected until a chunk is full."""
    left: list[NDArray[np.intp]] = []
    right: list[NDArray[np.intp]] = []
    size = 0
    for column in range(groups.shape[1] - 1):
        for rows in np.array_split(groups, max(1, groups[:, column + 1 :].size // at_once)):
            others = rows[:, column + 1 :]
            left.append(np.repeat(rows[:, column], others.shape[1]))
            right.append(others.ravel())
            size += others.size
            if size >= at_once:
                yield np.concatenate(left), np.concatenate(right)
                left, right, size = [], [], 0
    if size:
        yield np.concatenate(left), np.concatenate(right)


# ---- The null distribution: a sum of fair coins, weighted by class


def _tail(lead: int, weights: list[int], tosses: list[int], rng: np.random.Generator) -> tuple[float, float]:
    """Return P(sum of weight * (heads - tails) >= lead), and the standard error of that number.

    The class with most tosses is not enumerated: its own tail is looked up for each outcome of the others.
    """
    order = sorted(range(len(tosses)), key=lambda c: tosses[c])
    *others, largest = order
    unit = weights[largest]
    if not others:
        return coin_tail(-(-(lead + unit * tosses[largest]) // (2 * unit)), tosses[largest]), 0.0
    all_heads, chances = _coin(tosses[largest])
    tails = np.append(np.minimum(np.cumsum(chances[::-1])[::-1], 1.0), 0.0)

    def tail_of(heads: Counts | Floats) -> Floats:
        """P(at least so many heads) for many numbers of heads at once."""
        shares: Floats = tails[np.clip(heads - all_heads[0], 0, len(tails) - 1).astype(np.intp)]
        return shares

    fits = sum(w * n for w, n in zip(weights, tosses, strict=True)) < 2**60
    outcomes = _outcomes([(weights[c], tosses[c]) for c in others]) if fits else None
    if outcomes is not None:
        values, shares = outcomes
        heads = -((values - lead - unit * tosses[largest]) // (2 * unit))
        return min(1.0, math.fsum((shares * tail_of(heads)).tolist())), 0.0
    sums = np.zeros(_DRAWS)
    for c in others:
        sums += weights[c] / unit * (2.0 * rng.binomial(tosses[c], 0.5, size=_DRAWS) - tosses[c])
    # Sampled sums are rounded: a bound that is met exactly must not be missed.
    sampled = tail_of(np.ceil((lead / unit - sums + tosses[largest]) / 2 - 1e-9))
    # At least 1 in draws + 1: an outcome too rare to be drawn does not show in the spread either.
    share = (float(sampled.sum()) + 1) / (_DRAWS + 1)
    return min(1.0, share), max(float(sampled.std(ddof=1)) / math.sqrt(_DRAWS), 1 / (_DRAWS + 1))


def _outcomes(classes: list[tuple[int, int]]) -> tuple[Counts, Floats] | None:
    """Return all sums of weight * (heads - tails) over the classes with their probabilities; None if there are too
    many."""
    values: Counts = np.zeros(1, dtype=np.int64)
    shares: Floats = np.ones(1)
    for weight, tosses in classes:
        heads, chances = _coin(tosses)
        if len(values) * len(heads) > _MAX_OUTCOMES:
            return None
        sums = (values[:, None] + weight * (2 * heads - tosses)[None, :]).ravel()
        distinct, index = np.unique(sums, return_inverse=True)
        values = distinct.astype(np.int64)
        shares = np.bincount(index.ravel(), weights=(shares[:, None] * chances[None, :]).ravel()).astype(np.float64)
    return values, shares


def _coin(tosses: int) -> tuple[Counts, Floats]:
    """Return the numbers of heads with non-negligible probability, and the probabilities."""
    middle, reach = tosses // 2, math.ceil(_REACH * math.sqrt(tosses) / 2) + 1
    low, high = max(0, middle - reach), min(tosses, middle + reach)
    above = np.arange(middle, high, dtype=np.float64)
    below = np.arange(middle, low, -1, dtype=np.float64)
    upward = np.cumprod((tosses - above) / (above + 1))
    downward = np.cumprod(below / (tosses - below + 1))[::-1]
    relative = np.concatenate([downward, [1.0], upward])
    return np.arange(low, high + 1, dtype=np.int64), relative / math.fsum(relative.tolist())


# ---- Williams' test: do two metrics correlate differently with the same human values? (Williams 1959; Steiger 1980)
#
# It is a formula for Pearson's correlation of normal values. It includes the correlation of the metrics with each
# other: the more alike two metrics are, the smaller a difference it can detect.
#
# Within groups (items), the correlations are those of the deviations from the groups' means, pooled over all groups:
# partial correlations given the group. Each group after the first costs one degree of freedom, and the level is exact
# as it is without groups. For the mean of the groups' own correlations there is no such formula (nlpstats uses
# Williams' with the number of outputs of one group, which hardly ever rejects): that mean is tested by permutation.


class Williams(NamedTuple):
    """The test's statistic with its degrees of freedom, and the p-value; NaN if undefined, for this `reason`."""

    t: float
    freedom: int
    p: float
    reason: str = ""


def williams(
    first: float, second: float, between: float, outputs: int, alternative: Alternative = "two-sided"
) -> Williams:
    """Test two correlations: `first` and `second` are the metrics' correlations with the human values, `between` that
    of one metric with the other. "greater" tests whether the first is larger. Undefined for fewer than four outputs."""
    freedom = outputs - 3
    if freedom < 1:
        return Williams(math.nan, freedom, math.nan, f"it needs at least 4 outputs, got {outputs}")
    if math.isnan(first + second + between):
        return Williams(math.nan, freedom, math.nan, "a correlation is undefined")
    t = _statistic(first, second, between, outputs)
    if math.isnan(t):
        return Williams(t, freedom, t, "the metrics determine the human values exactly, which leaves no spread to test")
    match alternative:
        case "two-sided":
            return Williams(t, freedom, 2 * student_t_tail(abs(t), freedom))
        case "greater":
            return Williams(t, freedom, student_t_tail(t, freedom))
        case "less":
            return Williams(t, freedom, student_t_tail(-t, freedom))


def _statistic(first: float, second: float, between: float, outputs: int) -> float:
    """Return Williams' t; NaN if its denominator is not distinguishable from 0."""
    # A correlation of n values is exact to about the square root of n roundings.
    rounding = 16 * math.ulp(1.0) * math.sqrt(outputs)
    # Two metrics with a correlation of 1 are one metric on two scales: what differs is rounding.
    if first == second or 1 - between <= rounding:
        return 0.0
    # With a correlation of -1, second is -first, and t approaches that of the correlation `first` against 0.
    if 1 + between <= rounding:
        half = (first - second) / 2
        rest = 1 - half**2
        return half * math.sqrt((outputs - 3) / rest) if rest > rounding else math.copysign(math.inf, half)
    determinant = 1 - first**2 - second**2 - between**2 + 2 * first * second * between
    mean = (first + second) / 2
    share = 2 * (outputs - 1) / (outputs - 3)
    # Rounding may leave a determinant of zero slightly negative.
    spread = share * max(determinant, 0.0) + mean**2 * (1 - between) ** 3
    if spread <= share * rounding:
        return math.nan
    return (first - second) * math.sqrt((outputs - 1) * (1 + between) / spread)


def williams_from_values(
    human: Floats,
    first: Floats,
    second: Floats,
    alternative: Alternative = "two-sided",
    groups: Codes | None = None,
) -> Williams:
    """Run the test on values: one per output from the humans and from either metric. With `groups`, a code per output,
    the values are compared with the means of their groups."""
    rows = np.stack([human, first, second])
    outputs = len(human)
    if groups is not None and outputs:
        _, first_of, group, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
        rows = _scale_rows(rows)
        means = np.stack([np.bincount(group, weights=row) / sizes for row in rows])
        constant = (rows == rows[:, first_of][:, group]).all(axis=1, keepdims=True)
        rows = np.where(constant, 0.0, rows - means[:, group])
        outputs -= len(sizes) - 1
    if rows.shape[1] < 2:
        return williams(math.nan, math.nan, math.nan, outputs, alternative)
    rows = _scale_rows(rows)
    constant = np.ptp(rows, axis=1) == 0
    centred = _scale_rows(rows - rows.mean(axis=1, keepdims=True))
    length = np.where(constant, np.nan, np.sqrt((centred**2).sum(axis=1)))
    unit = centred / length[:, None]
    of_first, of_second, between = np.clip(unit @ unit.T, -1.0, 1.0)[np.triu_indices(3, 1)].tolist()
    return williams(of_first, of_second, between, outputs, alternative)


def _scale_rows(rows: Floats) -> Floats:
    """Scale each row by a power of two, which is exact, so that no square overflows or vanishes."""
    _, exponent = np.frexp(np.abs(rows).max(axis=1, keepdims=True, initial=0.0))
    scaled: Floats = np.ldexp(rows, -exponent)
    return scaled
