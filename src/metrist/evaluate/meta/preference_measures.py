"""Measures of choices between two outputs, all out of one confusion table of humans' and a metric's choices.

accuracy   the share of pairs where the metric chooses what humans chose; equal scores are a tie
f1         the mean F1 of the choices first, second and tie, of those that were made
acc_eq     accuracy at the metric's best tie threshold (stored choices have none)
and every pairwise measure (`darr_wmt14`, `darr_wmt17`, `gamma`, `pair_accuracy`, `concordance`) on the same counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from metrist.evaluate.meta.judged import Codes, Floats
from metrist.stats import choices
from metrist.stats.measures import MEASURES

Pool = Callable[[Floats], Floats]
CELLS = 9


@dataclass(frozen=True, slots=True)
class PreferenceMeasure:
    """Values, chance level and all-ties baseline, each out of summed confusion tables (..., 9)."""

    pool: Pool
    chance: Pool
    all_ties: Pool


def _tabled(pool: Pool) -> Pool:
    return lambda sums: pool(sums.reshape(*sums.shape[:-1], 3, 3))


def _tie_share(tables: Floats) -> Floats:
    total = tables.sum(axis=(-2, -1))
    part = tables[..., choices.TIE, :].sum(axis=-1)
    shares: Floats = np.divide(part, total, out=np.full(np.shape(total), np.nan), where=total > 0)
    return shares


def _pairwise(name: str) -> PreferenceMeasure:
    made = MEASURES[name]

    def of_counts(pool: Pool) -> Pool:
        return _tabled(lambda tables: pool(choices.pair_counts(tables)))

    return PreferenceMeasure(of_counts(made.pool), of_counts(made.chance), of_counts(made.all_ties or made.chance))


def _nothing(tables: Floats) -> Floats:
    return np.full(tables.shape[:-2], np.nan)


_ACCURACY = PreferenceMeasure(_tabled(choices.accuracy), _tabled(choices.chance_accuracy), _tabled(_tie_share))
_PAIRWISE = ("gamma", "kendall_a", "darr_wmt14", "darr_wmt17", "concordance", "pair_accuracy")
PREFERENCE_MEASURES: Mapping[str, PreferenceMeasure] = MappingProxyType(
    {
        "accuracy": _ACCURACY,
        "f1": PreferenceMeasure(_tabled(choices.macro_f1), _tabled(_nothing), _tabled(_nothing)),
        "acc_eq": _ACCURACY,
        **{name: _pairwise(name) for name in _PAIRWISE},
    }
)


def choice_table(human: Floats, leaning: Floats, epsilon: float = 0.0) -> Floats:
    """The confusion table (3, 3), humans by metric in the order first, second, tie, of pairs where both chose."""
    known = ~np.isnan(leaning)
    table: Floats = choices.confusion(_codes(human[known]), choices.chosen(leaning[known], epsilon))[0]
    return table


def choice_rows(human: Floats, leaning: Floats, epsilon: float, item: Codes, items: int) -> Floats:
    """(items, 9): each item's confusion table, laid flat."""
    known = ~np.isnan(leaning)
    cell = _codes(human[known]) * 3 + choices.chosen(leaning[known], epsilon)
    rows = np.zeros((items, CELLS))
    np.add.at(rows, (item[known], cell), 1.0)
    return rows


def best_epsilon(human: Floats, leaning: Floats) -> float:
    """The tie threshold of the greatest accuracy, the smallest of equals."""
    known = ~np.isnan(leaning)
    gaps, order = np.unique(np.abs(leaning[known]), return_inverse=True)
    if not len(gaps):
        return math.nan
    # Raising the threshold over a gap makes its human ties right, and its rightly ordered pairs wrong.
    tied = (human[known] == 0).astype(np.float64)
    ordered = ((np.sign(leaning[known]) == human[known]) & (human[known] != 0)).astype(np.float64)
    gained = np.bincount(order.reshape(-1), weights=tied - ordered, minlength=len(gaps))
    right = ordered.sum() + np.cumsum(gained)
    best = int(np.argmax(right))
    return 0.0 if gaps[0] > 0 and right[best] <= ordered.sum() else float(gaps[best])


def _codes(choice: Floats) -> Codes:
    return np.where(choice > 0, choices.FIRST, np.where(choice < 0, choices.SECOND, choices.TIE)).astype(np.intp)
