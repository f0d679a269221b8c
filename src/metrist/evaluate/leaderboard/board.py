"""`leaderboard`: the strengths of systems from votes, with intervals over items, and how sure their order is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from metrist._version import __version__
from metrist.errors import RunError, format_count
from metrist.evaluate.leaderboard.folder import (
    Snapshot,
    add_snapshot,
    add_votes,
    holds_votes,
    lock_folder,
    parse_date,
    read_vote_lines,
    read_votes,
    resume_settings,
    write_board,
)
from metrist.evaluate.leaderboard.votes import Votes, collect_votes
from metrist.evaluate.meta.join import join
from metrist.evaluate.plans import LeaderboardSettings, list_units
from metrist.io.reader import check_keywords
from metrist.report.cells import or_none
from metrist.report.figures import PlotValue, draw_history, draw_scores
from metrist.report.page import Block, FigureBlock, Fold, Report, Section, TableBlock
from metrist.report.svg import SERIES
from metrist.report.tables import Column, Count, Estimate, Number, Table, name_columns
from metrist.settings import checks_types, select_arguments
from metrist.stats import Floats
from metrist.stats.controls import ControlledFit, fit_controlled
from metrist.stats.preferences import (
    BradleyTerry,
    Preferences,
    bootstrap_standings,
    bradley_terry,
    rank_ranges,
    shares_won,
    votes_needed,
)
from metrist.stats.resampling import add_intervals
from metrist.stats.samples import number_groups

_ABOUT = "Strength: Bradley and Terry's with ties (Davidson 1970), on the log scale, with mean 0; a tie is half a win."


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One system's place. `best_rank` and `worst_rank` are the range of its rank in resamples of the items; `needed` is
    how many more votes between it and the next system tell the two apart. With controls, strength and rank are those at
    equal controls, as `controlled_win_rate` is. What is not determined is NaN."""

    system: str
    rank: int
    best_rank: float
    worst_rank: float
    strength: float
    low: float
    high: float
    win_rate: float
    win_low: float
    win_high: float
    won: int
    tied: int
    lost: int
    needed: float = math.nan
    controlled_win_rate: float = math.nan
    controlled_low: float = math.nan
    controlled_high: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlEffect:
    """By how much a control moves votes: the coefficient of tanh(difference / `scale`), where the scale is the root of
    the mean square of the differences between two outputs."""

    control: str
    coefficient: float
    low: float
    high: float
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaderboard:
    """Systems in order, the strongest first. `categories` has the boards of the votes with one value of a column, under
    names such as `task=qa`."""

    standings: tuple[Standing, ...]
    settings: LeaderboardSettings
    by: str
    votes: int
    items: int
    tie: float = math.nan
    controls: tuple[ControlEffect, ...] = ()
    categories: Mapping[str, Leaderboard] = field(default_factory=dict)
    history: tuple[Snapshot, ...] = ()
    notes: tuple[str, ...] = ()
    _fitted: BradleyTerry | None = None
    _resampled: Floats = field(default_factory=lambda: np.empty((0, 0)))
    _systems: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.standings)

    def __getitem__(self, system: str) -> Standing:
        for standing in self.standings:
            if standing.system == system:
                return standing
        raise KeyError(system)

    def __repr__(self) -> str:
        return f"Leaderboard({format_count(len(self), 'system')}, {format_count(self.votes, 'vote')}, by {self.by})"

    def votes_needed(self, first: str, second: str) -> float:
        """How many more votes between two systems tell them apart, if their strengths stay as they are: 0 where the
        interval of the difference excludes 0 now, NaN where it is not determined."""
        if self._fitted is None or math.isnan(self[first].low):
            return math.nan
        one, other = (self._systems.index(self[name].system) for name in (first, second))
        return votes_needed(self._fitted, self._resampled, one, other, self.settings.confidence)

    def table(self) -> Table:
        """The systems in order."""
        confidence, draws = self.settings.confidence, self.settings.draws
        columns, about = ["strength", "win rate", "won", "tied", "lost", "more votes"], [_ABOUT]
        if self.controls:
            columns.insert(2, "at equal controls")
            names = ", ".join(effect.control for effect in self.controls)
            about += [
                f"Rank, strength and the win rate at equal controls are those where {names} would be equal.",
                "Their intervals are those of normal errors, clustered by item.",
            ]
        about += [
            f"{confidence:.0%} intervals and ranges of ranks: {draws:,} bootstrap resamples of the items, "
            f"seed {self.settings.seed}.",
            "More votes: how many between a system and the next one would tell the two apart, if their strengths stay.",
        ]
        rows = []
        for own in self.standings:
            rank = f"{own.rank}"
            if own.best_rank < own.worst_rank:
                rank += f" ({own.best_rank:.0f}–{own.worst_rank:.0f})"
            equal = [Estimate(own.controlled_win_rate, own.controlled_low, own.controlled_high)]
            rows.append(
                [
                    rank,
                    own.system,
                    Estimate(own.strength, own.low, own.high, 2),
                    Estimate(own.win_rate, own.win_low, own.win_high),
                    *(equal if self.controls else []),
                    Count(own.won),
                    Count(own.tied),
                    Count(own.lost),
                    _show_needed(own.needed),
                ]
            )
        return Table(
            title=f"Leaderboard by {self.by}",
            columns=[
                *name_columns("rank", right=()),
                Column("system"),
                *name_columns(right=columns),
            ],
            rows=rows,
            notes=[*about, *self.notes],
        )

    def category_table(self) -> Table:
        """Each system's strength, and its rank, in each category."""
        rows = []
        for standing in self.standings:
            cells: list[Any] = [standing.system]
            for board in self.categories.values():
                own = next((other for other in board.standings if other.system == standing.system), None)
                if own is None:
                    cells.append(None)
                    continue
                strength = f"{own.strength:+.2f}" if math.isfinite(own.strength) else f"{own.win_rate:.3f}"
                cells.append(f"{strength} #{own.rank}")
            rows.append(cells)
        counts = [f"{name}: {format_count(board.votes, 'vote')}" for name, board in self.categories.items()]
        notes = ["Strength and rank of each system within a category.", f"{'; '.join(counts)}."]
        if unsure := [name for name, board in self.categories.items() if math.isnan(board.tie)]:
            notes.append(f"Win rates, where the votes do not determine strengths: {', '.join(unsure)}.")
        return Table(title="Categories", columns=name_columns("system", right=self.categories), rows=rows, notes=notes)

    def control_table(self) -> Table:
        """By how much each control moves votes."""
        rows = [
            [
                effect.control,
                Estimate(effect.coefficient, effect.low, effect.high, 2),
                Number(math.exp(effect.coefficient * math.tanh(1.0)), 2),
                Number(effect.scale, 3 if effect.scale < 10 else 0),
            ]
            for effect in self.controls
        ]
        notes = [
            "Odds: what the odds of winning are multiplied by where an output has one unit more.",
            "Unit: the typical difference between the two outputs of a vote, the root of its mean square.",
        ]
        columns = name_columns("control", right=("coefficient", "odds", "unit"))
        return Table(title="Controls", columns=columns, rows=rows, notes=notes)

    def tables(self) -> list[Table]:
        """All tables."""
        tables = [self.table()]
        if self.controls:
            tables.append(self.control_table())
        if self.categories:
            tables.append(self.category_table())
        return tables

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        board: dict[str, Any] = {
            "by": self.by,
            "votes": self.votes,
            "items": self.items,
            "tie": or_none(self.tie),
            "standings": [_to_dict(standing) for standing in self.standings],
            "controls": [_to_dict(effect) for effect in self.controls],
            "notes": list(self.notes),
        }
        if self.history:
            board["history"] = [asdict(snapshot) for snapshot in self.history]
        if self.categories:
            board["categories"] = {name: own.to_dict() for name, own in self.categories.items()}
        return board

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


