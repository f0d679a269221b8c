"""Tests between metrics: who wins on the outputs that two share, which test fits which measure, and what is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from judged_rows import Row, make_rows

from error_codes import raises_code
from metrist.errors import RunError
from metrist.evaluate.meta import meta_evaluate
from metrist.evaluate.meta.analyses import analyse
from metrist.evaluate.meta.notes import advice
from metrist.stats.measures import accuracy_at

ROWS = make_rows()


def quick(data: Any = ROWS, *arguments: Any, **settings: Any) -> Any:
    return meta_evaluate(data, *arguments, **{"draws": 200, **settings})


def half_scored() -> list[Row]:
    """`wide` scores 120 items and is good on the first 30 alone; `narrow` scores just those 30, and is middling."""
    rng = np.random.default_rng(3)
    rows = []
    for item in range(120):
        for system in "abcd":
            truth = float(rng.normal())
            scores = {"wide": truth + rng.normal(0, 0.3) if item < 30 else float(rng.normal())}
            if item < 30:
                scores["narrow"] = truth + rng.normal(0, 2)
            rows.append({"item": f"i{item}", "system": system, "ratings": {"quality": [truth]}, "scores": scores})
    return rows


WAYS: list[dict[str, Any]] = [
    {},
    {"test": "bootstrap"},
    {"test": "sign"},
    {"measures": "kendall_b", "group": "none", "test": "permutation", "resample": "both"},
    {"measures": "pearson", "group": "none"},
    {"measures": "pearson", "group": "none", "test": "williams"},
]


@pytest.mark.parametrize("settings", WAYS)
def test_the_winner_is_who_does_better_on_the_outputs_that_both_scored(settings: dict[str, Any]) -> None:
    rows = half_scored()
    result = quick(rows, **settings, marked=["wide", "narrow"])
    wide, narrow = result.figure("wide"), result.figure("narrow")
    assert narrow.value > wide.value
    assert (wide.rank, narrow.rank) == (1, 2)
    assert (wide.mark, narrow.mark) == ("‡", "")
    (pair,) = result.to_dict()["tests"][0]["pairs"]
    assert (pair["first"], pair["second"]) == ("wide", "narrow")
    assert pair["p"] <= 0.05
    # The difference that was tested is that of an evaluation of the shared outputs alone, up to the thresholds.
    alone = quick([row for row in rows if "narrow" in row["scores"]], **settings)
    expected = alone.figure("wide").value - alone.figure("narrow").value
    assert pair["difference"] == pytest.approx(expected, abs=0.15 if "measures" not in settings else 1e-9)
    assert any("order is reversed for wide over narrow (all)" in note for note in result.notes)


def test_advice_trusts_the_winner_on_shared_outputs() -> None:
    result = quick(half_scored())
    (sentence,) = advice(result)
    assert sentence == "On all outputs wide is best with 0.600. It is significantly better than all others."


def test_advice_claims_nothing_of_a_metric_that_was_not_tested() -> None:
    rows = make_rows()
    for number, row in enumerate(rows):
        # The two share no output.
        del row["scores"]["near" if number % 8 < 4 else "far"]
    (sentence,) = advice(quick(rows, metrics=["near", "far"]))
    assert "significantly better" not in sentence
    (sentence,) = advice(quick(rows, metrics=["near", "far", "noise"]))
    assert "It is significantly better than all others that could be tested." in sentence


def test_a_permutation_of_thresholds_is_refused_whatever_the_order_of_the_metrics() -> None:
    rows = make_rows()
    for row in rows:
        row["scores"]["whole"] = 10.0 * np.mean(row["ratings"]["quality"])
    thresholds = {name: quick(rows, group="none", draws=0).figure(name).epsilon for name in ("whole", "far")}
    assert thresholds["whole"] == 0 < thresholds["far"]
    for metrics in (["whole", "far"], ["far", "whole"]):
        with raises_code(RunError, "conflict", "threshold"):
            quick(rows, metrics=metrics, group="none", test="permutation")


def test_whole_items_are_exchanged_at_each_metrics_own_threshold() -> None:
    """Against the accuracies of the items at the thresholds shown, exchanged by numpy."""
    result = quick(metrics=["near", "far"], draws=4000)
    human = np.array([np.mean(row["ratings"]["quality"]) for row in ROWS])
    item = np.array([int(row["item"][1:]) for row in ROWS])
    by_item = []
    for name in ("near", "far"):
        measure, scores = accuracy_at(result.figure(name).epsilon), np.array([row["scores"][name] for row in ROWS])
        by_item.append([measure.value(human[item == i], scores[item == i]) for i in range(24)])
    gaps = np.array(by_item[0]) - by_item[1]
    assert result.tests[0].differences[0, 1] == pytest.approx(gaps.mean())
    assert result.tests[0].differences[1, 0] == pytest.approx(-gaps.mean())
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(100_000, 24))
    counted = np.mean(np.abs(signs @ gaps) >= abs(gaps.sum()) - 1e-9)
    assert result.tests[0].raw[0, 1] == pytest.approx(counted, rel=0.3, abs=1e-3)


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"test": "sign", "measures": "pearson"}, ["test='sign'", "acc_eq", "pearson"]),
        ({"test": "williams"}, ["test='williams'", "acc_eq", "pearson"]),
        ({"test": "sign", "group": "system-level"}, ["test='sign'", "test='bootstrap'"]),
        ({"test": "sign", "group_average": "micro"}, ["test='sign'", "group_average='macro'"]),
        ({"test": "williams", "group": "item", "measures": "pearson"}, ["test='williams'", "group_average='micro'"]),
        ({"test": "williams", "measures": "kendall_b"}, ["test='williams'", "kendall_b"]),
    ],
)
def test_a_test_that_does_not_fit_is_refused_before_anything_is_computed(
    settings: dict[str, Any], values: list[str]
) -> None:
    for draws in (0, 50):
        with raises_code(RunError, "conflict", *values):
            quick(**settings, draws=draws)


def test_few_systems_find_no_difference_between_metrics_that_are_alike() -> None:
    """Counting resampled differences of five systems rejects more than 10 % of such nulls."""
    result = 0
    for trial in range(150):
        rng = np.random.default_rng(trial)
        human, own = rng.normal(size=5), rng.normal(size=(2, 5))
        rows = []
        for item in range(12):
            for system in range(5):
                truth = human[system] + rng.normal()
                noise = 0.7 * own[:, system] + rng.normal(size=2)
                rows.append(
                    {
                        "item": f"i{item}",
                        "system": f"s{system}",
                        "ratings": {"quality": [truth]},
                        "scores": {"one": truth + noise[0], "two": truth + noise[1]},
                    }
                )
        evaluation = quick(rows, measures="pearson", group="none", resample="systems", test="bootstrap", draws=99)
        result += evaluation.tests[0].raw[0, 1] <= 0.05
    assert result <= 9
    assert evaluation.tests[0].how == "paired bootstrap of systems (Student's t)"
    assert any("resampled from only 5 systems (all)" in note for note in evaluation.notes)


def test_the_tails_of_a_permutation_are_disclosed() -> None:
    result = quick()
    assert result.tests[0].how == "permutation of whole items (normal tails)"
    assert not any("resampled from only" in note for note in result.notes)
    assert any("resampled from only 12 items (task=qa)" in note for note in quick(slices="task").notes)


def test_cross_fitting_needs_another_item_to_choose_a_threshold_on() -> None:
    for group, items in (("item", 1), ("none", 1)):
        with raises_code(RunError, "run_failed", "`epsilon_over='crossfit'`", "1"):
            quick(make_rows(items=items), group=group, epsilon_over="crossfit")
    single = [row for row in make_rows(items=2) if row["item"] == "i0" or row["system"] == "a"]
    with raises_code(RunError, "run_failed", "2"):
        quick(single, epsilon_over="crossfit")
    assert quick(make_rows(items=2), epsilon_over="crossfit").figure("near").value >= 0
    # A measure without thresholds has none to fit.
    assert quick(make_rows(items=1), measures="kendall_b", epsilon_over="crossfit", draws=0).figures


def test_power_is_given_in_resampled_units_at_the_corrected_level() -> None:
    (table,) = analyse(quick(resample="systems"), "power")
    assert table.title == "how many systems would separate neighbours"
    assert {str(row[-2]) for row in table.rows} == {"4"}
    assert all("systems" in str(row[-1]) and "items" not in str(row[-1]) for row in table.rows)
    assert "p of at most 0.0083" in table.notes[0]
    (alone,) = analyse(quick(resample="systems", correction="none"), "power")
    assert "p of at most 0.05" in alone.notes[0]


@pytest.mark.parametrize("group", ["none", "item", "system", "task", "system-level"])
def test_an_affine_copy_shares_the_rank_of_its_metric(group: str) -> None:
    rows = [{**row, "scores": {"far": row["scores"]["far"], "copy": 3 * row["scores"]["far"] + 0.1}} for row in ROWS]
    result = quick(rows, measures="pearson", group=group, group_average="micro", test="williams")
    (pair,) = result.to_dict()["tests"][0]["pairs"]
    assert pair["p"] == 1
    assert {row["rank"] for row in result.rows() if row["rank"]} == {1}


def test_williams_within_items_takes_pooled_correlations() -> None:
    result = quick(measures="pearson", group="item", group_average="micro", test="williams")
    assert any("Williams' test within items" in note for note in result.notes)
    assert result.figure("near").rank < result.figure("far").rank < result.figure("noise").rank


@pytest.mark.parametrize("test", [{"test": "williams", "measures": "pearson", "group": "none"}, {"test": "sign"}])
def test_one_sided_tests_have_a_p_value_for_each_direction(test: dict[str, Any]) -> None:
    two, one = quick(**test), quick(**test, one_sided=True)
    both = {(p["first"], p["second"]): p for p in one.to_dict()["tests"][0]["pairs"]}
    for pair in two.to_dict()["tests"][0]["pairs"]:
        forward, back = both[pair["first"], pair["second"]], both[pair["second"], pair["first"]]
        assert forward["difference"] == -back["difference"]
        assert min(forward["p"], back["p"]) == pytest.approx(pair["p"] / 2)
        # Both directions are hypotheses: Holm over twice as many gives the two-sided result again, or a little more.
        assert min(forward["p_adjusted"], back["p_adjusted"]) >= pair["p_adjusted"] - 1e-12
    assert [row["rank"] for row in one.rows()] == [row["rank"] for row in two.rows()]
    assert any("one-sided" in note for note in one.notes)


def test_only_some_tests_can_be_one_sided() -> None:
    with raises_code(RunError, "conflict", "'williams'", "'sign'", "auto"):
        quick(one_sided=True)


def test_a_p_value_near_alpha_is_told_and_exchanges_are_many() -> None:
    (tests,) = quick(draws=100).tests
    assert tests.draws == 1000
    close = float(tests.adjusted[0, 1])
    assert 0.001 < close < 0.999
    note = next(note for note in quick(draws=100, alpha=close * 0.999).notes if note.startswith("Near "))
    assert f"{tests.metrics[0]} and {tests.metrics[1]}" in note
    assert note.endswith("use more draws.")
    far = quick(draws=100, alpha=0.9).notes
    assert not any(f"{tests.metrics[0]} and {tests.metrics[1]}" in note for note in far if note.startswith("Near "))
