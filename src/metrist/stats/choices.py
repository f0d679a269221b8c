"""Choices between two outputs, a metric's beside the humans': first, second or tie.

The row that everything pools is a confusion table (3, 3) of counts: rows are what humans chose, columns what the
metric chose, both in the order of `CHOICES`. Tables add up, and a resample is a weighted table.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from metrist.errors import RunError
from metrist.kernels.columns import Floats
from metrist.stats.sample import Codes

FIRST, SECOND, TIE = 0, 1, 2
CHOICES: Final = ("first", "second", "tie")


def chosen(differences: Floats, threshold: float = 0.0) -> Codes:
    """What a metric chooses, given its score of the first minus that of the second output: a tie where they differ by
    at most the threshold."""
    if not threshold >= 0:
        raise RunError(f"a tie threshold must be 0 or more, got {threshold}")
    if np.isnan(differences).any():
        raise RunError(
            f"{np.isnan(differences).sum()} of {len(differences)} score differences are NaN: leave such pairs out, "
            "and count them"
        )
    return np.where(differences > threshold, FIRST, np.where(differences < -threshold, SECOND, TIE))


def confusion(human: Codes, metric: Codes, weights: Floats | None = None) -> Floats:
    """Tables (draws, 3, 3), one where no weights (draws, pairs) are given."""
    human, metric = np.asarray(human), np.asarray(metric)
    if human.shape != metric.shape:
        raise RunError(f"as many human choices as the metric's, got {len(human)} and {len(metric)}")
    weights = np.ones((1, len(human))) if weights is None else weights
    cells = (human * 3 + metric)[:, None] == np.arange(9)
    counts: Floats = weights @ cells.astype(np.float64)
    return counts.reshape(-1, 3, 3)


def accuracy(tables: Floats) -> Floats:
    """The share of pairs where the metric chose as humans did."""
    return _share(np.trace(tables, axis1=-2, axis2=-1), tables.sum(axis=(-2, -1)))


def f1_by_choice(tables: Floats) -> Floats:
    """F1 of each choice (..., 3); NaN for one that nobody made."""
    right = np.diagonal(tables, axis1=-2, axis2=-1)
    return _share(2 * right, tables.sum(axis=-1) + tables.sum(axis=-2))


def macro_f1(tables: Floats) -> Floats:
    """The mean F1 of the choices that humans or metric made."""
    scores = f1_by_choice(tables)
    made = ~np.isnan(scores)
    return _share(np.where(made, scores, 0.0).sum(axis=-1), made.sum(axis=-1).astype(np.float64))


def chance_accuracy(tables: Floats) -> Floats:
    """The accuracy of tossing a coin between first and second."""
    by_human = tables.sum(axis=-1)
    return _share((by_human[..., FIRST] + by_human[..., SECOND]) / 2, by_human.sum(axis=-1))


def pair_counts(tables: Floats) -> Floats:
    """Rows (..., 5) for the pairwise measures: chosen alike, chosen the other way round, tied by humans only, by the
    metric only, by both. With these, `darr_wmt17` and its kind apply to preferences."""
    human_tied = tables[..., TIE, FIRST] + tables[..., TIE, SECOND]
    metric_tied = tables[..., FIRST, TIE] + tables[..., SECOND, TIE]
    alike = tables[..., FIRST, FIRST] + tables[..., SECOND, SECOND]
    opposed = tables[..., FIRST, SECOND] + tables[..., SECOND, FIRST]
    return np.stack([alike, opposed, human_tied, metric_tied, tables[..., TIE, TIE]], axis=-1)


def _share(part: Floats, whole: Floats) -> Floats:
    shares: Floats = np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=whole > 0)
    return shares
