"""A group of pairs too large for any one side: its texts are put on sides, and pairs between sides are left out."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from metrist.data.pairs import SPLITS, GoodBad
from metrist.data.text_overlap import INSIDE, NEAR, Unit, groups, shared_texts
from metrist.errors import InputError, SpecError


def cut(
    texts: Mapping[int, tuple[int, ...]],
    criteria: Mapping[int, str],
    wanted: Collection[str],
    shares: Mapping[str, float],
    rng: np.random.Generator,
) -> dict[int, str | None]:
    """The side of each unit of a group, None for a unit whose texts stand on two sides.

    A side other than the first grows from a text to the texts that mostly occur with those it has, until it has its
    share of the places where texts occur in each wanted criterion; so few units are cut. The first side has the rest.
    """
    graph = Graph.of(texts, criteria)
    side_of: dict[int, str] = {}
    first, *others = shares
    for side in others:
        _Growth(graph, side, side_of, rng).grow(dict.fromkeys(wanted, shares[side]))
    found: dict[int, str | None] = {}
    for unit, own in texts.items():
        sides = {side_of.get(text, first) for text in own}
        found[unit] = sides.pop() if len(sides) == 1 else None
    return found


@dataclass(slots=True)
class Graph:
    """Which units each text is in, and what share of a criterion's places it fills, for each of its criteria."""

    texts: Mapping[int, tuple[int, ...]]
    units: dict[int, list[int]] = field(default_factory=dict)
    weights: dict[int, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Mapping[int, tuple[int, ...]], criteria: Mapping[int, str]) -> Graph:
        graph = cls(texts)
        places: Counter[str] = Counter()
        for unit, own in texts.items():
            places[criteria[unit]] += len(own)
            for text in own:
                graph.units.setdefault(text, []).append(unit)
        for text, units in graph.units.items():
            counts = Counter(criteria[unit] for unit in units)
            graph.weights[text] = {one: count / places[one] for one, count in counts.items()}
        return graph

    def nearness(self, text: int, inside: set[int]) -> float:
        """The share of the text's company, over all its units, that stands inside."""
        company = [other for unit in self.units[text] for other in self.texts[unit] if other != text]
        return sum(other in inside for other in company) / len(company) if company else 0.0

    def company(self, text: int) -> list[int]:
        """The texts that occur with this one."""
        return sorted({other for unit in self.units[text] for other in self.texts[unit]} - {text})


class _Growth:
    """One side as it grows. Each criterion has a queue of the texts next to those already here."""

    def __init__(self, graph: Graph, side: str, side_of: dict[int, str], rng: np.random.Generator) -> None:
        self._graph, self._side, self._side_of = graph, side, side_of
        self._starts = rng.permutation(np.array(sorted(graph.units))).tolist()
        self._queues: dict[str, list[tuple[float, int]]] = {}
        self._inside: set[int] = set()
        self._has: Counter[str] = Counter()

    def grow(self, wanted: dict[str, float]) -> None:
        """Take texts for the criterion that lacks most until none lacks more than half a text's weight."""
        while wanted:
            criterion = max(wanted, key=lambda one: wanted[one] - self._has[one])
            text = self._next(criterion)
            if text is None or self._has[criterion] + self._graph.weights[text][criterion] / 2 > wanted[criterion]:
                del wanted[criterion]
            else:
                self._take(text)

    def _take(self, text: int) -> None:
        self._side_of[text] = self._side
        self._inside.add(text)
        self._has.update(self._graph.weights[text])
        for other in self._graph.company(text):
            if other not in self._side_of:
                entry = (-self._graph.nearness(other, self._inside), other)
                for criterion in self._graph.weights[other]:
                    heapq.heappush(self._queues.setdefault(criterion, []), entry)

    def _next(self, criterion: str) -> int | None:
        """The criterion's free text with the greatest nearness, or any where none is near. Nearness only grows, so of a
        text's entries the latest comes out first."""
        queue = self._queues.get(criterion, [])
        while queue:
            text = queue[0][1]
            if text not in self._side_of:
                return text
            heapq.heappop(queue)
        free = (one for one in self._starts if one not in self._side_of and criterion in self._graph.weights[one])
        return next(free, None)


# Splits into train, dev and test that keep whatever shares a text on one side.


