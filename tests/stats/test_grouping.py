"""Grouped estimates against measures taken group by group on copied data, where copies are no pairs."""

from __future__ import annotations

import math
from typing import Any

import brute_force
import numpy as np
import pytest
from metric_panels import make_sample

from error_codes import raises_code
from metrist.errors import RunError
from metrist.stats.estimation import estimate
from metrist.stats.measures import MEASURES, accuracy_at
from metrist.stats.samples import GROUPINGS, Draws, Sample

NAMES = ["pearson", "spearman", "kendall_b", "kendall_c", "acc_eq"]
ITEMS, SYSTEMS, DRAWS = 6, 5, 9


@pytest.fixture
def sample() -> Sample:
    """Some outputs missing, ratings with ties, one item that humans rate alike, in no order."""
    rng = np.random.default_rng(0)
    item, system = (part.ravel() for part in np.meshgrid(np.arange(ITEMS), np.arange(SYSTEMS), indexing="ij"))
    human = rng.integers(0, 4, item.size).astype(float)
    human[item == 2] = 1.0
    total = Sample(human=human, metric=np.round(human + rng.normal(size=item.size), 1), item=item, system=system)
    return total.take(rng.permutation(item.size)[:-4])


@pytest.fixture
def draws() -> Draws:
    rng = np.random.default_rng(1)
    return Draws(
        items=rng.multinomial(ITEMS, np.full(ITEMS, 1 / ITEMS), DRAWS).astype(float),
        systems=rng.multinomial(SYSTEMS, np.full(SYSTEMS, 1 / SYSTEMS), DRAWS).astype(float),
    )


def copies(sample: Sample, items: np.ndarray, systems: np.ndarray) -> dict[str, list[Any]]:
    """The sample as drawn: an item drawn twice becomes two items, a system drawn twice two systems."""
    columns = zip(sample.human, sample.metric, sample.item, sample.system, strict=True)
    rows = [
        (human, metric, (item, i), (system, s), origin)
        for origin, (human, metric, item, system) in enumerate(columns)
        for i in range(int(items[item]))
        for s in range(int(systems[system]))
    ]
    return {name: [row[k] for row in rows] for k, name in enumerate(("human", "metric", "item", "system", "origin"))}


def group_values(name: str, drawn: dict, by: str | None) -> list[float]:
    keys = drawn[by] if by else [0] * len(drawn["human"])
    human, metric, origin = (np.array(drawn[side]) for side in ("human", "metric", "origin"))
    members = [[i for i, key in enumerate(keys) if key == group] for group in dict.fromkeys(keys)]
    return [brute_force.value(name, human[some], metric[some], origin[some]) for some in members]


