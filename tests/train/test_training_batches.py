"""Batches of an epoch, their parts within a token budget, and batches in which small groups are over-represented."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from metrist.train.batches import Balanced, Shuffled, sort_by_length, split_parts

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


GROUPS = ["large"] * 80 + ["middle"] * 16 + ["small"] * 4


def sampler(balance: float, seed: int = 0, bucket: int = 1) -> Balanced:
    lengths = np.arange(1, 101, dtype=np.int64)
    return Balanced(lengths=lengths, groups=GROUPS, batch=8, seed=seed, balance=balance, bucket=bucket)


@pytest.mark.parametrize(
    ("balance", "expected"),
    [(1.0, [80, 16, 4]), (0.0, [34, 33, 33]), (0.5, [60, 27, 13])],
)
def test_draws_are_proportional_to_a_power_of_the_group_size(balance: float, expected: list[int]) -> None:
    """0.5 by hand: roots 8.94, 4 and 2 of 14.94 give 59.85, 26.77 and 13.38 of 100."""
    balanced = sampler(balance)
    assert list(balanced.draws.values()) == expected
    batches = balanced.batches(3)
    assert [len(batch) for batch in batches] == [8] * 12 + [4]
    assert balanced.steps == len(batches)
    counts = Counter(GROUPS[number] for batch in batches for number in batch)
    assert [counts[group] for group in ("large", "middle", "small")] == expected


def test_a_group_uses_all_its_examples_before_it_repeats_one() -> None:
    balanced = sampler(0.0)
    drawn = Counter(int(number) for epoch in range(8) for batch in balanced.batches(epoch) for number in batch)
    for group in ("large", "middle", "small"):
        times = [drawn[number] for number, name in enumerate(GROUPS) if name == group]
        assert max(times) - min(times) <= 1, "272 draws of 80, 264 of 16 and of 4"


def test_the_same_epoch_gives_the_same_batches_and_another_does_not() -> None:
    def as_lists(balanced: Balanced, epoch: int) -> list[list[int]]:
        return [batch.tolist() for batch in balanced.batches(epoch)]

    assert as_lists(sampler(0.3), 2) == as_lists(sampler(0.3), 2)
    assert as_lists(sampler(0.3), 2) != as_lists(sampler(0.3), 3)
    assert as_lists(sampler(0.3), 2) != as_lists(sampler(0.3, seed=1), 2)


def test_buckets_bring_like_lengths_together() -> None:
    def spread(bucket: int) -> float:
        return float(np.mean([np.ptp(batch) for batch in sampler(0.5, bucket=bucket).batches(0)]))

    assert spread(6) < spread(1) / 2
