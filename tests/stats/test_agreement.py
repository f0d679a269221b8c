from __future__ import annotations

import math
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from error_codes import raises_code
from metrist.errors import RunError
from metrist.stats import agreement as agreement_module
from metrist.stats.agreement import (
    COEFFICIENTS,
    AgreementCoefficient,
    Scale,
    Weighting,
    agreement,
    alpha,
    cohen_kappa,
    fleiss_kappa,
    level_totals,
    needs_names,
)
from metrist.stats.gold import Ratings
from metrist.stats.ties import tie_share, tie_shares

Floats = NDArray[np.float64]
N = math.nan

# Four observers, twelve units, five values: K. Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), part C.
KRIPPENDORFF = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, N, N, N],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, N, 3],
    [N, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, N],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, N],
]

# Fourteen raters put ten subjects into five categories; the worked example of Wikipedia's article on Fleiss' kappa.
FLEISS = [
    [0, 0, 0, 0, 14],
    [0, 2, 6, 4, 2],
    [0, 0, 3, 5, 6],
    [0, 3, 9, 2, 0],
    [2, 2, 8, 1, 1],
    [7, 7, 0, 0, 0],
    [3, 2, 6, 3, 0],
    [2, 5, 3, 2, 2],
    [6, 5, 2, 1, 0],
    [0, 2, 2, 3, 7],
]

#: Raters in rows, outputs in columns, some ratings missing.
TABLES = (
    st.integers(2, 4)
    .flatmap(
        lambda raters: st.lists(
            st.lists(st.sampled_from([1.0, 2.0, 2.5, 4.0, N]), min_size=raters, max_size=raters), min_size=2, max_size=7
        )
    )
    .map(lambda columns: np.array(columns).T)
)


def long(table: object) -> Ratings:
    cells = np.asarray(table, dtype=np.float64)
    rater, output = np.nonzero(~np.isnan(cells))
    return Ratings.of(output, rater, cells[rater, output], cells.shape[1])


def measured(table: object, *names: str, draws: int = 0) -> list[AgreementCoefficient]:
    return agreement(long(table), names, draws, np.random.default_rng(0))


def ones(table: object) -> Floats:
    return np.ones((1, np.asarray(table).shape[1]))


