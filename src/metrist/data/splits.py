"""Split pairs into train, dev and test so that pairs that share a text are on one side."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from metrist.data.pairs import SPLITS, GoodBad
from metrist.data.settings import INSIDE, NEAR
from metrist.data.text_overlap import SplitUnit, group_units, number_shared_texts
from metrist.errors import InputError, SpecError

Shares = tuple[float, float, float]
DEFAULT_SHARES: Shares = (0.8, 0.1, 0.1)
#: A smaller group is never cut.
_MIN_CUT_UNITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Pairs with their side, in the original order; `left_out` are pairs whose texts are on two sides."""

    pairs: list[GoodBad]
    left_out: list[GoodBad]

    def side(self, name: str) -> list[GoodBad]:
        return [pair for pair in self.pairs if pair.split == name]


def split_pairs(
    pairs: Sequence[GoodBad],
    shares: Shares = DEFAULT_SHARES,
    *,
    seed: int = 0,
    near: float = NEAR,
    inside: float = INSIDE,
) -> Split:
    """Split pairs so that none of these is on two sides: a text of three words or more, a near-duplicate of one, a text
    of eight words or more that lies inside another, a whole context, a named item.

    Criteria are split together: a context judged by several is on one side for all. Each criterion gets its shares as
    nearly as whole groups allow.
    """
    sides = assign_sides([SplitUnit.from_pair(pair) for pair in pairs], shares, seed=seed, near=near, inside=inside)
    assigned = [replace(pair, split=side) for pair, side in zip(pairs, sides, strict=True)]
    return Split(
        pairs=[pair for pair in assigned if pair.split], left_out=[pair for pair in assigned if not pair.split]
    )


def split_by_position(pairs: Sequence[GoodBad], shares: Shares = DEFAULT_SHARES) -> list[GoodBad]:
    """Put the first pairs of each criterion into train, the next into dev, the last into test, as HEAP's authors did.
    Pairs of one context may be on several sides; see `metrist.data.leaks`."""
    check_shares(shares)
    totals = Counter(pair.criterion for pair in pairs)
    positions: Counter[str] = Counter()
    assigned = []
    for pair in pairs:
        total, position = totals[pair.criterion], positions[pair.criterion]
        positions[pair.criterion] += 1
        # The tolerance keeps 0.7 + 0.1 + 0.1 of 10 at 9, which floats would make 8.
        ends = [math.floor(sum(shares[: count + 1]) * total + 1e-9) for count in range(2)]
        assigned.append(replace(pair, split=SPLITS[sum(position >= end for end in ends)]))
    return assigned


def check_shares(shares: Sequence[float]) -> None:
    """Raise an error unless the shares are three parts of 1 with something to train on."""
    valid = len(shares) == 3 and all(math.isfinite(share) and share >= 0 for share in shares)
    if not (valid and abs(sum(shares) - 1) < 1e-6 and shares[0] > 0):
        values = ", ".join(f"{share:g}" for share in shares)
        raise SpecError(
            f"a split needs the shares of train, dev and test, which sum to 1, such as 0.8,0.1,0.1; got {values}",
            code="missing_value",
        )


def parse_share(dev: str | None) -> float | None:
    """Return the share that `dev` names; None if it is a file name or None."""
    try:
        share = float(dev) if dev is not None else math.nan
    except ValueError:
        return None
    if math.isnan(share):
        return None
    if not 0 < share < 1:
        raise InputError(
            f"`dev` must be a file or a share of the pairs between 0 and 1, such as 0.05, got {dev}",
            code="invalid_value",
        )
    return share


def hold_out(rows: Sequence[Sequence[str]], share: float, rng: np.random.Generator) -> set[int]:
    """Draw about this share of rows of texts, as numbers. Rows connected by a chain of shared texts stay together."""
    groups = group_by_shared_texts(rows)
    target = max(1, round(share * len(rows)))
    chosen: set[int] = set()
    for at in rng.permutation(len(groups)):
        if len(chosen) + len(groups[at]) <= target:
            chosen.update(groups[at])
    return chosen


