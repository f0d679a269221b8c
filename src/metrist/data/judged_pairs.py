"""Pairs from ratings, and from choices among several outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metrist.data import rules as reasons
from metrist.data.judgments import Judgments, Said
from metrist.data.pairing import EQUAL, aggregated, gap, share_above, share_of_votes, share_preferring, unfit
from metrist.data.pairs import Fields, GoodBad, Shape
from metrist.data.rules import Account, Aim, Rules
from metrist.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """An output with its raters' values and these made one; high is good. `fields` is None without its context, and
    `raters` where not all are named."""

    item: str
    system: str
    text: str
    fields: Fields | None
    ratings: tuple[Said, ...]
    value: float
    raters: frozenset[str] | None


def rated_outputs(judged: Judgments, aim: Aim, rules: Rules, shape: Shape, account: Account) -> list[Rated]:
    """The outputs whose aspect was rated, sorted by item and system, so that no order of rows matters."""
    found = []
    for (item, system), values in sorted(judged.ratings.get(aim.aspect, {}).items()):
        account.outputs += 1
        record = judged.records.get((item, system))
        if record is None:
            account.without_text += 1
            continue
        # Sorted, because a sum of floats hangs on the order of its terms and unknown raters have no order.
        _check_choices(values, aim, item, system)
        ratings = tuple(sorted(_turned(values, aim), key=lambda rating: (rating[0] or "", rating[1])))
        value = aggregated(ratings, rules.aggregate)
        found.append(
            Rated(
                item=item,
                system=system,
                text=record.output,
                fields=shape.lay_out(record),
                ratings=ratings,
                value=value,
                raters=_named(ratings),
            )
        )
    return found


def _check_choices(values: Sequence[Said], aim: Aim, item: str, system: str) -> None:
    wrong = next((value for _, value in values if aim.choice and value not in (0, 1)), None)
    if wrong is not None:
        raise InputError(
            f"{aim.aspect!r} is no choice among several outputs (--choice): wanted 1 for a chosen one, else 0, "
            f"got {wrong:g} for item {item!r} of system {system!r}; leave --choice out for ratings"
        )


def _named(said: Sequence[Said]) -> frozenset[str] | None:
    names = frozenset(rater for rater, _ in said if rater is not None)
    return names if all(rater is not None for rater, _ in said) else None


def _turned(values: Sequence[Said], aim: Aim) -> list[Said]:
    return [(rater, -value if aim.opposite else value) for rater, value in values]


@dataclass(frozen=True, slots=True)
class RatingOrder:
    """Compares two rated outputs: the better one is good, or there is a reason why they make no pair."""

    aim: Aim
    rules: Rules

    def __call__(self, first: Rated, second: Rated) -> GoodBad | str:
        return unfit(first.fields, second.fields, self.rules) or self._fairly(first, second)

    def _fairly(self, first: Rated, second: Rated) -> GoodBad | str:
        """By the raters who judged both, where all are named: a harsh one who skipped an output would lift it."""
        if first.raters is None or second.raters is None or first.raters == second.raters:
            return self._ordered(first, second)
        common = first.raters & second.raters
        if not common:
            return reasons.NO_COMMON_RATER
        return self._ordered(self._by(first, common), self._by(second, common))

    def _by(self, output: Rated, raters: frozenset[str]) -> Rated:
        ratings = tuple(rating for rating in output.ratings if rating[0] in raters)
        return replace(output, ratings=ratings, value=aggregated(ratings, self.rules.aggregate), raters=raters)

    def _ordered(self, first: Rated, second: Rated) -> GoodBad | str:
        if self.aim.choice and not any(value for output in (first, second) for _, value in output.ratings):
            return reasons.NEITHER_CHOSEN
        difference = gap(first.value, second.value)
        good, bad = (first, second) if difference >= 0 else (second, first)
        if not difference:
            return self._tie(good, bad, reasons.TIE)
        if abs(difference) < self.rules.margin * (1 - EQUAL):
            return reasons.SMALL_MARGIN
        if self.rules.certainty == "full":
            return self._pair(good, bad, 1.0)
        certainty = self._certainty(good, bad)
        return self._pair(good, bad, certainty) if certainty > 0.5 else self._tie(good, bad, reasons.RATERS_SPLIT)

    def _certainty(self, good: Rated, bad: Rated) -> float:
        if self.aim.choice:
            share = share_of_votes(good.ratings, bad.ratings)
            return 1 - share if self.aim.opposite else share
        return share_above(good.ratings, bad.ratings)

    def _tie(self, one: Rated, other: Rated, reason: str) -> GoodBad | str:
        return self._pair(one, other, 0.5) if self.rules.ties == "soft" else reason

    def _pair(self, good: Rated, bad: Rated, certainty: float) -> GoodBad:
        return GoodBad(
            criterion=self.aim.criterion,
            instruction=self.aim.instruction,
            good=good.fields or (),
            bad=bad.fields or (),
            item=good.item if good.item == bad.item else "",
            certainty=certainty,
            good_rating=good.value,
            bad_rating=bad.value,
            systems=(good.system, bad.system),
        )


# Pairs from preferences: rows in which people were shown two outputs and chose.


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
