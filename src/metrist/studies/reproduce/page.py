"""A paper's table beside ours, as a table to read."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from metrist.report.cells import Change, Count, Number
from metrist.report.tables import Column, Table
from metrist.studies.reproduce import peers, shipped
from metrist.studies.reproduce import shipped as shipped_preference
from metrist.studies.reproduce.comparison import Reproduced, reproduced
from metrist.studies.reproduce.dataset import Material, data_folder
from metrist.studies.reproduce.published import ABSENT, MEAN, PrintedTable, chosen, printed_table

#: On a scale to 1: figures that differ by no more are the paper's; those that differ by more than the second need
#: an explanation.
SAME = 0.005
EXPLAINED_ABOVE = 0.03

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


# The page of reproduced tables: `reproduce` computes its sections, `as_markdown` writes them down.


_HEAD = """\
# Published tables, computed again

<!-- Written by `metrist reproduce` (`make tables`); edit src/metrist/studies/reproduce, not this page. -->

What papers print, beside what metrist computes from the same human judgments: lexical metrics, scores that others
stored with the data, and the models that ship. The papers: 001 is TIGERScore, 002 is BARTScore (Yuan, Neubig and Liu
2021). n counts outputs that both people and the metric judged, or pairs that people compared. The data sets are public
and not part of metrist: `--data`, or the environment variable METRIST_TEST_DATA, names the folder that holds them.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Section:
    """One table of the page. `caption` says how it was computed, `summary` how well it went."""

    name: str
    title: str
    caption: str
    summary: str
    table: Table


def reproduce(tables: Sequence[str] = (), data: str | os.PathLike[str] | None = None) -> Iterator[Section]:
    """The tables of these names (all if none is given), one after the other as they are computed. What needs a data set
    that is not in the folder says so."""
    material = Material(data_folder(data))
    return (_section(name, material) for name in chosen(tables))


def as_markdown(sections: Iterable[Section]) -> str:
    """The whole page."""
    return "\n".join([_HEAD, *map(_written, sections)])


def _section(name: str, material: Material) -> Section:
    found = _own_form(name, material)
    if found:
        return Section(name=name, title=found.title, caption=found.caption, summary=found.summary, table=found.table)
    printed = printed_table(name)
    figures = [figure for block in printed.blocks for figure in reproduced(block, material, printed.scale)]
    return Section(
        name=name,
        title=printed.title,
        caption=printed.caption.strip(),
        summary=summary_of(figures),
        table=table_of(printed, figures),
    )


def _own_form(
    name: str, material: Material
) -> peers.PeerTable | shipped.ShippedTable | shipped_preference.PreferenceTable | None:
    """A table that is more than printed numbers beside ours."""
    if name == peers.NAME:
        return peers.peer_table(material)
    if name == shipped_preference.NAME:
        return shipped_preference.preference_table(material)
    return shipped.shipped_table(name, material) if name in shipped.NAMES else None


def _written(section: Section) -> str:
    command = f"`metrist reproduce --table {section.name}`"
    opening = f"{section.caption} {section.summary}".strip()
    return f"## {section.title}\n\n{opening} Command: {command}.\n\n{section.table.render('markdown')}\n"
