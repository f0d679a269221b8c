"""Several raters' values made one, and how sure they are of an order together."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from metrist.data.judgments import Said

How = Literal["mean", "median", "majority"]
#: Values nearer than this, for their size, are equal: .1 + .2 is not exactly .3.
EQUAL = 1e-9


def aggregated(said: Sequence[Said], how: How) -> float:
    """One value for all raters'."""
    return _WAYS[how]([value for _, value in said])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _majority(values: Sequence[float]) -> float:
    """The value that most raters gave; of several that are equally common, their mean."""
    counts = Counter(values)
    most = max(counts.values())
    return _mean([value for value, count in counts.items() if count == most])


_WAYS: dict[How, Callable[[Sequence[float]], float]] = {
    "mean": _mean,
    "median": statistics.median,
    "majority": _majority,
}


def gap(first: float, second: float) -> float:
    """By how much the first is higher; exactly 0 where they are equal but for rounding."""
    found = first - second
    return 0.0 if abs(found) <= EQUAL * max(1.0, abs(first), abs(second)) else found


def share_above(first: Sequence[Said], second: Sequence[Said]) -> float:
    """The probability that a rater puts the first above the second, ties counted half. Raters who judged both are
    asked where most values are theirs; where they are few, or unknown, each value of the first is set against each of
    the second."""
    common = {rater for rater, _ in first if rater is not None} & {rater for rater, _ in second}
    theirs = sum(rater in common for rater, _ in (*first, *second))
    every = [(one, other) for one in first for other in second]
    if 2 * theirs > len(first) + len(second):
        every = [(one, other) for one, other in every if one[0] == other[0] and one[0] in common]
    compared = [(one, other) for (_, one), (_, other) in every]
    return _mean([0.5 + 0.5 * ((gap(one, other) > 0) - (gap(one, other) < 0)) for one, other in compared])


def share_of_votes(first: Sequence[Said], second: Sequence[Said]) -> float:
    """Of the raters who chose one of these two outputs among several, the share that chose the first."""
    ours, theirs = (math.fsum(value for _, value in said) for said in (first, second))
    return ours / (ours + theirs)


def share_preferring(said: Sequence[Said]) -> float:
    """The share of raters who prefer the first, ties counted half."""
    return _mean([(1 + sign) / 2 for _, sign in said])
