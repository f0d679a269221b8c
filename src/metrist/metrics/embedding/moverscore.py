"""The earth mover's distance: what it costs at least to turn one heap of weights into another.

An exact solver for the transportation problem, the network simplex method on a bipartite graph, for the sizes that
texts have: some hundred tokens on a side.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.metrics.base import Reduce, check_choice, check_within
from metrist.metrics.embedding.embedding import WeightedEmbedding, select_comparable
from metrist.metrics.lexical import references
from metrist.metrics.shard import Pairs, Shard, pairs_of
from metrist.models.protocols import States
from metrist.records import Need
from metrist.scores import Scores

Numbers = NDArray[np.float64]

#: Every supply is raised by so much, and the last demand by all of it together: then no supplies sum up to the same as
#: some demands, every step lowers the cost, and the method cannot go in circles.
_NUDGE = 1e-12
#: A route must save this much per unit to be taken: less is rounding. Weights sum to 1, so the answer is as near.
_TOLERANCE = 1e-11


def earth_movers_distance(supplies: Numbers, demands: Numbers, costs: Numbers) -> float:
    """The least sum of amount times cost that moves the supplies to the demands, right to about 1e-9. Both sides sum to
    1 and have no zeros; `costs[i, j]` is the price of moving one unit from i to j."""
    if min(costs.shape) == 1:
        return float(supplies @ costs @ demands)
    plan = _Plan(costs, _first_routes(supplies, demands, costs))
    while plan.improved():
        pass
    return plan.cost()


def _first_routes(supplies: Numbers, demands: Numbers, costs: Numbers) -> dict[tuple[int, int], float]:
    """What goes where in a plan to start from: the cheapest routes first, each filled as far as it goes. Each route but
    the last uses up one supply or one demand and never both, so the n + m - 1 routes form a tree."""
    n, m = costs.shape
    left, wanted = (supplies + _NUDGE).tolist(), demands.tolist()
    wanted[-1] += n * _NUDGE
    routes: dict[tuple[int, int], float] = {}
    rows, columns = n, m
    for place in np.argsort(costs, axis=None, kind="stable").tolist():
        i, j = divmod(place, m)
        if left[i] is None or wanted[j] is None:
            continue
        routes[i, j] = amount = min(left[i], wanted[j])
        # The last row and the last column stay open for the rest, whatever rounding has left of them.
        if (left[i] <= wanted[j] and rows > 1) or columns == 1:
            wanted[j] -= amount
            left[i], rows = None, rows - 1
        else:
            left[i] -= amount
            wanted[j], columns = None, columns - 1
        if not rows or not columns:
            break
    return routes


class _Plan:
    """A plan whose routes are the edges of a tree over supplies (0 to n - 1) and demands (n to n + m - 1), rooted at 0.

    `flow[x]` goes between x and `parent[x]`. `prices` are such that a route of the tree costs the prices of its two
    ends; what a route outside costs less than that is what it would save.
    """

    def __init__(self, costs: Numbers, routes: dict[tuple[int, int], float]) -> None:
        self.costs = costs
        self.supplies, demands = costs.shape
        size = self.supplies + demands
        self.parent, self.flow = [-1] * size, [0.0] * size
        self.children: list[set[int]] = [set() for _ in range(size)]
        self.prices = np.zeros(size)
        self._grow(routes)

    def _grow(self, routes: dict[tuple[int, int], float]) -> None:
        neighbours: list[list[tuple[int, float]]] = [[] for _ in self.parent]
        for (i, j), amount in routes.items():
            neighbours[i].append((self.supplies + j, amount))
            neighbours[self.supplies + j].append((i, amount))
        waiting = [0]
        while waiting:
            node = waiting.pop()
            for other, amount in neighbours[node]:
                if other != self.parent[node]:
                    self._hang(other, node, amount)
                    self.prices[other] = self._cost(node, other) - self.prices[node]
                    waiting.append(other)

    def improved(self) -> bool:
        """Takes the route that saves most, and gives up the one that this empties first; False: nothing saves."""
        n = self.supplies
        saved = self.costs - self.prices[:n, None] - self.prices[n:]
        i, j = divmod(int(saved.argmin()), saved.shape[1])
        saving = float(saved[i, j])
        if saving > -_TOLERANCE:
            return False
        self._take(i, n + j, saving)
        return True

    def _take(self, i: int, j: int, saving: float) -> None:
        from_i, from_j = self._ways_to_meeting(i, j)
        # Around the circle that the new route closes, amounts fall and rise in turn, and fall next to the new route.
        falling = min((*from_i[::2], *from_j[::2]), key=self.flow.__getitem__)
        amount = self.flow[falling]
        for way in (from_i, from_j):
            for step, node in enumerate(way):
                self.flow[node] += amount if step % 2 else -amount
        end, other = (i, j) if falling in from_i else (j, i)
        self._rehang(from_i if end == i else from_j, falling, other, amount)
        self._reprice(end, saving)

    def _ways_to_meeting(self, i: int, j: int) -> tuple[list[int], list[int]]:
        """The nodes from i, and from j, up to where their ways to the root meet, without that place."""
        up = list(self._upwards(i))
        place = {node: step for step, node in enumerate(up)}
        way: list[int] = []
        for node in self._upwards(j):
            if node in place:
                return up[: place[node]], way
            way.append(node)
        raise AssertionError("the plan is a tree, so any two ways to the root meet")

    def _upwards(self, node: int) -> Iterator[int]:
        while node >= 0:
            yield node
            node = self.parent[node]

    def _rehang(self, way: list[int], falling: int, other: int, amount: float) -> None:
        """Cuts the tree above `falling` and hangs the lower part, turned over along the way, on `other`."""
        turned = way[: way.index(falling) + 1]
        above, carried = other, amount
        for node in turned:
            self.children[self.parent[node]].discard(node)
            lifted = self.flow[node]
            self._hang(node, above, carried)
            above, carried = node, lifted

    def _hang(self, node: int, parent: int, amount: float) -> None:
        self.parent[node], self.flow[node] = parent, amount
        self.children[parent].add(node)

    def _reprice(self, end: int, saving: float) -> None:
        """Below `end`, all prices on its side fall by what was saved, those on the other side rise."""
        below, at = [end], 0
        while at < len(below):
            below.extend(self.children[below[at]])
            at += 1
        nodes = np.array(below)
        same_side = (nodes < self.supplies) == (end < self.supplies)
        self.prices[nodes] += np.where(same_side, saving, -saving)

    def _cost(self, one: int, other: int) -> float:
        return float(self.costs[min(one, other), max(one, other) - self.supplies])

    def cost(self) -> float:
        """What the plan costs."""
        edges = (self.flow[node] * self._cost(node, parent) for node, parent in enumerate(self.parent) if parent >= 0)
        return float(sum(edges))


# MoverScore: what it costs to move the output's words to the reference's words in the space of contextual vectors.

# W. Zhao, M. Peyrard, F. Liu, Y. Gao, C. Meyer and S. Eger, 2019.
#
# The variant is the one of the authors' second release: vectors of one layer (the last of DistilBERT) rather than power

# means of five, the Euclidean distance between vectors of length 1, and 1 / (1 + cost) as the
# score. Sequences of several
# words are those of the first release: the weighted mean of the words' vectors, weighing what the words weigh together.


Subwords = Literal["drop", "keep"]

#: Words on a side. The exact cost of larger texts would take minutes a pair.
MOST_WORDS = 2_000


class _Heap(NamedTuple):
    """A text's words, or sequences of words: unit vectors, and weights that sum to 1."""

    vectors: Numbers
    weights: Numbers


