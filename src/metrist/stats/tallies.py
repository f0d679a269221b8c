"""Weighted tallies of ratings: how often each value occurs in each of many resamples.

A resample is a row of whole numbers, how often each output was picked. Tallies of them are whole numbers too, exact in
whatever order they are added.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from metrist.stats.raters import Codes, Floats, Ratings


class Runs(NamedTuple):
    """The distinct values of each output, in order: which output, which level, how many ratings."""

    output: Codes
    level: Codes
    ratings: Codes


def level_totals(weights: Floats, output: Codes, level: Codes, levels: int) -> Floats:
    """Totals (draws, levels): how many ratings, counted as often as their outputs were picked, have each level."""
    # Sums of gathered weights rather than a product with ones and zeros: as fast, for any number of levels, and it
    # starts no threads that would wait for each other over many small products.
    order = np.argsort(level, kind="stable")
    present, starts = np.unique(level[order], return_index=True)
    totals = np.zeros((len(weights), levels))
    if len(present):
        totals[:, present] = np.add.reduceat(weights.take(output[order], axis=1), starts, axis=1)
    return totals


def pairable(ratings: Ratings) -> Ratings:
    """The ratings of outputs that have at least two."""
    return ratings.chosen(ratings.counts()[ratings.output] >= 2)


def runs(ratings: Ratings, level: Codes) -> Runs:
    """The ratings gathered by output and level."""
    width = int(level.max(initial=0)) + 1
    cells, counts = np.unique(ratings.output * width + level, return_counts=True)
    return Runs(cells // width, cells % width, counts)
