"""Whether two outputs can be compared at all, whatever people said of them."""

from __future__ import annotations

import math
import statistics
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from math import comb
from typing import Protocol, TypeVar

import numpy as np

from metrist.data import rules as reasons
from metrist.data.judgments import Said
from metrist.data.pairs import Fields, GoodBad
from metrist.data.rules import COMPARED, NOT_DRAWN, OVER_CAP, REPEATED, Account, How, Rules
from metrist.errors import SpecError


def unfit(first: Fields | None, second: Fields | None, rules: Rules) -> str | None:
    """Why two outputs make no pair, or None where they may. Fields are None without their context."""
    if first is None or second is None:
        return reasons.NO_CONTEXT
    if not (first[-1][1].strip() and second[-1][1].strip()):
        return reasons.EMPTY_TEXT
    if first[:-1] != second[:-1]:
        return reasons.OTHER_CONTEXT if rules.within == "item" else None
    return reasons.SAME_TEXT if first[-1] == second[-1] else None


# Several raters' values made one, and how sure they are of an order together.


#: Values nearer than this, for their size, are equal: .1 + .2 is not exactly .3.
EQUAL = 1e-9


def aggregated(said: Sequence[Said], how: How) -> float:
    """One value for all raters'."""
    return _WAYS[how]([value for _, value in said])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _majority(values: Sequence[float]) -> float:
    """The value that most raters gave; of several that are equally common, their mean."""
    counts = Counter(values)
    most = max(counts.values())
    return _mean([value for value, count in counts.items() if count == most])


_WAYS: dict[How, Callable[[Sequence[float]], float]] = {
    "mean": _mean,
    "median": statistics.median,
    "majority": _majority,
}


def gap(first: float, second: float) -> float:
    """By how much the first is higher; exactly 0 where they are equal but for rounding."""
    found = first - second
    return 0.0 if abs(found) <= EQUAL * max(1.0, abs(first), abs(second)) else found


def share_above(first: Sequence[Said], second: Sequence[Said]) -> float:
    """The probability that a rater puts the first above the second, ties counted half. Raters who judged both are
    asked where most values are theirs; where they are few, or unknown, each value of the first is set against each of
    the second."""
    common = {rater for rater, _ in first if rater is not None} & {rater for rater, _ in second}
    theirs = sum(rater in common for rater, _ in (*first, *second))
    every = [(one, other) for one in first for other in second]
    if 2 * theirs > len(first) + len(second):
        every = [(one, other) for one, other in every if one[0] == other[0] and one[0] in common]
    compared = [(one, other) for (_, one), (_, other) in every]
    return _mean([0.5 + 0.5 * ((gap(one, other) > 0) - (gap(one, other) < 0)) for one, other in compared])


def share_of_votes(first: Sequence[Said], second: Sequence[Said]) -> float:
    """Of the raters who chose one of these two outputs among several, the share that chose the first."""
    ours, theirs = (math.fsum(value for _, value in said) for said in (first, second))
    return ours / (ours + theirs)


def share_preferring(said: Sequence[Said]) -> float:
    """The share of raters who prefer the first, ties counted half."""
    return _mean([(1 + sign) / 2 for _, sign in said])


# Which outputs are set against each other: those of one item, or any two, as many as the cap allows.


#: More pairs than this are drawn, never all taken.
MOST_UNDRAWN = 1_000_000


class ItemOutput(Protocol):
    """An output that belongs to an item."""

    @property
    def item(self) -> str: ...


Output = TypeVar("Output", bound=ItemOutput)
#: Two outputs' pair, or the reason why they make none.
Compare = Callable[[Output, Output], GoodBad | str]


def within_items(
    outputs: Sequence[Output],
    compare: Compare[Output],
    rules: Rules,
    account: Account,
    given: Sequence[GoodBad] = (),
) -> list[GoodBad]:
    """The pairs of outputs that belong to one item, besides those given; the cap holds for both together."""
    by_item = _by_item(outputs)
    known = _by_item(given)
    pairs: list[GoodBad] = []
    for item in sorted({*by_item, *known}):
        own = known.get(item, [])
        found = _compared(combinations(by_item.get(item, []), 2), compare, account, own)
        pairs += _capped([*own, *found], rules, account, item)
    return pairs


def _by_item(placed: Sequence[Output]) -> dict[str, list[Output]]:
    found: dict[str, list[Output]] = {}
    for one in placed:
        found.setdefault(one.item, []).append(one)
    return found