@checks_types
def leaderboard(
    data: Any,
    by: str | None = None,
    *,
    systems: str | Sequence[str] | None = None,
    categories: str | Sequence[str] = (),
    control: str | Sequence[str] = (),
    where: str | Sequence[str] = (),
    into: Path | str | None = None,
    date: str | None = None,
    draws: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
    progress: Callable[..., None] | None = None,
    **reading: Any,
) -> Leaderboard:
    """Order systems by the choices between their outputs.

    `data` is a file of preferences, a file or folder that `metrist prefer` wrote, a run folder or results (the better
    score wins), rows, a list of such sources, a table of votes, or the folder of a leaderboard. `by` names whose
    judgments count if there are several: an aspect of preferences, a comparator, a metric, or an aspect of ratings.
    `categories` are columns: each of their values gets an order of its own. `control` are numbers of outputs, such as
    "output_length", or metrics: strengths and ranks are then those where both outputs of a vote would have the same.
    `where` keeps the votes on outputs that meet conditions such as "language=en". `into` is a folder: the votes are
    added to those that it holds, the order is that of all, and its history has one entry for each `date`, by default
    today's. `progress` is called with the draws done and all of them. `reading` are options of `read_records`.
    """
    if reading:
        check_keywords(leaderboard, reading)
    settings = LeaderboardSettings(**select_arguments(LeaderboardSettings, locals()))
    if (folder := settings.into) is None:
        return rank_votes(_read_votes(data, settings, reading).select(settings.systems), settings, progress)
    date = settings.date or datetime.now(UTC).date().isoformat()
    parse_date(date)
    with lock_folder(folder):
        settings, history = resume_settings(folder, settings)
        votes = _read_votes(data, settings, reading)
        settings = replace(settings, by=votes.by)
        votes = add_votes(folder, votes, settings)
        board = rank_votes(votes.select(settings.systems), settings, progress)
        strengths = {standing.system: or_none(standing.strength) for standing in board.standings}
        snapshot = Snapshot(date=date, votes=board.votes, strengths=strengths)
        board = replace(board, history=add_snapshot(history, snapshot))
        write_board(folder, board.to_dict(), settings)
    return board