Shares = tuple[float, float, float]
USUAL: Shares = (0.8, 0.1, 0.1)
#: A group of fewer units is never cut.
_FEWEST_CUT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Pairs with their side, in the order given; `left_out` are those whose texts stand on two sides."""

    pairs: list[GoodBad]
    left_out: list[GoodBad]

    def side(self, name: str) -> list[GoodBad]:
        return [pair for pair in self.pairs if pair.split == name]


def split_pairs(
    pairs: Sequence[GoodBad], shares: Shares = USUAL, *, seed: int = 0, near: float = NEAR, inside: float = INSIDE
) -> Split:
    """Put pairs on sides so that no text of three words or more, no near-duplicate of one, no text of eight words or
    more that lies inside another, no whole context and no item that is named stands on two.

    Criteria are split together: a context judged by several is on one side for all. Each criterion gets its shares as
    nearly as whole groups allow.
    """
    sides = assign([Unit.of(pair) for pair in pairs], shares, seed=seed, near=near, inside=inside)
    placed = [replace(pair, split=side) for pair, side in zip(pairs, sides, strict=True)]
    return Split(pairs=[pair for pair in placed if pair.split], left_out=[pair for pair in placed if not pair.split])


def positional(pairs: Sequence[GoodBad], shares: Shares = USUAL) -> list[GoodBad]:
    """The first pairs of each criterion are for training, the next for development, the last to test: as HEAP's authors
    split. Pairs of one context fall on several sides; see `metrist.data.leaks`."""
    check_shares(shares)
    totals = Counter(pair.criterion for pair in pairs)
    seen: Counter[str] = Counter()
    placed = []
    for pair in pairs:
        total, at = totals[pair.criterion], seen[pair.criterion]
        seen[pair.criterion] += 1
        # The tolerance keeps .7 + .1 + .1 of 10 at 9, which floats would make 8.
        ends = [math.floor(sum(shares[: count + 1]) * total + 1e-9) for count in range(2)]
        placed.append(replace(pair, split=SPLITS[sum(at >= end for end in ends)]))
    return placed


def check_shares(shares: Sequence[float]) -> None:
    """Refuse shares that are not three parts of a whole with something to train on."""
    sound = len(shares) == 3 and all(math.isfinite(share) and share >= 0 for share in shares)
    if not (sound and abs(sum(shares) - 1) < 1e-6 and shares[0] > 0):
        found = ", ".join(f"{share:g}" for share in shares)
        raise SpecError(f"a split wants the shares of train, dev and test, such as 0.8,0.1,0.1, sum 1; got {found}")


def assign(
    units: Sequence[Unit], shares: Shares, *, seed: int = 0, near: float = NEAR, inside: float = INSIDE
) -> list[str | None]:
    """The side of each unit; None where its texts stand on two sides because its group had to be cut. That a side is
    wanted and nothing can be put there is an error."""
    check_shares(shares)
    texts = shared_texts(units, near, inside)
    totals = Counter(unit.criterion for unit in units)
    rng = np.random.default_rng([seed, len(units)])
    sides: dict[int, str | None] = {}
    whole = []
    together = groups(texts)
    for group in together:
        criteria = {at: units[at].criterion for at in group}
        if crowded := _crowded(Counter(criteria.values()), totals, shares):
            own = {at: texts[at] for at in group}
            sides |= cut(own, criteria, crowded, dict(zip(SPLITS, shares, strict=True)), rng)
        else:
            whole.append(group)
    _Balance(units, sides, shares).place(whole, rng)
    _check_sides(sides, shares, max(map(len, together), default=0))
    return [sides[at] for at in range(len(units))]


def _check_sides(sides: Mapping[int, str | None], shares: Shares, largest: int) -> None:
    found = set(sides.values())
    empty = [side for side, share in zip(SPLITS, shares, strict=True) if share and side not in found]
    if not (empty and sides):
        return
    least = min(share for side, share in zip(SPLITS, shares, strict=True) if side in empty)
    if largest == 1 or least * len(sides) < 1 - 1e-9:
        wanted = ", ".join(f"{share:g}" for share in shares)
        raise InputError(
            f"nothing is left for {' and '.join(empty)}: there are only {len(sides):,} to split, too few for the "
            f"shares {wanted}; give more data, or these sides a larger share or none (--split 1,0,0)"
        )
    raise InputError(
        f"nothing is left for {' and '.join(empty)}: of {len(sides):,}, {largest:,} hang together by texts or items "
        "that they share or almost share; count fewer texts as near-duplicates (--near) or as parts of others "
        "(--inside), or split by --split-by position"
    )


def _crowded(counts: Counter[str], totals: Counter[str], shares: Shares) -> list[str]:
    """The criteria that, with the group on the training side, have too little left to half fill the other sides."""
    apart = shares[1] + shares[2]
    return [
        one for one, count in counts.items() if count >= _FEWEST_CUT and totals[one] - count < apart * totals[one] / 2
    ]


class _Balance:
    """Puts groups where they are wanted most."""

    def __init__(self, units: Sequence[Unit], sides: dict[int, str | None], shares: Shares) -> None:
        self._sides = sides
        self._shares = np.array(shares)
        names = {name: at for at, name in enumerate(dict.fromkeys(unit.criterion for unit in units))}
        self._criteria = [names[unit.criterion] for unit in units]
        self._placed = np.zeros((len(SPLITS), len(names)))
        kept = [at for at in range(len(units)) if at not in sides or sides[at] is not None]
        self._totals = np.maximum(self._counts(kept), 1)
        for at, side in sides.items():
            if side is not None:
                self._placed[SPLITS.index(side), self._criteria[at]] += 1

    def place(self, whole: Sequence[Sequence[int]], rng: np.random.Generator) -> None:
        """Groups too large for dev and test come first, while training wants most; the others follow in random order,
        so that small and large ones are everywhere."""
        counts = [self._counts(group) for group in whole]
        smallest = self._shares[self._shares > 0].min()
        large = [bool((count > smallest * self._totals / 2).any()) and count.sum() > 1 for count in counts]
        for at in sorted(rng.permutation(len(whole)).tolist(), key=lambda one: not large[one]):
            side = self._most_wanting(counts[at])
            self._placed[side] += counts[at]
            self._sides.update(dict.fromkeys(whole[at], SPLITS[side]))

    def _most_wanting(self, counts: np.ndarray) -> int:
        lacking = self._shares[:, None] - self._placed / self._totals
        wanting = (lacking * (counts / self._totals)).sum(axis=1)
        wanting[self._shares == 0] = -np.inf
        return int(np.argmax(wanting))

    def _counts(self, members: Sequence[int]) -> np.ndarray:
        return np.bincount([self._criteria[at] for at in members], minlength=self._placed.shape[1])
