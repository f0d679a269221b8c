"""Pairwise accuracy with ties at a threshold, and how it is averaged."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from brute_ties import accuracy, pairs_within, right
from hypothesis import given
from hypothesis import strategies as st
from metric_panels import make_sample

from error_codes import raises_code
from metrist.errors import RunError
from metrist.stats.ties import TIE, group_codes, pairing, quantise_ties

outputs = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-8, 8).map(lambda tenths: tenths / 10), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)
averages = st.sampled_from(["macro", "micro"])


def split(outputs):
    return map(list, zip(*outputs, strict=True))


@given(outputs=outputs, average=averages, epsilon=st.sampled_from([0.0, 0.1, 0.5, 3.0]))
def test_the_accuracy_is_the_share_of_pairs_ordered_or_tied_as_by_humans(outputs, average, epsilon):
    human, metric, groups = split(outputs)
    expected = accuracy(human, metric, groups, epsilon, average)
    result = pairing(human, metric, groups, average=average).accuracy(epsilon)
    assert result == float(expected) if expected is not None else math.isnan(result)


@given(outputs=outputs, average=averages, slice_average=averages)
def test_slices_average_the_means_of_their_groups(outputs, average, slice_average):
    human, metric, groups = split(outputs)
    slices = [(group + level) % 2 for level, _, group in outputs]
    blocks = [2 * group + number for group, number in zip(groups, slices, strict=True)]
    if slice_average == "micro":
        expected = accuracy(human, metric, blocks, 0.1, average)
    else:
        inside = [split([o for o, s in zip(outputs, slices, strict=True) if s == number]) for number in set(slices)]
        each = [accuracy(humans, metrics, of_group, 0.1, average) for humans, metrics, of_group in inside]
        present = [value for value in each if value is not None]
        expected = sum(present, Fraction(0)) / len(present) if present else None
    result = pairing(human, metric, groups, slices=slices, average=average, slice_average=slice_average).accuracy(0.1)
    assert result == float(expected) if expected is not None else math.isnan(result)


@given(outputs=outputs, weights=st.lists(st.integers(0, 3), min_size=12, max_size=12), average=averages)
def test_a_weight_counts_as_copies_that_are_not_paired_with_each_other(outputs, weights, average):
    human, metric, groups = split(outputs)
    times = weights[: len(outputs)]
    result = pairing(human, metric, groups, average=average, weights=times).accuracy(0.2)
    worth = {
        group: [(times[i] * times[j], right(human, metric, (i, j), 0.2)) for i, j in pairs if times[i] * times[j]]
        for group, pairs in pairs_within(groups).items()
    }
    rows = [(sum(w * r for w, r in row), sum(w for w, _ in row)) for row in worth.values() if row]
    if not rows:
        assert math.isnan(result)
    elif average == "macro":
        assert result == pytest.approx(sum(part / total for part, total in rows) / len(rows))
    else:
        assert result == sum(part for part, _ in rows) / sum(total for _, total in rows)


def test_groups_of_one_output_are_left_out():
    paired = pairing([1, 2, 1], [1, 2, 9], [0, 0, 1])
    assert (paired.accuracy(0.0), paired.pairs.tolist()) == (1.0, [1])


def test_equal_scores_are_tied_at_a_threshold_of_nothing():
    paired = pairing([1, 1, 2], [0.5, 0.5, 0.5])
    assert paired.accuracy(0.0) == pytest.approx(1 / 3)
    assert paired.share(int(paired.at(0.0).tied[0] @ paired.units)) == 1.0


def test_the_tie_share_counts_gaps_up_to_the_threshold():
    paired = pairing([1, 1, 2, 3], [0.0, 0.25, 0.75, 2.0])
    assert paired.at([0.0, 0.25, 0.5, 2.0]).tied[:, 0].tolist() == [0, 1, 2, 6]
    assert paired.accuracy(math.inf) == 1 / 6


def test_many_sizes_of_groups_are_averaged_though_they_have_no_small_common_multiple():
    sizes = range(2, 150)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(3)
    human, metric = rng.integers(0, 4, len(groups)), rng.normal(size=len(groups))
    per_group = [pairing(human[groups == g], metric[groups == g]).accuracy(0.1) for g in range(len(sizes))]
    assert pairing(human, metric, groups).accuracy(0.1) == pytest.approx(np.mean(per_group), abs=1e-13)


def test_no_outputs_have_no_accuracy():
    assert math.isnan(pairing([], []).accuracy(0.0))
    assert pairs_within([]) == {}


def test_groupings_are_columns_of_the_sample():
    sample = make_sample([1, 2, 3], [1, 2, 3], ["a", "a", "b"], ["x", "y", "x"])
    assert group_codes(sample, "none").tolist() == [0, 0, 0]
    assert group_codes(sample, "item").tolist() == [0, 0, 1]
    assert group_codes(sample, "system").tolist() == [0, 1, 0]
    assert group_codes(sample, np.array([5, 5, 6])).tolist() == [5, 5, 6]


@pytest.mark.parametrize(
    ("grouping", "code", "values"),
    [
        ("items", "unknown_name", ["'items'", "'item'"]),
        ("system-level", "unsupported", []),
        (np.array([1]), "invalid_value", [1, 3]),
    ],
)
def test_other_groupings_are_refused(grouping, code, values):
    with raises_code(RunError, code, *values):
        group_codes(make_sample([1, 2, 3], [1, 2, 3], ["a", "a", "b"], ["x", "y", "x"]), grouping)


# Scores as whole numbers, against every pair of the scores themselves


# Two decimals: gaps such as .3 - .2 and .2 - .1 differ in their last bit.
hundredths = st.lists(st.integers(-30, 30).map(lambda number: number / 100), min_size=2, max_size=12)


@given(scores=hundredths, data=st.data())
def test_numbers_tie_and_are_ordered_exactly_as_the_scores_are(scores, data):
    epsilon = data.draw(st.sampled_from([0.0, *(abs(a - b) for a, b in combinations(scores, 2))]))
    numbers = quantise_ties(np.array(scores), epsilon)
    for (a, x), (b, y) in combinations(zip(scores, numbers, strict=True), 2):
        assert (abs(a - b) <= epsilon) == (abs(x - y) <= TIE)
        assert np.sign(a - b) == np.sign(x - y)


def test_a_score_that_is_missing_stays_missing():
    assert np.isnan(quantise_ties(np.array([np.nan, np.nan]), 0.1)).all()
    numbers = quantise_ties(np.array([0.5, np.nan, 0.1]), 0.1)
    assert np.isnan(numbers).tolist() == [False, True, False]
    assert len(quantise_ties(np.empty(0), 0.1)) == 0


def test_many_steps_stay_exact():
    scores = np.arange(5000) / 7
    assert (np.diff(quantise_ties(scores, 0.0)) > TIE).all()
