"""Pairwise accuracy at a calibrated tie threshold: what ε is chosen on, and what it is judged on.

* over "all": one ε per metric, the best for the average of all slices. ε is judged on the data it was chosen on.
* over "slice": each slice has its own best ε, as Deutsch, Foster and Freitag (2023) do per task.
* over a column (codes, such as languages): one ε per value, the best for the average of that value's slices, as in the
  reliability study.
* cross-fitted (`cross_fitted`): items are dealt into folds, each fold is judged at the ε that is best for all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.meta.baselines import Baselines, baselines
from metrist.meta.grouping import Grouping
from metrist.meta.sample import Codes, Sample
from metrist.meta.threshold_search import best_threshold
from metrist.meta.ties import Average, Counts, Floats, Pairing, grouped_by, pairing

EpsilonOver = Literal["all", "slice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceAccuracy:
    """The accuracy in one slice at its ε (`slice` is its code), how much of the pairs the metric ties there, and what
    both rest on: groups with a pair, groups without, outputs that were paired, pairs."""

    slice: int
    value: float
    epsilon: float
    tie_share: float
    groups: int
    skipped: int
    outputs: int
    pairs: int
    baselines: Baselines


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """Accuracy averaged over slices; ε, which is NaN where slices differ in it; the slices in the order of their
    codes, those without a pair with NaN; and, where ε was cross-fitted, each fold's."""

    value: float
    epsilon: float
    tie_share: float
    baselines: Baselines
    slices: tuple[SliceAccuracy, ...]
    folds: tuple[float, ...] = ()


def calibrated(
    sample: Sample,
    grouping: Grouping | Codes = "none",
    *,
    slices: Codes | None = None,
    over: EpsilonOver | Codes = "all",
    average: Average = "macro",
    slice_average: Average = "macro",
) -> Calibrated:
    """Pairwise accuracy with ties at the best ε, which is the smallest of equally good ones."""
    space = _Space(sample, grouping, slices, average, slice_average)
    epsilons = np.full(len(space.codes), np.nan)
    for members, outputs in space.shared(over):
        epsilons[members] = best_threshold(space.pairing(outputs)).epsilon
    return space.judged(epsilons)


def accuracy_at(
    sample: Sample,
    epsilon: float,
    grouping: Grouping | Codes = "none",
    *,
    slices: Codes | None = None,
    average: Average = "macro",
    slice_average: Average = "macro",
) -> Calibrated:
    """Pairwise accuracy with ties at a threshold that is given."""
    if not epsilon >= 0:
        raise RunError(f"a tie's threshold must be at least 0, got {epsilon}")
    space = _Space(sample, grouping, slices, average, slice_average)
    return space.judged(np.full(len(space.codes), epsilon))


def cross_fitted(
    sample: Sample,
    grouping: Grouping | Codes = "none",
    *,
    rng: np.random.Generator,
    folds: int = 5,
    slices: Codes | None = None,
    average: Average = "macro",
    slice_average: Average = "macro",
) -> Calibrated:
    """Pairwise accuracy with ties where no pair is judged at an ε that it helped to choose.

    Items are dealt into folds at random. Each fold's groups (or, under micro, pairs) are judged at the ε that is best
    over the others, and enter one average over all folds; pairs of outputs in different folds are judged in none. The
    ε reported is the median of the folds', beside all of them.
    """
    items = np.unique(sample.item)
    if not 2 <= folds <= len(items):
        raise RunError(f"cross-fitting needs 2 folds or more and an item in each, got {folds} folds of {len(items)} items")
    space = _Space(sample, grouping, slices, average, slice_average)
    dealt = np.empty(len(items), np.intp)
    dealt[rng.permutation(len(items))] = np.arange(len(items)) % folds
    fold = dealt[np.searchsorted(items, sample.item)]
    chosen = [best_threshold(space.pairing(np.flatnonzero(fold != held))).epsilon for held in range(folds)]
    return space.judged_by_fold(fold, np.array(chosen))
