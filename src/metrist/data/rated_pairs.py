"""Pairs from ratings, and from choices among several outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metrist.data import account as reasons
from metrist.data.account import Account
from metrist.data.aggregate import EQUAL, aggregated, gap, share_above, share_of_votes
from metrist.data.comparable import unfit
from metrist.data.good_bad import Fields, GoodBad
from metrist.data.judgments import Judgments, Said
from metrist.data.rules import Aim, Rules
from metrist.data.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """An output with its raters' values and these made one; high is good. `fields` is None without its context."""

    item: str
    system: str
    text: str
    fields: Fields | None
    said: tuple[Said, ...]
    value: float


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
        said = tuple(sorted(_turned(values, aim), key=lambda one: (one[0] or "", one[1])))
        value = aggregated(said, rules.aggregate)
        found.append(
            Rated(
                item=item,
                system=system,
                text=record.output,
                fields=shape.lay_out(record),
                said=said,
                value=value,
            )
        )
    return found


def _turned(values: Sequence[Said], aim: Aim) -> list[Said]:
    return [(rater, -value if aim.opposite else value) for rater, value in values]


@dataclass(frozen=True, slots=True)
class RatingOrder:
    """Compares two rated outputs: the better one is good, or there is a reason why they make no pair."""

    aim: Aim
    rules: Rules

    def __call__(self, first: Rated, second: Rated) -> GoodBad | str:
        return unfit(first.fields, second.fields, self.rules) or self._ordered(first, second)

    def _ordered(self, first: Rated, second: Rated) -> GoodBad | str:
        if self.aim.choice and not any(value for output in (first, second) for _, value in output.said):
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
            share = share_of_votes(good.said, bad.said)
            return 1 - share if self.aim.opposite else share
        return share_above(good.said, bad.said)

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