def _read_votes(data: Any, settings: LeaderboardSettings, reading: Mapping[str, Any]) -> Votes:
    if holds_votes(data):
        return read_votes(data, settings)
    columns = [*settings.categories, *settings.control, *settings.where]
    is_plain = not columns and not any(value for name, value in reading.items() if name != "announce")
    if is_plain and isinstance(data, str | Path) and Path(data).suffix == ".jsonl":
        votes = read_vote_lines(Path(data), settings.by)
        if votes is not None:
            return votes
    dataset = join(data, lengths=list_units(columns), **reading)
    return collect_votes(
        dataset, settings.by, categories=settings.categories, control=settings.control, where=settings.where
    )


def rank_votes(votes: Votes, settings: LeaderboardSettings, progress: Callable[..., None] | None = None) -> Leaderboard:
    """Return the order of the systems, over all votes and in each category."""
    slices: dict[str, Votes] = {}
    for column, labels in votes.columns.items():
        for code, name in enumerate(labels.names):
            mask = labels.codes == code
            if mask.any():
                slices[f"{column}={name}"] = votes.take(mask)
    done, total = 0, settings.draws * (1 + len(slices))

    def report_draws(draws: int) -> None:
        nonlocal done
        done += draws
        if progress:
            progress(done, total)

    categories = {name: _rank(part, settings, report_draws) for name, part in slices.items()}
    return _rank(votes, settings, report_draws, categories)


