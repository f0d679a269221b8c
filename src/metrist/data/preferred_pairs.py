"""Pairs from preferences: rows in which people were shown two outputs and chose."""

from __future__ import annotations

from collections.abc import Sequence

from metrist.data import account as reasons
from metrist.data.account import Account
from metrist.data.aggregate import EQUAL, aggregated, gap, share_preferring
from metrist.data.comparable import unfit
from metrist.data.good_bad import Fields, GoodBad
from metrist.data.judgments import Judgments, Said
from metrist.data.rules import Aim, Rules
from metrist.data.shape import Shape


def preferred_pairs(judged: Judgments, aim: Aim, rules: Rules, shape: Shape, account: Account) -> list[GoodBad]:
    """The pairs that people compared, sorted by item and system, so that no order of rows matters; all of them,
    whatever the cap."""
    pairs = []
    seen: set[tuple[str, Fields, Fields]] = set()
    for (item, first, second), said in sorted(judged.preferences.get(aim.aspect, {}).items()):
        account.possible += 1
        found = _pair(judged, (item, first, second), said, aim, rules, shape)
        if isinstance(found, str):
            account.drop(found)
        elif (item, found.good, found.bad) in seen:
            account.drop(reasons.REPEATED)
        else:
            seen.add((item, found.good, found.bad))
            pairs.append(found)
    return pairs


def _pair(
    judged: Judgments, compared: tuple[str, str, str], said: Sequence[Said], aim: Aim, rules: Rules, shape: Shape
) -> GoodBad | str:
    item, first, second = compared
    records = [judged.records.get((item, system)) for system in (first, second)]
    laid = [shape.lay_out(record) if record else None for record in records]
    if None in records:
        return reasons.NO_TEXT
    if (reason := unfit(laid[0], laid[1], rules)) is not None:
        return reason
    order = _order([(rater, -sign if aim.opposite else sign) for rater, sign in said], rules)
    if isinstance(order, str):
        return order
    first_is_good, certainty = order
    good, bad = (0, 1) if first_is_good else (1, 0)
    systems = (first, second)
    return GoodBad(
        criterion=aim.criterion,
        instruction=aim.instruction,
        good=laid[good] or (),
        bad=laid[bad] or (),
        item=item,
        certainty=certainty,
        systems=(systems[good], systems[bad]),
    )


def _order(said: Sequence[Said], rules: Rules) -> tuple[bool, float] | str:
    """Whether the first is the good one and how sure that is, or why there is no order."""
    difference = gap(aggregated(said, rules.aggregate), 0.0)
    if not difference:
        return (True, 0.5) if rules.ties == "soft" else reasons.TIE
    if abs(difference) < rules.margin * (1 - EQUAL):
        return reasons.SMALL_MARGIN
    if rules.certainty == "full":
        return difference > 0, 1.0
    share = share_preferring(said)
    certainty = share if difference > 0 else 1 - share
    if certainty > 0.5:
        return difference > 0, certainty
    return (True, 0.5) if rules.ties == "soft" else reasons.RATERS_SPLIT
