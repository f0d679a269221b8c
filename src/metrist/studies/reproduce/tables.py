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
    own = [figure for figure in figures if not figure.block.stored]
    stored = [figure for figure in figures if figure.block.stored]
    said = [_tally("computed here", own), _tally("of scores stored with the data", stored)]
    absent = sum(not figure.at_hand for figure in figures)
    said += [f"The data is not at hand for {absent}."] if absent else []
    return " ".join(filter(None, said))


def is_off(figure: Reproduced) -> bool:
    """Whether a figure is so far from the printed one that a reader must be told why."""
    return abs(figure.difference) > EXPLAINED_ABOVE * figure.scale


def _tally(what: str, figures: Sequence[Reproduced]) -> str:
    gaps = [abs(figure.difference) / figure.scale for figure in figures if not math.isnan(figure.difference)]
    if not gaps:
        return ""
    same, off = sum(gap <= SAME for gap in gaps), sum(gap > EXPLAINED_ABOVE for gap in gaps)
    near = len(gaps) - same - off
    counts = [f"{same} within {_short(SAME)} of the paper's"]
    counts += [f"{near} within {_short(EXPLAINED_ABOVE)}"] if near else []
    counts += [f"{off} further off (see the notes)"] if off else []
    return f"Of {len(gaps)} figures {what}, {', '.join(counts)}."


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