def group_by_shared_texts(rows: Sequence[Sequence[str]]) -> list[list[int]]:
    """Group the numbers of rows of texts that a chain of shared texts connects."""
    numbers: dict[str, int] = {}
    return group_units([[numbers.setdefault(text, len(numbers)) for text in texts] for texts in rows])


def assign_sides(
    units: Sequence[SplitUnit], shares: Shares, *, seed: int = 0, near: float = NEAR, inside: float = INSIDE
) -> list[str | None]:
    """Return the side of each unit, or None if its texts are on two sides because its group had to be cut. Raise an
    error if a side with a share would be empty."""
    check_shares(shares)
    texts = number_shared_texts(units, near, inside)
    totals = Counter(unit.criterion for unit in units)
    rng = np.random.default_rng([seed, len(units)])
    sides: dict[int, str | None] = {}
    uncut = []
    groups = group_units(texts)
    for group in groups:
        criteria = {index: units[index].criterion for index in group}
        # The criteria that, with this group in train, could not fill half of dev and test.
        overfull = [
            criterion
            for criterion, count in Counter(criteria.values()).items()
            if count >= _MIN_CUT_UNITS and totals[criterion] - count < (shares[1] + shares[2]) * totals[criterion] / 2
        ]
        if overfull:
            group_texts = {index: texts[index] for index in group}
            sides |= _cut_group(group_texts, criteria, overfull, dict(zip(SPLITS, shares, strict=True)), rng)
        else:
            uncut.append(group)
    _balance_groups(uncut, units, sides, shares, rng)
    _check_sides(sides, shares, max(map(len, groups), default=0))
    return [sides[index] for index in range(len(units))]


def _check_sides(sides: Mapping[int, str | None], shares: Shares, largest_group: int) -> None:
    used = set(sides.values())
    empty = {side: share for side, share in zip(SPLITS, shares, strict=True) if share and side not in used}
    if not (empty and sides):
        return
    if largest_group == 1 or min(empty.values()) * len(sides) < 1 - 1e-9:
        requested = ", ".join(f"{share:g}" for share in shares)
        raise InputError(
            f"nothing is left for {' and '.join(empty)}: there are only {len(sides):,} to split, too few for the "
            f"shares {requested}; add data, or give these sides a larger share or none, as in 1,0,0",
            code="too_little_data",
        )
    raise InputError(
        f"nothing is left for {' and '.join(empty)}: {largest_group:,} of {len(sides):,} are linked by texts or items "
        "that they share or almost share; count fewer texts as near-duplicates (`near`) or as parts of others "
        "(`inside`), or split by position",
        code="too_little_data",
    )


def _balance_groups(
    groups: Sequence[Sequence[int]],
    units: Sequence[SplitUnit],
    sides: dict[int, str | None],
    shares: Shares,
    rng: np.random.Generator,
) -> None:
    """Assign whole groups to the sides that lack most. Groups too large for dev and test come first, while train lacks
    most; the others follow in random order, so that every side gets small and large ones."""
    columns = {name: column for column, name in enumerate(dict.fromkeys(unit.criterion for unit in units))}
    column_of = [columns[unit.criterion] for unit in units]

    def count(members: Sequence[int]) -> np.ndarray:
        return np.bincount([column_of[index] for index in members], minlength=len(columns))

    assigned = np.zeros((len(SPLITS), len(columns)))
    for index, side in sides.items():
        if side is not None:
            assigned[SPLITS.index(side), column_of[index]] += 1
    usable = [index for index in range(len(units)) if index not in sides or sides[index] is not None]
    totals = np.maximum(count(usable), 1)
    wanted = np.array(shares)
    counts = [count(group) for group in groups]
    smallest = wanted[wanted > 0].min()
    large = [bool((sizes > smallest * totals / 2).any()) and sizes.sum() > 1 for sizes in counts]
    for index in sorted(rng.permutation(len(groups)).tolist(), key=lambda index: not large[index]):
        lacking = wanted[:, None] - assigned / totals
        need = (lacking * (counts[index] / totals)).sum(axis=1)
        need[wanted == 0] = -np.inf
        chosen = int(np.argmax(need))
        assigned[chosen] += counts[index]
        sides.update(dict.fromkeys(groups[index], SPLITS[chosen]))


