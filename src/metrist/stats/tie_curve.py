"""Pairwise accuracy as a function of ε: how much depends on the threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metrist.errors import RunError
from metrist.stats.gaps import greatest_gap, some_gaps
from metrist.stats.threshold_search import best_threshold
from metrist.stats.ties import Floats, Pairing

#: Pairs whose gaps the points are taken from.
_SAMPLE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TieCurve:
    """Thresholds, ascending, and at each the accuracy and the share of pairs that the metric ties."""

    epsilons: Floats
    accuracies: Floats
    tie_shares: Floats


def tie_curve(paired: Pairing, points: int = 200) -> TieCurve:
    """At most `points` thresholds: 0, the best, the greatest gap, and gaps spread evenly over the pairs between them.

    Values are exact at each point. Where there are few pairs and no more distinct gaps than that, all are there.
    """
    if points < 3:
        raise RunError(f"a curve of accuracies needs at least 3 points, got {points}")
    if not paired.whole:
        return TieCurve(epsilons=np.empty(0), accuracies=np.empty(0), tie_shares=np.empty(0))
    gaps = some_gaps(paired, _SAMPLE)
    wanted = np.unique([0.0, best_threshold(paired).epsilon, greatest_gap(paired)])
    room, others = points - len(wanted), np.setdiff1d(gaps, wanted)
    if len(others) > room:
        others = gaps[np.linspace(0, len(gaps) - 1, room).round().astype(np.intp)]
    epsilons = np.union1d(wanted, others)
    found = paired.at(epsilons)
    right, tied = (counts @ paired.units / paired.whole for counts in found)
    return TieCurve(epsilons=epsilons, accuracies=right, tie_shares=tied)
