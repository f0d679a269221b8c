"""Permutation tests between metrics, against exchanges spelled out, enumeration, and simulations under the null."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
from metric_panels import KENDALL, PEARSON, all_pairs, make_panel, seeded
from numpy.typing import NDArray

from error_codes import raises_code
from metrist.errors import RunError
from metrist.stats import permutation, resampling
from metrist.stats.estimation import estimate
from metrist.stats.measures import MEASURES, accuracy_at
from metrist.stats.permutation import Over, PermutationTest, permutation_tests
from metrist.stats.resampling import coin_tosses
from metrist.stats.samples import Sample, ScorePanel

Floats = NDArray[np.float64]
some_panel = partial(make_panel, items=6, metrics=2, slope=0.7)


# Against exchanges spelled out


def exchanged_difference(measure, panel: ScorePanel, swap: NDArray[np.bool_], grouping, average) -> float:
    """The difference after an exchange, with numpy's own standardising and copies of the data."""
    first, second = (metric - metric.mean() for metric in panel.metrics)
    first, second = first / first.std(), second / second.std()
    values = []
    for metric in (np.where(swap, second, first), np.where(swap, first, second)):
        sample = Sample(human=panel.human, metric=metric, item=panel.item, system=panel.system)
        values.append(estimate(measure, sample, grouping, average=average).values[0])
    return float(values[0] - values[1])


def units_of(panel: ScorePanel, exchange: Over) -> NDArray[np.intp]:
    return {"items": panel.item, "systems": panel.system, "both": np.arange(len(panel.human))}[exchange]


@pytest.mark.parametrize("name", ["pearson", "spearman", "kendall_b", "kendall_c", "acc_eq"])
@pytest.mark.parametrize("grouping", ["none", "item", "system", "system-level"])
@pytest.mark.parametrize("exchange", ["items", "systems", "both"])
def test_the_p_value_counts_exchanges_as_if_each_were_made(name: str, grouping, exchange: Over) -> None:
    panel, draws = some_panel(), 40
    unit = units_of(panel, exchange)
    (source,) = seeded().spawn(1)
    (tosses,) = coin_tosses(unit.max() + 1, draws, source, draws)
    for average in ("macro", "micro"):
        compared = [
            exchanged_difference(MEASURES[name], panel, toss[unit] > 0, grouping, average)
            for toss in (np.zeros_like(tosses[0]), *tosses)
        ]
        observed, null = compared[0], np.array(compared[1:])
        (result,) = permutation_tests(
            MEASURES[name], panel, [(0, 1)], grouping, average, exchange=exchange, draws=draws, rng=seeded(), alpha=None
        )
        assert result.difference == pytest.approx(observed, abs=1e-9)
        reached = (np.abs(null) >= abs(observed) - 1e-9) | np.isnan(null)
        assert result.p == (1 + reached.sum()) / (draws + 1)
        assert result.draws == draws


def test_a_column_may_group_the_outputs() -> None:
    panel, column = some_panel(), np.arange(30) % 3
    by_column = permutation_tests(KENDALL, panel, [(0, 1)], column, draws=50, rng=seeded())
    renamed = ScorePanel(human=panel.human, metrics=panel.metrics, item=column, system=np.arange(30))
    assert by_column == permutation_tests(KENDALL, renamed, [(0, 1)], "item", draws=50, rng=seeded())


@pytest.mark.parametrize("measure", [PEARSON, KENDALL], ids=["pearson", "kendall"])
def test_the_p_value_estimates_that_of_enumeration(measure) -> None:
    """All 2^8 exchanges of eight outputs."""
    rng = seeded(12)
    human = rng.normal(size=8)
    metrics = human + rng.normal([[0.0], [0.0]], [[0.6], [1.6]], size=(2, 8))
    panel = ScorePanel(human=human, metrics=metrics, item=np.arange(8), system=np.zeros(8, np.intp))
    every = [np.array(swap) for swap in itertools.product([False, True], repeat=8)]
    null = np.array([exchanged_difference(measure, panel, swap, "none", "macro") for swap in every])
    (result,) = permutation_tests(measure, panel, [(0, 1)], draws=8000, rng=seeded(), alpha=None)
    assert result.p == pytest.approx(np.mean(np.abs(null) >= abs(null[0]) - 1e-9), abs=0.02)


