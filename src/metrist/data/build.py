"""What became of all pairs that could have been made: each is kept, or dropped for one reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Literal

from metrist.data.judged_pairs import Rated, RatingOrder, preferred_pairs, rated_outputs
from metrist.data.judgments import Judgments
from metrist.data.pairing import among_all, within_items
from metrist.data.pairs import SPLITS, GoodBad, Shape
from metrist.data.rules import TWO_SIDES, Account, Aim, Rules
from metrist.data.splits import Shares, assign, check_shares, positional, split_pairs
from metrist.data.text_overlap import INSIDE, NEAR, Unit
from metrist.errors import InputError, SpecError

# How judgments become pairs: the choices a user has, checked when they are made.


# From judgments to pairs, with an account of every pair that could have been made.


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """How the pairs are split: by the texts they share, or by their position as HEAP's authors did."""

    shares: Shares
    by: Literal["text", "position"] = "text"
    near: float = NEAR
    inside: float = INSIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The pairs, by criterion and item, and an account for each criterion."""

    pairs: list[GoodBad]
    accounts: list[Account]


@dataclass(frozen=True, slots=True)
class _Material:
    """What the pairs of one aim are made of: rated outputs, and pairs that people compared."""

    aim: Aim
    rated: list[Rated]
    preferred: list[GoodBad]

    def units(self) -> list[Unit]:
        """What must stay on one side, rated outputs first."""
        rated = [
            Unit(self.aim.criterion, (tuple(text for _, text in (one.fields or ())[:-1]),), (one.text,), one.item)
            for one in self.rated
        ]
        return rated + [Unit.of(pair) for pair in self.preferred]


def build_pairs(
    judged: Judgments, aims: Sequence[Aim], rules: Rules, shape: Shape, splitting: Splitting | None = None
) -> Built:
    """Make the pairs that the rules allow of what people said. The same judgments give the same pairs, in whatever
    order their rows came. That nothing is left is an error which says why."""
    _check(judged, aims, splitting)
    accounts = [Account(aim.criterion, good=_good(aim, judged)) for aim in aims]
    outputs = [rated_outputs(judged, aim, rules, shape, account) for aim, account in zip(aims, accounts, strict=True)]
    for aim, account, rated in zip(aims, accounts, outputs, strict=True):
        _check_possible(aim, account, rated, judged, rules)
    materials = [
        _Material(aim, rated, preferred_pairs(judged, aim, rules, shape, account))
        for aim, account, rated in zip(aims, accounts, outputs, strict=True)
    ]
    pairs = []
    for material, account, sides in zip(materials, accounts, _sides(materials, rules, splitting), strict=True):
        pairs += _pairs(material, sides, rules, account)
    pairs = _split(pairs, accounts, rules, splitting)
    _close(accounts, pairs)
    return Built(pairs=pairs, accounts=accounts)


def _check(judged: Judgments, aims: Sequence[Aim], splitting: Splitting | None) -> None:
    for aim in aims:
        judged.check_aspect(aim.aspect)
    twice = next((name for name, count in Counter(aim.criterion for aim in aims).items() if count > 1), None)
    if twice is not None:
        raise SpecError(f"two aspects cannot be one criterion, {twice!r}: their pairs could not be told apart")
    if splitting:
        check_shares(splitting.shares)


def _good(aim: Aim, judged: Judgments) -> str:
    """What makes an output the good one, in words."""
    if aim.aspect in judged.preferences or aim.choice:
        word = "preferred" if aim.aspect in judged.preferences else "chosen"
        return f"not {word}" if aim.opposite else word
    return f"{'lower' if aim.opposite else 'higher'} {aim.aspect}"


def _sides(materials: Sequence[_Material], rules: Rules, splitting: Splitting | None) -> list[list[str | None] | None]:
    """The side of each unit where sides must be known before outputs of different items are paired: pairs between all
    items would leave nothing that could be parted."""
    if not _sided_before(rules, splitting) or splitting is None:
        return [None] * len(materials)
    units = [material.units() for material in materials]
    every = [unit for own in units for unit in own]
    found = iter(assign(every, splitting.shares, seed=rules.seed, near=splitting.near, inside=splitting.inside))
    return [[next(found) for _ in own] for own in units]


def _sided_before(rules: Rules, splitting: Splitting | None) -> bool:
    return splitting is not None and rules.within == "all" and splitting.by == "text"


def _pairs(material: _Material, sides: Sequence[str | None] | None, rules: Rules, account: Account) -> list[GoodBad]:
    rated, compare = material.rated, RatingOrder(material.aim, rules)
    if rules.within == "item":
        account.possible += sum(comb(count, 2) for count in Counter(one.item for one in rated).values())
        return within_items(rated, compare, rules, account, material.preferred)
    account.possible += comb(len(rated), 2)
    if sides is None:
        return among_all(rated, compare, rules, account, material.preferred)
    parts = {side: _on_side(material, sides, side) for side in SPLITS}
    torn = comb(len(rated), 2) - sum(comb(len(part.rated), 2) for part in parts.values())
    account.drop(TWO_SIDES, torn + len(material.preferred) - sum(len(part.preferred) for part in parts.values()))
    return [
        replace(pair, split=side)
        for side, part in parts.items()
        for pair in among_all(part.rated, compare, rules, account, part.preferred)
    ]


def _on_side(material: _Material, sides: Sequence[str | None], side: str) -> _Material:
    """What stands on one side of the split; `sides` are those of the material's units."""
    of_rated, of_preferred = sides[: len(material.rated)], sides[len(material.rated) :]
    return _Material(
        material.aim,
        [one for one, own in zip(material.rated, of_rated, strict=True) if own == side],
        [one for one, own in zip(material.preferred, of_preferred, strict=True) if own == side],
    )


