"""Figures of agreement: their values by brute force, their words by eye."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judged_rows import Row, drop_fields, make_rows

from error_codes import raises_code
from metrist.errors import ErrorCode, MetristError, RunError
from metrist.evaluate.meta import meta_evaluate
from metrist.evaluate.meta.results import HUMANS

ROWS = make_rows()


def brute_force_accuracy(rows: list[Row], metric: str, epsilon: float) -> float:
    """The mean over items of the share of pairs that are ordered, or tied, as humans do."""
    shares = []
    for item in dict.fromkeys(row["item"] for row in rows):
        group = [row for row in rows if row["item"] == item]
        right = []
        for first, second in combinations(group, 2):
            human = np.sign(np.mean(first["ratings"]["quality"]) - np.mean(second["ratings"]["quality"]))
            gap = first["scores"][metric] - second["scores"][metric]
            right.append(human == (0 if abs(gap) <= epsilon else np.sign(gap)))
        shares.append(np.mean(right))
    return float(np.mean(shares))


def quick(data: Any = ROWS, *arguments: Any, **settings: Any) -> Any:
    return meta_evaluate(data, *arguments, **{"draws": 50, **settings})


def test_calibrated_accuracy_equals_a_search_of_all_thresholds() -> None:
    rows = make_rows(items=6)
    result = quick(rows, metrics=["near", "far"])
    for metric in ("near", "far"):
        by_item = [[row["scores"][metric] for row in rows if row["item"] == f"i{item}"] for item in range(6)]
        gaps = sorted({0.0, *(abs(a - b) for scores in by_item for a, b in combinations(scores, 2))})
        best = max(gaps, key=lambda gap: (brute_force_accuracy(rows, metric, gap), -gap))
        figure = result.figure(metric)
        assert figure.epsilon == best
        assert figure.value == pytest.approx(brute_force_accuracy(rows, metric, best))
        assert figure.low < figure.high


def test_rows_have_every_field_and_json_has_no_nan(tmp_path: Path) -> None:
    result = quick(aspects="quality", slices="task")
    row = result.rows()[0]
    expected = {"metric", "aspect", "measure", "group", "slice", "value", "low", "high", "n", "coverage", "epsilon"}
    assert expected | {"chance", "all_ties"} <= set(row)
    assert "NaN" not in result.to_json()
    result.write(tmp_path / "out.json")
    assert (tmp_path / "out.json").read_text().startswith("{")
    assert len(result.to_pandas()) == len(result.rows())
    assert result.plan.to_dict()["slices"] == ["task"]


def test_an_output_without_a_rating_or_a_score_is_left_out_and_counted() -> None:
    rows = make_rows()
    for row in rows[:4]:
        del row["scores"]["near"]
    rows[10]["ratings"] = {"quality": []}
    result = quick(rows, metrics=["near", "far"])
    near, far = result.figure("near"), result.figure("far")
    assert (near.n, far.n) == (91, 95)
    assert near.coverage == pytest.approx(91 / 95)
    assert far.coverage == 1
    assert "1 of 96 outputs has no quality rating and is left out." in result.notes
    rest = [row for number, row in enumerate(rows) if number >= 4 and number != 10]
    assert near.value == pytest.approx(brute_force_accuracy(rest, "near", near.epsilon))


def test_a_mean_over_slices_notes_those_that_a_metric_lacks() -> None:
    rows = make_rows()
    for row in rows:
        if row["task"] == "qa":
            del row["scores"]["near"]
    result = quick(rows, slices="task", metrics=["near", "far"])
    mean = result.figure("near", on="task: macro mean")
    assert mean.value == result.figure("near", on="task=summary").value
    assert (mean.groups, mean.undefined, mean.coverage) == (1, 1, 0.5)
    assert any("in 1 of 2 slices (task: macro mean, near" in note for note in result.notes)


def test_chance_and_all_ties_are_the_shares_of_human_ties() -> None:
    shares = []
    for item in dict.fromkeys(row["item"] for row in ROWS):
        means = [np.mean(row["ratings"]["quality"]) for row in ROWS if row["item"] == item]
        shares.append(np.mean([a == b for a, b in combinations(means, 2)]))
    figure = quick().figure("far")
    assert figure.all_ties == pytest.approx(np.mean(shares))
    assert figure.chance == pytest.approx((1 - np.mean(shares)) / 2)


def test_slices_average_macro_or_micro() -> None:
    rows = make_rows(items=30)
    macro = quick(rows, measures="kendall_b", metrics=["far"], slices="language")
    micro = quick(rows, measures="kendall_b", metrics=["far"], slices="language", average="micro")
    each = [macro.figure("far", on=f"language={name}").value for name in ("sv", "en")]
    assert macro.figure("far", on="language: macro mean").value == pytest.approx(np.mean(each))
    assert micro.figure("far", on="language: micro mean").value == pytest.approx(macro.figure("far").value)


@pytest.mark.parametrize(
    "settings",
    [
        {"test": "sign"},
        {"test": "bootstrap"},
        {"test": "permutation", "measures": "kendall_b", "group": "none"},
        {"test": "williams", "measures": "pearson", "group": "none"},
        {"measures": "pearson", "group": "none"},
        {"group": "system", "resample": "systems"},
        {"epsilon_over": "crossfit", "test": "sign"},
    ],
)
def test_every_test_distinguishes_the_best_metric_from_noise(settings: dict[str, Any]) -> None:
    tests = quick(**settings, draws=200, metrics=["near", "noise"], correction="none").tests[0]
    assert tests.raw[0, 1] <= 0.2
    assert tests.how != "no tests"


def test_one_rater_is_listed_with_the_metrics_if_raters_are_named() -> None:
    result = quick(measures=["acc_eq", "pearson"], group="none")
    taus = []
    table = np.array([row["ratings"]["quality"] for row in ROWS], dtype=float)
    for rater in range(3):
        others = np.delete(table, rater, axis=1).mean(axis=1)
        taus.append(np.corrcoef(table[:, rater], others)[0, 1])
    assert result.figure(HUMANS, measure="pearson").value == pytest.approx(np.mean(taus))
    assert HUMANS not in result.metrics()
    unnamed = quick(drop_fields(ROWS, "raters"))
    assert all(figure.metric != HUMANS for figure in unnamed.figures)
    assert all(figure.metric != HUMANS for figure in quick(gold="r1").figures)


def test_gold_may_be_one_raters_word() -> None:
    human = [float(row["ratings"]["quality"][1]) for row in ROWS]
    scores = [row["scores"]["far"] for row in ROWS]
    result = quick(gold="r1", measures="pearson", group="none", metrics=["far"]).figure("far")
    assert result.value == pytest.approx(np.corrcoef(human, scores)[0, 1])
    with raises_code(RunError, "unknown_name", "'meen'", "'mean'"):
        quick(gold="meen")
    with raises_code(RunError, "run_failed", "normalised"):
        quick(drop_fields(ROWS, "raters"), gold="z")


def test_a_metric_of_which_lower_is_better_is_turned_round() -> None:
    rows = make_rows()
    for row in rows:
        row["scores"] = {"edits_TER": -row["scores"]["near"], "near": row["scores"]["near"]}
    plain = quick(rows)
    assert plain.figure("edits_TER").value < plain.figure("near").value
    assert any("suggests that lower is better: edits_TER" in note for note in plain.notes)
    turned = quick(rows, lower_is_better="edits_TER")
    assert turned.figure("edits_TER").value == plain.figure("near").value


def test_nearly_constant_ratings_raise_a_warning() -> None:
    rows = make_rows()
    for number, row in enumerate(rows):
        row["ratings"] = {"quality": [5 if number % 30 else 1]}
        row["raters"] = ["r0"]
    result = quick(rows)
    assert any(
        note.startswith("Warning: quality is nearly constant: 96% of the outputs have 5") for note in result.notes
    )
    assert any("calling every pair a tie is right" in note for note in result.notes)


def test_a_constant_vector_is_undefined_and_noted() -> None:
    rows = make_rows()
    for row in rows:
        row["ratings"] = {"quality": [3]}
        row["raters"] = ["r0"]
        row["scores"]["flat"] = 1.0
    result = quick(rows, measures=["kendall_b", "acc_eq"])
    assert math.isnan(result.figure("near", measure="kendall_b").value)
    assert result.figure("flat", measure="acc_eq").value == 1
    assert any(note.startswith("Warning: humans give all outputs the same quality, 3.") for note in result.notes)
    assert any("kendall_b in 24 of 24 groups" in note for note in result.notes)


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        ({"aspects": "qualty"}, "unknown_name", ["'qualty'", "'quality'"]),
        ({"measures": "kendal_b"}, "unknown_name", ["'kendal_b'", "'kendall_b'"]),
        ({"measures": "spa(tie='mid')"}, "unknown_name", ["spa", "'tie'"]),
        ({"measures": "spa(ties='none')"}, "invalid_value", ["spa", "'none'"]),
        ({"metrics": "nere"}, "unknown_name", ["'nere'", "'near'"]),
        ({"slices": "tusk"}, "unknown_name", ["'tusk'", "'task'"]),
        ({"measures": "spaa"}, "unknown_name", ["'spaa'", "'spa'"]),
        ({"group": "itm"}, "invalid_value", ["'itm'", "'item'"]),
        ({"epsilon_over": "crossfitt"}, "invalid_value", ["epsilon_over='crossfitt'", "'crossfit'"]),
        ({"epsilon_over": "langage"}, "unknown_name", ["'langage'", "'language'"]),
        ({"systems": ["a"]}, "too_little_data", [24, 1]),
        ({"systems": ["a"], "group": "system-level"}, "too_little_data", ["'a'"]),
        ({"average": "mikro"}, "invalid_value", ["`average`", "'mikro'", "'micro'"]),
        ({"test": "signs"}, "invalid_value", ["`test`", "'signs'", "'sign'"]),
        ({"confidence": 2}, "invalid_value", ["`confidence`", 2]),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], code: ErrorCode, values: list[object]) -> None:
    with raises_code(MetristError, code, *values):
        quick(**settings)


def test_data_that_lack_one_side_are_named() -> None:
    with raises_code(RunError, "no_data", "scores"):
        quick(drop_fields(ROWS, "scores"))
    with raises_code(RunError, "no_data", "ratings"):
        quick(drop_fields(ROWS, "ratings", "raters"))
    few_rows = make_rows(items=2)
    for row in few_rows:
        row["ratings"]["style"] = [1, 2, 3]
    with raises_code(RunError, "missing_value", "`aspects='quality'`", "`aspects='style'`"):
        quick(few_rows)
    with raises_code(RunError, "unknown_name", "'nearr'"):
        quick(ROWS).figure("nearr")


def test_resamples_never_pair_an_output_with_itself() -> None:
    # Copies are tied by everyone: if they counted, small groups would seem to agree better on resamples.
    result = quick(make_rows(items=15), group="none", draws=400, metrics=["noise"]).figure("noise")
    assert (result.low + result.high) / 2 == pytest.approx(result.value, abs=0.015)


def test_the_same_seed_gives_the_same_figures() -> None:
    assert quick(seed=3).rows() == quick(seed=3).rows()
    assert quick(seed=3).rows() != quick(seed=4).rows()


def test_progress_counts_thresholds_and_figures_of_each_slice() -> None:
    calls: list[tuple[int, int, str]] = []
    meta_evaluate(
        make_rows(),
        measures=["acc_eq", "pearson"],
        slices=["task"],
        draws=10,
        progress=lambda done, total, metric: calls.append((done, total, metric)),
    )
    steps = 3 * 4 * 2  # All outputs and two tasks, four metrics, a threshold and a figure of each.
    calibrated = [done for done, total, title in calls if title == "quality, acc_eq" and total == steps]
    assert calibrated == sorted(calibrated)
    assert set(calibrated) == set(range(steps + 1))
    assert calls[-1] == (steps, steps, "quality, pearson")


def test_soft_pairwise_accuracy_takes_ties_as_a_setting() -> None:
    rows = [{**row, "scores": {"level": round(row["scores"]["near"])}} for row in ROWS]
    names = ["spa", "spa(ties='mid')", "spa(ties='strict')"]
    half, mid, strict = (quick(rows, measures=name, group="system-level").figure("level") for name in names)
    assert half.value == mid.value
    assert strict.value != mid.value
    assert strict.measure == "spa(ties='strict')"
