"""The exact test of two pairwise accuracies, against enumeration in fractions and against sampling."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrist.stats import analytic_tests
from metrist.stats.analytic_tests import PairWins, pair_wins, sign_test
from metrist.stats.resampling import Alternative


def seeded(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def counted(classes: list[tuple[int, int, int]]) -> PairWins:
    """Two metrics, from (pairs per group, pairs that the first alone got right, that the second alone got right)."""
    wins = np.array([[[0, up], [down, 0]] for _, up, down in classes], dtype=np.int64).reshape(-1, 2, 2)
    pairs = np.array([size for size, _, _ in classes], dtype=np.int64)
    return PairWins(wins=wins, pairs=pairs, groups=-(-wins.sum(axis=(1, 2)) // np.maximum(pairs, 1)) + 1)


def enumerated(classes: list[tuple[int, int, int]], alternative: Alternative) -> float:
    """The share of all outcomes, in fractions, at least as extreme as the one seen."""
    null = {Fraction(0): Fraction(1)}
    for size, up, down in classes:
        tosses = up + down
        grown: dict[Fraction, Fraction] = {}
        for value, share in null.items():
            for heads in range(tosses + 1):
                key = value + Fraction(2 * heads - tosses, size)
                grown[key] = grown.get(key, Fraction(0)) + share * math.comb(tosses, heads) / 2**tosses
        null = grown
    seen = sum((Fraction(up - down, size) for size, up, down in classes), Fraction(0))
    reached = {
        "two-sided": lambda value: abs(value) >= abs(seen),
        "greater": lambda value: value >= seen,
        "less": lambda value: value <= seen,
    }[alternative]
    return float(sum(share for value, share in null.items() if reached(value)))


some_classes = st.lists(
    st.tuples(st.integers(1, 12), st.integers(0, 9), st.integers(0, 9)), max_size=3, unique_by=lambda c: c[0]
)


@given(some_classes.filter(bool), st.sampled_from(["two-sided", "greater", "less"]))
def test_the_p_value_equals_that_of_enumeration(classes: list[tuple[int, int, int]], alternative: Alternative) -> None:
    result = sign_test(counted(classes), 0, 1, seeded(), alternative)
    assert result.p == pytest.approx(enumerated(classes, alternative), rel=1e-11)
    assert result.standard_error == 0


def test_one_size_of_group_is_a_plain_binomial() -> None:
    # 10 tosses with 8 heads or more: (45 + 10 + 1) / 1024.
    assert sign_test(counted([(66, 8, 2)]), 0, 1, seeded(), "greater").p == pytest.approx(56 / 1024, rel=1e-13)
    assert sign_test(counted([(66, 8, 2)]), 0, 1, seeded()).p == pytest.approx(112 / 1024, rel=1e-13)


def test_the_two_metrics_exchanged_exchange_the_sides() -> None:
    wins = counted([(3, 9, 4), (10, 30, 41)])
    greater, less = sign_test(wins, 0, 1, seeded(), "greater"), sign_test(wins, 1, 0, seeded(), "less")
    assert (greater.p, greater.difference) == (less.p, -less.difference)
    assert sign_test(wins, 0, 1, seeded()).p == sign_test(wins, 1, 0, seeded()).p


def test_metrics_that_are_right_about_the_same_pairs_are_not_separated() -> None:
    assert sign_test(counted([(3, 0, 0), (6, 0, 0)]), 0, 1, seeded()) == (0.0, 1.0, 0.0)


def test_without_a_pair_of_outputs_there_is_no_test() -> None:
    none = pair_wins(np.array([1.0, 2.0]), np.ones((2, 2)), np.zeros(2), np.array([0, 1]))
    result = sign_test(none, 0, 1, seeded())
    assert np.isnan([result.difference, result.p]).all()


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_sampling_stays_within_its_stated_error(seed: int) -> None:
    """Where outcomes are too many to add up, p is sampled: the exact number lies within five standard errors."""
    rng = seeded(seed)
    classes = [(size, int(rng.integers(5, 60)), int(rng.integers(5, 60))) for size in (3, 7, 11, 13)]
    exact = sign_test(counted(classes), 0, 1, seeded())
    limit = analytic_tests._MAX_OUTCOMES
    try:
        analytic_tests._MAX_OUTCOMES = 1
        sampled = sign_test(counted(classes), 0, 1, seeded())
        again = sign_test(counted(classes), 0, 1, seeded())
    finally:
        analytic_tests._MAX_OUTCOMES = limit
    assert exact.standard_error == 0 < sampled.standard_error < 0.01
    assert sampled.p == pytest.approx(exact.p, abs=5 * sampled.standard_error)
    assert sampled == again


def test_groups_of_very_many_sizes_do_not_overflow() -> None:
    classes = [(size * (size - 1) // 2, 10 + size, 12) for size in range(2, 400)]
    result = sign_test(counted(classes), 0, 1, seeded(), "greater")
    assert 0 < result.p < 1
    assert result.standard_error < 0.01


def brute_wins(human, first, second, epsilon_first, epsilon_second, groups) -> dict[int, tuple[int, int]]:
    def right(metric, epsilon, i, j) -> bool:
        gap = metric[i] - metric[j]
        predicted = 0 if abs(gap) <= epsilon else np.sign(gap)
        return predicted == np.sign(human[i] - human[j])

    per_group: dict[int, tuple[int, int]] = {}
    for group in sorted(set(groups.tolist())):
        members = np.flatnonzero(groups == group)
        pairs = list(itertools.combinations(members, 2))
        verdicts = [(right(first, epsilon_first, i, j), right(second, epsilon_second, i, j)) for i, j in pairs]
        up, down = (sum(a and not b for a, b in verdicts), sum(b and not a for a, b in verdicts))
        before = per_group.get(len(pairs), (0, 0))
        per_group[len(pairs)] = (before[0] + up, before[1] + down)
    return {size: result for size, result in per_group.items() if size}


@given(st.integers(0, 10_000), st.integers(1, 12), st.sampled_from([1, 7, 1 << 20]))
def test_wins_are_counted_as_by_brute_force(seed: int, group_count: int, chunk: int) -> None:
    rng = seeded(seed)
    human, metrics = rng.integers(0, 4, 20).astype(float), rng.integers(0, 6, (3, 20)).astype(float)
    groups, epsilons = rng.integers(0, group_count, 20), np.array([0.0, 1.0, 2.0])
    before = analytic_tests._CHUNK
    try:
        analytic_tests._CHUNK = chunk
        result = pair_wins(human, metrics, epsilons, groups)
    finally:
        analytic_tests._CHUNK = before
    for a, b in itertools.permutations(range(3), 2):
        expected = brute_wins(human, metrics[a], metrics[b], epsilons[a], epsilons[b], groups)
        ours = zip(result.pairs, result.wins[:, a, b], result.wins[:, b, a], strict=True)
        assert {int(size): (int(up), int(down)) for size, up, down in ours} == expected


def test_the_difference_is_that_of_the_mean_accuracies() -> None:
    rng = seeded(3)
    human, metrics, groups = rng.integers(0, 3, 60).astype(float), rng.normal(size=(2, 60)), rng.integers(0, 9, 60)
    epsilons = np.array([0.3, 0.1])
    accuracies = []
    for metric, epsilon in zip(metrics, epsilons, strict=True):
        per_group = []
        for group in range(9):
            pairs = list(itertools.combinations(np.flatnonzero(groups == group), 2))
            gaps = [(metric[i] - metric[j], human[i] - human[j]) for i, j in pairs]
            per_group.append(np.mean([np.sign(m) * (abs(m) > epsilon) == np.sign(h) for m, h in gaps]))
        accuracies.append(np.mean(per_group))
    result = sign_test(pair_wins(human, metrics, epsilons, groups), 0, 1, seeded())
    assert result.difference == pytest.approx(accuracies[0] - accuracies[1], abs=1e-14)


def test_sampled_exchanges_of_pairs_agree_with_the_exact_number() -> None:
    """What mt-metrics-eval does, 20,000 times: exchange the two metrics' correctness pair by pair."""
    rng = seeded(5)
    right = rng.random((2, 300)) < [[0.62], [0.55]]
    gap = right[0].astype(int) - right[1]
    nulls = (rng.choice([-1, 1], size=(20_000, 300)) * gap).sum(axis=1)
    exact = sign_test(counted([(300, int((gap > 0).sum()), int((gap < 0).sum()))]), 0, 1, seeded(), "greater").p
    assert np.mean(nulls >= gap.sum()) == pytest.approx(exact, abs=4 * math.sqrt(exact / 20_000))
