"""A group of pairs too large for any one side: its texts are put on sides, and pairs between sides are left out."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np


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
