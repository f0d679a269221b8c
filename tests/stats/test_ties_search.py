"""The best tie threshold, found by searching, against every threshold tried."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from unittest import mock

import numpy as np
import pytest
from brute_ties import accuracy, best
from hypothesis import example, given
from hypothesis import strategies as st

from error_codes import raises_code
from metrist import kernels
from metrist.errors import RunError
from metrist.kernels import reference
from metrist.stats import tie_thresholds
from metrist.stats.tie_thresholds import best_threshold, tie_curve
from metrist.stats.ties import pairing


def narrow() -> AbstractContextManager[object]:
    """Limits so low that small data go all the ways that large data go."""
    return mock.patch.multiple(tie_thresholds, _FEW=0, _SORTED=4, _MAX_BUCKETS=3, _FIRST_RUNGS=3, _MIN_DENSITY=0)


def plain() -> AbstractContextManager[object]:
    names = ("beyond_counts", "gap_histogram", "gaps_kept")
    return mock.patch.multiple(kernels, **{name: getattr(reference, name) for name in names})


WAYS = pytest.mark.parametrize("way", [nullcontext, narrow, plain], ids=["as it is", "narrow", "without C"])

values = st.one_of(
    st.integers(-2, 2).map(float),
    st.integers(-30, 30).map(lambda tenths: tenths / 10),
    st.floats(-1e3, 1e3, allow_subnormal=False),
    st.sampled_from([0.0, -0.0]),
)
outputs = st.lists(st.tuples(st.integers(0, 3).map(float), values, st.integers(0, 2)), max_size=14)


@WAYS
@given(outputs=outputs, average=st.sampled_from(["macro", "micro"]))
@example(outputs=[], average="macro")
@example(outputs=[(1.0, 1.0, 0)], average="macro")
@example(outputs=[(1.0, 1.0, 0), (1.0, 2.0, 0)], average="macro")
@example(outputs=[(1.0, 3.0, 0)] * 6, average="micro")
@example(outputs=[(2.0, float(i), 0) for i in range(8)], average="macro")
@example(outputs=[(float(i % 3), 7.0, 0) for i in range(8)], average="macro")
def test_the_threshold_is_the_one_that_trying_all_of_them_finds(way, outputs, average):
    human, metric, groups = map(list, zip(*outputs, strict=True)) if outputs else ([], [], [])
    expected = best(human, metric, groups, average)
    with way():
        paired = pairing(human, metric, groups, average=average)
        result = best_threshold(paired)
    if expected is None:
        assert math.isnan(result.epsilon)
        assert math.isnan(paired.share(result.right))
    else:
        assert (paired.share(result.right), result.epsilon) == (float(expected[0]), expected[1])


def columns(kind: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    quality = rng.normal(size=count)
    noise = rng.normal(size=count)
    match kind:
        case "many levels":
            return quality, quality + noise
        case "few levels":
            return np.clip(np.round(quality), -1, 1), quality + noise
        case "knows nothing":
            return rng.integers(0, 3, count).astype(float), noise
        case "two digits":
            return np.round(quality), np.round(quality + noise, 2)
        case "five marks":
            return np.round(quality), np.clip(np.round(quality + noise), -2, 2)
        case "exponential":
            return rng.integers(0, 2, count).astype(float), np.exp(9 * noise)
    raise AssertionError(kind)


KINDS = ["many levels", "few levels", "knows nothing", "two digits", "five marks", "exponential"]


def narrower() -> AbstractContextManager[object]:
    return mock.patch.multiple(tie_thresholds, _FEW=100, _SORTED=300, _MAX_BUCKETS=50, _MIN_DENSITY=1)


@pytest.mark.parametrize("way", [nullcontext, narrower, plain], ids=["as it is", "narrower", "without C"])
@pytest.mark.parametrize("kind", KINDS)
def test_many_pairs_are_searched_as_if_all_had_been_sorted(way, kind):
    human, metric = columns(kind, 700)
    paired = pairing(human, metric)
    earlier, later = np.triu_indices(len(human), 1)
    gaps = np.abs(metric[later] - metric[earlier])
    agree = np.sign(metric[later] - metric[earlier]) * np.sign(human[later] - human[earlier])
    tied = human[later] == human[earlier]
    order = np.argsort(gaps, kind="stable")
    right = np.cumsum(np.where(tied, 1, np.minimum(-agree, 0))[order].astype(int)) + np.count_nonzero(agree > 0)
    last = np.append(np.diff(gaps[order]) > 0, True)
    at_zero = np.count_nonzero(agree > 0) + np.count_nonzero(tied & (gaps == 0))
    thresholds, counts = np.append(0.0, gaps[order][last]), np.append(at_zero, right[last])
    with way():
        result = best_threshold(paired)
    assert (result.right, result.epsilon) == (counts.max(), thresholds[counts.argmax()])


@pytest.mark.parametrize("limits", [{}, {"_FEW": 0, "_SORTED": 2}])
def test_scores_of_any_size_are_distinguished(limits):
    metric = [0.0, 5e-324, 1e-323, 1e-320, 2e-320, 1e-300, 1.0, 1 + 2**-52, 1e15, 1e300, -1e307]
    human = [1.0, 1.0, 2.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 3.0, 1.0]
    expected = best(human, metric, [0] * len(human), "micro")
    with mock.patch.multiple(tie_thresholds, **limits) if limits else nullcontext():
        paired = pairing(human, metric)
        result = best_threshold(paired)
    assert expected is not None
    assert (paired.share(result.right), result.epsilon) == (float(expected[0]), expected[1])


def test_a_metric_of_few_marks_ends_the_search():
    human, metric = columns("five marks", 20_000)
    paired = pairing(human, metric)
    result = best_threshold(paired)
    # Its gaps are 0 to 4, so that five thresholds are all there are.
    tried = [int(paired.at(float(gap)).right[0] @ paired.units) for gap in range(5)]
    assert (result.right, result.epsilon) == (max(tried), float(np.argmax(tried)))


# Stored: tau_optimization(..., TauSufficientStats.acc_23, sample_rate=1.0) of mt-metrics-eval, over the scores that
# `made` makes. The package could not be installed (the distribution of this name on PyPI is another), so its module
# tau_optimization was copied out by hand from commit 0b82d96 of google-research/mt-metrics-eval and run by itself.
PEER = [
    ((300, 3, 6, 300), 0.465819397993311, 1.999622),
    ((300, 6, 2, 300), 0.5009141583054626, 0.029999999999999916),
    ((400, 3, 1, 8), 0.49428571428571444, 0.4),
    ((400, 4, 6, 5), 0.57375, 0.420187),
    ((1000, 5, 3, 1000), 0.484006006006006, 0.084),
]


def make_columns(count: int, levels: int, digits: int) -> tuple[list[float], list[float]]:
    human = [float((i * 7919 % 1009) ** 2 * levels // 1009**2) for i in range(count)]
    return human, [round(h / levels + math.sin(12.9898 * i), digits) for i, h in enumerate(human)]


@pytest.mark.parametrize(("shape", "share", "epsilon"), PEER)
def test_accuracy_and_threshold_equal_those_of_mt_metrics_eval(shape, share, epsilon):
    count, levels, digits, width = shape
    human, metric = make_columns(count, levels, digits)
    paired = pairing(human, metric, np.arange(count) // width)
    result = best_threshold(paired)
    assert paired.share(result.right) == pytest.approx(share, abs=1e-12)
    assert result.epsilon == pytest.approx(epsilon, abs=1e-12)


# The curve of accuracies over thresholds


def test_a_curve_with_few_gaps_has_them_all():
    human, metric = [1.0, 1.0, 2.0, 3.0, 3.0], [0.0, 0.25, 0.5, 1.0, 2.0]
    curve = tie_curve(pairing(human, metric))
    assert curve.epsilons.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 1.75, 2.0]
    assert curve.accuracies.tolist() == [float(accuracy(human, metric, [0] * 5, e, "micro")) for e in curve.epsilons]
    assert curve.tie_shares.tolist() == [0.0, 0.2, 0.4, 0.5, 0.7, 0.8, 0.9, 1.0]


def test_a_thinned_curve_keeps_its_ends_and_its_top():
    rng = np.random.default_rng(4)
    human = rng.integers(0, 3, 400).astype(float)
    paired = pairing(human, human / 2 + rng.normal(size=400))
    curve = tie_curve(paired, points=30)
    assert 25 <= len(curve.epsilons) <= 30
    assert (np.diff(curve.epsilons) > 0).all()
    assert (curve.epsilons[0], curve.tie_shares[-1]) == (0.0, 1.0)
    assert curve.accuracies.max() == paired.accuracy(best_threshold(paired).epsilon)
    assert curve.accuracies[-1] == paired.accuracy(np.inf)
    for epsilon, value in zip(curve.epsilons, curve.accuracies, strict=True):
        assert value == paired.accuracy(epsilon)


def test_a_curve_of_two_points_is_refused():
    with raises_code(RunError, "invalid_value", 3, 2):
        tie_curve(pairing([1, 2], [1, 2]), points=2)


def test_a_curve_without_pairs_is_empty():
    assert len(tie_curve(pairing([1], [1])).epsilons) == 0
