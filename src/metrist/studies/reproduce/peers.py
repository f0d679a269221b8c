"""The metrics submitted to WMT23, by the scores that their authors gave: which agrees best with people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from metrist.evaluate.meta.evaluate import meta_evaluate
from metrist.evaluate.meta.results import Figure
from metrist.report.cells import Change, Count, Estimate, Number
from metrist.report.tables import Column, Table
from metrist.studies.reproduce.dataset import Material
from metrist.studies.reproduce.published import ABSENT, facts

NAME = "wmt23-en-de"
#: What four decimals can tell apart.
SAME = 0.0001
_DECIMALS = 4
_COLUMNS = (
    Column("rank", "right"),
    Column("metric"),
    *(Column(name, "right") for name in ("acc_eq", "ε", "chance", "all ties", "n", "mt-metrics-eval", "difference")),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeerTable:
    """The metrics, best first, with what is to be said above their table."""

    title: str
    caption: str
    figures: tuple[Figure, ...]
    printed: Mapping[str, float]
    notes: tuple[str, ...]

    @property
    def summary(self) -> str:
        """How many figures agree with the other implementation's, in words."""
        if not self.figures:
            return "The data is not at hand."
        gaps = [abs(_gap(figure, self.printed)) for figure in self.figures if figure.metric in self.printed]
        same = sum(gap <= SAME for gap in gaps)
        return f"{same} of the {len(gaps)} values known from mt-metrics-eval are met within {SAME:.4f}."

    @property
    def table(self) -> Table:
        """One row per metric; where the data is absent, one per value that is known."""
        rows = [self._row(figure) for figure in self.figures] or [self._absent(name) for name in self.printed]
        return Table(columns=_COLUMNS, rows=rows, notes=self.notes)

    def _row(self, figure: Figure) -> list[Any]:
        return [
            Count(figure.rank) if figure.rank else "",
            figure.metric,
            Estimate(figure.value, figure.low, figure.high, _DECIMALS),
            Number(figure.epsilon, 6),
            Number(figure.chance, _DECIMALS),
            Number(figure.all_ties, _DECIMALS),
            Count(figure.n),
            Number(self.printed.get(figure.metric, math.nan), _DECIMALS),
            Change(_gap(figure, self.printed), decimals=_DECIMALS),
        ]

    def _absent(self, metric: str) -> list[Any]:
        nothing = Number(math.nan)
        known = Number(self.printed[metric], _DECIMALS)
        return ["", metric, ABSENT, nothing, nothing, nothing, Count(0), known, nothing]


def peer_table(material: Material, draws: int = 1000) -> PeerTable:
    """The metrics of WMT23 English-German; intervals and ranks rest on so many draws."""
    known = facts(NAME)
    figures, notes = _judged(material, known, draws) if material.has(known["data"]) else ((), ())
    return PeerTable(
        title=known["title"],
        caption=known["caption"].strip(),
        figures=figures,
        printed=known["printed"],
        notes=notes,
    )


def _judged(material: Material, known: Mapping[str, Any], draws: int) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
    found = meta_evaluate(
        material.judged(known["data"]),
        known["aspect"],
        known["measure"],
        group=known["group"],
        exclude_systems=known["exclude"],
        draws=draws,
    )
    return tuple(sorted(found.figures, key=lambda figure: -figure.value)), found.notes


def _gap(figure: Figure, printed: Mapping[str, float]) -> float:
    return figure.value - printed.get(figure.metric, math.nan)
