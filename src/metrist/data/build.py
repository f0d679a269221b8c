"""From judgments to pairs, with an account of every pair that could have been made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Literal

from metrist.data.account import TWO_SIDES, Account
from metrist.data.good_bad import GoodBad
from metrist.data.judgments import Judgments
from metrist.data.pairing import among_all, within_items
from metrist.data.preferred_pairs import preferred_pairs
from metrist.data.rated_pairs import Rated, RatingOrder, rated_outputs
from metrist.data.rules import Aim, Rules
from metrist.data.shape import Shape
from metrist.data.shared_texts import Unit
from metrist.data.similar_texts import NEAR
from metrist.data.splits import Shares, assign, check_shares, positional, split_pairs
from metrist.errors import InputError, SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """How the pairs are split: by the texts they share, or by their position as HEAP's authors did."""

    shares: Shares
    by: Literal["text", "position"] = "text"
    near: float = NEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The pairs, by criterion and item, and an account for each criterion."""

    pairs: list[GoodBad]
    accounts: list[Account]


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
    before = _sides(outputs, aims, rules, splitting)
    pairs = []
    for aim, account, rated, sides in zip(aims, accounts, outputs, before, strict=True):
        found = _from_ratings(rated, sides, aim, rules, account)
        pairs += found + preferred_pairs(judged, aim, rules, shape, account)
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


def _sides(
    outputs: Sequence[Sequence[Rated]], aims: Sequence[Aim], rules: Rules, splitting: Splitting | None
) -> list[list[str | None] | None]:
    """The side of each output where sides must be known before outputs of different items are paired: pairs between
    all items would leave nothing that could be parted."""
    if splitting is None or rules.within == "item" or splitting.by == "position":
        return [None] * len(outputs)
    units = [
        Unit(aim.criterion, tuple(text for _, text in (one.fields or ())[:-1]), (one.text,))
        for aim, rated in zip(aims, outputs, strict=True)
        for one in rated
    ]
    found = iter(assign(units, splitting.shares, seed=rules.seed, near=splitting.near) if units else ())
    return [[next(found) for _ in rated] for rated in outputs]


def _from_ratings(
    rated: Sequence[Rated], sides: Sequence[str | None] | None, aim: Aim, rules: Rules, account: Account
) -> list[GoodBad]:
    compare = RatingOrder(aim, rules)
    if rules.within == "item":
        account.possible += sum(comb(count, 2) for count in Counter(one.item for one in rated).values())
        return within_items(rated, compare, rules, account)
    account.possible += comb(len(rated), 2)
    if sides is None:
        return among_all(rated, compare, rules, account)
    by_side = {
        side: [one for one, own in zip(rated, sides, strict=True) if own == side] for side in ("train", "dev", "test")
    }
    account.drop(TWO_SIDES, comb(len(rated), 2) - sum(comb(len(own), 2) for own in by_side.values()))
    return [
        replace(pair, split=side) for side, own in by_side.items() for pair in among_all(own, compare, rules, account)
    ]


def _split(
    pairs: list[GoodBad], accounts: Sequence[Account], rules: Rules, splitting: Splitting | None
) -> list[GoodBad]:
    if splitting is None:
        return pairs
    if splitting.by == "position":
        return positional(pairs, splitting.shares)
    if any(pair.split for pair in pairs):
        return [pair for pair in pairs if pair.split]
    found = split_pairs(pairs, splitting.shares, seed=rules.seed, near=splitting.near)
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
            f"{aim.aspect!r}: each of {len(rated):,} items has one rated output, so there is nothing to pair within an "
            "item; --within all sets outputs of different items against each other"
        )


def _close(accounts: Sequence[Account], pairs: Sequence[GoodBad]) -> None:
    kept = Counter(pair.criterion for pair in pairs)
    soft = Counter(pair.criterion for pair in pairs if pair.certainty < 1)
    for account in accounts:
        account.kept, account.soft = kept[account.criterion], soft[account.criterion]
    if not pairs:
        told = "; ".join(
            f"{account.criterion!r}: of {account.possible:,} possible pairs {account.why() or 'none'}"
            for account in accounts
        )
        raise InputError(f"no pair is left: {told}")
