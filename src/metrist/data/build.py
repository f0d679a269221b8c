"""Build pairs from human judgments and count what became of every possible pair: which outputs are compared, and which
one of two is better."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from statistics import fmean, median
from typing import Literal, TypeVar

import numpy as np

from metrist.data import rules as reasons
from metrist.data.judgments import JudgedRecords, RaterValue
from metrist.data.pairs import SPLITS, Fields, GoodBad, Shape
from metrist.data.rules import Account, Aggregation, Aim, Rules
from metrist.data.settings import OverlapSettings
from metrist.data.splits import Shares, assign_sides, check_shares, split_by_position, split_pairs
from metrist.data.text_overlap import SplitUnit
from metrist.errors import InputError, SpecError

#: Two values are equal if they differ by less than this, relative to their size: 0.1 + 0.2 is not exactly 0.3.
TOLERANCE = 1e-9

#: Above this number of possible pairs, pairs across items are only drawn under a cap.
MAX_UNCAPPED_PAIRS = 1_000_000


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


def build_pairs(
    judgments: JudgedRecords, aims: Sequence[Aim], rules: Rules, shape: Shape, splitting: Splitting | None = None
) -> BuildResult:
    """Build the pairs that the rules allow. The same judgments give the same pairs, whatever the order of their rows.
    Raise an error with the reasons if no pair remains."""
    for aim in aims:
        judgments.check_aspect(aim.aspect)
    repeated = next((name for name, count in Counter(aim.criterion for aim in aims).items() if count > 1), None)
    if repeated is not None:
        raise SpecError(
            f"two aspects have the same criterion {repeated!r}, so their pairs could not be distinguished; name them "
            "differently"
        )
    if splitting:
        check_shares(splitting.shares)
    accounts = [Account(aim.criterion, good=_describe_good(aim, judgments)) for aim in aims]
    sources = []
    for aim, account in zip(aims, accounts, strict=True):
        rated = collect_rated_outputs(judgments, aim, rules, shape, account)
        _check_possible(aim, account, rated, judgments, rules)
        sources.append(_JudgedOutputs(aim, rated, collect_preferred_pairs(judgments, aim, rules, shape, account)))
    sides: list[list[str | None] | None] = [None] * len(sources)
    if splitting is not None and splitting.by == "text" and rules.within == "all":
        # Outputs of different items are split before they are paired: pairs between all items would link everything
        # into one group.
        units = [source.units() for source in sources]
        every = [unit for own in units for unit in own]
        assigned = iter(
            assign_sides(every, splitting.shares, seed=rules.seed, near=splitting.near, inside=splitting.inside)
        )
        sides = [[next(assigned) for _ in own] for own in units]
        splitting = None
    pairs = []
    for source, account, own_sides in zip(sources, accounts, sides, strict=True):
        pairs += _pair(source, own_sides, rules, account)
    if splitting is not None and splitting.by == "position":
        pairs = split_by_position(pairs, splitting.shares)
    elif splitting is not None:
        split = split_pairs(pairs, splitting.shares, seed=rules.seed, near=splitting.near, inside=splitting.inside)
        left_out = Counter(pair.criterion for pair in split.left_out)
        for account in accounts:
            account.drop(reasons.TWO_SIDES, left_out[account.criterion])
        pairs = split.pairs
    _close_accounts(accounts, pairs)
    return BuildResult(pairs=pairs, accounts=accounts)


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


def _pair(source: _JudgedOutputs, sides: Sequence[str | None] | None, rules: Rules, account: Account) -> list[GoodBad]:
    rated, aim = source.rated, source.aim
    if rules.within == "item":
        account.possible += sum(comb(count, 2) for count in Counter(output.item for output in rated).values())
        return pair_within_items(rated, aim, rules, account, source.preferred)
    account.possible += comb(len(rated), 2)
    if sides is None:
        return pair_across_items(rated, aim, rules, account, source.preferred)
    rated_sides, preferred_sides = sides[: len(rated)], sides[len(rated) :]
    crossing = comb(len(rated), 2) + len(source.preferred)
    parts = []
    for side in SPLITS:
        outputs = [output for output, own in zip(rated, rated_sides, strict=True) if own == side]
        preferred = [pair for pair, own in zip(source.preferred, preferred_sides, strict=True) if own == side]
        crossing -= comb(len(outputs), 2) + len(preferred)
        parts.append((side, outputs, preferred))
    account.drop(reasons.TWO_SIDES, crossing)
    pairs = []
    for side, outputs, preferred in parts:
        pairs += [replace(pair, split=side) for pair in pair_across_items(outputs, aim, rules, account, preferred)]
    return pairs


def _close_accounts(accounts: Sequence[Account], pairs: Sequence[GoodBad]) -> None:
    counts = Counter(pair.criterion for pair in pairs)
    soft = Counter(pair.criterion for pair in pairs if pair.certainty < 1)
    for account in accounts:
        account.kept, account.soft = counts[account.criterion], soft[account.criterion]
        assert account.adds_up, account
    if not pairs:
        parts = []
        for account in accounts:
            dropped = ", ".join(f"{count:,} {reason}" for reason, count in account.dropped.most_common()) or "none"
            parts.append(f"{account.criterion!r}: of {account.possible:,} possible pairs {dropped}")
        raise InputError(f"no pair is left: {'; '.join(parts)}", code="too_little_data")


# Which of two outputs is better.


def aggregate(values: Sequence[RaterValue], aggregation: Aggregation) -> float:
    """Combine the values of all raters. A majority is the most common value, or the mean of several equally common
    ones."""
    numbers = [value for _, value in values]
    if aggregation == "median":
        return median(numbers)
    if aggregation == "majority":
        counts = Counter(numbers)
        highest = max(counts.values())
        numbers = [value for value, count in counts.items() if count == highest]
    return fmean(numbers)


def subtract(first: float, second: float) -> float:
    """Subtract the second value from the first; exactly 0 if they are equal up to rounding."""
    difference = first - second
    return 0.0 if abs(difference) <= TOLERANCE * max(1.0, abs(first), abs(second)) else difference


def share_above(first: Sequence[RaterValue], second: Sequence[RaterValue]) -> float:
    """Estimate the probability that a rater puts the first output above the second; a tie counts half.

    If raters who judged both outputs gave most of the values, only their own values are compared with each other.
    Otherwise each value of the first output is compared with each value of the second.
    """
    common = {rater for rater, _ in first if rater is not None} & {rater for rater, _ in second}
    common_count = sum(rater in common for rater, _ in (*first, *second))
    comparisons = [(one, other) for one in first for other in second]
    if 2 * common_count > len(first) + len(second):
        comparisons = [(one, other) for one, other in comparisons if one[0] == other[0] and one[0] in common]
    differences = [subtract(one, other) for (_, one), (_, other) in comparisons]
    return fmean([0.5 + 0.5 * ((difference > 0) - (difference < 0)) for difference in differences])


def _decide(difference: float, share: float, rules: Rules) -> float | str:
    """Return how certain it is that the leading output is the better one, or the reason why neither is. `share` are the
    raters who put it first."""
    if difference and abs(difference) < rules.margin * (1 - TOLERANCE):
        return reasons.SMALL_MARGIN
    if difference and share > 0.5:
        return share
    if rules.ties == "soft":
        return 0.5
    return reasons.RATERS_SPLIT if difference else reasons.TIE


def _check_comparable(first: Fields | None, second: Fields | None, rules: Rules) -> str | None:
    """Return the reason why two outputs make no pair whatever their judgments, or None. Fields are None for an output
    that lacks its context."""
    if first is None or second is None:
        return reasons.NO_CONTEXT
    if not (first[-1][1].strip() and second[-1][1].strip()):
        return reasons.EMPTY_TEXT
    if first[:-1] != second[:-1]:
        return reasons.OTHER_CONTEXT if rules.within == "item" else None
    return reasons.SAME_TEXT if first[-1] == second[-1] else None


# Pairs from ratings, and from choices among several outputs.


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedOutput:
    """An output with its ratings and their aggregated value; high is good. `fields` is None if a context field is
    missing, `raters` is None unless all raters are named."""

    item: str
    system: str
    text: str
    fields: Fields | None
    ratings: tuple[RaterValue, ...]
    value: float
    raters: frozenset[str] | None


def collect_rated_outputs(
    judgments: JudgedRecords, aim: Aim, rules: Rules, shape: Shape, account: Account
) -> list[RatedOutput]:
    """Return the outputs rated for the aspect, sorted by item and system so that the order of rows does not matter."""
    outputs = []
    for (item, system), values in sorted(judgments.ratings.get(aim.aspect, {}).items()):
        account.outputs += 1
        record = judgments.records.get((item, system))
        if record is None:
            account.without_text += 1
            continue
        invalid = next((value for _, value in values if aim.choice and value not in (0, 1)), None)
        if invalid is not None:
            raise InputError(
                f"{aim.aspect!r} is no choice among several outputs (`choice`): expected 1 for a chosen output and 0 "
                f"for the others, got {invalid:g} for item {item!r} of system {system!r}",
                code="invalid_value",
            )
        # Sorted, because a sum of floats depends on the order of its terms, and unnamed raters have no order.
        signed = [(rater, -value if aim.opposite else value) for rater, value in values]
        ratings = tuple(sorted(signed, key=lambda rating: (rating[0] or "", rating[1])))
        names = frozenset(rater for rater, _ in ratings if rater is not None)
        outputs.append(
            RatedOutput(
                item=item,
                system=system,
                text=record.output,
                fields=shape.lay_out(record),
                ratings=ratings,
                value=aggregate(ratings, rules.aggregate),
                raters=names if all(rater is not None for rater, _ in ratings) else None,
            )
        )
    return outputs


class RatingOrder:
    """Orders two rated outputs: the better one is good. It makes one pair of the same two texts, and none of texts that
    raters compared directly."""

    def __init__(self, aim: Aim, rules: Rules, preferred: Iterable[GoodBad]) -> None:
        self.aim, self.rules = aim, rules
        self._preferred = {frozenset((pair.good, pair.bad)) for pair in preferred}
        self._rated: set[tuple[Fields, Fields]] = set()

    def compare(self, first: RatedOutput, second: RatedOutput) -> GoodBad | str:
        """Return the pair, or the reason why there is none. If all raters are named, only those who judged both outputs
        count: otherwise a harsh rater who skipped one output would raise its mean."""
        reason = _check_comparable(first.fields, second.fields, self.rules)
        if reason is not None:
            return reason
        if first.raters is not None and second.raters is not None and first.raters != second.raters:
            common = first.raters & second.raters
            if not common:
                return reasons.NO_COMMON_RATER
            first, second = self._restrict(first, common), self._restrict(second, common)
        result = self._order(first, second)
        if isinstance(result, str):
            return result
        if frozenset((result.good, result.bad)) in self._preferred:
            return reasons.COMPARED
        if (result.good, result.bad) in self._rated:
            return reasons.REPEATED
        self._rated.add((result.good, result.bad))
        return result

    def _restrict(self, output: RatedOutput, raters: frozenset[str]) -> RatedOutput:
        ratings = tuple(rating for rating in output.ratings if rating[0] in raters)
        return replace(output, ratings=ratings, value=aggregate(ratings, self.rules.aggregate), raters=raters)

    def _order(self, first: RatedOutput, second: RatedOutput) -> GoodBad | str:
        if self.aim.choice and not any(value for output in (first, second) for _, value in output.ratings):
            return reasons.NEITHER_CHOSEN
        difference = subtract(first.value, second.value)
        good, bad = (first, second) if difference >= 0 else (second, first)
        if self.rules.certainty == "full":
            share = 1.0
        elif self.aim.choice:
            good_votes, bad_votes = (math.fsum(value for _, value in output.ratings) for output in (good, bad))
            share = good_votes / (good_votes + bad_votes)
            share = 1 - share if self.aim.opposite else share
        else:
            share = share_above(good.ratings, bad.ratings)
        certainty = _decide(difference, share, self.rules)
        if isinstance(certainty, str):
            return certainty
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


# Pairs from preferences: raters saw two outputs and chose one.


def collect_preferred_pairs(
    judgments: JudgedRecords, aim: Aim, rules: Rules, shape: Shape, account: Account
) -> list[GoodBad]:
    """Return the pairs that raters compared, before any cap, sorted by item and system so that the order of rows does
    not matter."""
    pairs = []
    seen: set[tuple[str, Fields, Fields]] = set()
    for key, values in sorted(judgments.preferences.get(aim.aspect, {}).items()):
        account.possible += 1
        item, *systems = key
        records = [judgments.records.get((item, system)) for system in systems]
        fields = [shape.lay_out(record) if record else None for record in records]
        reason = reasons.NO_TEXT if None in records else _check_comparable(fields[0], fields[1], rules)
        signed = [(rater, -sign if aim.opposite else sign) for rater, sign in values]
        difference = subtract(aggregate(signed, rules.aggregate), 0.0)
        share = 1.0
        if rules.certainty == "shares":
            first_share = fmean([(1 + sign) / 2 for _, sign in signed])  # A tie counts half.
            share = first_share if difference > 0 else 1 - first_share
        certainty = reason or _decide(difference, share, rules)
        if isinstance(certainty, str):
            account.drop(certainty)
            continue
        good, bad = (0, 1) if difference > 0 or certainty == 0.5 else (1, 0)
        pair = GoodBad(
            criterion=aim.criterion,
            instruction=aim.instruction,
            good=fields[good] or (),
            bad=fields[bad] or (),
            item=item,
            certainty=certainty,
            systems=(systems[good], systems[bad]),
        )
        if (item, pair.good, pair.bad) in seen:
            account.drop(reasons.REPEATED)
        else:
            seen.add((item, pair.good, pair.bad))
            pairs.append(pair)
    return pairs


# Which outputs are compared: those of one item, or any two, up to the cap.


Output = TypeVar("Output", RatedOutput, GoodBad)


def pair_within_items(
    outputs: Sequence[RatedOutput], aim: Aim, rules: Rules, account: Account, preferred: Sequence[GoodBad]
) -> list[GoodBad]:
    """Pair the outputs of each item and add them to the preferred pairs; the cap applies to both together."""
    outputs_by_item = _group_by_item(outputs)
    preferred_by_item = _group_by_item(preferred)
    pairs: list[GoodBad] = []
    for item in sorted({*outputs_by_item, *preferred_by_item}):
        own = preferred_by_item.get(item, [])
        rated = _compare_each(outputs_by_item.get(item, []), RatingOrder(aim, rules, own), account)
        pairs += _apply_cap([*own, *rated], rules, account, item)
    return pairs


def pair_across_items(
    outputs: Sequence[RatedOutput], aim: Aim, rules: Rules, account: Account, preferred: Sequence[GoodBad]
) -> list[GoodBad]:
    """Pair any two outputs and add them to the preferred pairs. A cap applies to the preferred pairs first; then
    partners are drawn until each item has its pairs or none is left."""
    if rules.cap is not None:
        capped = [
            pair
            for item, pairs in _group_by_item(preferred).items()
            for pair in _apply_cap(pairs, rules, account, item)
        ]
        return [*_draw_pairs(outputs, RatingOrder(aim, rules, capped), account, capped), *capped]
    if comb(len(outputs), 2) > MAX_UNCAPPED_PAIRS:
        raise SpecError(
            f"{len(outputs):,} outputs make {comb(len(outputs), 2):,} pairs for {account.criterion!r}, more than "
            f"{MAX_UNCAPPED_PAIRS:,}; limit the number of pairs an item may take part in, such as `cap=10`"
        )
    return [*_compare_each(outputs, RatingOrder(aim, rules, preferred), account), *preferred]


def _group_by_item(outputs: Sequence[Output]) -> dict[str, list[Output]]:
    groups: dict[str, list[Output]] = {}
    for output in outputs:
        groups.setdefault(output.item, []).append(output)
    return groups


def _apply_cap(pairs: list[GoodBad], rules: Rules, account: Account, item: str) -> list[GoodBad]:
    """Draw as many of an item's pairs as the cap allows, keeping their order."""
    if rules.cap is None or len(pairs) <= rules.cap:
        return pairs
    account.drop(reasons.OVER_CAP, len(pairs) - rules.cap)
    drawn = _seed_rng(rules.seed, account.criterion, item).choice(len(pairs), size=rules.cap, replace=False)
    return [pairs[index] for index in sorted(drawn)]


