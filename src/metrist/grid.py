"""Grids: scores as system × item. Only here are rows joined by key and signs flipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.names import NameColumn, encode_names, find_outputs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """One scorer's values, NaN where missing; `rows` has the input row of each cell (-1: none)."""

    scorer: str
    systems: tuple[str, ...]
    items: Sequence[str]
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
        system_column, item_column = encode_names(systems), encode_names(items)
        s, i = system_column.codes, item_column.codes
        rows = np.full((len(system_column.names), len(item_column.names)), -1, dtype=np.intp)
        rows[s, i] = np.arange(len(values))
        if np.count_nonzero(rows >= 0) != len(values):
            twice = int(np.flatnonzero(rows[s, i] != np.arange(len(values)))[0])
            raise RunError(f"{scorer}: item {items[twice]!r} of system {systems[twice]!r} is scored twice")
        cells = np.full(rows.shape, np.nan)
        cells[s, i] = values if higher_is_better else -values
        names = item_column.names
        return Grid(scorer=scorer, systems=tuple(system_column.names), items=names, values=cells, rows=rows)


def pair_outputs(
    items: NameColumn,
    systems: NameColumn,
    other_items: NameColumn,
    other_systems: NameColumn,
    counterparts: Mapping[str, str],
) -> NDArray[np.intp]:
    """The position of each output's counterpart among others: the output of the same item by the system that is the
    counterpart of its own; -1 where there is none."""
    renamed = NameColumn(systems.codes, tuple(counterparts.get(name, name) for name in systems.names))
    found = find_outputs(items, renamed, other_items, other_systems)
    is_paired = np.fromiter((name in counterparts for name in systems.names), np.bool_, count=len(systems.names))
    return np.where(is_paired[systems.codes], found, -1)
