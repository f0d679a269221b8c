"""Resamples with ε chosen anew, against the resampled data laid out and searched."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest

from metrist.kernels import windows
from metrist.meta import tie_draws as module
from metrist.meta.resample import interval, resample_counts
from metrist.meta.sample import Draws, Sample
from metrist.meta.threshold_search import best_threshold
from metrist.meta.tie_draws import tie_draws
from metrist.meta.ties import pairing


@pytest.fixture
def sample() -> Sample:
    rng = np.random.default_rng(5)
    # Some items lack some systems, one has a single output: as ragged as real data.
    item, system = np.divmod(np.delete(np.arange(48), [1, 2, 3, 10, 25, 46]), 4)
    human = rng.integers(0, 3, len(item)).astype(float)
    return Sample(human=human, metric=np.round(human / 4 + rng.normal(size=len(item)), 1), item=item, system=system)


def counts(size: int, draws: int = 25, seed: int = 0) -> np.ndarray:
    return np.concatenate(list(resample_counts(size, draws, np.random.default_rng(seed), draws)))


def laid_out(sample: Sample, groups: np.ndarray, average: str) -> tuple[float, float]:
    paired = pairing(sample.human, sample.metric, groups, average=average)
    found = best_threshold(paired)
    return paired.share(found.right), found.epsilon


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("average", ["macro", "micro"])
def test_an_item_drawn_twice_is_two_groups(sample, average, compiled):
    items = counts(12)
    with mock.patch.object(windows, "have_compiled", compiled and windows.have_compiled):
        found = tie_draws(sample, "item", draws=Draws(items=items), average=average)
    for draw, times in enumerate(items):
        copies = [(i, copy) for i in range(12) for copy in range(int(times[i]))]
        rows = [np.flatnonzero(sample.item == i) for i, _ in copies]
        groups = np.repeat(np.arange(len(copies)), [len(row) for row in rows])
        value, epsilon = laid_out(sample.take(np.concatenate(rows)), groups, average)
        assert (found.values[draw], found.epsilons[draw]) == (pytest.approx(value, abs=1e-14), epsilon)
    assert found.epsilon_is == "chosen in every draw"


@pytest.mark.parametrize("average", ["macro", "micro"])
@pytest.mark.parametrize("grouping", ["none", "system"])
def test_an_output_drawn_twice_within_its_group_ties_with_itself(sample, grouping, average):
    items = counts(12)
    found = tie_draws(sample, grouping, draws=Draws(items=items), average=average)
    for draw, times in enumerate(items):
        rows = np.repeat(np.arange(len(sample)), times[sample.item].astype(int))
        groups = sample.system[rows] if grouping == "system" else np.zeros(len(rows))
        value, epsilon = laid_out(sample.take(rows), groups, average)
        assert (found.values[draw], found.epsilons[draw]) == (pytest.approx(value, abs=1e-14), epsilon)


def test_items_and_systems_are_drawn_together(sample):
    items, systems = counts(12), counts(4, seed=1)
    found = tie_draws(sample, "item", draws=Draws(items=items, systems=systems))
    for draw, (of_items, of_systems) in enumerate(zip(items, systems, strict=True)):
        rows, groups = [], []
        for copy, i in enumerate(np.repeat(np.arange(12), of_items.astype(int))):
            inside = np.flatnonzero(sample.item == i)
            drawn = np.repeat(inside, of_systems[sample.system[inside]].astype(int))
            rows += drawn.tolist()
            groups += [copy] * len(drawn)
        value, epsilon = laid_out(sample.take(np.array(rows)), np.array(groups), "macro")
        assert (found.values[draw], found.epsilons[draw]) == (pytest.approx(value, abs=1e-14), epsilon)


def test_large_samples_keep_their_threshold_and_say_so(sample):
    items = counts(12)
    fixed = best_threshold(pairing(sample.human, sample.metric)).epsilon
    with mock.patch.multiple(module, MOST_OUTPUTS=10, MOST_PAIRS=10):
        found = tie_draws(sample, draws=Draws(items=items))
    for draw, times in enumerate(items):
        weighted = pairing(sample.human, sample.metric, weights=times[sample.item])
        assert found.values[draw] == pytest.approx(weighted.accuracy(fixed), abs=1e-14)
    assert set(found.epsilons.tolist()) == {fixed}
    assert found.epsilon_is == "fixed"


def test_a_draw_without_a_pair_has_no_value():
    sample = Sample.of([1, 2, 3], [1, 2, 3], ["a", "a", "b"], ["x", "y", "x"])
    found = tie_draws(sample, "item", draws=Draws(items=np.array([[0.0, 2.0], [1.0, 1.0]])))
    assert math.isnan(found.values[0])
    assert math.isnan(found.epsilons[0])
    assert (found.values[1], found.epsilons[1]) == (1.0, 0.0)


def test_draws_give_intervals_of_accuracy_and_threshold(sample):
    found = tie_draws(sample, "item", draws=Draws(items=counts(12, draws=200)))
    low, high = interval(found.values, 0.95, items=12)
    assert low < laid_out(sample, sample.item, "macro")[0] < high
    low, high = interval(found.epsilons, 0.95, items=12)
    assert 0 <= low <= high