def test_items_where_one_metric_is_undefined_take_no_part() -> None:
    """Signs of the differences flipped over the items where both are defined, all 2^9 ways."""
    rng, items, systems = seeded(3), 12, 6
    human = rng.normal(size=items * systems) + np.repeat(np.arange(items) / 4, systems)
    metrics = human + rng.normal([[0.0], [0.0], [0.0]], [[0.5], [1.0], [1.0]], size=(3, items * systems))
    metrics[0, : 2 * systems] = 1.0  # Constant in two items, where the second orders perfectly; the second in a third.
    metrics[1, : 2 * systems] = human[: 2 * systems]
    metrics[1, 2 * systems : 3 * systems] = 2.0
    item = np.repeat(np.arange(items), systems)
    panel = ScorePanel(human=human, metrics=metrics, item=item, system=np.tile(np.arange(systems), items))
    values = np.array(
        [[KENDALL.value(human[item == i], metric[item == i]) for i in range(items)] for metric in metrics]
    )
    gaps = (values[0] - values[1])[3:]
    signs = np.array(list(itertools.product([-1, 1], repeat=len(gaps))))
    expected = np.mean(np.abs(signs @ gaps) >= abs(gaps.sum()) - 1e-12)
    pairs = [(0, 1), (0, 2), (1, 2)]
    tests = permutation_tests(KENDALL, panel, pairs, "item", exchange="items", draws=20_000, rng=seeded())
    assert tests[0].difference == pytest.approx(gaps.mean(), abs=1e-12)
    assert tests[0].p == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 20_000))
    assert tests[2].difference == pytest.approx(np.nanmean(np.delete(values[1] - values[2], 2)), abs=1e-12)
    alone = permutation_tests(KENDALL, panel, pairs[:1], "item", exchange="items", draws=20_000, rng=seeded())
    assert alone == tests[:1]


# Promises


def test_results_do_not_depend_on_chunks_or_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = some_panel(metrics=4)

    def everything() -> list[PermutationTest]:
        return [
            test
            for measure in (PEARSON, KENDALL)
            for grouping in ("none", "item", "system-level")
            for test in permutation_tests(measure, panel, all_pairs(panel), grouping, draws=60, rng=seeded())
        ]

    at_once = everything()
    for chunk, block in ((1, 128), (1200, 7)):
        monkeypatch.setattr(resampling, "CHUNK", chunk)
        monkeypatch.setattr(permutation, "_BLOCK", block)
        assert everything() == at_once


@pytest.mark.parametrize("grouping", ["none", "item"])
def test_other_metrics_do_not_change_a_test(grouping) -> None:
    panel = some_panel(metrics=4)
    for measure in (PEARSON, KENDALL):
        together = permutation_tests(measure, panel, all_pairs(panel), grouping, draws=60, rng=seeded())
        alone = permutation_tests(measure, panel, [(1, 3)], grouping, draws=60, rng=seeded())
        assert together[all_pairs(panel).index((1, 3))] == alone[0]


def test_a_pair_is_tested_on_the_outputs_that_both_scored() -> None:
    full = some_panel(metrics=3)
    metrics = np.array(full.metrics)
    metrics[0, :4], metrics[1, 2:9] = math.nan, math.nan
    panel = ScorePanel(human=full.human, metrics=metrics, item=full.item, system=full.system)
    for measure in (PEARSON, KENDALL):
        result = permutation_tests(measure, panel, all_pairs(panel), draws=60, rng=seeded())
        reduced = full.take(panel.scored([0, 1]), [0, 1])
        assert permutation_tests(measure, reduced, [(0, 1)], draws=60, rng=seeded())[0] == result[0]


def test_scales_of_the_metrics_do_not_matter() -> None:
    # Eighths survive such scaling and moving exactly; else near ties could become ties, which are something else.
    panel = some_panel()
    eighths = np.rint(np.array(panel.metrics) * 8) / 8
    panel = ScorePanel(human=panel.human, metrics=eighths, item=panel.item, system=panel.system)
    stretched = eighths * [[2.0**20], [2.0**-20]] + [[5.0], [-3.0]]
    moved = ScorePanel(human=panel.human, metrics=stretched, item=panel.item, system=panel.system)
    for measure in (PEARSON, KENDALL):
        (first_result,), (second_result,) = (
            permutation_tests(measure, p, [(0, 1)], draws=99, rng=seeded(), alpha=None) for p in (panel, moved)
        )
        assert first_result.p == second_result.p
        assert first_result.difference == pytest.approx(second_result.difference)


def test_stopping_early_changes_no_verdict_and_little_of_p() -> None:
    panel = some_panel(items=12, metrics=8, seed=2)
    run = {
        alpha: permutation_tests(KENDALL, panel, all_pairs(panel), draws=999, rng=seeded(), alpha=alpha)
        for alpha in (0.05, None)
    }
    stopped, full = np.array([t.p for t in run[0.05]]), np.array([t.p for t in run[None]])
    assert ((stopped <= 0.05) == (full <= 0.05)).all()
    assert stopped == pytest.approx(full, rel=0.4)
    draws = np.array([t.draws for t in run[0.05]])
    assert (draws[full > 0.3] < 500).all()
    assert (draws[full <= 0.05] == 999).all()
    # Besag and Clifford's p-value: the exceedances that were enough, 2 * .05 * 1000, over the draws made.
    assert (stopped == np.where(draws < 999, 100 / draws, stopped)).all()


def test_a_metric_is_not_separated_from_itself() -> None:
    panel = some_panel()
    twin = ScorePanel(human=panel.human, metrics=[panel.metrics[0]] * 2, item=panel.item, system=panel.system)
    for measure, grouping in itertools.product((PEARSON, KENDALL), ("none", "item")):
        (result,) = permutation_tests(measure, twin, [(0, 1)], grouping, draws=50, rng=seeded())
        assert (result.difference, result.p) == (0.0, 1.0)


