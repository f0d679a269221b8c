"""Scores as whole numbers that tie at one common threshold, exactly where the scores tie at a threshold of their own.

Several parts of the data may each have their own ε. Scores divided by ε would round, and a gap that is ε itself would
tie or not by luck. Instead each score becomes a whole number: scores tie where their numbers differ by at most `TIE`,
and are ordered alike.

Sorted scores fall into steps: a step holds the scores that tie with its lowest one. Two scores of one step tie, of
steps further apart than neighbours never. For neighbouring steps it is enough to put all scores into one row, in which
a score comes after exactly those of the next step that it ties with: step times `TIE + 1`, plus the place in that row,
is the number wanted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from metrist.stats.tie_shares import last_ties

Floats = NDArray[np.float64]

#: Any number that is larger than how many different scores there are; its products must stay exact in a double.
TIE = float((1 << 26) - 1)


def in_steps(scores: Floats, epsilon: float) -> Floats:
    """The scores as whole numbers that tie up to `TIE` where the scores tie up to epsilon; NaN stays NaN."""
    known = ~np.isnan(scores)
    if not known.any():
        return scores.copy()
    values, which = np.unique(scores[known], return_inverse=True)
    ends = last_ties(values, epsilon).tolist()
    firsts = [0]
    while ends[firsts[-1]] < len(values):
        firsts.append(ends[firsts[-1]])
    step = np.zeros(len(values))
    step[firsts[1:]] = 1
    numbers = np.cumsum(step) * (TIE + 1) + _places(ends, firsts)
    found = np.full(len(scores), np.nan)
    found[known] = numbers[which.reshape(-1)]
    return found


def _places(ends: list[int], firsts: list[int]) -> Floats:
    """Each score's place in the row: step by step from the last, a score is put in right after the highest of the next
    step that it ties with, or in front where there is none."""
    count = len(ends)
    follower = [count] * (count + 1)  # follower[count] is the front, and marks the end too
    for first, beyond in zip(reversed(firsts), reversed([*firsts[1:], count]), strict=True):
        for score in range(beyond - 1, first - 1, -1):
            before = ends[score] - 1 if ends[score] > beyond else count
            follower[score], follower[before] = follower[before], score
    places, at = np.empty(count), follower[count]
    for place in range(count):
        places[at], at = place, follower[at]
    return places