@pytest.mark.parametrize(("scale", "published"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_is_krippendorffs_own(scale: str, published: float) -> None:
    (result,) = measured(KRIPPENDORFF, f"alpha_{scale}")
    assert result.value == pytest.approx(published, abs=5e-4)
    assert (result.outputs, result.raters) == (11, 4)


def alpha_by_pairs(table: Floats, scale: str) -> float:
    """Alpha from its definition as a mean over pairs of ratings, within outputs and altogether."""
    units = [[v for v in column if not math.isnan(v)] for column in table.T]
    units = [unit for unit in units if len(unit) > 1]
    every = [v for unit in units for v in unit]

    def distance(first: float, second: float) -> float:
        if scale == "nominal":
            return float(first != second)
        if scale == "interval":
            return (first - second) ** 2
        low, high = min(first, second), max(first, second)
        between = sum(low <= v <= high for v in every) - (every.count(first) + every.count(second)) / 2
        return between**2 if first != second else 0.0

    within = sum(sum(distance(a, b) for a, b in permutations(unit, 2)) / (len(unit) - 1) for unit in units)
    overall = sum(distance(a, b) for a, b in permutations(every, 2))
    if not overall:
        return math.nan
    return 1 - (within / len(every)) / (overall / (len(every) * (len(every) - 1)))


@pytest.mark.parametrize("scale", ["nominal", "ordinal", "interval"])
@given(table=TABLES)
def test_alpha_equals_the_sum_over_all_pairs_of_ratings(scale: Scale, table: Floats) -> None:
    result = alpha(long(table), scale)(ones(table))[0]
    assert result == pytest.approx(alpha_by_pairs(table, scale), nan_ok=True)


def test_fleiss_kappa_is_that_of_the_worked_example() -> None:
    table = np.array([np.repeat(np.arange(5.0), row) for row in FLEISS]).T
    (result,) = measured(table, "fleiss_kappa")
    assert result.value == pytest.approx(0.210, abs=5e-4)


@given(table=TABLES)
def test_fleiss_kappa_equals_the_sum_over_pairs_of_raters(table: Floats) -> None:
    units = [[v for v in column if not math.isnan(v)] for column in table.T]
    units = [unit for unit in units if len(unit) > 1]
    every = [v for unit in units for v in unit]
    expected = math.nan
    if len(set(every)) > 1:
        observed = np.mean([np.mean([a == b for a, b in combinations(unit, 2)]) for unit in units])
        chance = np.mean([a == b for a in every for b in every])
        expected = float((observed - chance) / (1 - chance))
    assert fleiss_kappa(long(table))(ones(table))[0] == pytest.approx(expected, nan_ok=True)


def test_cohens_kappa_is_that_of_the_worked_examples() -> None:
    # Wikipedia, Cohen's kappa: 20 and 15 agreements, 5 and 10 disagreements of 50.
    first = np.repeat([1.0, 1.0, 0.0, 0.0], [20, 5, 10, 15])
    second = np.repeat([1.0, 0.0, 1.0, 0.0], [20, 5, 10, 15])
    assert cohen_kappa(first, second, np.ones((1, 50)))[0] == pytest.approx(0.4)


@pytest.mark.parametrize("weighting", ["plain", "linear", "quadratic"])
@given(rows=st.lists(st.tuples(*[st.sampled_from([1.0, 2.0, 4.0])] * 2), min_size=1, max_size=9))
def test_cohens_kappa_equals_the_sum_over_all_pairs(weighting: Weighting, rows: list[tuple[float, float]]) -> None:
    distance = {"plain": lambda d: float(d != 0), "linear": abs, "quadratic": lambda d: d * d}[weighting]
    observed = np.mean([distance(a - b) for a, b in rows])
    expected = np.mean([distance(a - b) for a, _ in rows for _, b in rows])
    first, second = np.array(rows).T
    result = cohen_kappa(first, second, np.ones((1, len(rows))), weighting)[0]
    assert result == pytest.approx(1 - observed / expected if expected else math.nan, nan_ok=True)


def tau_b(first: list[float], second: list[float]) -> float:
    signs = [(np.sign(a - c), np.sign(b - d)) for (a, b), (c, d) in combinations(zip(first, second, strict=True), 2)]
    untied = sum(bool(x) for x, _ in signs) * sum(bool(y) for _, y in signs)
    return sum(x * y for x, y in signs) / math.sqrt(untied) if untied else math.nan


@given(table=TABLES)
def test_pairwise_coefficients_are_means_over_pairs_of_raters(table: Floats) -> None:
    taus = []
    present = [row for row in table if not np.isnan(row).all()]
    for first, second in combinations(present, 2):
        shared = ~np.isnan(first + second)
        taus.append(tau_b(first[shared].tolist(), second[shared].tolist()))
    (result,) = measured(table, "kendall")
    defined = [tau for tau in taus if not math.isnan(tau)]
    assert result.value == pytest.approx(np.mean(defined) if defined else math.nan, nan_ok=True)
    assert (result.failure is None) == bool(defined)


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, 1.0, N]), max_size=8), st.sampled_from([0.0, 0.1, 0.2, 0.7]))
def test_a_tie_share_counts_all_pairs(values: list[float], epsilon: float) -> None:
    present_values = [v for v in values if not math.isnan(v)]
    tied = [abs(a - b) <= epsilon for a, b in combinations(present_values, 2)]
    expected = np.mean(tied) if tied else math.nan
    assert tie_share(np.array(values, dtype=np.float64), epsilon) == pytest.approx(expected, nan_ok=True)


def test_an_output_that_is_picked_twice_does_not_tie_with_itself() -> None:
    values, weights = np.array([1.0, 1.0, 2.0]), np.array([[3.0, 0, 1], [2, 1, 0], [3, 0, 0]])
    assert tie_shares(values, weights).tolist()[:2] == [0, 1]
    assert np.isnan(tie_shares(values, weights)[2])
    with raises_code(RunError, "invalid_value", -1):
        tie_shares(values, weights, -1)


def test_ties_are_averaged_over_raters() -> None:
    (result,) = measured([[1, 1, 2, 2], [1, 2, 3, N]], "ties")
    assert result.value == pytest.approx((2 / 6 + 0) / 2)