def system_means(drawn: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    systems = list(dict.fromkeys(drawn["system"]))
    rows = {group: [i for i, system in enumerate(drawn["system"]) if system == group] for group in systems}

    def means(side: str) -> list[float]:
        return [math.fsum(drawn[side][i] for i in rows[system]) / len(rows[system]) for system in systems]

    return np.array(means("human")), np.array(means("metric")), np.array([system for system, _ in systems])


def expected(name: str, drawn: dict, grouping: str) -> tuple[float, int, int]:
    if grouping == "system-level":
        values = [brute_force.value(name, *system_means(drawn))]
    else:
        values = group_values(name, drawn, None if grouping == "none" else grouping)
    known = [value for value in values if not math.isnan(value)]
    return (float(np.mean(known)) if known else math.nan), len(known), len(values) - len(known)


def select_side(draws: Draws, side: str) -> Draws:
    return draws if side == "both" else Draws(**{side: getattr(draws, side)})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_an_estimate_is_the_mean_over_defined_groups(sample: Sample, name: str, grouping: str) -> None:
    result = estimate(MEASURES[name], sample, grouping)
    value, groups, undefined = expected(name, copies(sample, np.ones(ITEMS), np.ones(SYSTEMS)), grouping)
    assert result.values.shape == result.groups.shape == result.undefined.shape == (1,)
    assert result.values[0] == pytest.approx(value, abs=1e-12)
    assert (result.groups[0], result.undefined[0]) == (groups, undefined)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("side", ["items", "systems", "both"])
def test_a_draw_is_the_estimate_of_copied_items_and_systems(sample, draws, name, grouping, side) -> None:
    result = estimate(MEASURES[name], sample, grouping, select_side(draws, side))
    for draw in range(DRAWS):
        items = draws.items[draw] if side != "systems" else np.ones(ITEMS)
        systems = draws.systems[draw] if side != "items" else np.ones(SYSTEMS)
        value, groups, undefined = expected(name, copies(sample, items, systems), grouping)
        assert result.values[draw] == pytest.approx(value, abs=1e-12, nan_ok=True)
        assert (result.groups[draw], result.undefined[draw]) == (groups, undefined)


def test_a_column_groups_outputs_by_its_values(sample: Sample) -> None:
    task = sample.item % 2 * 10
    result = estimate(MEASURES["kendall_b"], sample, task)
    values = [estimate(MEASURES["kendall_b"], sample.take(task == group)).values[0] for group in (0, 10)]
    assert result.values[0] == pytest.approx(np.mean(values))
    assert result.groups[0] == 2


def test_draws_of_items_weigh_outputs_within_a_column(sample: Sample, draws: Draws) -> None:
    task = sample.item % 2
    only = Draws(items=draws.items)
    result = estimate(MEASURES["spearman"], sample, task, only)
    parts = [estimate(MEASURES["spearman"], sample.take(task == group), "none", only).values for group in (0, 1)]
    assert np.allclose(result.values, np.nanmean(parts, axis=0))


def test_draws_of_items_weigh_whole_groups_of_any_column_that_parts_items(sample: Sample, draws: Draws) -> None:
    # Twice an item whose outputs fall into two groups: two more groups, not the same ones with copies inside.
    halves = sample.item * 2 + (sample.system > 1)
    result = estimate(MEASURES["acc_eq"], sample, halves, Draws(items=draws.items))
    each = {group: estimate(MEASURES["acc_eq"], sample.take(halves == group)).values[0] for group in np.unique(halves)}
    for draw, times in enumerate(draws.items):
        known = [(times[group // 2], value) for group, value in each.items() if not math.isnan(value)]
        target = sum(weight * value for weight, value in known) / sum(weight for weight, _ in known)
        assert result.values[draw] == pytest.approx(target)


def test_weights_of_outputs_stay_within_their_groups(sample: Sample, draws: Draws) -> None:
    assert draws.systems is not None
    by_output = draws.systems[:, sample.system]
    result = estimate(MEASURES["acc_eq"], sample, "item", by_output)
    target = estimate(MEASURES["acc_eq"], sample, "item", Draws(systems=draws.systems))
    assert np.array_equal(result.values, target.values, equal_nan=True)


def test_micro_pools_the_pairs_of_all_groups(sample: Sample) -> None:
    counts = np.zeros(5)
    for item in range(ITEMS):
        some = sample.take(sample.item == item)
        counts += MEASURES["acc_eq"].rows(some.human, some.metric, np.ones((1, len(some))))[0]
    result = estimate(MEASURES["acc_eq"], sample, "item", average="micro")
    assert result.values[0] == (counts[0] + counts[4]) / counts.sum()


def test_micro_pearson_is_the_correlation_of_deviations_from_group_means(sample: Sample) -> None:
    human, metric = sample.human.copy(), sample.metric.copy()
    for item in range(ITEMS):
        for column in (human, metric):
            column[sample.item == item] -= column[sample.item == item].mean()
    result = estimate(MEASURES["pearson"], sample, "item", average="micro")
    assert result.values[0] == pytest.approx(np.corrcoef(human, metric)[0, 1], abs=1e-14)
    assert (result.groups[0], result.undefined[0]) == (ITEMS - 1, 1)


def test_without_groups_macro_and_micro_are_one(sample: Sample, draws: Draws) -> None:
    for entry in MEASURES.values():
        macro, micro = (estimate(entry, sample, "none", draws, average).values for average in ("macro", "micro"))
        assert np.array_equal(macro, micro, equal_nan=True)


def test_chance_is_averaged_as_the_measure_is(sample: Sample) -> None:
    result = estimate(MEASURES["acc_eq"].at_chance(), sample, "item").values[0]
    shares = []
    for item in range(ITEMS):
        human = sample.human[sample.item == item]
        pairs = [(a, b) for i, a in enumerate(human) for b in human[:i]]
        shares.append(np.mean([a != b for a, b in pairs]) / 2)
    assert result == pytest.approx(np.mean(shares))


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("size", [0, 1])
def test_a_sample_of_no_pairs_has_no_estimate(grouping: str, size: int) -> None:
    nothing = make_sample([0.0] * size, [1.0] * size, ["a"] * size, ["x"] * size)
    for entry in (*MEASURES.values(), accuracy_at(0.1)):
        assert np.isnan(estimate(entry, nothing, grouping).values).tolist() == [True]
        assert np.isnan(estimate(entry, nothing, grouping, Draws(items=np.ones((3, 1)))).values).tolist() == [True] * 3


def test_groups_of_one_output_are_counted_as_undefined() -> None:
    alone = make_sample([1.0, 2.0, 3.0, 1.0], [1.0, 2.0, 3.0, 4.0], "aabc", "xyxx")
    result = estimate(MEASURES["acc_eq"], alone, "item")
    assert (result.values[0], result.groups[0], result.undefined[0]) == (1.0, 1, 2)


def test_unknown_groupings_and_weights_that_do_not_fit_are_refused(sample: Sample) -> None:
    with raises_code(RunError, "unknown_name", "'itme'", "'item'"):
        estimate(MEASURES["pearson"], sample, "itme")
    with raises_code(RunError, "invalid_value", "2", "26"):
        estimate(MEASURES["pearson"], sample, np.zeros(2, np.intp))
    with raises_code(RunError, "invalid_value", "weights"):
        estimate(MEASURES["pearson"], sample, "item", np.ones((1, 2)))
