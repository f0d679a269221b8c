"""Build pairs from human judgments and count what became of every possible pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Literal

from metrist.data.judgments import JudgedRecords
from metrist.data.pairing import (
    RatedOutput,
    collect_preferred_pairs,
    collect_rated_outputs,
    pair_across_items,
    pair_within_items,
)
from metrist.data.pairs import SPLITS, GoodBad, Shape
from metrist.data.rules import TWO_SIDES, Account, Aim, Rules
from metrist.data.settings import OverlapSettings
from metrist.data.splits import Shares, assign_sides, check_shares, split_by_position, split_pairs
from metrist.data.text_overlap import SplitUnit
from metrist.errors import InputError, SpecError


@dataclass(frozen=True, kw_only=True)
class Splitting(OverlapSettings):
    """How pairs are split: by the texts they share, or by position as HEAP's authors did."""

    shares: Shares
    by: Literal["text", "position"] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """The pairs, sorted by criterion and item, and an account for each criterion."""

    pairs: list[GoodBad]
    accounts: list[Account]


@dataclass(frozen=True, slots=True)
class _JudgedOutputs:
    """What the pairs of one aim are made of: rated outputs, and pairs that raters compared."""

    aim: Aim
    rated: list[RatedOutput]
    preferred: list[GoodBad]

    def units(self) -> list[SplitUnit]:
        """Return what must stay on one side of the split, rated outputs first."""
        rated = [
            SplitUnit(
                self.aim.criterion,
                (tuple(text for _, text in (output.fields or ())[:-1]),),
                (output.text,),
                output.item,
            )
            for output in self.rated
        ]
        return rated + [SplitUnit.from_pair(pair) for pair in self.preferred]

    def select_side(self, sides: Sequence[str | None], side: str) -> _JudgedOutputs:
        """Return the outputs and pairs on one side; `sides` are those of `units()`."""
        rated_sides, preferred_sides = sides[: len(self.rated)], sides[len(self.rated) :]
        return _JudgedOutputs(
            self.aim,
            [output for output, own in zip(self.rated, rated_sides, strict=True) if own == side],
            [pair for pair, own in zip(self.preferred, preferred_sides, strict=True) if own == side],
        )


def build_pairs(
    judgments: JudgedRecords, aims: Sequence[Aim], rules: Rules, shape: Shape, splitting: Splitting | None = None
) -> BuildResult:
    """Build the pairs that the rules allow. The same judgments give the same pairs, whatever the order of their rows.
    Raise an error with the reasons if no pair remains."""
    _check_aims(judgments, aims)
    if splitting:
        check_shares(splitting.shares)
    accounts = [Account(aim.criterion, good=_describe_good(aim, judgments)) for aim in aims]
    sources = []
    for aim, account in zip(aims, accounts, strict=True):
        rated = collect_rated_outputs(judgments, aim, rules, shape, account)
        _check_possible(aim, account, rated, judgments, rules)
        sources.append(_JudgedOutputs(aim, rated, collect_preferred_pairs(judgments, aim, rules, shape, account)))
    # Outputs of different items are split before they are paired: pairs between all items would link everything into
    # one group.
    presplit = splitting if rules.within == "all" and splitting is not None and splitting.by == "text" else None
    sides: list[list[str | None] | None] = [None] * len(sources)
    if presplit is not None:
        sides = _split_units(sources, rules, presplit)
    pairs = []
    for source, account, own_sides in zip(sources, accounts, sides, strict=True):
        pairs += _pair(source, own_sides, rules, account)
    if splitting is not None and presplit is None:
        pairs = _split(pairs, accounts, rules, splitting)
    _close_accounts(accounts, pairs)
    return BuildResult(pairs=pairs, accounts=accounts)


