"""Shuffled batches, and their parts within a token budget."""

from __future__ import annotations

import numpy as np
import pytest

from metrist.train.batches import Shuffled, sort_by_length, split_parts

LENGTHS = np.random.default_rng(3).integers(1, 200, 997)


@pytest.mark.parametrize("bucket", [1, 10])
def test_an_epoch_has_every_example_once_in_its_own_order(bucket: int) -> None:
    sampler = Shuffled(lengths=LENGTHS, batch=20, seed=1, bucket=bucket)
    drawn = [sampler.batches(epoch) for epoch in (0, 1, 0)]
    for batches in drawn:
        assert len(batches) == sampler.steps == 50
        assert sorted(np.concatenate(batches)) == list(range(997))
        assert sorted(map(len, batches)) == [17] + [20] * 49
    assert all(map(np.array_equal, drawn[0], drawn[2]))
    assert not all(map(np.array_equal, drawn[0], drawn[1]))
    other = Shuffled(lengths=LENGTHS, batch=20, seed=2, bucket=bucket).batches(0)
    assert not all(map(np.array_equal, drawn[0], other))


def test_buckets_save_padding() -> None:
    def padded(bucket: int) -> int:
        batches = Shuffled(lengths=LENGTHS, batch=20, seed=1, bucket=bucket).batches(0)
        return sum(len(batch) * LENGTHS[batch].max() for batch in batches)

    assert padded(10) < 1.2 * LENGTHS.sum() < 1.6 * LENGTHS.sum() < padded(1)


@pytest.mark.parametrize("budget", [1, 150, 1000, 10**6])
def test_parts_keep_within_the_budget_and_lose_nothing(budget: int) -> None:
    chosen = np.random.default_rng(5).choice(997, 64, replace=False)
    parts = split_parts(chosen, LENGTHS, budget)
    assert sorted(np.concatenate(parts)) == sorted(chosen)
    for part in parts:
        assert len(part) == 1 or len(part) * LENGTHS[part].max() <= budget
    firsts = [int(LENGTHS[part].max()) for part in parts]
    assert firsts == sorted(firsts, reverse=True)


def test_the_longest_comes_first_and_equals_keep_their_order() -> None:
    assert list(sort_by_length(np.array([3, 1, 0, 2]), np.array([5, 9, 5, 5]))) == [1, 3, 0, 2]
