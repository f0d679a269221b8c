"""The page of reproduced tables: `reproduce` computes its sections, `as_markdown` writes them down."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from metrist.report.tables import Table
from metrist.studies.reproduce import peers, shipped, shipped_preference
from metrist.studies.reproduce.figures import reproduced
from metrist.studies.reproduce.material import Material, data_folder
from metrist.studies.reproduce.printed import chosen, printed_table
from metrist.studies.reproduce.tables import summary_of, table_of

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