def _split(
    pairs: list[GoodBad], accounts: Sequence[Account], rules: Rules, splitting: Splitting | None
) -> list[GoodBad]:
    if splitting is None:
        return pairs
    if splitting.by == "position":
        return positional(pairs, splitting.shares)
    if _sided_before(rules, splitting):
        return pairs
    found = split_pairs(pairs, splitting.shares, seed=rules.seed, near=splitting.near, inside=splitting.inside)
    left_out = Counter(pair.criterion for pair in found.left_out)
    for account in accounts:
        account.drop(TWO_SIDES, left_out[account.criterion])
    return found.pairs


def _check_possible(aim: Aim, account: Account, rated: Sequence[Rated], judged: Judgments, rules: Rules) -> None:
    if judged.preferences.get(aim.aspect):
        return
    if not rated:
        raise InputError(
            f"{account.outputs:,} outputs are rated for {aim.aspect!r}, but none of their texts is in the files; name "
            "the file that holds the outputs too"
        )
    most = max(Counter(one.item for one in rated).values())
    if rules.within == "item" and most < 2:
        raise InputError(
            f"{aim.aspect!r}: {_each(len(rated))} one rated output, so there is nothing to pair within an "
            "item; --within all sets outputs of different items against each other"
        )


def _each(items: int) -> str:
    return "the one item has" if items == 1 else f"each of {items:,} items has"


def _close(accounts: Sequence[Account], pairs: Sequence[GoodBad]) -> None:
    kept = Counter(pair.criterion for pair in pairs)
    soft = Counter(pair.criterion for pair in pairs if pair.certainty < 1)
    for account in accounts:
        account.kept, account.soft = kept[account.criterion], soft[account.criterion]
        if not account.adds_up:
            raise AssertionError(
                f"{account.criterion!r}: of {account.possible:,} possible pairs {account.kept:,} are kept and "
                f"{account.dropped.total():,} dropped, which is not all; please report this with your command"
            )
    if not pairs:
        told = "; ".join(
            f"{account.criterion!r}: of {account.possible:,} possible pairs {account.why() or 'none'}"
            for account in accounts
        )
        raise InputError(f"no pair is left: {told}")