def _compare_each(outputs: Sequence[RatedOutput], order: RatingOrder, account: Account) -> list[GoodBad]:
    pairs = []
    for first, second in combinations(outputs, 2):
        result = order.compare(first, second)
        if isinstance(result, GoodBad):
            pairs.append(result)
        else:
            account.drop(result)
    return pairs


def _draw_pairs(
    outputs: Sequence[RatedOutput], order: RatingOrder, account: Account, preferred: Sequence[GoodBad]
) -> list[GoodBad]:
    cap = order.rules.cap or 0
    rng = _seed_rng(order.rules.seed, account.criterion)
    compared: set[tuple[int, int]] = set()
    counts = Counter(pair.item for pair in preferred)
    pairs: list[GoodBad] = []
    # Each round gives every output one partner. Ties and small margins waste rounds, so there are more rounds than
    # the cap; if almost everything is a tie, the rounds end before the cap is reached.
    for _ in range(16 * cap + 32):
        free = [index for index, output in enumerate(outputs) if counts[output.item] < cap]
        drawn = rng.permutation(np.array(free, dtype=np.int64)).tolist()
        for partners in zip(drawn[::2], drawn[1::2], strict=False):
            first, second = sorted(partners)
            if (first, second) in compared:
                continue
            compared.add((first, second))
            result = order.compare(outputs[first], outputs[second])
            items = {outputs[first].item, outputs[second].item}
            if isinstance(result, str):
                account.drop(result)
            elif any(counts[item] >= cap for item in items):
                account.drop(reasons.OVER_CAP)
            else:
                counts.update(items)
                pairs.append(result)
    account.drop(reasons.NOT_DRAWN, comb(len(outputs), 2) - len(compared))
    return pairs


def _seed_rng(seed: int, *names: str) -> np.random.Generator:
    """Return a separate generator for each name, so that the draw for one item does not depend on the others."""
    return np.random.default_rng([seed, *(zlib.crc32(name.encode("utf-8", "surrogatepass")) for name in names)])