def _rank(
    votes: Votes,
    settings: LeaderboardSettings,
    progress: Callable[[int], None],
    categories: Mapping[str, Leaderboard] | None = None,
) -> Leaderboard:
    """Return the order of the systems by strength, or by win rate where strengths are not determined."""
    if not len(votes):
        raise RunError("there are no votes between these systems", code="no_data")
    size = len(votes.systems)
    preferences = Preferences.of(votes.item, votes.first, votes.second, votes.choice, size, votes.weight)
    items = number_groups(votes.item)[0]
    notes = list(votes.notes)
    fitted: BradleyTerry | None = None
    controlled: ControlledFit | None = None
    try:
        if votes.covariates:
            covariates = np.stack([*votes.covariates.values()], axis=1)
            controlled = fit_controlled(preferences, covariates, votes.systems)
        fitted = controlled.fitted if controlled else bradley_terry(preferences, votes.systems)
    except RunError as error:
        notes.insert(0, f"{error}; the order is that of the win rates.")
    rng = np.random.default_rng(settings.seed)
    resampled, rates = bootstrap_standings(preferences, settings.draws, rng, progress)
    equal_rates = np.full((3, size), np.nan)
    effects: tuple[ControlEffect, ...] = ()
    if controlled:
        resampled, equal_draws, coefficients = controlled.resample(settings.draws, rng)
        equal_rates = add_intervals(controlled.win_rates, equal_draws, settings.confidence, items)
        estimates = add_intervals(controlled.coefficients, coefficients, settings.confidence, items)
        effects = tuple(
            ControlEffect(control=name, coefficient=value, low=low, high=high, scale=scale)
            for name, (value, low, high), scale in zip(
                votes.covariates, estimates.T.tolist(), controlled.scales.tolist(), strict=True
            )
        )
    undetermined = np.isnan(resampled).any(axis=1).mean() if len(resampled) else 0.0
    if fitted is not None and undetermined:
        notes.append(f"{undetermined:.1%} of the resamples do not determine the strengths.")
    is_sure = undetermined < (1 - settings.confidence) / 2
    win_rates = shares_won(votes.first, votes.second, votes.choice, size, votes.weight)
    strengths = np.full(size, np.nan) if fitted is None else fitted.strength
    order = np.argsort(-(win_rates if fitted is None else strengths), kind="stable")
    ranges = rank_ranges(rates if fitted is None else resampled, settings.confidence)
    strength_limits = add_intervals(strengths, resampled, settings.confidence, items)
    rate_limits = add_intervals(win_rates, rates, settings.confidence, items)
    # How often each system won, tied and lost; a graded choice counts for the side it is nearer to.
    sides = np.concatenate([votes.first, votes.second])
    points = np.sign(np.concatenate([votes.choice, -votes.choice]))
    won, tied, lost = (np.bincount(sides[points == sign], minlength=size) for sign in (1, 0, -1))
    standings = []
    for rank, code in enumerate(order.tolist(), 1):
        needed = math.nan
        if is_sure and fitted is not None and rank < len(order):
            needed = votes_needed(fitted, resampled, code, int(order[rank]), settings.confidence)
        strength, low, high = strength_limits[:, code].tolist()
        win_rate, win_low, win_high = rate_limits[:, code].tolist()
        standings.append(
            Standing(
                system=votes.systems[code],
                rank=rank,
                best_rank=min(float(ranges[0, code]), rank),
                worst_rank=max(float(ranges[1, code]), rank),
                strength=strength,
                low=low,
                high=high,
                win_rate=win_rate,
                win_low=win_low,
                win_high=win_high,
                won=int(won[code]),
                tied=int(tied[code]),
                lost=int(lost[code]),
                needed=needed,
                controlled_win_rate=float(equal_rates[0, code]),
                controlled_low=float(equal_rates[1, code]),
                controlled_high=float(equal_rates[2, code]),
            )
        )
    return Leaderboard(
        standings=tuple(standings),
        settings=settings,
        by=votes.by,
        votes=len(votes),
        items=items,
        tie=math.nan if fitted is None else fitted.tie,
        controls=effects,
        categories=categories or {},
        notes=tuple(notes),
        _fitted=fitted,
        _resampled=resampled,
        _systems=votes.systems,
    )


def _to_dict(entry: Standing | ControlEffect) -> dict[str, Any]:
    """Return plain data; NaN is None."""
    return {name: or_none(value) if isinstance(value, float) else value for name, value in asdict(entry).items()}


# ---- The page


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


def _show_needed(needed: float) -> str:
    if math.isnan(needed):
        return ""
    return "∞" if math.isinf(needed) else f"{needed:,.0f}"
