"""The tables of `metrist build`: what became of pairs, where they stand, what leaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from metrist.data.build import BuildResult
from metrist.data.leaks import Leak
from metrist.data.pairs import SPLITS
from metrist.data.rules import REASONS, Rules, list_reasons
from metrist.data.splits import Split
from metrist.data.text_overlap import FEWEST_WORDS_INSIDE, GRAM
from metrist.report.tables import Column, Table


def accounts_table(built: BuildResult, rules: Rules) -> Table:
    """Possible, kept and dropped pairs of each criterion: possible = kept + all that follows it."""
    reasons = list_reasons(built.accounts)
    sides = [side for side in SPLITS if any(pair.split == side for pair in built.pairs)]
    count = Counter((pair.criterion, pair.split) for pair in built.pairs)
    rows = [
        [account.criterion, account.good, account.possible, account.kept, *(account.dropped[one] for one in reasons)]
        + ([account.soft] if _has_soft(built) else [])
        + [count[account.criterion, side] for side in sides]
        for account in built.accounts
    ]
    names = ["possible", "kept", *reasons, *(["soft"] if _has_soft(built) else []), *sides]
    notes = [f"{reason}: {REASONS[reason]}" for reason in reasons]
    if rules.margin:
        notes.append(f"margin {rules.margin:g}")
    if missing := sum(account.without_text for account in built.accounts):
        notes.append(f"{missing:,} rated outputs have no text in the files and make no pair")
    return _table("Pairs", ["criterion", "good"], names, rows, notes)


def _has_soft(built: BuildResult) -> bool:
    return any(account.soft for account in built.accounts)


def sides_table(split: Split) -> Table:
    """How many pairs of each criterion stand on each side."""
    count = Counter((pair.criterion, pair.split) for pair in (*split.pairs, *split.left_out))
    rows = [
        [criterion, *(count[criterion, side] for side in SPLITS), count[criterion, None]]
        for criterion in dict.fromkeys(criterion for criterion, _ in count)
    ]
    notes = ["left out: pairs whose texts stand on two sides"] if split.left_out else []
    return _table("Split", ["criterion"], [*SPLITS, "left out"], rows, notes)


def leaks_table(found: Sequence[Leak], near: float, inside: float) -> Table:
    """The leaks of each criterion's dev and test pairs."""
    rows = [
        [
            row.criterion,
            row.split,
            row.pairs,
            row.same_context,
            row.near_context,
            row.part_context,
            row.same_answer,
            row.near_answer,
            row.part_answer,
            row.any_text,
            row.elsewhere,
        ]
        for row in found
    ]
    names = ["pairs", "context", "near context", "part context", "answer", "near answer", "part answer"]
    names += ["any text", "any criterion"]
    notes = [
        "pairs that share a text with the training pairs of their criterion; the last column: of any criterion",
        f"near: at least {near:.0%} of all word {GRAM}-grams in common, but not the same text",
    ]
    if inside:
        notes.append(
            f"part: neither of these, but one has at least {inside:.0%} of the other's word {GRAM}-grams "
            f"({FEWEST_WORDS_INSIDE} words or more)"
        )
    return _table("Leaks", ["criterion", "split"], names, rows, notes)


def _table(
    title: str, left: Sequence[str], right: Sequence[str], rows: Sequence[Sequence[Any]], notes: Sequence[str]
) -> Table:
    columns = [*(Column(name) for name in left), *(Column(name, "right") for name in right)]
    total = ["all", *[""] * (len(left) - 1), *(sum(row[at] for row in rows) for at in range(len(left), len(columns)))]
    return Table(title=title, columns=columns, rows=[*rows, total] if len(rows) > 1 else rows, notes=notes)
