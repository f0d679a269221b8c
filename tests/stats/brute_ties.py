"""Pairwise accuracy with ties by trying every threshold on every pair, in fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations


def pairs_within(groups: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
    pairs: dict[int, list[tuple[int, int]]] = {}
    for i, j in combinations(range(len(groups)), 2):
        if groups[i] == groups[j]:
            pairs.setdefault(groups[i], []).append((i, j))
    return pairs


def right(human: Sequence[float], metric: Sequence[float], pair: tuple[int, int], epsilon: float) -> bool:
    i, j = pair
    if abs(metric[i] - metric[j]) <= epsilon:
        return human[i] == human[j]
    return (metric[i] - metric[j]) * (human[i] - human[j]) > 0


def accuracy(
    human: Sequence[float], metric: Sequence[float], groups: Sequence[int], epsilon: float, average: str
) -> Fraction | None:
    per_group = [[right(human, metric, pair, epsilon) for pair in pairs] for pairs in pairs_within(groups).values()]
    if not per_group:
        return None
    if average == "macro":
        return sum((Fraction(sum(result), len(result)) for result in per_group), Fraction(0)) / len(per_group)
    return Fraction(sum(map(sum, per_group)), sum(map(len, per_group)))


def best(
    human: Sequence[float], metric: Sequence[float], groups: Sequence[int], average: str
) -> tuple[Fraction, float] | None:
    """The greatest accuracy and the smallest threshold that reaches it."""
    thresholds = {abs(metric[i] - metric[j]) for pairs in pairs_within(groups).values() for i, j in pairs} | {0.0}
    result = ((accuracy(human, metric, groups, epsilon, average), epsilon) for epsilon in sorted(thresholds))
    reached = [(share, epsilon) for share, epsilon in result if share is not None]
    return max(reached, key=lambda candidate: (candidate[0], -candidate[1]), default=None)
