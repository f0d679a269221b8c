"""The earth mover's distance against brute force over all ways to pair equal units, and against its closed form on a
line: the area between the two cumulative distributions."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.metrics.embedding.moverscore import earth_movers_distance


def brute_force(supplies, demands, costs):
    """The cheapest of all pairings, weights being whole numbers of units."""
    sources = np.repeat(np.arange(len(supplies)), supplies)
    targets = np.repeat(np.arange(len(demands)), demands)
    return min(costs[sources, targets[list(order)]].sum() for order in permutations(range(len(targets)))) / len(sources)


def on_a_line(one, other, weights, other_weights):
    places = np.concatenate([one, other])
    order = np.argsort(places)
    change = np.concatenate([weights, -other_weights])[order]
    return float(np.abs(np.cumsum(change)[:-1]) @ np.diff(places[order]))


def distance(supplies, demands, costs):
    return earth_movers_distance(supplies / np.sum(supplies), demands / np.sum(demands), costs)


@st.composite
def problems(draw):
    """Up to six units on either side, in heaps, and costs that often tie."""
    units = draw(st.integers(2, 6))
    heaps = [np.diff([0, *sorted(draw(st.sets(st.integers(1, units - 1)))), units]) for _ in range(2)]
    costs = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.25, 2.0]), min_size=36, max_size=36))
    return *heaps, np.array(costs)[: len(heaps[0]) * len(heaps[1])].reshape(len(heaps[0]), len(heaps[1]))


@given(problem=problems())
def test_small_heaps_cost_what_the_best_pairing_costs(problem):
    assert distance(*problem) == pytest.approx(brute_force(*problem), abs=1e-9)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 9), (30, 1), (40, 40), (60, 35), (7, 150)])
@pytest.mark.parametrize("even", [True, False])
def test_heaps_on_a_line_cost_the_area_between_their_distributions(sizes, even):
    rng = np.random.default_rng(sum(sizes))
    one, other = (rng.random(size) for size in sizes)
    weights, others = (np.ones(size) if even else rng.random(size) + 0.01 for size in sizes)
    weights, others = weights / weights.sum(), others / others.sum()
    result = earth_movers_distance(weights, others, np.abs(one[:, None] - other))
    assert result == pytest.approx(on_a_line(one, other, weights, others), abs=1e-9)


def test_heaps_in_the_same_places_in_another_order_cost_nothing():
    places = np.random.default_rng(1).random((80, 5))
    order = np.random.default_rng(2).permutation(80)
    costs = np.linalg.norm(places[:, None] - places[order], axis=2)
    even = np.full(80, 1 / 80)
    assert earth_movers_distance(even, even, costs) == pytest.approx(0, abs=1e-9)


def test_costs_that_are_all_equal_do_not_send_it_in_circles():
    even = np.full(50, 1 / 50)
    assert earth_movers_distance(even, even, np.ones((50, 50))) == pytest.approx(1, abs=1e-9)
