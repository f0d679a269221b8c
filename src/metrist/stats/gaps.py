"""Gaps between the scores of paired outputs, all of them or a random sample."""

from __future__ import annotations

import numpy as np

from metrist.stats.ties import Counts, Floats, Pairing


def count_gaps(paired: Pairing) -> int:
    """How many pairs of different outputs there are."""
    return int(_before(paired).sum())


def some_gaps(paired: Pairing, most: int) -> Floats:
    """The gaps of all pairs, ascending; those of `most` random pairs where there are more. The same every time."""
    scores, before = paired.ranked.scores, _before(paired)
    upto = np.cumsum(before)
    count = int(before.sum())
    pairs = np.arange(count) if count <= most else np.random.default_rng(0).integers(0, count, most)
    later = np.searchsorted(upto, pairs, side="right")
    earlier = later - 1 - (pairs - (upto[later] - before[later]))
    return np.sort(scores[later] - scores[earlier])


def greatest_gap(paired: Pairing) -> float:
    scores, starts = paired.ranked.scores, paired.ranked.starts
    return float((scores[starts[1:] - 1] - scores[starts[:-1]]).max(initial=0.0))


def _before(paired: Pairing) -> Counts:
    """For each output, how many of its group come before it."""
    starts = paired.ranked.starts
    return np.arange(len(paired.ranked.scores)) - np.repeat(starts[:-1], np.diff(starts))
