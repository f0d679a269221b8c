"""Measures the long way, pair by pair on repeated arrays, in exact arithmetic where there is a choice."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def repeated(values: Floats, weights: Floats) -> Floats:
    return np.repeat(values, weights.astype(int))


def pair_counts(human: Floats, metric: Floats, epsilon: float = 0.0, origin: Floats | None = None) -> list[int]:
    """Five kinds of pairs; outputs of the same origin are copies of each other, and no pair."""
    origins = np.arange(len(human)) if origin is None else origin
    counts = [0] * 5
    for i, j in combinations(range(len(human)), 2):
        if origins[i] == origins[j]:
            continue
        human_tie, metric_tie = human[i] == human[j], abs(metric[i] - metric[j]) <= epsilon
        if human_tie or metric_tie:
            counts[4 if human_tie and metric_tie else 2 if human_tie else 3] += 1
        else:
            counts[0 if (human[i] > human[j]) == (metric[i] > metric[j]) else 1] += 1
    return counts


def pearson(human: Floats, metric: Floats) -> float:
    """In fractions up to the last root: nothing is lost, whatever the size of the numbers."""
    x, y = ([Fraction(float(value)) for value in values] for values in (human, metric))
    if len(set(x)) < 2 or len(set(y)) < 2:
        return math.nan
    mx, my = sum(x) / len(x), sum(y) / len(y)
    xx, yy = sum((a - mx) ** 2 for a in x), sum((b - my) ** 2 for b in y)
    xy = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    size = math.sqrt(xy * xy / (xx * yy))
    return size if xy > 0 else -size


def midranks(values: Floats) -> Floats:
    return np.array([(values < value).sum() + ((values == value).sum() + 1) / 2 for value in values])


def spearman(human: Floats, metric: Floats) -> float:
    return pearson(midranks(human), midranks(metric))


def kendall_b(human: Floats, metric: Floats, origin: Floats | None = None) -> float:
    alike, opposed, human_tied, metric_tied, _ = pair_counts(human, metric, origin=origin)
    of = (alike + opposed + metric_tied) * (alike + opposed + human_tied)
    return (alike - opposed) / math.sqrt(of) if of else math.nan


def kendall_c(human: Floats, metric: Floats, origin: Floats | None = None) -> float:
    """Stuart's coefficient is (alike - opposed) / pairs, times a factor of the number of outputs and of levels;
    copies that are no pairs could take it beyond 1."""
    counts = pair_counts(human, metric, origin=origin)
    levels, size = min(len(set(human.tolist())), len(set(metric.tolist()))), len(human)
    if levels < 2:
        return math.nan
    result = (counts[0] - counts[1]) / sum(counts) * (size - 1) / size * levels / (levels - 1)
    return max(-1.0, min(1.0, result))


def share(part: float, total: float) -> float:
    return part / total if total else math.nan


def by_counts(name: str, human: Floats, metric: Floats, origin: Floats | None = None) -> float:
    """What each pairwise measure makes of how five kinds of pairs count: (worth of each kind, kinds that count)."""
    worth, counted = {
        "kendall_a": ((1, -1, 0, 0, 0), (1, 1, 1, 1, 1)),
        "gamma": ((1, -1, 0, 0, 0), (1, 1, 0, 0, 0)),
        "darr_wmt14": ((1, -1, 0, 0, 0), (1, 1, 0, 1, 0)),
        "darr_wmt17": ((1, -1, 0, -1, 0), (1, 1, 0, 1, 0)),
        "concordance": ((1, 0, 0, 0.5, 0), (1, 1, 0, 1, 0)),
        "pair_accuracy": ((1, 0, 0, 0, 0), (1, 1, 0, 1, 0)),
        "acc_eq": ((1, 0, 0, 0, 1), (1, 1, 1, 1, 1)),
    }[name]
    counts = pair_counts(human, metric, origin=origin)
    return share(float(np.dot(worth, counts)), float(np.dot(counted, counts)))


def value(name: str, human: Floats, metric: Floats, origin: Floats | None = None) -> float:
    if name in ("pearson", "spearman"):
        return {"pearson": pearson, "spearman": spearman}[name](human, metric)
    if name in ("kendall_b", "kendall_c"):
        return {"kendall_b": kendall_b, "kendall_c": kendall_c}[name](human, metric, origin)
    return by_counts(name, human, metric, origin)