def _capped(pairs: list[GoodBad], rules: Rules, account: Account, item: str) -> list[GoodBad]:
    """At most as many of an item's pairs as the cap allows, drawn at random; in the order given."""
    if rules.cap is None or len(pairs) <= rules.cap:
        return pairs
    account.drop(OVER_CAP, len(pairs) - rules.cap)
    drawn = _rng(rules.seed, account.criterion, item).choice(len(pairs), size=rules.cap, replace=False)
    return [pairs[at] for at in sorted(drawn)]


def among_all(
    outputs: Sequence[Output],
    compare: Compare[Output],
    rules: Rules,
    account: Account,
    given: Sequence[GoodBad] = (),
) -> list[GoodBad]:
    """The pairs given, and pairs of any two outputs. With a cap, which the pairs given come under first, partners are
    drawn until each item has its pairs or none can be found."""
    if rules.cap is not None:
        own = [pair for item, some in _by_item(given).items() for pair in _capped(some, rules, account, item)]
        return [*_drawn(outputs, compare, rules, account, own), *own]
    if comb(len(outputs), 2) > MOST_UNDRAWN:
        raise SpecError(
            f"{len(outputs):,} outputs make {comb(len(outputs), 2):,} pairs for {account.criterion!r}, more than "
            f"{MOST_UNDRAWN:,}; say in how many of them an item may take part at most, such as --cap 10"
        )
    return [*_compared(combinations(outputs, 2), compare, account, given), *given]


def _compared(
    couples: Iterator[tuple[Output, Output]], compare: Compare[Output], account: Account, given: Sequence[GoodBad]
) -> list[GoodBad]:
    known = _Known(given)
    pairs = []
    for first, second in couples:
        found = known.new(compare(first, second))
        if isinstance(found, GoodBad):
            pairs.append(found)
        else:
            account.drop(found)
    return pairs


class _Known:
    """The texts that were set against each other already: in this order by a rating, in any by a preference."""

    def __init__(self, given: Sequence[GoodBad]) -> None:
        self._given = {frozenset((pair.good, pair.bad)) for pair in given}
        self._seen: set[tuple[Fields, Fields]] = set()

    def new(self, found: GoodBad | str) -> GoodBad | str:
        """The pair, if the same texts did not come before, or the reason why it is none."""
        if isinstance(found, str):
            return found
        if frozenset((found.good, found.bad)) in self._given:
            return COMPARED
        if (found.good, found.bad) in self._seen:
            return REPEATED
        self._seen.add((found.good, found.bad))
        return found


def _drawn(
    outputs: Sequence[Output], compare: Compare[Output], rules: Rules, account: Account, given: Sequence[GoodBad]
) -> list[GoodBad]:
    cap = rules.cap or 0
    rng = _rng(rules.seed, account.criterion)
    looked_at: set[tuple[int, int]] = set()
    taken = Counter(pair.item for pair in given)
    pairs: list[GoodBad] = []
    known = _Known(given)
    # A round gives each output one partner. Ties and narrow gaps use rounds up, so there are more of them than pairs
    # wanted; where almost everything is a tie, they end before the cap is reached.
    for _ in range(16 * cap + 32):
        for one, other in _partners(outputs, taken, cap, rng):
            if (one, other) in looked_at:
                continue
            looked_at.add((one, other))
            found = known.new(compare(outputs[one], outputs[other]))
            items = {outputs[one].item, outputs[other].item}
            if isinstance(found, str):
                account.drop(found)
            elif any(taken[item] >= cap for item in items):
                account.drop(OVER_CAP)
            else:
                taken.update(items)
                pairs.append(found)
    account.drop(NOT_DRAWN, comb(len(outputs), 2) - len(looked_at))
    return pairs


def _partners(
    outputs: Sequence[Output], taken: Counter[str], cap: int, rng: np.random.Generator
) -> Iterator[tuple[int, int]]:
    """The outputs whose items may have more pairs, two by two."""
    free = [at for at, output in enumerate(outputs) if taken[output.item] < cap]
    order = rng.permutation(np.array(free, dtype=np.int64)).tolist()
    for one, other in zip(order[::2], order[1::2], strict=False):
        yield min(one, other), max(one, other)


def _rng(seed: int, *names: str) -> np.random.Generator:
    """A generator of its own for each name, so that what is drawn for one item does not hang on the others."""
    return np.random.default_rng([seed, *(zlib.crc32(name.encode("utf-8", "surrogatepass")) for name in names)])
