"""The models that ship, judged on data they never saw, beside what papers print for larger ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrist.report.cells import Count, Number
from metrist.report.tables import Column, Table
from metrist.studies.reproduce.figures import Reproduced, reproduced
from metrist.studies.reproduce.material import Material
from metrist.studies.reproduce.printed import Block, facts
from metrist.studies.reproduce.tables import ABSENT

NAMES = ("shipped-likelihood",)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShippedTable:
    """Our figure for each data set and aspect, and the peers' printed ones in the order of `peers`."""

    title: str
    caption: str
    notes: tuple[str, ...]
    decimals: int
    peers: tuple[str, ...]
    figures: tuple[tuple[Reproduced, Sequence[float]], ...]

    @property
    def summary(self) -> str:
        """How often ours is above each peer, in words."""
        at_hand = [(figure.ours, printed) for figure, printed in self.figures if figure.at_hand]
        if not at_hand:
            return "The data is not at hand."
        above = [sum(ours > printed[k] for ours, printed in at_hand) for k in range(len(self.peers))]
        counts = ", ".join(f"{peer} in {count}" for peer, count in zip(self.peers, above, strict=True))
        return f"Of {len(at_hand)} figures, ours is above {counts}."

    @property
    def table(self) -> Table:
        """One row per data set and aspect."""
        text = [Column(name) for name in ("data", "aspect", "measure")]
        numbers = [Column(name, "right") for name in ("n", *self.peers, "ours")]
        rows = [self._row(figure, printed) for figure, printed in self.figures]
        return Table(columns=(*text, *numbers, Column("computed as")), rows=rows, notes=self.notes)

    def _row(self, figure: Reproduced, printed: Sequence[float]) -> list[Any]:
        return [
            figure.data,
            figure.aspect,
            f"{figure.measure}, by item" if figure.block.group == "item" else figure.measure,
            Count(figure.n),
            *(Number(number, self.decimals) for number in printed),
            Number(figure.ours, self.decimals) if figure.at_hand else ABSENT,
            figure.block.metric,
        ]


def shipped_table(name: str, material: Material) -> ShippedTable:
    """The table of that name."""
    known = facts(name)
    return ShippedTable(
        title=known["title"],
        caption=known["caption"].strip(),
        notes=tuple(known["notes"]),
        decimals=known["decimals"],
        peers=tuple(known["peers"]),
        figures=tuple(pair for block in known["blocks"] for pair in _figures(block, material)),
    )


def _figures(known: Mapping[str, Any], material: Material) -> Iterator[tuple[Reproduced, Sequence[float]]]:
    printed = known["printed"]
    block = Block(
        label=known["metric"],
        metric=known["metric"],
        group=known["group"],
        measures=(known["measure"],),
        # No paper prints a figure of ours: the peers' stand beside it.
        printed={data: dict.fromkeys(aspects, (math.nan,)) for data, aspects in printed.items()},
    )
    for figure in reproduced(block, material):
        yield figure, printed[figure.data][figure.aspect]