@dataclass(frozen=True, kw_only=True)
class MoverScore(WeightedEmbedding):
    """1 / (1 + earth mover's distance) between the words of output and reference."""

    model: str = "distilbert-base-uncased"
    #: How many words in a row are moved as one.
    ngram: int = 1
    #: What becomes of pieces that go on with a word.
    subwords: Subwords = "drop"
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    #: Vectors of length 1 are at most 2 apart.
    bounds: ClassVar[tuple[float, float]] = (1 / 3, 1.0)
    catalog_name: ClassVar[str | None] = "moverscore"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "subwords", ("drop", "keep"))
        check_choice(self, "reduce", ("native", "max", "mean"))
        check_within(self, "ngram", 1, 9)

    def score_piece(self, shard: Shard) -> Scores:
        pairs, encoder = pairs_of(shard), self.encoder()
        states = self.states(shard, [encoder.word_start + text.strip() for text in pairs.texts])
        weights = np.where(self._words(states), self.weights(states), 0.0)
        heaps = [self._heap(states, weights, text) for text in range(len(states))]
        sizes = np.array([len(heap.weights) for heap in heaps])
        found = select_comparable(pairs, (sizes > 0) & (sizes <= MOST_WORDS))
        distances = _distances(heaps, found.pairs)
        rows = np.column_stack([1 / (1 + distances), distances])
        value, distance = references.reduce_references(rows, rows[:, 0], found.pairs.starts, self.reduce).T
        scores = Scores(values=value, parts={"distance": distance})
        scores = scores.spread(len(shard), found.positions, _why(found.failures, sizes, pairs))
        parts = {**scores.parts, **self.length_parts(states, pairs)}
        return Scores(values=scores.values, parts=parts, failures=scores.failures)

    def _words(self, states: States) -> NDArray[np.bool_]:
        """Which tokens count as words: no punctuation, and of a word in pieces the first alone."""
        distinct, places = np.unique(states.tokens, return_inverse=True)
        pieces = self.encoder().pieces(distinct.tolist())
        dropped = [_punctuation(piece) or (self.subwords == "drop" and piece.startswith("##")) for piece in pieces]
        counted: NDArray[np.bool_] = ~np.array(dropped, bool)[places.reshape(-1)] & ~states.special
        return counted

    def _heap(self, states: States, weights: Numbers, text: int) -> _Heap:
        start, end = states.starts[text], states.starts[text + 1]
        rows = start + np.flatnonzero(weights[start:end])
        if not len(rows):
            return _Heap(np.empty((0, states.vectors.shape[1])), np.empty(0))
        order = min(self.ngram, len(rows))
        weighed = np.lib.stride_tricks.sliding_window_view(weights[rows], order)
        vectors = np.lib.stride_tricks.sliding_window_view(states.vectors[rows].astype(np.float64), order, axis=0)
        totals = weighed.sum(axis=1)
        means = np.einsum("kdn,kn->kd", vectors, weighed / totals[:, None])
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        return _Heap(means / np.where(lengths > 0, lengths, 1), totals / totals.sum())


