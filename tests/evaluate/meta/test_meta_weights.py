"""Sampling weights: each figure is what brute force gives with every output, group or pair counted by its weight."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import InputError, RunError
from metrist.evaluate.meta import meta_evaluate
from metrist.records import Record
from metrist.stats import Codes, Floats
from metrist.stats.estimation import estimate
from metrist.stats.measures import measure
from metrist.stats.samples import Grouping, Sample, whole_weights
from metrist.web.annotation.sampling import Pick, list_units, sample_units

#: In proportions that whole numbers have exactly.
WEIGHTS = (10.0, 5.0, 2.5, 1.0, 4.0)
Rows = list[dict[str, Any]]


def make_rows(by_item: bool = True, items: int = 12, systems: int = 4) -> Rows:
    rng = np.random.default_rng(5)
    rows = []
    for item in range(items):
        for system in range(systems):
            human = int(rng.integers(1, 5))
            rows.append(
                {
                    "item": f"i{item}",
                    "system": f"s{system}",
                    "output": "text",
                    "ratings": {"overall": [human]},
                    "scores": {"m": float(np.round(4 * (human + rng.normal(0, 1.5))) / 4), "n": float(rng.normal())},
                    "sampling_weight": WEIGHTS[(item if by_item else item * systems + system) % len(WEIGHTS)],
                }
            )
    return rows


def figure(rows: Rows, name: str, metric: str = "m", **settings: Any) -> float:
    found = meta_evaluate(rows, measures=name, **{"draws": 0, **settings}).figures
    return next(own.value for own in found if own.metric == metric)


def columns(rows: Rows) -> tuple[Floats, Floats, Floats]:
    human = np.array([row["ratings"]["overall"][0] for row in rows], float)
    return human, np.array([row["scores"]["m"] for row in rows]), np.array([row["sampling_weight"] for row in rows])


def weighted_pairs(rows: Rows, agree: Any) -> float:
    """The share of pairs that agree, each counted by the product of its weights."""
    human, metric, weight = columns(rows)
    total = part = 0.0
    for i, j in combinations(range(len(rows)), 2):
        total += weight[i] * weight[j]
        part += weight[i] * weight[j] * agree(human[i] - human[j], metric[i] - metric[j])
    return part / total


def group_rows(rows: Rows) -> list[Rows]:
    items = dict.fromkeys(row["item"] for row in rows)
    return [[row for row in rows if row["item"] == item] for item in items]


def same_order(human: float, metric: float) -> float:
    return float(np.sign(human) * np.sign(metric))


def test_items_count_by_their_weights() -> None:
    rows = make_rows()
    groups = group_rows(rows)
    values = [weighted_pairs(group, same_order) for group in groups]
    weights = [group[0]["sampling_weight"] for group in groups]
    assert figure(rows, "kendall_a") == pytest.approx(np.average(values, weights=weights))
    assert figure(rows, "kendall_a", weighted=False) == pytest.approx(np.mean(values))


@pytest.mark.parametrize("by_item", [True, False])
def test_pairs_across_items_count_by_the_product_of_their_weights(by_item: bool) -> None:
    rows = make_rows(by_item)
    assert figure(rows, "kendall_a", group="none") == pytest.approx(weighted_pairs(rows, same_order))


def test_outputs_of_one_item_may_have_different_weights() -> None:
    rows = make_rows(by_item=False)
    values = [weighted_pairs(group, same_order) for group in group_rows(rows)]
    assert figure(rows, "kendall_a") == pytest.approx(np.mean(values))


def test_weighted_correlations() -> None:
    rows = make_rows(by_item=False)
    human, metric, weight = columns(rows)
    covariance = np.cov(human, metric, aweights=weight)
    expected = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    assert figure(rows, "pearson", group="none") == pytest.approx(expected)
    copies = (weight * 2).astype(int)
    many = np.repeat(human, copies), np.repeat(metric, copies)
    from scipy.stats import spearmanr

    assert figure(rows, "spearman", group="none") == pytest.approx(spearmanr(*many).statistic)


def test_systems_have_weighted_means() -> None:
    rows = make_rows(by_item=False)
    means = []
    for system in dict.fromkeys(row["system"] for row in rows):
        human, metric, weight = columns([row for row in rows if row["system"] == system])
        means.append((np.average(human, weights=weight), np.average(metric, weights=weight)))
    expected = np.corrcoef(np.array(means).T)[0, 1]
    assert figure(rows, "pearson", group="system-level") == pytest.approx(expected)


@pytest.mark.parametrize("group", ["item", "none"])
def test_tie_thresholds_are_best_for_the_weighted_accuracy(group: str) -> None:
    rows = make_rows(by_item=group == "item", items=8)
    groups = group_rows(rows) if group == "item" else [rows]
    weights = [own[0]["sampling_weight"] for own in groups] if group == "item" else [1.0]
    _, metric, _ = columns(rows)
    gaps = sorted({0.0, *(abs(a - b) for a, b in combinations(metric, 2))})

    def accuracy(epsilon: float) -> float:
        def agrees(gap: float, score: float) -> float:
            tied = abs(score) <= epsilon
            return float(tied if gap == 0 else not tied and np.sign(gap) == np.sign(score))

        return float(np.average([weighted_pairs(own, agrees) for own in groups], weights=weights))

    assert figure(rows, "acc_eq", group=group) == pytest.approx(max(map(accuracy, gaps)))


def test_preferences_count_by_their_weights() -> None:
    rng = np.random.default_rng(2)
    rows: Rows = []
    right = []
    for item in range(20):
        scores, choice = rng.normal(size=2), int(rng.integers(0, 3))
        rows += [
            {"item": f"i{item}", "system": name, "output": "t", "scores": {"m": float(score)}}
            for name, score in zip("ab", scores, strict=True)
        ]
        weight = WEIGHTS[item % len(WEIGHTS)]
        rows.append(
            {
                "item": f"i{item}",
                "systems": ["a", "b"],
                "outputs": ["t", "t"],
                "ratings": {"overall": [choice]},
                "sampling_weight": weight,
            }
        )
        right.append((weight, choice == (1 if scores[0] > scores[1] else 2)))
    expected = sum(weight * own for weight, own in right) / sum(weight for weight, _ in right)
    evaluation = meta_evaluate(rows, measures="accuracy", preferences=True, draws=100)
    (found,) = evaluation.figures
    assert (found.value, found.n) == (pytest.approx(expected), 20)
    assert any("sampling_weight" in note for note in evaluation.notes)


@pytest.mark.parametrize(
    ("pick", "grouping"),
    [("disagreement", "item"), ("disagreement", "none"), ("system", "none"), ("system", "system")],
)
def test_a_weighted_sample_estimates_everything(pick: Pick, grouping: Grouping) -> None:
    """On average over many samples (Hájek 1971), where the plain figure is off, or where it is the weighted one."""
    rng = np.random.default_rng(0)
    # System 0 is rare, and the metric is wrong about it; items are unlike each other.
    place = np.array([(item, system) for item in range(60) for system in range(5) if system or item % 6 == 0])
    noise = rng.uniform(0.1, 2, size=60)
    human = np.round(rng.normal(size=len(place)) * 2) / 2
    metric = human * np.where(place[:, 1] == 0, -3, 1) + noise[place[:, 0]] * rng.normal(size=len(place))
    records = [Record(item=f"i{i}", system=f"s{s}", output="", extra={"row": n}) for n, (i, s) in enumerate(place)]
    units = list_units(records, pairs=False)
    disagreement = {f"i{item}": float(noise[item]) for item in range(60)}

    def tau(rows: Codes, weights: Floats | None) -> float:
        sample = Sample(
            human=human[rows], metric=metric[rows], item=place[rows, 0], system=place[rows, 1], weight=weights
        )
        return float(estimate(measure("kendall_a"), sample, grouping).values[0])

    truth = tau(np.arange(len(place)), None)
    weighted, plain = [], []
    for _ in range(200):
        chosen = sample_units(units, 100, pick, rng, disagreement)
        rows = np.array([unit.records[0].extra["row"] for unit in chosen])
        weighted.append(tau(rows, whole_weights(np.array([unit.weight for unit in chosen]))))
        plain.append(tau(rows, None))
    error = np.std(weighted) / len(weighted) ** 0.5
    assert abs(np.mean(weighted) - truth) < 4 * error
    if grouping == "system":  # All systems are in the sample: none stands for others.
        assert weighted == pytest.approx(plain)
    else:
        assert abs(np.mean(plain) - truth) > 8 * error


def test_weights_of_any_size_and_precision_count_as_they_are() -> None:
    rng = np.random.default_rng(3)
    rows = make_rows(by_item=False)
    for number, row in enumerate(rows):
        row["sampling_weight"] = float(rng.uniform(1, 2) * (5000 if number % 4 == 0 else 1))
    human, metric, weight = columns(rows)
    covariance = np.cov(human, metric, aweights=weight)
    expected = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    assert figure(rows, "pearson", group="none") == pytest.approx(expected, rel=1e-4)
    assert figure(rows, "kendall_a", group="none") == pytest.approx(weighted_pairs(rows, same_order), rel=1e-3)


@pytest.mark.parametrize("name", ["kendall_a", "acc_eq"])
def test_systems_that_are_all_there_do_not_stand_for_others(name: str) -> None:
    rows = make_rows(by_item=False)
    for row in rows:
        row["sampling_weight"] = {"s0": 9.0}.get(row["system"], 1.0)
    assert figure(rows, name, group="system") == pytest.approx(figure(rows, name, group="system", weighted=False))


def test_outputs_that_nobody_rated_have_no_weight() -> None:
    rows = [{**row, "sampling_weight": 3.0} for row in make_rows()]
    others = [
        {name: row[name] for name in ("item", "system", "output", "scores")}
        for row in make_rows(items=20)
        if int(row["item"][1:]) >= 12
    ]
    evaluation = meta_evaluate([*rows, *others], draws=100, test="permutation")  # Which knows no weights.
    assert not any("sampling_weight" in note for note in evaluation.notes)


def test_intervals_and_tests_resample_weighted_items() -> None:
    evaluation = meta_evaluate(make_rows(), measures=["acc_eq", "pearson"], draws=200)
    for own in evaluation.figures:
        if own.metric == "m":
            assert own.low <= own.value <= own.high
            assert (own.n, own.groups + own.undefined) == (48, 12)
    assert {test.how.split(" of ")[0] for test in evaluation.tests} == {"paired bootstrap"}


def test_equal_weights_change_nothing_and_strange_ones_are_errors() -> None:
    rows = make_rows()
    plain = meta_evaluate([{**row, "sampling_weight": 3.0} for row in rows], draws=100)
    without = meta_evaluate([{k: v for k, v in row.items() if k != "sampling_weight"} for row in rows], draws=100)
    assert [(f.value, f.low, f.high) for f in plain.figures] == [(f.value, f.low, f.high) for f in without.figures]
    for wrong in (0, -1, "many"):
        with pytest.raises(InputError, match="sampling_weight"):
            meta_evaluate([{**rows[0], "sampling_weight": wrong}, *rows[1:]], draws=0)
    with raises_code(RunError, "conflict", "`weighted=False`"):
        meta_evaluate(rows, test="permutation", draws=100)
    with raises_code(RunError, "conflict", "`weighted=False`"):
        meta_evaluate(rows, measures="spa", group="system-level", draws=100)
