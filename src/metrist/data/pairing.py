"""Which outputs are set against each other: those of one item, or any two, as many as the cap allows."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, groupby
from math import comb
from typing import Protocol, TypeVar

import numpy as np

from metrist.data.account import NOT_DRAWN, OVER_CAP, REPEATED, Account
from metrist.data.good_bad import GoodBad
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


def within_items(outputs: Sequence[Output], compare: Compare[Output], rules: Rules, account: Account) -> list[GoodBad]:
    """The pairs of outputs that belong to one item. The outputs come sorted by item."""
    pairs: list[GoodBad] = []
    for item, together in groupby(outputs, key=lambda output: output.item):
        found = list(_compared(combinations(list(together), 2), compare, account))
        pairs += capped(found, rules, account, item)
    return pairs


def capped(pairs: list[GoodBad], rules: Rules, account: Account, item: str) -> list[GoodBad]:
    """At most as many of an item's pairs as the cap allows, drawn at random; in the order given."""
    if rules.cap is None or len(pairs) <= rules.cap:
        return pairs
    account.drop(OVER_CAP, len(pairs) - rules.cap)
    drawn = _rng(rules.seed, account.criterion, item).choice(len(pairs), size=rules.cap, replace=False)
    return [pairs[at] for at in sorted(drawn)]


def among_all(outputs: Sequence[Output], compare: Compare[Output], rules: Rules, account: Account) -> list[GoodBad]:
    """Pairs of any two outputs. With a cap, partners are drawn until each item has its pairs or none can be found."""
    if rules.cap is not None:
        return _drawn(outputs, compare, rules, account)
    if comb(len(outputs), 2) > MOST_UNDRAWN:
        raise SpecError(
            f"{len(outputs):,} outputs make {comb(len(outputs), 2):,} pairs for {account.criterion!r}, more than "
            f"{MOST_UNDRAWN:,}; say in how many of them an item may take part at most, such as --cap 10"
        )
    return list(_compared(combinations(outputs, 2), compare, account))


def _compared(
    couples: Iterator[tuple[Output, Output]], compare: Compare[Output], account: Account
) -> Iterator[GoodBad]:
    seen: set[GoodBad] = set()
    for first, second in couples:
        found = _new(compare(first, second), seen)
        if isinstance(found, GoodBad):
            yield found
        else:
            account.drop(found)


def _new(found: GoodBad | str, seen: set[GoodBad]) -> GoodBad | str:
    """The pair, if the same texts did not come before in the same order."""
    if isinstance(found, str):
        return found
    bare = GoodBad(criterion=found.criterion, good=found.good, bad=found.bad)
    if bare in seen:
        return REPEATED
    seen.add(bare)
    return found


def _drawn(outputs: Sequence[Output], compare: Compare[Output], rules: Rules, account: Account) -> list[GoodBad]:
    cap = rules.cap or 0
    rng = _rng(rules.seed, account.criterion)
    looked_at: set[tuple[int, int]] = set()
    taken: Counter[str] = Counter()
    pairs: list[GoodBad] = []
    seen: set[GoodBad] = set()
    # A round gives each output one partner. Ties and narrow gaps use rounds up, so there are more of them than pairs
    # wanted; where almost everything is a tie, they end before the cap is reached.
    for _ in range(16 * cap + 32):
        for one, other in _partners(outputs, taken, cap, rng):
            if (one, other) in looked_at:
                continue
            looked_at.add((one, other))
            found = _new(compare(outputs[one], outputs[other]), seen)
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
