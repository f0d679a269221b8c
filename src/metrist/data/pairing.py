"""Which outputs are set against each other: those of one item, or any two, as many as the cap allows."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from math import comb
from typing import Protocol, TypeVar

import numpy as np

from metrist.data.account import COMPARED, NOT_DRAWN, OVER_CAP, REPEATED, Account
from metrist.data.good_bad import Fields, GoodBad
from metrist.data.rules import Rules
from metrist.errors import SpecError

#: More pairs than this are drawn, never all taken.
MOST_UNDRAWN = 1_000_000


class Placed(Protocol):
    """An output that belongs to an item."""

    @property
    def item(self) -> str: ...


Output = TypeVar("Output", bound=Placed)
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
