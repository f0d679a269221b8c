"""MoverScore (Zhao et al., 2019): the cost of moving an output's words to the reference's words in the space of
contextual vectors, and an exact solver for the earth mover's distance.

This is the variant of the authors' second release: vectors of one layer (the last of DistilBERT) instead of power means
of five, the Euclidean distance between unit vectors, and 1 / (1 + cost) as the score. N-grams of several words follow
the first release: the weighted mean of the words' vectors, with the sum of their weights.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from metrist.metrics.base import Pairs, Reduce, Shard, check_within, pairs_of, reduce_references
from metrist.metrics.embedding.embedding import WeightedEmbedding, select_comparable
from metrist.models.protocols import States
from metrist.records import Need
from metrist.scores import Failure, FailureKind, Scores

Numbers = NDArray[np.float64]
Subwords = Literal["drop", "keep"]

_PUNCTUATION = frozenset(string.punctuation)
#: Words per text. The exact distance between longer texts would take minutes per pair.
MAX_WORDS = 2_000


class _WeightedNgrams(NamedTuple):
    """The n-grams of a text: unit vectors, and weights that sum to 1."""

    vectors: Numbers
    weights: Numbers


@dataclass(frozen=True, kw_only=True)
class MoverScore(WeightedEmbedding):
    """1 / (1 + earth mover's distance) between the words of output and reference."""

    model: str = "distilbert-base-uncased"
    #: Words per n-gram; n-grams are moved as a whole.
    ngram: int = 1
    #: Whether pieces that continue a word are dropped.
    subwords: Subwords = "drop"
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    #: The distance between unit vectors is at most 2.
    bounds: ClassVar[tuple[float, float]] = (1 / 3, 1.0)
    catalog_name: ClassVar[str | None] = "moverscore"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within(self, "ngram", 1, 9)

    def score_part(self, shard: Shard) -> Scores:
        pairs, encoder = pairs_of(shard), self.encoder()
        states = self.states(shard, [encoder.word_start + text.strip() for text in pairs.texts])
        distinct, positions = np.unique(states.tokens, return_inverse=True)
        # Punctuation is no word and, with subwords='drop', neither is the continuation of one.
        dropped = [
            piece.removeprefix("##") in _PUNCTUATION or (self.subwords == "drop" and piece.startswith("##"))
            for piece in encoder.pieces(distinct.tolist())
        ]
        are_words = ~np.array(dropped, bool)[positions.reshape(-1)] & ~states.special
        weights = np.where(are_words, self.weights(states), 0.0)
        distributions = [self._distribution(states, weights, text) for text in range(len(states))]
        sizes = np.array([len(distribution.weights) for distribution in distributions])
        comparable = select_comparable(pairs, (sizes > 0) & (sizes <= MAX_WORDS))
        comparable = comparable._replace(failures=_explain_length(comparable.failures, sizes, pairs))
        # Equal pairs are computed once.
        by_pair: dict[tuple[int, int], float] = {}
        keys = list(zip(comparable.pairs.outputs.tolist(), comparable.pairs.references.tolist(), strict=True))
        for key in dict.fromkeys(keys):
            output, reference = distributions[key[0]], distributions[key[1]]
            costs = np.sqrt(np.maximum(2 - 2 * (output.vectors @ reference.vectors.T), 0))
            by_pair[key] = earth_movers_distance(output.weights, reference.weights, costs)
        distances = np.array([by_pair[key] for key in keys])
        rows = np.column_stack([1 / (1 + distances), distances])
        value, distance = reduce_references(rows, rows[:, 0], comparable.pairs.starts, self.reduce).T
        return self.make_scores(value, {"distance": distance}, comparable, states, pairs)

    def _distribution(self, states: States, weights: Numbers, text: int) -> _WeightedNgrams:
        start, end = states.starts[text], states.starts[text + 1]
        rows = start + np.flatnonzero(weights[start:end])
        if not len(rows):
            return _WeightedNgrams(np.empty((0, states.vectors.shape[1])), np.empty(0))
        order = min(self.ngram, len(rows))
        ngram_weights = sliding_window_view(weights[rows], order)
        vectors = sliding_window_view(states.vectors[rows].astype(np.float64), order, axis=0)
        totals = ngram_weights.sum(axis=1)
        means = np.einsum("kdn,kn->kd", vectors, ngram_weights / totals[:, None])
        norms = np.linalg.norm(means, axis=1, keepdims=True)
        return _WeightedNgrams(means / np.where(norms > 0, norms, 1), totals / totals.sum())


def _explain_length(failures: dict[int, Failure], sizes: NDArray[np.int64], pairs: Pairs) -> dict[int, Failure]:
    """The failures, with another reason for records that have a text of too many words."""
    reasons = dict(failures)
    for record in failures:
        start, end = pairs.starts[record], pairs.starts[record + 1]
        texts = [*pairs.outputs[start:end].tolist(), *pairs.references[start:end].tolist()]
        longest = int(sizes[texts].max()) if texts else 0
        if longest > MAX_WORDS:
            reasons[record] = Failure(
                FailureKind.too_long,
                f"a text of {longest:,} words is too long for an exact distance; the limit is {MAX_WORDS:,}",
            )
    return reasons


# --- Earth mover's distance: the network simplex method on a bipartite graph, for some hundred tokens on a side

#: Added to every supply, and in total to the last demand. Then no subset of supplies equals a subset of demands, every
#: step lowers the cost, and the method cannot cycle.
_PERTURBATION = 1e-12
#: A route is taken only if it saves more than this per unit: less is rounding. Weights sum to 1, so this is also the
#: accuracy of the result.
_TOLERANCE = 1e-11


def earth_movers_distance(supplies: Numbers, demands: Numbers, costs: Numbers) -> float:
    """The least sum of amount times cost that moves the supplies to the demands, exact to about 1e-9.

    Supplies and demands are positive and sum to 1; `costs[i, j]` is the cost of moving one unit from i to j.
    """
    if min(costs.shape) == 1:
        return float(supplies @ costs @ demands)
    tree = _TransportTree(costs, _initial_routes(supplies, demands, costs))
    while tree.improve():
        pass
    return tree.cost()


def _initial_routes(supplies: Numbers, demands: Numbers, costs: Numbers) -> dict[tuple[int, int], float]:
    """A feasible plan: the cheapest routes first, each filled as far as possible. Each route but the last exhausts one
    supply or one demand and never both, so the n + m - 1 routes form a tree."""
    n, m = costs.shape
    supply_left, demand_left = (supplies + _PERTURBATION).tolist(), demands.tolist()
    demand_left[-1] += n * _PERTURBATION
    routes: dict[tuple[int, int], float] = {}
    rows, columns = n, m
    for position in np.argsort(costs, axis=None, kind="stable").tolist():
        i, j = divmod(position, m)
        if supply_left[i] is None or demand_left[j] is None:
            continue
        routes[i, j] = amount = min(supply_left[i], demand_left[j])
        # The last row and the last column stay open for whatever rounding has left.
        if (supply_left[i] <= demand_left[j] and rows > 1) or columns == 1:
            demand_left[j] -= amount
            supply_left[i], rows = None, rows - 1
        else:
            supply_left[i] -= amount
            demand_left[j], columns = None, columns - 1
        if not rows or not columns:
            break
    return routes


class _TransportTree:
    """A plan whose routes are the edges of a tree over supplies (nodes 0 to n - 1) and demands (nodes n to n + m - 1),
    rooted at node 0.

    `flow[x]` goes between x and `parent[x]`. `potentials` are such that a route of the tree costs the sum of the
    potentials of its ends; a route outside the tree saves what it costs less than that.
    """

    def __init__(self, costs: Numbers, routes: dict[tuple[int, int], float]) -> None:
        self.costs = costs
        self.supplies, demands = costs.shape
        size = self.supplies + demands
        self.parent, self.flow = [-1] * size, [0.0] * size
        self.children: list[set[int]] = [set() for _ in range(size)]
        self.potentials = np.zeros(size)
        neighbours: list[list[tuple[int, float]]] = [[] for _ in range(size)]
        for (i, j), amount in routes.items():
            neighbours[i].append((self.supplies + j, amount))
            neighbours[self.supplies + j].append((i, amount))
        stack = [0]
        while stack:
            node = stack.pop()
            for neighbour, amount in neighbours[node]:
                if neighbour != self.parent[node]:
                    self._attach(neighbour, node, amount)
                    self.potentials[neighbour] = self._cost(node, neighbour) - self.potentials[node]
                    stack.append(neighbour)

    def improve(self) -> bool:
        """Add the route that saves most and drop the one that this empties first; False if no route saves anything."""
        n = self.supplies
        savings = self.costs - self.potentials[:n, None] - self.potentials[n:]
        i, j = divmod(int(savings.argmin()), savings.shape[1])
        saving = float(savings[i, j])
        if saving > -_TOLERANCE:
            return False
        j += n
        from_i, from_j = self._paths_to_common_ancestor(i, j)
        # Around the cycle that the new route closes, amounts fall and rise in turn; next to the new route they fall.
        leaving = min((*from_i[::2], *from_j[::2]), key=self.flow.__getitem__)
        amount = self.flow[leaving]
        for path in (from_i, from_j):
            for step, node in enumerate(path):
                self.flow[node] += amount if step % 2 else -amount
        is_below_i = leaving in from_i
        end, parent = (i, j) if is_below_i else (j, i)
        path = from_i if is_below_i else from_j
        # Cut the tree above `leaving` and attach the lower part to the new route, reversed along the path.
        for node in path[: path.index(leaving) + 1]:
            self.children[self.parent[node]].discard(node)
            following = self.flow[node]
            self._attach(node, parent, amount)
            parent, amount = node, following
        # Below `end`, potentials on its side change by the saving, those on the other side by its opposite.
        subtree, position = [end], 0
        while position < len(subtree):
            subtree.extend(self.children[subtree[position]])
            position += 1
        nodes = np.array(subtree)
        self.potentials[nodes] += np.where((nodes < n) == (end < n), saving, -saving)
        return True

    def _paths_to_common_ancestor(self, i: int, j: int) -> tuple[list[int], list[int]]:
        """The nodes from i, and from j, up to their common ancestor, which is excluded."""
        ancestors = list(self._walk_up(i))
        steps = {node: step for step, node in enumerate(ancestors)}
        path: list[int] = []
        for node in self._walk_up(j):
            if node in steps:
                return ancestors[: steps[node]], path
            path.append(node)
        raise AssertionError("the plan is a tree, so two nodes have a common ancestor")

    def _walk_up(self, node: int) -> Iterator[int]:
        while node >= 0:
            yield node
            node = self.parent[node]

    def _attach(self, node: int, parent: int, amount: float) -> None:
        self.parent[node], self.flow[node] = parent, amount
        self.children[parent].add(node)

    def _cost(self, a: int, b: int) -> float:
        return float(self.costs[min(a, b), max(a, b) - self.supplies])

    def cost(self) -> float:
        """The cost of the plan."""
        edges = (self.flow[node] * self._cost(node, parent) for node, parent in enumerate(self.parent) if parent >= 0)
        return float(sum(edges))
