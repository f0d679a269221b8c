"""The tables of `metrist prefer`: systems by their win rates, comparators by how they chose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from metrist.report.cells import Count, Estimate, Number, Share
from metrist.report.tables import Column, Table

if TYPE_CHECKING:
    from metrist.run.preferred import Agreement, Comparing, WinRate


def system_table(rows: Sequence[WinRate], notes: Sequence[str]) -> Table:
    """One row a comparator and system; a column with strengths where any is known."""
    with_failures = any(row.failed for row in rows)
    failed = ["failed", "if lost", "if won"] if with_failures else []
    names = ["won", "tied", "lost", *failed, "strength"]
    return Table(
        title="Win rates",
        columns=[Column("comparator"), Column("system"), *(Column(name, "right") for name in ("win rate", *names))],
        rows=[_system(row, with_failures) for row in rows],
        notes=(
            "A tie is half a win. Strength is Bradley and Terry's with ties, on the log scale, ± its standard error.",
            *_undetermined(rows),
            *notes,
        ),
    )


def _system(row: WinRate, with_failures: bool) -> list[Any]:
    failed = [Count(row.failed), Number(row.worst), Number(row.best)] if with_failures else []
    strength = None if math.isnan(row.strength) else f"{row.strength:+.2f} ± {row.error:.2f}"
    counts = [Count(row.won), Count(row.tied), Count(row.lost)]
    return [row.comparator, row.system, Estimate(row.value, row.low, row.high), *counts, *failed, strength]


def _undetermined(rows: Sequence[WinRate]) -> list[str]:
    without = list(dict.fromkeys(row.comparator for row in rows if math.isnan(row.strength)))
    return [
        f"{comparator}: strengths are not determined: some systems never lost to others, or never won, ties aside"
        for comparator in without
    ]


def comparator_table(rows: Sequence[Comparing], agreements: Sequence[Agreement]) -> Table:
    """One row a comparator, with a column of accuracy for each aspect that people chose by."""
    aspects = list(dict.fromkeys(one.aspect for one in agreements))
    found = {(one.comparator, one.aspect): one for one in agreements}
    names = ["pairs", "judged", "ties", "flips", *(f"as people: {aspect}" for aspect in aspects)]
    cost = any("cost" in row.usage for row in rows)
    return Table(
        title="Comparators",
        columns=[
            Column("comparator"),
            *(Column(name, "right") for name in [*names, *(["US dollars"] if cost else [])]),
        ],
        rows=[
            [
                *(row.comparator, Count(row.pairs), Share(row.judged / row.pairs), Share(row.ties)),
                Estimate(row.flips, row.flips_low, row.flips_high),
                *(_agreed(found[row.comparator, aspect]) for aspect in aspects),
                *([row.usage.get("cost")] if cost else []),
            ]
            for row in rows
        ],
        notes=[*_flip_note(rows), *(note for aspect in aspects for note in _as_people(aspect, agreements))],
    )


def _agreed(one: Agreement) -> Estimate:
    return Estimate(one.value, one.low, one.high)


def _as_people(aspect: str, agreements: Sequence[Agreement]) -> list[str]:
    """On how many pairs, and what a coin would reach there; for each comparator where they judged different ones."""
    told = [one for one in agreements if one.aspect == aspect and one.pairs]
    if not told:
        return []
    share = f"As people, {aspect}: the share of pairs where the comparator chose as most people did"
    if len({(one.pairs, one.chance) for one in told}) == 1:
        return [f"{share}, of {told[0].pairs:,}; a coin would reach {told[0].chance:.3f}."]
    each = ", ".join(f"{one.comparator} {one.pairs:,} and {one.chance:.3f}" for one in told)
    return [f"{share}. Comparators judged different pairs; how many, and what a coin would reach on them: {each}."]


def _flip_note(rows: Sequence[Comparing]) -> list[str]:
    known = any(not math.isnan(row.flips) for row in rows)
    return [
        "Flips: the share of pairs where the choice changed with the order of the two; such a pair is a tie."
    ] * known
