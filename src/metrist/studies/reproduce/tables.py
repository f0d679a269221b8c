"""A paper's table beside ours, as a table to read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from metrist.report.cells import Change, Count, Number
from metrist.report.tables import Column, Table
from metrist.studies.reproduce.figures import Reproduced
from metrist.studies.reproduce.printed import MEAN, PrintedTable

#: On a scale to 1: figures that differ by no more are the paper's; those that differ by more than the second need
#: an explanation.
SAME = 0.005
EXPLAINED_ABOVE = 0.03
ABSENT = "data not at hand"
_COLUMNS = (
    *(Column(name) for name in ("metric", "data", "aspect", "measure")),
    *(Column(name, "right") for name in ("n", "paper", "ours", "difference")),
    Column("computed as"),
    Column("note"),
)
_REFERENCES = {"all": "", "first": "first reference only", "source": "source as reference"}
_LINES = {"whole": "", "sentences": "a sentence a line"}


def table_of(printed: PrintedTable, figures: Sequence[Reproduced]) -> Table:
    """One row per printed number."""
    return Table(columns=_COLUMNS, rows=[_row(figure, printed) for figure in figures], notes=printed.notes)


def summary_of(figures: Sequence[Reproduced]) -> str:
    """How many figures agree with the printed ones, in words."""
    gaps = [abs(figure.difference) / figure.scale for figure in figures]
    compared = [gap for gap in gaps if not math.isnan(gap)]
    same = sum(gap <= SAME for gap in compared)
    off = sum(gap > EXPLAINED_ABOVE for gap in compared)
    absent = sum(not figure.at_hand for figure in figures)
    said = [f"{same} of {len(compared)} figures are the paper's within {_short(SAME)}"]
    said += [f"{len(compared) - same - off} within {_short(EXPLAINED_ABOVE)}"] if same + off < len(compared) else []
    said += [f"{off} are further off, for the reason that the note gives"] if off else []
    said += [f"for {absent} the data is not at hand"] if absent else []
    return ", ".join(said) + "."


def is_off(figure: Reproduced) -> bool:
    """Whether a figure is so far from the printed one that a reader must be told why."""
    return abs(figure.difference) > EXPLAINED_ABOVE * figure.scale


def _row(figure: Reproduced, printed: PrintedTable) -> list[Any]:
    block, decimals = figure.block, printed.decimals
    return [
        block.label,
        figure.data,
        "mean of all" if figure.aspect == MEAN else figure.aspect,
        f"{figure.measure}, by item" if block.group == "item" else figure.measure,
        Count(figure.n),
        Number(figure.printed, decimals),
        Number(figure.ours, decimals) if figure.at_hand else ABSENT,
        Change(figure.difference, decimals=decimals),
        _computed_as(figure),
        block.note,
    ]


def _computed_as(figure: Reproduced) -> str:
    block = figure.block
    said = [
        f"stored {block.stored}" if block.stored else block.metric,
        block.part,
        _REFERENCES[block.references],
        _LINES[block.lines],
        f"without {' and '.join(block.exclude)}" if block.exclude else "",
    ]
    return ", ".join(filter(None, said))


def _short(number: float) -> str:
    return f"{number:g}".removeprefix("0")