def _punctuation(piece: str) -> bool:
    return piece.removeprefix("##") in set(string.punctuation)


def _distances(heaps: list[_Heap], pairs: Pairs) -> Numbers:
    """The earth mover's distance of each pair, of equal pairs once."""
    known: dict[tuple[int, int], float] = {}
    asked = list(zip(pairs.outputs.tolist(), pairs.references.tolist(), strict=True))
    for output, reference in dict.fromkeys(asked):
        one, other = heaps[output], heaps[reference]
        costs = np.sqrt(np.maximum(2 - 2 * (one.vectors @ other.vectors.T), 0))
        known[output, reference] = earth_movers_distance(one.weights, other.weights, costs)
    return np.array([known[pair] for pair in asked])


def _why(failures: dict[int, str], sizes: NDArray[np.int64], pairs: Pairs) -> dict[int, str]:
    """The failures, with the reason of those that are too long."""
    said = dict(failures)
    for record in failures:
        start, end = pairs.starts[record], pairs.starts[record + 1]
        texts = [*pairs.outputs[start:end].tolist(), *pairs.references[start:end].tolist()]
        longest = int(sizes[texts].max()) if texts else 0
        if longest > MOST_WORDS:
            said[record] = f"a text of {longest:,} words is too long for an exact distance; at most {MOST_WORDS:,} go"
    return said