# A group of linked pairs too large for any one side is cut: its texts are assigned to sides, and pairs whose texts are
# on two sides are left out.


def _cut_group(
    texts: Mapping[int, tuple[int, ...]],
    criteria: Mapping[int, str],
    overfull: Collection[str],
    shares: Mapping[str, float],
    rng: np.random.Generator,
) -> dict[int, str | None]:
    """Return the side of each unit of a group, or None for a unit whose texts are on two sides.

    Dev and test each grow from a text to the texts that mostly occur with those already there, until the side has its
    share of each overfull criterion's text occurrences; so few units are cut. Train has the rest.
    """
    graph = _TextGraph(texts, criteria)
    side_of: dict[int, str] = {}
    first, *others = shares
    for side in others:
        for text in _grow_side(graph, dict.fromkeys(overfull, shares[side]), side_of, rng):
            side_of[text] = side
    unit_sides: dict[int, str | None] = {}
    for unit, unit_texts in texts.items():
        sides = {side_of.get(text, first) for text in unit_texts}
        unit_sides[unit] = sides.pop() if len(sides) == 1 else None
    return unit_sides


class _TextGraph:
    """The units that each text is in, and the share of each criterion's text occurrences that it makes up."""

    def __init__(self, texts: Mapping[int, tuple[int, ...]], criteria: Mapping[int, str]) -> None:
        self.texts = texts
        self.units: dict[int, list[int]] = {}
        occurrences: Counter[str] = Counter()
        for unit, unit_texts in texts.items():
            occurrences[criteria[unit]] += len(unit_texts)
            for text in unit_texts:
                self.units.setdefault(text, []).append(unit)
        counts = {text: Counter(criteria[unit] for unit in units) for text, units in self.units.items()}
        self.weights = {
            text: {name: count / occurrences[name] for name, count in own.items()} for text, own in counts.items()
        }

    def neighbours(self, text: int) -> list[int]:
        """Return the texts that occur together with this one, once for each unit."""
        return [other for unit in self.units[text] for other in self.texts[unit] if other != text]


def _grow_side(
    graph: _TextGraph, targets: dict[str, float], taken: Collection[int], rng: np.random.Generator
) -> set[int]:
    """Return the texts of a side that grows until no criterion lacks more than half a text's weight. The criterion that
    lacks most gets its free text with the greatest nearness, or any free one if none is near."""
    starts = rng.permutation(np.array(sorted(graph.units))).tolist()
    members: set[int] = set()
    weights: Counter[str] = Counter()
    #: The neighbours of the members, by criterion. Nearness only grows: the latest entry of a text comes out first.
    queues: dict[str, list[tuple[float, int]]] = {}

    def is_free(text: int) -> bool:
        return text not in taken and text not in members

    while targets:
        criterion = max(targets, key=lambda name: targets[name] - weights[name])
        queue = queues.get(criterion, [])
        while queue and not is_free(queue[0][1]):
            heapq.heappop(queue)
        free = (text for text in starts if is_free(text) and criterion in graph.weights[text])
        text = queue[0][1] if queue else next(free, None)
        if text is None or weights[criterion] + graph.weights[text][criterion] / 2 > targets[criterion]:
            del targets[criterion]
            continue
        members.add(text)
        weights.update(graph.weights[text])
        for other in filter(is_free, sorted(set(graph.neighbours(text)))):
            near = graph.neighbours(other)
            # Its nearness: the share of its own neighbours, over all its units, that are members.
            entry = (-sum(neighbour in members for neighbour in near) / len(near), other)
            for name in graph.weights[other]:
                heapq.heappush(queues.setdefault(name, []), entry)
    return members