def _check_aims(judgments: JudgedRecords, aims: Sequence[Aim]) -> None:
    for aim in aims:
        judgments.check_aspect(aim.aspect)
    repeated = next((name for name, count in Counter(aim.criterion for aim in aims).items() if count > 1), None)
    if repeated is not None:
        raise SpecError(
            f"two aspects have the same criterion {repeated!r}, so their pairs could not be distinguished; name them "
            "differently"
        )


def _describe_good(aim: Aim, judgments: JudgedRecords) -> str:
    if aim.aspect in judgments.preferences or aim.choice:
        word = "preferred" if aim.aspect in judgments.preferences else "chosen"
        return f"not {word}" if aim.opposite else word
    return f"{'lower' if aim.opposite else 'higher'} {aim.aspect}"


def _check_possible(
    aim: Aim, account: Account, rated: Sequence[RatedOutput], judgments: JudgedRecords, rules: Rules
) -> None:
    if judgments.preferences.get(aim.aspect):
        return
    if not rated:
        raise InputError(
            f"{account.outputs:,} outputs are rated for {aim.aspect!r}, but the files have none of their texts; add "
            "the file that has the outputs"
        )
    if rules.within == "item" and max(Counter(output.item for output in rated).values()) < 2:
        items = "the one item has" if len(rated) == 1 else f"each of {len(rated):,} items has"
        raise InputError(
            f"{aim.aspect!r}: {items} one rated output, so there is nothing to pair within an item; `within='all'` "
            "pairs outputs of different items"
        )


def _split_units(
    sources: Sequence[_JudgedOutputs], rules: Rules, splitting: Splitting
) -> list[list[str | None] | None]:
    units = [source.units() for source in sources]
    everything = [unit for source_units in units for unit in source_units]
    sides = iter(
        assign_sides(everything, splitting.shares, seed=rules.seed, near=splitting.near, inside=splitting.inside)
    )
    return [[next(sides) for _ in source_units] for source_units in units]


def _pair(source: _JudgedOutputs, sides: Sequence[str | None] | None, rules: Rules, account: Account) -> list[GoodBad]:
    rated, aim = source.rated, source.aim
    if rules.within == "item":
        account.possible += sum(comb(count, 2) for count in Counter(output.item for output in rated).values())
        return pair_within_items(rated, aim, rules, account, source.preferred)
    account.possible += comb(len(rated), 2)
    if sides is None:
        return pair_across_items(rated, aim, rules, account, source.preferred)
    parts = {side: source.select_side(sides, side) for side in SPLITS}
    crossing = comb(len(rated), 2) - sum(comb(len(part.rated), 2) for part in parts.values())
    account.drop(TWO_SIDES, crossing + len(source.preferred) - sum(len(part.preferred) for part in parts.values()))
    return [
        replace(pair, split=side)
        for side, part in parts.items()
        for pair in pair_across_items(part.rated, aim, rules, account, part.preferred)
    ]


def _split(pairs: list[GoodBad], accounts: Sequence[Account], rules: Rules, splitting: Splitting) -> list[GoodBad]:
    if splitting.by == "position":
        return split_by_position(pairs, splitting.shares)
    split = split_pairs(pairs, splitting.shares, seed=rules.seed, near=splitting.near, inside=splitting.inside)
    left_out = Counter(pair.criterion for pair in split.left_out)
    for account in accounts:
        account.drop(TWO_SIDES, left_out[account.criterion])
    return split.pairs


def _close_accounts(accounts: Sequence[Account], pairs: Sequence[GoodBad]) -> None:
    counts = Counter(pair.criterion for pair in pairs)
    soft = Counter(pair.criterion for pair in pairs if pair.certainty < 1)
    for account in accounts:
        account.kept, account.soft = counts[account.criterion], soft[account.criterion]
        assert account.adds_up, account
    if not pairs:
        dropped = "; ".join(
            f"{account.criterion!r}: of {account.possible:,} possible pairs {account.describe_dropped() or 'none'}"
            for account in accounts
        )
        raise InputError(f"no pair is left: {dropped}", code="too_little_data")
