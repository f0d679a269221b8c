"""Pairs counted group by group, and the averages over groups and slices that are made of such counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.meta.ties import Average, Counts, Floats


class Tally(NamedTuple):
    """Per group: the number of its slice, its pairs that are right, that the metric ties, that humans tie, all of
    them, and its outputs."""

    slices: NDArray[np.intp]
    right: Counts
    tied: Counts
    human_tied: Counts
    pairs: Counts
    outputs: Counts

    def of(self, number: int) -> Tally:
        inside = self.slices == number
        return Tally(*(column[inside] for column in self))

    def at_random(self) -> Floats:
        """Pairs that would be right, on average, if the metric's scores were shuffled within each group: as many ties
        as now, each where humans tie as often as anywhere; and half of the rest that humans do not tie."""
        human_ties = self.human_tied / self.pairs
        return self.tied * human_ties + (self.pairs - self.tied) * (1 - human_ties) / 2


def joined(tallies: Sequence[Tally]) -> Tally:
    return Tally(*(np.concatenate(columns) for columns in zip(*tallies, strict=True)))


@dataclass(frozen=True, slots=True)
class Averages:
    """How shares of pairs are averaged: over the groups of a slice, then over slices (see `ties.pairing`)."""

    groups: Average
    slices: Average

    def within(self, part: Counts | Floats, pairs: Counts) -> float:
        if not len(pairs):
            return math.nan
        return float(np.mean(part / pairs) if self.groups == "macro" else part.sum() / pairs.sum())

    def over(self, part: Counts | Floats, tally: Tally) -> float:
        if self.slices == "micro" or not len(tally.pairs):
            return self.within(part, tally.pairs)
        inside = (tally.slices == number for number in np.unique(tally.slices))
        return float(np.mean([self.within(part[mask], tally.pairs[mask]) for mask in inside]))
