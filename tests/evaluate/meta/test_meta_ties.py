"""Tie thresholds from the data to the table: where they are chosen, and that figures are judged at these very ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from judged_rows import Row, make_rows

from metrist.evaluate.meta import meta_evaluate
from metrist.evaluate.meta.analyses import analyse
from metrist.evaluate.meta.results import HUMANS

ROWS = make_rows()
Key = Callable[[Row], Any]


def quick(data: Any = ROWS, *arguments: Any, **settings: Any) -> Any:
    return meta_evaluate(data, *arguments, **{"draws": 50, **settings})


def two_decimals(items: int, seed: int) -> list[Row]:
    """Gaps that are one hundredth on paper differ in their last bit."""
    rows = make_rows(items=items, seed=seed)
    for row in rows:
        row["scores"] = {"far": round(row["scores"]["far"] / 5, 2)}
    return rows


def human(row: Row) -> float:
    ratings = row["ratings"]["quality"]
    return float(sum(ratings) / len(ratings))


def score(row: Row) -> float:
    return float(row["scores"]["far"])


def group_shares(
    rows: Sequence[Row], epsilon: float, group: Key, metric_key: Key = score, truth: Key = human
) -> list[float]:
    """Per group the share of pairs that are ordered, or tied, as humans do."""
    shares = []
    for name in dict.fromkeys(map(group, rows)):
        right = []
        for one, two in combinations([row for row in rows if group(row) == name], 2):
            gap, order = metric_key(one) - metric_key(two), truth(one) - truth(two)
            right.append(order == 0 if abs(gap) <= epsilon else gap * order > 0)
        shares += [sum(right) / len(right)] if right else []
    return shares


def best_epsilon(rows: Sequence[Row], group: Key, metric_key: Key = score, truth: Key = human) -> float:
    gaps = {0.0} | {abs(metric_key(a) - metric_key(b)) for a, b in combinations(rows, 2) if group(a) == group(b)}

    def accuracy(gap: float) -> float:
        return round(float(np.mean(group_shares(rows, gap, group, metric_key, truth))), 12)

    return max(sorted(gaps), key=lambda gap: (accuracy(gap), -gap))


def by_item(row: Row) -> Any:
    return row["item"]


def together(_: Row) -> Any:
    return 0


def of(rows: Sequence[Row], column: str, value: str) -> list[Row]:
    return [row for row in rows if row[column] == value]


def folds_of(rows: Sequence[Row], seed: int) -> list[list[Row]]:
    items = list(dict.fromkeys(row["item"] for row in rows))
    dealt = np.random.default_rng(seed).permutation(len(items)) % 5
    fold = dict(zip(items, dealt.tolist(), strict=True))
    return [[row for row in rows if fold[row["item"]] == number] for number in range(5)]


def test_each_slice_may_have_a_threshold_of_its_own() -> None:
    result = quick(metrics=["far"], slices="task", epsilon_over="slice")
    values = []
    for task in ("qa", "summary"):
        rows = of(ROWS, "task", task)
        epsilon = best_epsilon(rows, by_item)
        values.append(np.mean(group_shares(rows, epsilon, by_item)))
        assert result.figure("far", on=f"task={task}").epsilon == epsilon
        assert result.figure("far", on=f"task={task}").value == pytest.approx(values[-1])
    assert result.figure("far", on="task: macro mean").value == pytest.approx(np.mean(values))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("group", ["item", "none"])
def test_folds_are_judged_at_exactly_the_threshold_of_the_others(group: str, seed: int) -> None:
    rows, key = two_decimals(items=8, seed=seed), by_item if group == "item" else together
    shares, epsilons = [], []
    for fold in folds_of(rows, seed):
        epsilons.append(best_epsilon([row for row in rows if row not in fold], key))
        shares += group_shares(fold, epsilons[-1], key)
    result = quick(rows, group=group, epsilon_over="crossfit", seed=seed, draws=0).figure("far")
    assert result.value == pytest.approx(np.mean(shares), abs=1e-12)
    assert result.epsilon == np.median(epsilons)


@pytest.mark.parametrize("seed", range(4))
def test_languages_are_judged_at_exactly_their_thresholds(seed: int) -> None:
    rows = two_decimals(items=15, seed=seed)
    result = quick(rows, epsilon_over="language", slices="language", draws=0)
    shares = []
    for name in ("sv", "en"):
        own = of(rows, "language", name)
        epsilon = best_epsilon(own, by_item)
        shares += group_shares(own, epsilon, by_item)
        assert result.figure("far", on=f"language={name}").epsilon == epsilon
    assert result.figure("far").value == pytest.approx(np.mean(shares), abs=1e-12)
    assert math.isnan(result.figure("far").epsilon)


@pytest.mark.parametrize("settings", [{"group": "none"}, {"group": "none", "epsilon_over": "slice"}])
def test_a_micro_average_without_groups_weighs_slices_by_their_pairs(settings: dict[str, Any]) -> None:
    result = quick(metrics=["far"], slices="language", average="micro", **settings)
    sizes = {name: len(of(ROWS, "language", name)) for name in ("sv", "en")}
    pairs = [size * (size - 1) / 2 for size in sizes.values()]
    each = [result.figure("far", on=f"language={name}") for name in sizes]
    mean = result.figure("far", on="language: micro mean")
    assert mean.value == pytest.approx(np.average([figure.value for figure in each], weights=pairs))
    assert mean.value != pytest.approx(np.mean([figure.value for figure in each]), abs=1e-6)
    assert mean.all_ties == pytest.approx(np.average([figure.all_ties for figure in each], weights=pairs))
    assert mean.low < mean.high


def test_a_micro_average_of_pooled_groups_pools_the_rows_of_all_slices() -> None:
    settings: dict[str, Any] = {"metrics": ["far"], "measures": "kendall_b", "group_average": "micro"}
    result = quick(slices="language", average="micro", **settings)
    # Items are of one language each: a pool of all items' pairs is the same with and without slices.
    assert result.figure("far", on="language: micro mean").value == pytest.approx(result.figure("far").value)
    macro = quick(slices="language", **settings).figure("far", on="language: macro mean").value
    assert result.figure("far").value != pytest.approx(macro, abs=1e-6)


def test_raters_are_judged_at_thresholds_chosen_as_the_metrics_are() -> None:
    def one(rater: int) -> Key:
        return lambda row: float(row["ratings"]["quality"][rater])

    def others(rater: int) -> Key:
        return lambda row: (sum(row["ratings"]["quality"]) - row["ratings"]["quality"][rater]) / 2

    expected = []
    for rater in range(3):
        metric_key, truth, shares = one(rater), others(rater), []
        for fold in folds_of(ROWS, 0):
            epsilon = best_epsilon([row for row in ROWS if row not in fold], by_item, metric_key, truth)
            shares += group_shares(fold, epsilon, by_item, metric_key, truth)
        expected.append(np.mean(shares))
    crossfit = quick(metrics=["far"], epsilon_over="crossfit").figure(HUMANS)
    assert crossfit.value == pytest.approx(np.mean(expected))

    expected = []
    for rater in range(3):
        own = of(ROWS, "task", "qa")
        epsilon = best_epsilon(own, by_item, one(rater), others(rater))
        expected.append(np.mean(group_shares(own, epsilon, by_item, one(rater), others(rater))))
    result = quick(metrics=["far"], slices="task", epsilon_over="slice")
    assert result.figure(HUMANS, on="task=qa").value == pytest.approx(np.mean(expected))


@pytest.mark.parametrize("average", ["macro", "micro"])
def test_raters_have_a_row_in_the_mean_over_slices(average: str) -> None:
    result = quick(metrics=["far"], slices="language", epsilon_over="slice", average=average)
    each = [result.figure(HUMANS, on=f"language={name}").value for name in ("sv", "en")]
    weights = [1, 1] if average == "macro" else [len(of(ROWS, "language", name)) for name in ("sv", "en")]
    mean = result.figure(HUMANS, on=f"language: {average} mean")
    assert mean.value == pytest.approx(np.average(each, weights=weights))
    assert mean.low < mean.high


def cell(table: Any, row: str, column: str) -> float:
    place = [one.name for one in table.columns].index(column)
    return float(next(one for one in table.rows if one[0] == row)[place].value)


def test_tie_shares_are_counted_at_the_threshold_of_each_language() -> None:
    result = quick(metrics=["far"], epsilon_over="language", draws=0)
    tied = pairs = 0
    for name in ("sv", "en"):
        own = of(ROWS, "language", name)
        epsilon = best_epsilon(own, by_item)
        gaps = [abs(score(a) - score(b)) for a, b in combinations(own, 2)]
        tied, pairs = tied + sum(gap <= epsilon for gap in gaps), pairs + len(gaps)
    (table,) = analyse(result, "ties")
    assert cell(table, "far", "tie share at ε") == pytest.approx(tied / pairs)
    assert tied
    assert "Only outputs that share a threshold are paired" in table.text()


def test_curves_average_groups_as_the_figures_do() -> None:
    rows = make_rows()[:-2]
    for average in ("macro", "micro"):
        result = quick(rows, metrics=["far"], group_average=average, draws=0)
        (table,) = analyse(result, "curve")
        best = max(row[2].value for row in table.rows)
        assert best == pytest.approx(result.figure("far").value)
        assert table.rows[-1][2].value == pytest.approx(result.figure("far").all_ties)


def test_an_interval_is_shifted_by_the_optimism_of_the_threshold() -> None:
    # The median of three ratings ties often: a threshold has something to gain.
    chosen = quick(metrics=["far"], draws=400, gold="median").figure("far")
    assert (chosen.low + chosen.high) / 2 < chosen.value - 0.005
    held_out = quick(metrics=["far"], draws=400, gold="median", epsilon_over="crossfit").figure("far")
    assert (held_out.low + held_out.high) / 2 == pytest.approx(held_out.value, abs=0.01)
    assert held_out.value < chosen.value


@pytest.mark.parametrize("settings", [{"group": "none"}, {"resample": "systems"}, {"resample": "both"}])
def test_intervals_are_found_for_all_resamples(settings: dict[str, Any]) -> None:
    for figure in quick(make_rows(items=8), **settings, slices="language").figures:
        assert 0 <= figure.low <= figure.high <= 1


# mt-metrics-eval's module tau_optimization (commit 0b82d96), copied out by hand and run over the same columns at
# sample_rate 1.0, had these ε; the package itself was not to be had.
WMT23 = {"XCOMET-Ensemble-refA": 0.00734, "COMET-refA": 0.00211, "GEMBA-MQM-src": 0.0, "BLEU-refA": 0.0}


def test_the_thresholds_of_wmt23_are_those_of_mt_metrics_eval(data: Any) -> None:
    result = quick(data("wmt23.en-de"), "mqm", exclude_systems="refA", draws=0, metrics=list(WMT23))
    for metric, epsilon in WMT23.items():
        assert result.figure(metric).epsilon == pytest.approx(epsilon, abs=1e-9)
