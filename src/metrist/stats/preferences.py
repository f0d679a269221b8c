"""Gold from preferences: how often each system, or each output, is the preferred one. A tie is half a win for both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metrist.errors import RunError
from metrist.stats.raters import Codes, Floats, divided
from metrist.stats.resample import bootstrap_scores, interval, pooled

FIRST, SECOND, TIE = 1, -1, 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Preferences:
    """One entry per preference: the item, the codes of both systems, and the choice (1 first, -1 second, 0 tie).

    Who chose does not matter here; each preference weighs the same.
    """

    item: Codes
    first: Codes
    second: Codes
    choice: NDArray[np.int8]
    items: int
    systems: int

    @staticmethod
    def of(item: ArrayLike, first: ArrayLike, second: ArrayLike, choice: ArrayLike, systems: int) -> Preferences:
        """Preferences from long columns."""
        items, one, two = (np.asarray(column, dtype=np.intp) for column in (item, first, second))
        choices = np.asarray(choice)
        if not len(items) == len(one) == len(two) == len(choices):
            raise RunError("preferences need one item, first system, second system and choice each")
        strange = sorted(set(choices.tolist()) - {FIRST, SECOND, TIE})
        if strange:
            raise RunError(f"a choice is 1 (first), -1 (second) or 0 (tie), found {strange[0]!r}")
        if np.any(one == two):
            raise RunError(f"{np.count_nonzero(one == two):,} preferences compare a system with itself")
        if len(one) and (min(one.min(), two.min()) < 0 or max(one.max(), two.max()) >= systems):
            raise RunError(f"system codes of preferences must lie in 0 to {systems - 1}")
        return Preferences(
            item=items,
            first=one,
            second=two,
            choice=choices.astype(np.int8),
            items=int(items.max(initial=-1)) + 1,
            systems=systems,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WinRates:
    """Per system the share of its preferences that it won, with its bootstrap interval over items; NaN for a system
    that was never compared. `games` counts its preferences."""

    value: Floats
    low: Floats
    high: Floats
    games: Codes


def win_rows(preferences: Preferences) -> Floats:
    """Rows (systems, items, 2): points won and preferences taken part in. Pooled by `win_rate`, per item they are the
    gold of an output, summed over items that of a system."""
    cells = (preferences.systems, preferences.items)
    points = (1 + preferences.choice) / 2
    rows = np.zeros((*cells, 2))
    np.add.at(rows, (preferences.first, preferences.item), np.stack([points, np.ones_like(points)], axis=1))
    np.add.at(rows, (preferences.second, preferences.item), np.stack([1 - points, np.ones_like(points)], axis=1))
    return rows


def win_rate(sums: Floats) -> Floats:
    """Points over preferences, along the last axis; NaN where there was none."""
    return divided(sums[..., 0], sums[..., 1])


def shares_won(first: ArrayLike, second: ArrayLike, choice: ArrayLike, size: int) -> Floats:
    """Each side's share of its preferences that it won, by code (of systems, or of outputs); NaN for one without."""
    sides = np.concatenate([np.asarray(first, dtype=np.intp), np.asarray(second, dtype=np.intp)])
    points = (1 + np.asarray(choice, dtype=np.float64)) / 2
    won = np.bincount(sides, weights=np.concatenate([points, 1 - points]), minlength=size)
    return divided(won, np.bincount(sides, minlength=size))


def win_rates(preferences: Preferences, draws: int, rng: np.random.Generator, confidence: float = 0.95) -> WinRates:
    """The systems' win rates, with intervals over resamples of the items."""
    rows = win_rows(preferences)
    # Item codes that no preference has are not items that were asked about.
    rows = rows[:, rows[..., 1].any(axis=0)]
    resampled = bootstrap_scores(rows, win_rate, draws, rng)
    limits = [interval(resampled[:, s], confidence, rows.shape[1]) for s in range(preferences.systems)]
    low, high = np.array(limits, dtype=np.float64).reshape(-1, 2).T
    games: Codes = rows[..., 1].sum(axis=1).astype(np.intp)
    return WinRates(value=pooled(rows, win_rate), low=low, high=high, games=games)
