"""Batches in which small groups are over-represented."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from metrist.train.batches import Balanced

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