@settings(max_examples=30)
@given(TABLES, st.data())
def test_weights_equal_repeated_outputs(table: Floats, data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(0, 3), min_size=table.shape[1], max_size=table.shape[1]))
    repeated = np.repeat(table, weights, axis=1)
    for name in set(COEFFICIENTS) - {"ties"}:
        at_once = [part(np.array([weights], dtype=np.float64))[0] for part in COEFFICIENTS[name](long(table))]
        again = [part(ones(repeated))[0] for part in COEFFICIENTS[name](long(repeated))]
        # A rater none of whose outputs was picked is there with no value, and is not there at all.
        assert [v for v in at_once if not np.isnan(v)] == pytest.approx([v for v in again if not np.isnan(v)])


def test_levels_are_tallied_as_often_as_their_outputs_are_picked() -> None:
    rng = np.random.default_rng(0)
    output, level = rng.integers(0, 40, 300), rng.integers(0, 90, 300)
    weights = rng.integers(0, 3, (5, 40)).astype(np.float64)
    expected = np.array([np.bincount(level, weights=row[output], minlength=95) for row in weights])
    assert (level_totals(weights, output, level, 95) == expected).all()
    none = np.empty(0, dtype=np.intp)
    assert level_totals(weights, none, none, 2).tolist() == [[0, 0]] * 5


def likert(outputs: int, raters: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    quality = rng.normal(size=outputs)
    return np.clip(np.rint(3 + quality + 0.7 * rng.normal(size=(raters, outputs))), 1, 5)


def test_intervals_hold_the_value_and_narrow_with_more_outputs() -> None:
    small, large = (measured(likert(n, 3), *COEFFICIENTS, draws=200) for n in (40, 640))
    for few, many in zip(small, large, strict=True):
        assert few.low < few.value < few.high
        assert many.high - many.low < few.high - few.low


def test_the_seed_alone_decides_and_not_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = measured(likert(50, 4), *COEFFICIENTS, draws=60)
    monkeypatch.setattr(agreement_module, "CHUNK", 700)
    assert measured(likert(50, 4), *COEFFICIENTS, draws=60) == at_once


def test_clusters_are_resampled_whole() -> None:
    # Each output four times over is one cluster: their interval is that of the outputs that they repeat.
    table = likert(30, 3)
    cluster = np.repeat(np.arange(30), 4)
    names = ["fleiss_kappa", "kendall", "cohen_kappa_quadratic"]
    (*plain,) = measured(table, *names, draws=100)
    repeated = agreement(long(np.repeat(table, 4, axis=1)), names, 100, np.random.default_rng(0), cluster)
    for first, fourfold in zip(plain, repeated, strict=True):
        assert (fourfold.value, fourfold.low, fourfold.high) == pytest.approx((first.value, first.low, first.high))


def test_unknown_raters_leave_alpha_and_fleiss_and_refuse_the_rest() -> None:
    named = long(KRIPPENDORFF)
    unnamed = Ratings.of(named.output, np.full(len(named.value), -1), named.value)
    for name in COEFFICIENTS:
        if needs_names(name):
            with raises_code(RunError, "run_failed", "41"):
                agreement(unnamed, [name], 0, np.random.default_rng(0))
        else:
            (result,) = agreement(unnamed, [name], 0, np.random.default_rng(0))
            assert result.value == measured(KRIPPENDORFF, name)[0].value
            assert result.raters == 0


def test_an_undefined_coefficient_gives_a_reason() -> None:
    for name in COEFFICIENTS:
        (result,) = measured([[2, 2, 2], [2, 2, 2]], name, draws=5)
        if name == "ties":
            assert result.value == 1
            continue
        assert math.isnan(result.value)
        assert result.failure == "all ratings have the same value"
    (result,) = measured([[1, 2, N, N], [N, N, 1, 2]], "alpha_nominal")
    assert result.failure == "no output was rated twice"
    (result,) = measured([[1, 2, 3], [N, N, 3]], "alpha_nominal")
    assert result.failure == "the comparable ratings have one value"
    (result,) = measured([[1, 2, 3], [N, N, 3]], "kendall")
    assert result.failure == "no two raters share enough outputs with different values"


def test_an_unknown_coefficient_is_named_with_its_neighbours() -> None:
    with raises_code(RunError, "unknown_name", "'fleiss'", "alpha_nominal"):
        measured(KRIPPENDORFF, "fleiss")
    with raises_code(RunError, "unknown_name", "'cohen_kappa'"):
        measured(KRIPPENDORFF, "cohens_kappa")
