"""Resamples of a pairwise accuracy with ties in which ε is chosen anew every time, so that intervals hold for the whole
procedure: for the accuracy, and for ε itself.

Where a draw takes or leaves whole groups (items under a grouping by item), the gaps of all pairs are sorted once and a
draw is one pass of weighted sums over them. Where it cuts across groups (no grouping, or items under a grouping by
system), outputs drawn twice are there twice, tied with themselves, and the exact search is made anew for each draw.

Both take the better part of a minute on large samples. Beyond `MOST_PAIRS` sorted pairs, or `MOST_OUTPUTS` searched, ε
is therefore held at its value on all data, which leaves out the uncertainty of choosing it; `TieDraws.epsilon_is` says
which was done. It depends on the data's size alone, so that a seed always means the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.kernels.windows import best_prefixes
from metrist.meta.grouping import Grouping, estimate
from metrist.meta.measures import acc_eq
from metrist.meta.sample import Codes, Draws, Sample
from metrist.meta.threshold_search import best_threshold
from metrist.meta.ties import Average, Floats, Pairing, groups_of, pairing

MOST_PAIRS = 1 << 22
MOST_OUTPUTS = 2000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TieDraws:
    """One accuracy and one ε per draw; NaN in a draw that has no pair."""

    values: Floats
    epsilons: Floats
    epsilon_is: Literal["chosen in every draw", "fixed"]


def tie_draws(
    sample: Sample, grouping: Grouping | Codes = "none", *, draws: Draws, average: Average = "macro"
) -> TieDraws:
    """Accuracy and ε of each draw. A group drawn twice is there twice; so is, in its group, an output drawn twice."""
    groups = groups_of(sample, grouping)
    paired = pairing(sample.human, sample.metric, groups, average=average)
    outputs, whole_groups = _weights(sample, grouping, draws)
    if outputs is None and whole_groups is not None and _pairs(paired) <= MOST_PAIRS:
        values, epsilons = _sorted_once(paired, whole_groups[:, paired.order[paired.ranked.starts[:-1]]])
    elif len(sample) <= MOST_OUTPUTS:
        values, epsilons = _searched(sample, groups, average, outputs, whole_groups)
    else:
        return _fixed(sample, grouping, best_threshold(paired).epsilon, draws, average)
    return TieDraws(values=values, epsilons=epsilons, epsilon_is="chosen in every draw")


def _weights(sample: Sample, grouping: Grouping | Codes, draws: Draws) -> tuple[Floats | None, Floats | None]:
    """How often each output was drawn within its group, and how often its whole group was: arrays (draws, outputs),
    None where nothing of the kind was drawn."""
    items = None if draws.items is None else draws.of_items(sample)
    systems = None if draws.systems is None else draws.of_systems(sample)
    if isinstance(grouping, str) and grouping == "item":
        return systems, items
    if isinstance(grouping, str) and grouping == "system":
        return items, systems
    return draws.of_outputs(sample), None


def _pairs(paired: Pairing) -> int:
    return int(paired.pairs.sum())


class _Gains(NamedTuple):
    """Pairs whose gap can be tied to some effect, by ascending gap: what this wins or loses, and their group."""

    gaps: Floats
    gains: Floats
    groups: NDArray[np.int32]


def _sorted_once(paired: Pairing, weights: Floats) -> tuple[Floats, Floats]:
    """Accuracy and ε of each row of group weights (draws, groups)."""
    gaps, gains, groups = _gains(paired)
    lasts = np.flatnonzero(np.append(gaps[1:] != gaps[:-1], True)) if len(gaps) else np.zeros(0, np.int64)
    best, at = best_prefixes(gains, groups, lasts.astype(np.int64), weights)
    right = weights @ (paired.units * paired.at(0.0).right[0]).astype(np.float64) + best
    whole = weights @ (paired.units * paired.pairs).astype(np.float64)
    # Place -1, where no tie helps, is the 0 at the end.
    epsilons = np.append(gaps[lasts], 0.0)[at]
    values = np.divide(right, whole, out=np.full(len(weights), np.nan), where=whole > 0)
    return values, np.where(whole > 0, epsilons, np.nan)


def _gains(paired: Pairing) -> _Gains:
    scores, levels, _, starts = paired.ranked
    sizes = np.diff(starts)
    group = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(scores)) - starts[group]
    later = np.repeat(np.arange(len(scores)), place)
    earlier = np.arange(len(later)) - np.repeat(np.cumsum(place) - place, place) + starts[group[later]]
    gaps, climb = scores[later] - scores[earlier], np.sign(levels[later] - levels[earlier])
    moving = np.flatnonzero((gaps > 0) & (climb >= 0))
    moving = moving[np.argsort(gaps[moving], kind="stable")]
    groups = group[later[moving]].astype(np.int32)
    gains = np.where(climb[moving] == 0, 1, -1) * paired.units[groups]
    return _Gains(gaps[moving], gains.astype(np.float64), groups)


def _searched(
    sample: Sample, groups: Codes, average: Average, outputs: Floats | None, whole_groups: Floats | None
) -> tuple[Floats, Floats]:
    given = [weights for weights in (outputs, whole_groups) if weights is not None]
    found = np.full((len(given[0]), 2), np.nan)
    for draw in range(len(found)):
        drawn = None if outputs is None else outputs[draw]
        paired = pairing(sample.human, sample.metric, groups, average=average, weights=drawn)
        if whole_groups is not None:
            times = whole_groups[draw, paired.order[paired.ranked.starts[:-1]]]
            paired = replace(paired, units=paired.units * times.astype(np.int64))
        best = best_threshold(paired)
        found[draw] = paired.share(best.right), best.epsilon
    return found[:, 0], found[:, 1]


def _fixed(sample: Sample, grouping: Grouping | Codes, epsilon: float, draws: Draws, average: Average) -> TieDraws:
    values = estimate(acc_eq(epsilon), sample, grouping, draws, average).values
    return TieDraws(values=values, epsilons=np.full(len(values), epsilon), epsilon_is="fixed")
