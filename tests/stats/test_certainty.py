"""Bootstrap intervals of measures, against resampled data spelled out and simulations with a known truth."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from metric_panels import KENDALL, PEARSON, all_pairs, make_panel, make_sample, seeded
from numpy.typing import NDArray

from error_codes import raises_code
from metrist.errors import RunError
from metrist.stats import resampling
from metrist.stats.estimation import bootstrap, bootstrap_gaps, draw_resamples, estimate
from metrist.stats.measures import MEASURES, accuracy_at
from metrist.stats.resampling import Over
from metrist.stats.samples import Sample, ScorePanel

Floats = NDArray[np.float64]
some_panel = partial(make_panel, items=12, metrics=3)


# Against resamples spelled out


def draws_of(measure, sample: Sample, grouping="none", *, over: Over = "items", draws: int) -> Floats:
    """The measure on each of the resamples that the same seed gives to an interval."""
    (source,) = seeded().spawn(1)
    (drawing,) = draw_resamples(sample.item, sample.system, over, draws, source, draws)
    return estimate(measure, sample, grouping, drawing).values


Copy = tuple[int, int]


def copies_of(sample: Sample, items: Floats, systems: Floats) -> list[tuple[int, Copy, Copy]]:
    """The resample one by one: an output, and which copy of its item and of its system it belongs to."""
    return [
        (int(output), (item, c), (system, d))
        for item, times in enumerate(items.astype(int))
        for system, again in enumerate(systems.astype(int))
        for output in np.flatnonzero((sample.item == item) & (sample.system == system))
        for c in range(times)
        for d in range(again)
    ]


def spelled_out(sample: Sample, items: Floats, systems: Floats) -> Sample:
    """The resample as data of its own: each copy of an item, and each copy of a system, under a name of its own."""
    copies = copies_of(sample, items, systems)
    picked = [copy[0] for copy in copies]
    return make_sample(sample.human[picked], sample.metric[picked], [c[1] for c in copies], [c[2] for c in copies])


def accuracy_of_copies(sample: Sample, items: Floats, systems: Floats, grouping: str) -> float:
    """acc_eq of the resample by counting pairs, of which copies of one output (or of one system) are none."""
    groups: dict[Any, list[tuple[int, float, float]]] = {}
    for output, item, system in copies_of(sample, items, systems):
        key = {"none": 0, "item": item, "system": system, "system-level": system}[grouping]
        groups.setdefault(key, []).append((output, sample.human[output], sample.metric[output]))
    if grouping == "system-level":
        groups = {0: [(system[0], *np.mean(rows, axis=0)[1:]) for system, rows in groups.items()]}
    accuracies = []
    for rows in groups.values():
        right = [
            np.sign(first[1] - second[1]) == np.sign(first[2] - second[2])
            for first, second in itertools.combinations(rows, 2)
            if first[0] != second[0]
        ]
        accuracies += [np.mean(right)] if right else []
    return float(np.mean(accuracies)) if accuracies else math.nan


@pytest.mark.parametrize("name", ["pearson", "spearman", "kendall_b", "acc_eq"])
@pytest.mark.parametrize("grouping", ["none", "item", "system", "system-level"])
@pytest.mark.parametrize("over", ["items", "systems", "both"])
def test_a_draw_is_the_measure_of_the_repeated_data(name: str, grouping, over: Over) -> None:
    sample = some_panel().sample(0)
    draws = 8
    result = draws_of(MEASURES[name], sample, grouping, over=over, draws=draws)
    (source,) = seeded().spawn(1)
    (drawing,) = draw_resamples(sample.item, sample.system, over, draws, source, draws)
    for draw in range(draws):
        items = np.ones(12) if drawing.items is None else drawing.items[draw]
        systems = np.ones(5) if drawing.systems is None else drawing.systems[draw]
        if name == "acc_eq":
            expected = accuracy_of_copies(sample, items, systems, grouping)
        else:
            expected = estimate(MEASURES[name], spelled_out(sample, items, systems), grouping).values[0]
        assert result[draw] == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_intervals_are_percentiles_of_the_draws() -> None:
    panel = some_panel()
    (first, *_) = bootstrap(KENDALL, panel, "item", draws=500, rng=seeded())
    values = draws_of(KENDALL, panel.sample(0), "item", draws=500)
    assert (first.low, first.high) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))
    assert first.value == estimate(KENDALL, panel.sample(0), "item").values[0]
    assert (first.outputs, first.groups, first.undefined) == (60, 12, 0)


def test_a_gap_is_the_difference_of_the_same_draws() -> None:
    panel = some_panel()
    gaps = bootstrap_gaps(KENDALL, panel, all_pairs(panel), draws=400, rng=seeded())
    assert {gap.units for gap in gaps} == {12}
    draws = [draws_of(KENDALL, panel.sample(metric), draws=400) for metric in range(3)]
    for gap, (a, b) in zip(gaps, all_pairs(panel), strict=True):
        assert gap.standard_error == pytest.approx((draws[a] - draws[b]).std(ddof=1))
        centred = draws[a] - draws[b] - gap.value
        assert gap.p == (1 + np.sum(np.abs(centred) >= abs(gap.value) - 1e-12)) / 401


# Promises


@pytest.mark.parametrize(("over", "units"), [("items", 12), ("systems", 5), ("both", 5)])
def test_a_gap_has_the_number_of_resampled_units(over: Over, units: int) -> None:
    (gap,) = bootstrap_gaps(PEARSON, some_panel(), [(0, 1)], over=over, draws=20, rng=seeded())
    assert gap.units == units


def test_results_do_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = some_panel()

    def everything() -> list[object]:
        result: list[object] = []
        for measure in (PEARSON, MEASURES["spearman"], KENDALL):
            for grouping in ("none", "item", "system-level"):
                result += bootstrap(measure, panel, grouping, over="both", draws=33, rng=seeded())
        return [*result, *bootstrap_gaps(KENDALL, panel, [(0, 1)], over="systems", draws=33, rng=seeded())]

    at_once = everything()
    for chunk in (1, 555):
        monkeypatch.setattr(resampling, "CHUNK", chunk)
        assert repr(everything()) == repr(at_once)


def test_other_metrics_do_not_change_an_interval() -> None:
    panel = some_panel()
    alone = ScorePanel(human=panel.human, metrics=panel.metrics[1:2], item=panel.item, system=panel.system)
    (lonely,) = bootstrap(PEARSON, alone, draws=50, rng=seeded())
    assert bootstrap(PEARSON, panel, draws=50, rng=seeded())[1] == lonely


def test_a_metric_is_judged_on_the_outputs_it_scored_and_a_pair_on_those_of_both() -> None:
    full = some_panel()
    metrics = np.array(full.metrics)
    metrics[1, 5:20] = math.nan
    metrics[2, 50:] = math.nan
    panel = ScorePanel(human=full.human, metrics=metrics, item=full.item, system=full.system)
    result = bootstrap(KENDALL, panel, draws=100, rng=seeded())
    assert [interval.outputs for interval in result] == [60, 45, 50]
    both = panel.scored([1, 2])
    reduced = bootstrap_gaps(KENDALL, full.take(both, [1, 2]), [(0, 1)], draws=100, rng=seeded())
    assert bootstrap_gaps(KENDALL, panel, [(0, 1), (1, 2)], draws=100, rng=seeded())[1] == reduced[0]


def test_each_metric_may_have_a_threshold_of_its_own() -> None:
    panel = some_panel()
    own = [accuracy_at(0.0), accuracy_at(0.5), accuracy_at(1.5)]
    together = bootstrap(own, panel, "item", draws=60, rng=seeded())
    for metric, measure in enumerate(own):
        assert together[metric] == bootstrap(measure, panel, "item", draws=60, rng=seeded())[metric]
    with raises_code(RunError, "invalid_value", "2", "3"):
        bootstrap(own[:2], panel, draws=5, rng=seeded())


def test_a_single_unit_has_no_interval() -> None:
    single = some_panel(items=1)
    (alone, *_) = bootstrap(PEARSON, single, over="items", draws=20, rng=seeded())
    assert not math.isnan(alone.value)
    assert np.isnan([alone.low, alone.high]).all()
    (gap,) = bootstrap_gaps(PEARSON, single, [(0, 1)], over="items", draws=20, rng=seeded())
    assert np.isnan([gap.standard_error, gap.p]).all()


def test_a_constant_metric_and_one_without_scores_have_no_value() -> None:
    panel = some_panel()
    metrics = np.array(panel.metrics)
    metrics[0], metrics[1] = 3.0, math.nan
    odd = ScorePanel(human=panel.human, metrics=metrics, item=panel.item, system=panel.system)
    constant, missing, fine = bootstrap(PEARSON, odd, draws=20, rng=seeded())
    for result in (constant, missing):
        assert np.isnan([result.value, result.low, result.high]).all()
    assert missing.outputs == 0
    assert not math.isnan(fine.low)


# Simulations with a known truth


def coverage(measure, truth: float, trials: int, sampled, **settings) -> float:
    covered = 0
    for trial in range(trials):
        (result,) = bootstrap(measure, sampled(seeded(1000 + trial)), rng=seeded(trial), **settings)
        covered += result.low <= truth <= result.high
    return covered / trials


def normal_pairs(rng: np.random.Generator, items: int = 200, rho: float = 0.6) -> ScorePanel:
    human, noise = rng.normal(size=(2, items))
    metric = rho * human + math.sqrt(1 - rho**2) * noise
    return ScorePanel(human=human, metrics=metric[None], item=np.arange(items), system=np.zeros(items, np.intp))


# Of a bivariate normal with correlation rho, Kendall's tau is 2/pi * asin(rho).
@pytest.mark.parametrize(("measure", "truth"), [(PEARSON, 0.6), (KENDALL, 2 / math.pi * math.asin(0.6))])
def test_intervals_cover_as_often_as_they_say(measure, truth: float) -> None:
    assert 0.93 <= coverage(measure, truth, 500, normal_pairs, draws=250) <= 0.97


def crossed(rng: np.random.Generator, items: int, systems: int, spread: float) -> ScorePanel:
    """Outputs that share a part of their value with the others of their item, and of their system."""

    def values() -> Floats:
        by_item, by_system = rng.normal(size=(items, 1)), spread * rng.normal(size=(1, systems))
        return (by_item + by_system + rng.normal(size=(items, systems))).ravel()

    human, noise = values(), values()
    place = np.arange(items * systems)
    return ScorePanel(human=human, metrics=(human + noise)[None], item=place // systems, system=place % systems)


def test_intervals_over_items_cover_though_outputs_of_an_item_are_alike() -> None:
    truth = 1 / math.sqrt(2)
    result = coverage(PEARSON, truth, 500, lambda rng: crossed(rng, 60, 5, 0.0), draws=200)
    assert 0.93 <= result <= 0.97


def test_intervals_over_both_cover_at_least_as_often_as_they_say() -> None:
    """Independent draws of items and systems count the outputs' own noise twice and more, so they err to the wide side
    (Owen 2007), where intervals over items alone are far too narrow for other systems."""
    truth = 1 / math.sqrt(2)

    def sampled(rng: np.random.Generator) -> ScorePanel:
        return crossed(rng, 30, 25, 1.0)

    assert 0.93 <= coverage(PEARSON, truth, 120, sampled, over="both", draws=120) <= 1.0
    assert coverage(PEARSON, truth, 60, sampled, over="items", draws=100) < 0.9


def test_the_paired_bootstrap_rejects_a_true_null_about_as_often_as_it_says() -> None:
    rejected = 0
    for trial in range(500):
        rng = seeded(5000 + trial)
        human = rng.normal(size=100)
        metrics = human + rng.normal(size=(2, 100))
        panel = ScorePanel(human=human, metrics=metrics, item=np.arange(100), system=np.zeros(100, np.intp))
        rejected += bootstrap_gaps(PEARSON, panel, [(0, 1)], draws=199, rng=seeded(trial))[0].p <= 0.05
    assert 0.035 <= rejected / 500 <= 0.065
