"""How many seeds the figures of a table are over: said once where all are over as many, else behind each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from metrist.report.tables import Table
from metrist.studies.heap.spreads import Spread


@dataclass(frozen=True, slots=True)
class Seeded:
    """A figure with its number of seeds: `66.9 ± 1.3 [61.0, 72.5] (4 seeds)`."""

    spread: Spread

    def __str__(self) -> str:
        figure = self.spread.figure
        return str(self.spread) if figure is None else f"{self.spread} ({_counted(figure.seeds)})"

    def plain(self) -> Any:
        return self.spread.plain()


def with_seeds(table: Table) -> Table:
    """The table with what it does not say yet."""
    counts = {cell.figure.seeds for row in table.rows for cell in row if isinstance(cell, Spread) and cell.figure}
    if not counts:
        return table
    if len(counts) == 1:
        return replace(table, notes=[*table.notes, f"Every figure is over {_counted(counts.pop())}."])
    note = "Figures are over different numbers of seeds, said behind each; a mean is over those of all its criteria."
    return replace(table, rows=[_told(row) for row in table.rows], notes=[*table.notes, note])


def _told(row: Sequence[Any]) -> list[Any]:
    return [Seeded(cell) if isinstance(cell, Spread) else cell for cell in row]


def _counted(seeds: int) -> str:
    return f"{seeds:,} seed{'' if seeds == 1 else 's'}"
