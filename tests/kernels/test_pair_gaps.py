"""Pairs by the gap between scores: plain, compiled where built, and pair by pair."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from flavours import both_flavours, compiled, needs_compiled
from hypothesis import given
from hypothesis import strategies as st

from metrist.kernels import Ranked, Stretch

output = st.tuples(
    st.integers(0, 2), st.integers(-6, 6).map(lambda half: half / 2), st.integers(0, 4), st.integers(1, 3)
)
outputs = st.lists(output, max_size=12)


def ranked(outputs: list[tuple[int, float, int, int]]) -> Ranked:
    ordered = sorted(outputs, key=lambda output: (output[0], output[1], -output[2]))
    groups = [group for group, *_ in ordered]
    starts = [i for i, group in enumerate(groups) if i == 0 or group != groups[i - 1]]
    return Ranked(
        np.array([score for _, score, _, _ in ordered], np.float64),
        # Levels lie below the number of outputs, as ranks do.
        np.array([min(level, len(ordered) - 1) for _, _, level, _ in ordered], np.int32),
        np.array([weight for *_, weight in ordered], np.int64),
        np.array([*starts, len(ordered)] if ordered else [0], np.int64),
    )


def pairs(columns: Ranked):
    """Group, gap, relation (0 tied by humans, 1 concordant, 2 discordant) and weight of every pair."""
    for group, (start, end) in enumerate(zip(columns.starts[:-1], columns.starts[1:], strict=True)):
        for i, j in combinations(range(start, end), 2):
            gap = columns.scores[j] - columns.scores[i]
            climb = columns.levels[j] - columns.levels[i]
            # Equal scores come by falling level, so none of their pairs is concordant.
            relation = 0 if climb == 0 else 1 if climb > 0 else 2
            yield group, gap, relation, int(columns.weights[i] * columns.weights[j])


@both_flavours
@given(outputs=outputs)
def test_pairs_beyond_a_threshold_are_counted_by_group(kernels, outputs):
    columns = ranked(outputs)
    epsilons = np.array([-1.0, 0.0, 0.5, 2.0, np.inf])
    expected = np.zeros((len(epsilons), len(columns.starts) - 1, 3), np.int64)
    for group, gap, relation, weight in pairs(columns):
        beyond = gap > epsilons
        expected[beyond, group, 2] += weight
        if relation < 2:
            expected[beyond, group, relation] += weight
    result = kernels.beyond_counts(columns, epsilons)
    one_by_one = [kernels.beyond_counts(columns, epsilons[[i]]) for i in range(len(epsilons))]
    assert np.array_equal(result, expected)
    # The compiled kernel counts a few thresholds by a tree and many by a table.
    assert np.array_equal(np.concatenate(one_by_one), expected)


@both_flavours
@given(outputs=outputs, low=st.sampled_from([0.0, 0.5, 1.0]), buckets=st.integers(1, 5))
def test_pairs_of_a_stretch_fall_into_buckets_and_the_kept_ones_are_listed(kernels, outputs, low, buckets):
    columns = ranked(outputs)
    units = np.arange(1, len(columns.starts))
    stretch = Stretch(low, 4.0, low / 2, buckets / 4.0)
    table = np.zeros((buckets, 3), np.int64)
    gains: dict[float, int] = {}
    keep = np.arange(buckets) % 2 == 0
    for group, gap, relation, weight in pairs(columns):
        if low < gap <= 4.0:
            bucket = min(int((gap - low / 2) * stretch.scale), buckets - 1)
            worth = weight * int(units[group])
            table[bucket, relation] += worth
            if keep[bucket] and relation < 2:
                gains[gap] = gains.get(gap, 0) + (worth if relation == 0 else -worth)
    assert np.array_equal(kernels.gap_histogram(columns, units, stretch, buckets), table)
    pruned = kernels.gaps_kept(columns, units, stretch, keep, 100)
    assert pruned is not None
    gaps, changes = pruned
    result: dict[float, int] = {}
    for gap, change in zip(gaps.tolist(), changes.tolist(), strict=True):
        result[gap] = result.get(gap, 0) + change
    assert result == gains
    if len(gains) > 1:
        assert kernels.gaps_kept(columns, units, stretch, keep, 1) is None


@both_flavours
@given(
    gains=st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2), st.booleans()), max_size=12),
    weights=st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=4),
)
def test_the_best_prefix_is_the_first_of_the_greatest_sums(kernels, gains, weights):
    lasts = [i for i, (_, _, last) in enumerate(gains) if last]
    columns = (
        np.array([gain for gain, _, _ in gains], np.float64),
        np.array([group for _, group, _ in gains], np.int32),
        np.array(lasts, np.int64),
        np.array(weights, np.float64),
    )
    expected = []
    for row in weights:
        sums = [sum(gain * row[group] for gain, group, _ in gains[: last + 1]) for last in lasts]
        best = max([0, *sums])
        expected.append((best, sums.index(best) if best > 0 else -1))
    best, at = kernels.best_prefixes(*columns)
    assert list(zip(best.tolist(), at.tolist(), strict=True)) == expected


@needs_compiled
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"starts": np.array([0, 5])}, "starts must go from 0 to the number of outputs"),
        ({"starts": np.array([0, 0, 3])}, "starts must go up"),
        ({"levels": np.array([0, 3, 1], np.int32)}, "a level is out of range"),
        ({"scores": np.array([2.0, 1.0, 3.0])}, "scores must not go down in a group"),
        ({"scores": np.array([1.0, np.nan, 3.0])}, "scores must be finite"),
        ({"weights": np.array([1, 1])}, "scores, levels and weights must have one entry per output"),
    ],
)
def test_columns_that_would_be_read_past_their_end_are_refused(changes, why):
    columns = ranked([(0, 1.0, 0, 1), (0, 2.0, 1, 1), (0, 3.0, 2, 1)])._replace(**changes)
    with pytest.raises(ValueError, match=why):
        compiled.beyond_counts(columns, np.zeros(1))
