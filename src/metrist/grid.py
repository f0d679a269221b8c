"""Grids: scores as system × item. Only here are rows joined by key and signs flipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """One scorer's values, NaN where missing; `rows` has the input row of each cell (-1: none)."""

    scorer: str
    systems: tuple[str, ...]
    items: tuple[str, ...]
    values: NDArray[np.float64]
    rows: NDArray[np.intp]

    @staticmethod
    def of(
        scorer: str,
        systems: Sequence[str],
        items: Sequence[str],
        values: NDArray[np.float64],
        *,
        higher_is_better: bool = True,
    ) -> Grid:
        """A grid from long columns. Values of a scorer where lower is better are negated, so that a larger cell is
        always better."""
        system_at = {name: i for i, name in enumerate(dict.fromkeys(systems))}
        item_at = {name: i for i, name in enumerate(dict.fromkeys(items))}
        rows = np.full((len(system_at), len(item_at)), -1, dtype=np.intp)
        s = np.fromiter((system_at[name] for name in systems), dtype=np.intp, count=len(systems))
        i = np.fromiter((item_at[name] for name in items), dtype=np.intp, count=len(items))
        rows[s, i] = np.arange(len(values))
        if np.count_nonzero(rows >= 0) != len(values):
            twice = int(np.flatnonzero(rows[s, i] != np.arange(len(values)))[0])
            raise RunError(f"{scorer}: item {items[twice]!r} of system {systems[twice]!r} is scored twice")
        signed = values if higher_is_better else -values
        cells = np.where(rows >= 0, np.append(signed, np.nan)[rows], np.nan)
        return Grid(scorer=scorer, systems=tuple(system_at), items=tuple(item_at), values=cells, rows=rows)
