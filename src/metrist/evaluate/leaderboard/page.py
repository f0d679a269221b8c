"""A leaderboard as one page of HTML, which stands alone."""

from __future__ import annotations

import math
from dataclasses import replace

from metrist._version import __version__
from metrist.errors import format_count
from metrist.evaluate.leaderboard.board import Leaderboard
from metrist.report.figures import PlotValue, draw_history, draw_scores
from metrist.report.page import Block, FigureBlock, Fold, Report, Section, TableBlock
from metrist.report.svg import SERIES
from metrist.report.tables import Count, Table, name_columns


def build_page(board: Leaderboard, title: str = "Leaderboard") -> Report:
    """The order with tables that can be sorted and filtered, strengths as a figure, categories, and the effects of
    controls. `html()` of the result is the page."""
    sections = [
        Section(name="systems", title="Systems", blocks=[_place_systems(board.table())]),
        Section(name="strengths", title="Strengths", blocks=_draw_strengths(board)),
    ]
    if board.controls:
        sections.append(Section(name="controls", title="Controls", blocks=[TableBlock(table=board.control_table())]))
    if len(board.history) > 1:
        sections.append(Section(name="history", title="History", blocks=_draw_history(board)))
    if board.categories:
        folds = [Fold(title=name, blocks=[_place_systems(own.table())]) for name, own in board.categories.items()]
        categories: list[Block] = [TableBlock(table=board.category_table(), sortable=True), *folds]
        sections.append(Section(name="categories", title="Categories", blocks=categories))
    facts = [
        format_count(len(board), "system"),
        format_count(board.votes, "vote"),
        format_count(board.items, "item"),
        f"by {board.by}",
    ]
    return Report(
        title=title,
        facts=" · ".join(facts),
        verdicts=_describe_leaders(board),
        sections=sections,
        cautions=board.notes,
        footer=f"metrist {__version__}",
    )


def _place_systems(table: Table) -> TableBlock:
    """The table with the systems in the first column, which stays in view."""
    table = replace(
        table,
        columns=[table.columns[1], table.columns[0], *table.columns[2:]],
        rows=[[row[1], row[0], *row[2:]] for row in table.rows],
    )
    return TableBlock(table=table, sortable=True)


def _draw_strengths(board: Leaderboard) -> list[FigureBlock]:
    known = [standing for standing in board.standings if math.isfinite(standing.strength)]
    if known:
        values = {own.system: PlotValue(value=own.strength, low=own.low, high=own.high) for own in known}
    else:
        values = {
            own.system: PlotValue(value=own.win_rate, low=own.win_low, high=own.win_high) for own in board.standings
        }
    name = "strength" if known else "win rate"
    title = f"{name.capitalize()} with {board.settings.confidence:.0%} intervals"
    return FigureBlock.of(lambda style: draw_scores({name: values}, {}, style, title), "strengths")


def _draw_history(board: Leaderboard) -> list[Block]:
    """The strengths of the leading systems after each update, and the updates."""
    leaders = [standing.system for standing in board.standings[: len(SERIES)]]
    lines = {
        name: [(own.seconds, value) for own in board.history if (value := own.strengths.get(name)) is not None]
        for name in leaders
    }
    ends = board.history[0].date, board.history[-1].date
    title = f"Strengths of the first {len(leaders)} systems"
    figures = FigureBlock.of(lambda style: draw_history(lines, ends, title=title, style=style), "history")
    rows = [[own.date, Count(own.votes), Count(len(own.strengths))] for own in board.history]
    updates = Table(title="Updates", columns=name_columns("date", right=("votes", "systems")), rows=rows)
    return [*(figures if any(lines.values()) else []), TableBlock(table=updates)]


def _describe_leaders(board: Leaderboard) -> list[str]:
    first = board.standings[0]
    won = f"{first.win_rate:.0%} of its votes won"
    sentences = [f"{first.system} is first of {format_count(len(board), 'system')}, with {won}."]
    second = board.standings[1].system
    if first.needed == 0:
        sentences.append(f"It is ahead of {second}, which luck is unlikely to explain.")
    elif math.isfinite(first.needed):
        more = format_count(int(first.needed), "more vote")
        sentences.append(f"Luck may explain why it is ahead of {second}: about {more} between the two would tell.")
    else:
        sentences.append(f"The votes do not tell it apart from {second}.")
    return sentences
