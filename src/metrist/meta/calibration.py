"""Pairwise accuracy at a calibrated tie threshold: what ε is chosen on, and what it is judged on.

* over "all": one ε per metric, the best for the average of all slices. ε is judged on the data it was chosen on.
* over "slice": each slice has its own best ε, as Deutsch, Foster and Freitag (2023) do per task.
* over a column (codes, such as languages): one ε per value, the best for the average of that value's slices, as in the
  reliability study.
* cross-fitted (`cross_fitted`): items are dealt into folds, each fold is judged at the ε that is best for all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.meta.baselines import Baselines, baselines
from metrist.meta.grouping import Grouping
from metrist.meta.sample import Codes, Sample
from metrist.meta.threshold_search import best_threshold
from metrist.meta.tie_tally import Averages, Tally, joined
from metrist.meta.ties import Average, Floats, Pairing, groups_of, pairing

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
    for members, outputs in space.sharing(over):
        epsilons[members] = best_threshold(space.pairing(outputs)).epsilon
    everything = np.arange(len(sample))
    return space.summary([space.tally(everything, epsilons)], epsilons)


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
    epsilons = np.full(len(space.codes), epsilon)
    return space.summary([space.tally(np.arange(len(sample)), epsilons)], epsilons)


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
    over the other folds, and enter one average with those of all folds; pairs of outputs in different folds are judged
    in none. The ε reported is the median of the folds', beside all of them.
    """
    items = np.unique(sample.item)
    if not 2 <= folds <= len(items):
        raise RunError(
            f"cross-fitting needs at least 2 folds and an item for each, got {folds} folds for {len(items)} items"
        )
    space = _Space(sample, grouping, slices, average, slice_average)
    dealt = rng.permutation(len(items)) % folds
    fold = dealt[np.searchsorted(items, sample.item)]
    chosen = [best_threshold(space.pairing(np.flatnonzero(fold != held))).epsilon for held in range(folds)]
    tallies = [
        space.tally(np.flatnonzero(fold == held), np.full(len(space.codes), epsilon))
        for held, epsilon in enumerate(chosen)
    ]
    return space.summary(tallies, np.full(len(space.codes), np.median(chosen)), tuple(chosen))


class _Space:
    """What is paired and how it is averaged, whatever ε is chosen."""

    def __init__(
        self,
        sample: Sample,
        grouping: Grouping | Codes,
        slices: Codes | None,
        average: Average,
        slice_average: Average,
    ) -> None:
        self._sample, self._groups = sample, groups_of(sample, grouping)
        self._averages = Averages(average, slice_average)
        given = np.zeros(len(sample), np.intp) if slices is None else np.asarray(slices)
        if len(given) != len(sample):
            raise RunError(f"slices need one code per output, got {len(given)} for {len(sample)} outputs")
        self.codes, self._slice = np.unique(given, return_inverse=True)

    def pairing(self, outputs: NDArray[np.intp]) -> Pairing:
        return pairing(
            self._sample.human[outputs],
            self._sample.metric[outputs],
            self._groups[outputs],
            slices=self._slice[outputs],
            average=self._averages.groups,
            slice_average=self._averages.slices,
        )

    def sharing(self, over: EpsilonOver | Codes) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Slices that share a threshold, and their outputs."""
        if isinstance(over, str):
            if over not in ("all", "slice"):
                raise RunError(f"a threshold is chosen over 'all', each 'slice' or a column's codes, not {over!r}")
            value = np.zeros(len(self.codes), np.intp) if over == "all" else np.arange(len(self.codes))
        else:
            value = self._value_of_slices(np.asarray(over))
        for number in np.unique(value):
            yield np.flatnonzero(value == number), np.flatnonzero(value[self._slice] == number)

    def _value_of_slices(self, column: Codes) -> Codes:
        if len(column) != len(self._slice):
            raise RunError(
                f"a column to choose thresholds over needs one code per output, got {len(column)} for "
                f"{len(self._slice)} outputs"
            )
        pairs = np.unique(np.stack([self._slice, column], axis=1), axis=0)
        several = pairs[1:][pairs[1:, 0] == pairs[:-1, 0]]
        if len(several):
            raise RunError(
                f"slice {self.codes[several[0, 0]]} has outputs of more than one value of the column that thresholds "
                "are chosen over: slice by that column too"
            )
        return pairs[:, 1]

    def tally(self, outputs: NDArray[np.intp], epsilons: Floats) -> Tally:
        """The groups of these outputs, each judged at the threshold of its slice."""
        paired = self.pairing(outputs)
        starts = paired.ranked.starts
        slice_of = self._slice[outputs][paired.order[starts[:-1]]]
        right, tied = np.zeros_like(paired.pairs), np.zeros_like(paired.pairs)
        for epsilon in np.unique(epsilons[slice_of]):
            here, found = epsilons[slice_of] == epsilon, paired.at(epsilon)
            right[here], tied[here] = found.right[0, here], found.tied[0, here]
        return Tally(slice_of, right, tied, paired.at(np.inf).right[0], paired.pairs, np.diff(starts))

    def summary(self, tallies: Sequence[Tally], epsilons: Floats, folds: tuple[float, ...] = ()) -> Calibrated:
        whole = joined(tallies)
        shared = np.unique(epsilons[~np.isnan(epsilons)])
        return Calibrated(
            value=self._averages.over(whole.right, whole),
            epsilon=float(shared[0]) if len(shared) == 1 else np.nan,
            tie_share=self._averages.over(whole.tied, whole),
            baselines=baselines(whole, self._averages),
            slices=tuple(
                self._slice_accuracy(whole.of(number), number, float(epsilon))
                for number, epsilon in enumerate(epsilons)
            ),
            folds=folds,
        )

    def _slice_accuracy(self, tally: Tally, number: int, epsilon: float) -> SliceAccuracy:
        groups = len(np.unique(self._groups[self._slice == number]))
        return SliceAccuracy(
            slice=int(self.codes[number]),
            value=self._averages.over(tally.right, tally),
            epsilon=epsilon if len(tally.pairs) else np.nan,
            tie_share=self._averages.over(tally.tied, tally),
            groups=len(tally.pairs),
            skipped=max(0, groups - len(tally.pairs)),
            outputs=int(tally.outputs.sum()),
            pairs=int(tally.pairs.sum()),
            baselines=baselines(tally, self._averages),
        )
