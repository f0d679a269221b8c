"""One ε per metric for every row: expected values by trying every threshold on every pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judged_rows import Row, make_rows

from error_codes import raises_code
from metrist.errors import RunError, SpecError
from metrist.evaluate.meta import meta_evaluate
from metrist.evaluate.meta.analyses import analyse
from metrist.evaluate.meta.results import MetaEvaluation
from metrist.evaluate.plans import parse_epsilons

ROWS = make_rows(items=11)


def evaluate(rows: Sequence[Row] = ROWS, **settings: Any) -> MetaEvaluation:
    # A majority of few levels ties often, so that thresholds matter.
    return meta_evaluate(rows, **{"metrics": ["far"], "gold": "majority", "draws": 0, **settings})


def level(row: Row) -> float:
    """The level of most raters, of equal counts the middle of them."""
    ratings = row["ratings"]["quality"]
    counts = [ratings.count(value) for value in ratings]
    return float(np.mean([value for value in set(ratings) if ratings.count(value) == max(counts)]))


Pairs = list[tuple[float, bool, bool]]


def list_pairs(rows: Sequence[Row], group: str | None) -> list[Pairs]:
    """Per group the gap of each pair, whether people tie it, and whether they order it as the metric does."""
    groups: list[Pairs] = []
    for name in dict.fromkeys(row[group] if group else "" for row in rows):
        groups.append([])
        for one, two in combinations([row for row in rows if not group or row[group] == name], 2):
            gap, order = one["scores"]["far"] - two["scores"]["far"], level(one) - level(two)
            groups[-1].append((abs(gap), order == 0, gap * order > 0))
    return [pairs for pairs in groups if pairs]


def share_right(groups: list[Pairs], epsilon: float) -> float:
    """The mean over groups of the share of pairs that are right."""
    shares = [np.mean([tied if gap <= epsilon else ordered for gap, tied, ordered in pairs]) for pairs in groups]
    return float(np.mean(shares)) if shares else math.nan


def accuracy(rows: Sequence[Row], epsilon: float, group: str | None) -> float:
    return share_right(list_pairs(rows, group), epsilon)


def with_value(rows: Sequence[Row], column: str, value: str) -> list[Row]:
    return [row for row in rows if row.get(column) == value]


def best_epsilon(rows: Sequence[Row], column: str, group: str | None) -> float:
    """The smallest threshold with the best mean over the values of a column."""
    values = {row[column] for row in rows if column in row}
    parts = [groups for value in values if (groups := list_pairs(with_value(rows, column, value), group))]
    gaps = {0.0} | {gap for groups in parts for pairs in groups for gap, *_ in pairs}
    means = {epsilon: round(float(np.mean([share_right(own, epsilon) for own in parts])), 12) for epsilon in gaps}
    return max(sorted(gaps), key=lambda epsilon: (means[epsilon], -epsilon))


@pytest.mark.parametrize("group", ["item", "none"])
@pytest.mark.parametrize("slices", [("language", "task"), ("task", "language")])
def test_the_threshold_of_the_first_column_serves_every_row(slices: tuple[str, ...], group: str) -> None:
    inside = "item" if group == "item" else None
    epsilon = best_epsilon(ROWS, slices[0], inside)
    result = evaluate(group=group, slices=slices)
    assert {figure.epsilon for figure in result.figures if figure.metric == "far"} == {epsilon}
    for name in ("all", "task=qa", "task=summary", "language=sv", "language=en"):
        column, _, value = name.partition("=")
        own = with_value(ROWS, column, value) if value else ROWS
        assert result.figure("far", on=name).value == pytest.approx(accuracy(own, epsilon, inside))
    assert f"best for the mean over {slices[0]}, on the same outputs" in "\n".join(result.notes)


def test_thresholds_of_languages_are_those_of_their_tasks_in_all_rows() -> None:
    result = evaluate(group="none", slices=("task", "language"), epsilon_over="language")
    epsilons, shares = {}, []
    for language in ("sv", "en"):
        own = with_value(ROWS, "language", language)
        epsilons[language] = best_epsilon(own, "task", None)
        shares.append(accuracy(own, epsilons[language], None))
        assert result.figure("far", on=f"language={language}").epsilon == epsilons[language]
        assert result.figure("far", on=f"language={language}").value == pytest.approx(shares[-1])
    assert result.figure("far").value == pytest.approx(np.mean(shares))
    assert math.isnan(result.figure("far", on="task=qa").epsilon)
    qa = [
        accuracy(with_value(with_value(ROWS, "task", "qa"), "language", language), epsilon, None)
        for language, epsilon in epsilons.items()
    ]
    assert result.figure("far", on="task=qa").value == pytest.approx(np.mean(qa))


def test_a_column_whose_slices_leave_no_pair_does_not_choose() -> None:
    result = evaluate(slices=("system", "language"))
    assert result.figure("far").epsilon == best_epsilon(ROWS, "language", "item")
    assert math.isnan(result.figure("far", on="system=a").value)
    alone = evaluate(slices="system")
    assert alone.figure("far").epsilon == evaluate().figure("far").epsilon


@pytest.mark.parametrize("settings", [{}, {"resample": "both"}, {"epsilon_over": "language", "group": "none"}])
def test_outputs_without_a_slice_are_judged_at_the_threshold_of_the_others(settings: dict[str, Any]) -> None:
    rows = [{name: value for name, value in row.items() if name != "task" or row["language"] == "en"} for row in ROWS]
    result = evaluate(rows, slices="task", draws=50, **settings)
    row = result.figure("far")
    if not settings:
        epsilon = best_epsilon(rows, "task", "item")
        assert (row.epsilon, row.n) == (epsilon, len(rows))
        assert row.value == pytest.approx(accuracy(rows, epsilon, "item"))
    if "group" in settings:  # Swedish outputs have no task: all of their pairs choose their threshold.
        swedish, english = with_value(rows, "language", "sv"), with_value(rows, "language", "en")
        values = [accuracy(swedish, evaluate(swedish, group="none").figure("far").epsilon, None)]
        values.append(accuracy(english, result.figure("far", on="task=qa").epsilon, None))
        assert row.value == pytest.approx(np.mean(values))
    assert row.low <= row.value <= row.high


# ---- Thresholds that are given

ROWS_OF_TASKS = {"task=qa": with_value(ROWS, "task", "qa"), "task=summary": with_value(ROWS, "task", "summary")}


def test_a_given_threshold_is_used_as_it_is_in_every_row() -> None:
    result = evaluate(slices="task", epsilon={"far": 0.25})
    for name, rows in {"all": ROWS, **ROWS_OF_TASKS}.items():
        figure = result.figure("far", on=name)
        assert (figure.epsilon, figure.value) == (0.25, pytest.approx(accuracy(rows, 0.25, "item")))
    assert "ε of far: given." in result.notes
    assert any(
        note.startswith("ε of (one rater): one per metric, best for the mean over task") for note in result.notes
    )
    mixed = evaluate(metrics=["far", "near"], epsilon={"far": 0.25})
    assert any(note.startswith("ε of near, (one rater): ") for note in mixed.notes)
    assert mixed.figure("near").epsilon == evaluate(metrics=["near"]).figure("near").epsilon


def test_no_optimism_is_subtracted_for_a_given_threshold() -> None:
    chosen = evaluate(draws=100).figure("far")
    given = evaluate(draws=100, epsilon={"far": chosen.epsilon}).figure("far")
    assert given.value == chosen.value
    assert given.low + given.high > chosen.low + chosen.high


@pytest.mark.parametrize("over", ["slice", "crossfit"])
def test_a_given_threshold_is_not_chosen_again_for_slices_and_folds(over: str) -> None:
    result = evaluate(slices="task", epsilon_over=over, epsilon={"far": 0.25})
    for name, rows in {"all": ROWS, **ROWS_OF_TASKS}.items():
        assert result.figure("far", on=name).value == pytest.approx(accuracy(rows, 0.25, "item"))


def test_thresholds_are_given_per_value_of_a_column_and_listed() -> None:
    given = {"far": {"sv": 0.5, "en": 0.1, "fi": 3}}
    result = evaluate(group="none", epsilon_over="language", epsilon=given)
    shares = [accuracy(with_value(ROWS, "language", name), given["far"][name], None) for name in ("sv", "en")]
    assert result.figure("far").value == pytest.approx(np.mean(shares))
    assert "ε for quality by language: far sv 0.5000, en 0.1000." in result.notes


def test_a_note_lists_the_thresholds_of_folds() -> None:
    notes = evaluate(epsilon_over="crossfit").notes
    (listed,) = (note for note in notes if note.startswith("ε for quality by fold: far fold 1 "))
    assert listed.count("fold ") == 5


def test_preferences_are_judged_at_a_given_threshold() -> None:
    rng = np.random.default_rng(3)
    pairs: list[Row] = []
    outputs: list[Row] = []
    right = []
    for item in map(str, range(40)):
        choice, (first, second) = int(rng.integers(3)), rng.normal(size=2).round(2).tolist()
        pairs.append({"item": item, "systems": ["a", "b"], "outputs": ["x", "y"], "ratings": {"better": [choice]}})
        for system, output, value in (("a", "x", first), ("b", "y", second)):
            outputs.append({"item": item, "system": system, "output": output, "scores": {"far": value}})
        right.append(choice == (0 if abs(first - second) <= 0.3 else 1 if first > second else 2))
    result = meta_evaluate([*pairs, *outputs], preferences=True, measures="acc_eq", epsilon={"far": 0.3}, draws=0)
    assert (result.figure("far").epsilon, result.figure("far").value) == (0.3, pytest.approx(np.mean(right)))
    assert "ε: given." in result.notes


def test_thresholds_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "epsilons.toml").write_text("far = 0.25\n\"bertscore(model='x')\" = { en = 0.1, sv = 1 }\n")
    (tmp_path / "epsilons.json").write_text('{"judge": 0}')
    evaluate(metrics=["near"], slices="task", draws=20).write(tmp_path / "meta.json")
    texts = ["noise=.5", *(str(tmp_path / name) for name in ("epsilons.toml", "epsilons.json", "meta.json"))]
    assert parse_epsilons(texts) == {
        "noise": 0.5,
        "far": 0.25,
        "bertscore(model='x')": {"en": 0.1, "sv": 1},
        "judge": 0,
        "near": evaluate(metrics=["near"], slices="task").figure("near").epsilon,
    }
    assert parse_epsilons(["bertscore(model='x')=.5"]) == {"bertscore(model='x')": 0.5}


def test_files_and_texts_without_one_threshold_per_metric_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "meta.json"
    evaluate(slices="task", epsilon_over="slice").write(path)
    with raises_code(RunError, "conflict", "far"):
        parse_epsilons([str(path)])
    evaluate(measures="kendall_b").write(path)
    with raises_code(RunError, "no_data"):
        parse_epsilons([str(path)])
    for texts in (["far"], ["=.5"], ["far=x"], ["far=1", "far=2"]):
        with raises_code(SpecError, "invalid_value"):
            parse_epsilons(texts)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"epsilon": {"fra": 0.1}}, "unknown_name"),
        ({"epsilon": {"far": -1}}, "invalid_value"),
        ({"epsilon": {"far": math.nan}}, "invalid_value"),
        ({"epsilon": {"far": "0.1"}}, "invalid_value"),
        ({"epsilon": {"far": {"en": 0.1}}}, "conflict"),
        ({"epsilon": {"far": {"en": 0.1}}, "epsilon_over": "language"}, "missing_value"),
        ({"epsilon": {"far": {"en": {"x": 1}}}, "epsilon_over": "language"}, "conflict"),
        ({"epsilon": {"far": 0.1}, "measures": "kendall_b"}, "conflict"),
        ({"epsilon": {"far": 0.1}, "group": "system-level"}, "conflict"),
    ],
)
def test_thresholds_that_fit_nothing_are_refused(settings: dict[str, Any], code: str) -> None:
    with raises_code(RunError, code):
        evaluate(**settings)


# ---- Ties


def test_tie_shares_are_those_of_equal_scores_and_at_the_threshold() -> None:
    rows = [{**row, "scores": {"far": round(row["scores"]["far"], 1)}} for row in make_rows(items=20)]
    result = evaluate(rows, slices=("task", "language"), epsilon={"far": 0.5})
    (table,) = analyse(result, "ties")
    epsilon = result.figure("far").epsilon
    shares = []
    for column, value in (("task", "qa"), ("task", "summary"), ("language", "sv"), ("language", "en")):
        gaps = [
            abs(one["scores"]["far"] - two["scores"]["far"])
            for one, two in combinations(with_value(rows, column, value), 2)
        ]
        shares.append([np.mean([gap == 0 for gap in gaps]), np.mean([gap <= epsilon for gap in gaps])])
    (raw, at), (raw_sd, at_sd) = np.mean(shares, axis=0), np.std(shares, axis=0, ddof=1)
    cells = [cell.value for cell in table.rows[1][1:]]
    assert cells == pytest.approx([raw, raw_sd, at, at_sd, epsilon])
    assert 0 < raw < at
    own = analyse(evaluate(slices="task", epsilon_over="slice"), "ties")[0]
    assert own.notes[-1].startswith("ε for quality by slice: far task=qa 0.")