def test_a_constant_metric_is_not_tested() -> None:
    panel = some_panel()
    metrics = np.array(panel.metrics)
    metrics[1] = 0.1
    flat = ScorePanel(human=panel.human, metrics=metrics, item=panel.item, system=panel.system)
    for measure, grouping, exchange in (
        (PEARSON, "none", "both"),
        (KENDALL, "none", "both"),
        (KENDALL, "item", "items"),
    ):
        (result,) = permutation_tests(measure, flat, [(0, 1)], grouping, exchange=exchange, draws=50, rng=seeded())
        assert np.isnan([result.difference, result.p]).all()


def test_fewer_than_two_to_exchange_are_not_tested() -> None:
    single = some_panel(items=1)
    (result,) = permutation_tests(PEARSON, single, [(0, 1)], exchange="items", draws=50, rng=seeded())
    assert not math.isnan(result.difference)
    assert math.isnan(result.p)
    nothing = ScorePanel(
        human=np.empty(0), metrics=np.empty((2, 0)), item=np.empty(0, np.intp), system=np.empty(0, np.intp)
    )
    assert math.isnan(permutation_tests(KENDALL, nothing, [(0, 1)], draws=5, rng=seeded())[0].p)
    assert permutation_tests(KENDALL, nothing, [], draws=5, rng=seeded()) == []


def test_the_spread_is_that_of_all_exchanges() -> None:
    """Against enumeration: all 2^6 exchanges of whole items."""
    panel = some_panel()
    by_item = [
        [estimate(KENDALL, panel.sample(m).take(panel.item == item)).values[0] for item in range(6)] for m in (0, 1)
    ]
    gaps = np.array(by_item[0]) - by_item[1]
    null = np.array([np.mean(gaps * signs) for signs in itertools.product([1, -1], repeat=6)])
    (result,) = permutation_tests(KENDALL, panel, [(0, 1)], "item", exchange="items", draws=8000, rng=seeded())
    assert result.spread == pytest.approx(null.std(), rel=0.03)
    assert result.differing == np.count_nonzero(gaps)


def test_metrics_with_thresholds_of_their_own_may_exchange_whole_groups() -> None:
    """Against enumeration: accuracies of the items, exchanged in all 2^6 ways."""
    panel, own = some_panel(), [accuracy_at(0.5), accuracy_at(1.0)]
    by_item = [
        [estimate(measure, panel.sample(m).take(panel.item == item)).values[0] for item in range(6)]
        for m, measure in enumerate(own)
    ]
    gaps = np.array(by_item[0]) - by_item[1]
    null = np.array([np.mean(gaps * signs) for signs in itertools.product([1, -1], repeat=6)])
    (result,) = permutation_tests(own, panel, [(0, 1)], "item", exchange="items", draws=8000, rng=seeded())
    assert result.difference == pytest.approx(gaps.mean())
    assert result.p == pytest.approx(np.mean(np.abs(null) >= abs(gaps.mean()) - 1e-12), abs=0.02)
    with raises_code(RunError, "conflict", "acc_eq", "epsilon=0.5"):
        permutation_tests(own, panel, [(0, 1)], "item", exchange="both", draws=5, rng=seeded())


# Simulations under the null


def rejected(measure, trials: int, items: int, systems: int, draws: int, grouping="none", **settings) -> float:
    """How often two metrics are told apart at .05 that are human values plus noise of the same kind.

    Ten pairs of metrics are tested on the same human values: quicker, and each null stays true."""
    pairs = [(2 * pair, 2 * pair + 1) for pair in range(10)]
    result = 0
    for trial in range(trials // len(pairs)):
        rng = seeded(10_000 + trial)
        human = rng.normal(size=items * systems)
        place = np.arange(items * systems)
        scales = np.tile([1.0, 20.0], len(pairs))[:, None]  # They differ, as metrics' do.
        metrics = (human + rng.normal(size=(2 * len(pairs), items * systems))) * scales
        panel = ScorePanel(human=human, metrics=metrics, item=place // systems, system=place % systems)
        tests = permutation_tests(measure, panel, pairs, grouping, draws=draws, rng=seeded(trial), **settings)
        result += sum(test.p <= 0.05 for test in tests)
    return result / trials


@pytest.mark.parametrize(
    ("measure", "settings"),
    [
        (PEARSON, {"trials": 2000, "items": 40, "systems": 1, "draws": 199}),
        (PEARSON, {"trials": 3000, "items": 20, "systems": 4, "draws": 199, "exchange": "items"}),
        pytest.param(
            *(KENDALL, {"trials": 2000, "items": 30, "systems": 1, "draws": 79}),
            marks=pytest.mark.torture,
        ),
        pytest.param(
            *(
                KENDALL,
                {"trials": 3000, "items": 60, "systems": 5, "draws": 99, "grouping": "item", "exchange": "items"},
            ),
            marks=pytest.mark.torture,
        ),
    ],
)
def test_a_true_null_is_rejected_as_often_as_it_says(measure, settings) -> None:
    assert 0.04 <= rejected(measure, **settings) <= 0.06
