"""Analyses beside the figures, and the advice that is drawn from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judged_rows import drop_fields, make_rows, write_rows

import metrist
from error_codes import raises_code
from metrist.errors import RunError
from metrist.evaluate.meta import advice, meta_evaluate
from metrist.evaluate.meta.analyses import ANALYSES, PREFERENCE_ANALYSES, analyse
from metrist.evaluate.meta.analyses.metrics import pareto_front
from metrist.ratings import Error
from metrist.report.tables import Count, Number, Table
from metrist.run import Results
from metrist.run.loading import build_stored_metric
from metrist.scores import Score, Scores

ROWS = make_rows()


@pytest.fixture(scope="module")
def evaluation() -> Any:
    return meta_evaluate(ROWS, "quality", slices=["task", "kind"], draws=60, gold="median", group="item")


def cell(table: Table, row: str, column: str) -> Any:
    at = [header.name for header in table.columns].index(column)
    return next(line[at] for line in table.rows if line[0] == row)


def test_every_analysis_is_listed_and_known(evaluation: Any) -> None:
    with raises_code(RunError, "unknown_name", "'matrx'", "'matrix'"):
        analyse(evaluation, "matrx")
    # The others need preferences, errors, run folders, or a closed set of answers.
    for name in set(ANALYSES) - {"label-space", "errors", "reductions", "confusion", "strengths", "cost"}:
        for table in analyse(evaluation, name):
            assert table.text()


def test_bias_is_rank_by_humans_minus_rank_by_metric(evaluation: Any) -> None:
    (table,) = analyse(evaluation, "bias")
    human = {s: np.mean([np.median(r["ratings"]["quality"]) for r in ROWS if r["system"] == s]) for s in "abcd"}
    noise = {s: np.mean([r["scores"]["noise"] for r in ROWS if r["system"] == s]) for s in "abcd"}

    def rank(means: dict[str, float], system: str) -> int:
        return 1 + sum(value > means[system] for value in means.values())

    for system in "abcd":
        assert cell(table, system, "noise").value == rank(human, system) - rank(noise, system)
    groups = [cell(table, f"kind={kind}", "noise").value for kind in ("extractive", "abstractive")]
    assert sum(groups) == pytest.approx(0)


def test_levels_count_how_many_of_each_human_level_the_judge_shares(evaluation: Any) -> None:
    (table,) = analyse(evaluation, "levels")
    pairs = [(np.median(row["ratings"]["quality"]), row["scores"]["judge"]) for row in ROWS]
    fives = [judge for human, judge in pairs if human == 5]
    assert cell(table, "5", "same level").value == pytest.approx(np.mean(np.array(fives) == 5))
    assert cell(table, "5", "n").value == len(fives)


def test_mean_levels_are_listed_with_their_gap(evaluation: Any) -> None:
    (table,) = analyse(evaluation, "systems")
    values = [row["ratings"]["quality"] for row in ROWS]
    low, high = np.min(values), np.max(values)

    def scaled(mean: float) -> float:
        return 100 * (mean - low) / (high - low)

    gaps = []
    for system in "abcd":
        mine = [row for row in ROWS if row["system"] == system]
        human = scaled(np.mean([np.median(row["ratings"]["quality"]) for row in mine]))
        judge = scaled(np.mean([row["scores"]["judge"] for row in mine]))
        assert cell(table, system, "humans").value == pytest.approx(human)
        assert cell(table, system, "judge").value == pytest.approx(judge)
        gaps.append(abs(human - judge))
    assert cell(table, "average gap", "judge").value == pytest.approx(np.mean(gaps))
    no_judge = meta_evaluate(ROWS, metrics=["near"], draws=0)
    with raises_code(RunError, "run_failed", "' scale of '"):
        analyse(no_judge, "systems")


def test_ties_are_averaged_over_slices(evaluation: Any) -> None:
    table = analyse(evaluation, "ties")[0]
    assert cell(table, "(humans)", "raw tie share").value > cell(table, "near", "raw tie share").value


def test_curves_end_where_everything_is_tied(evaluation: Any) -> None:
    (table,) = analyse(evaluation, "curve")
    last = [row for row in table.rows if row[0] == "near"][-1]
    assert last[3].value == 1
    assert last[2].value == pytest.approx(evaluation.figure("near").all_ties)
    by_system = meta_evaluate(ROWS, group="system-level", measures="pearson", draws=0)
    with raises_code(RunError, "invalid_value", "outputs"):
        analyse(by_system, "curve")


def test_the_figures_of_fewer_systems_equal_an_evaluation_of_them(evaluation: Any) -> None:
    table = analyse(evaluation, "top-k")[0]
    alone = meta_evaluate(ROWS, gold="median", top_k=2, draws=0)
    assert cell(table, "near", "top 2").value == alone.figure("near").value
    with raises_code(RunError, "invalid_value", "3", "2"):
        analyse(meta_evaluate(ROWS, systems=["a", "b"], draws=0), "top-k")


def test_an_analysis_of_ratings_is_refused_on_preferences() -> None:
    pairs = [
        {"item": str(i), "systems": ["a", "b"], "outputs": ["x", "y"], "ratings": {"p": 1 + i % 2}, "scores": {"m": 1}}
        for i in range(6)
    ]
    result = meta_evaluate(pairs, preferences=True, draws=20)
    for name in set(ANALYSES) - set(PREFERENCE_ANALYSES):
        with pytest.raises(RunError, match=f"{name} .*preferences"):
            analyse(result, name)
    for name in set(PREFERENCE_ANALYSES) - {"tests", "errors", "cost"}:
        assert analyse(result, name)
    (table,) = analyse(result, "confusion")
    assert [row[3].value for row in table.rows] == [3, 3, 0]
    (strengths,) = analyse(result, "strengths")
    assert [row[2].value for row in strengths.rows] == [0.5, 0.5]
    with raises_code(RunError, "no_data", "preferences"):
        analyse(meta_evaluate(ROWS, draws=0), "confusion")


def test_cost_comes_from_the_run_and_the_front_is_not_dominated(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", drop_fields(ROWS, "scores"))
    metrist.score(path, ["rougeL", "chrf", "length"], out=tmp_path / "run")
    result = meta_evaluate([tmp_path / "run", path], draws=30)
    (table,) = analyse(result, "cost")
    assert {row[0] for row in table.rows} == {"rougeL", "chrf", "length"}
    assert any(row[-1] == "front" for row in table.rows)
    with pytest.raises(RunError, match="no run recorded"):
        analyse(meta_evaluate(ROWS, draws=0), "cost")


def test_the_pareto_front() -> None:
    points = [(0.9, 10.0), (0.8, 1.0), (0.8, 2.0), (0.95, 20.0), (0.1, float("nan"))]
    assert pareto_front(points) == [True, True, False, True, False]


def test_errors_of_a_metric_are_compared_with_those_of_humans() -> None:
    rows = [
        {
            "item": "1",
            "system": "a",
            "output": "x" * 20,
            "ratings": {"mqm": -1},
            "errors": [
                {"start": 0, "end": 10, "category": "c", "severity": "major"},
                {"category": "omission", "severity": "minor"},
            ],
        },
        {"item": "2", "system": "a", "output": "x" * 20, "ratings": {"mqm": 0}},
    ]
    found_error = Error(aspect="c", severity="major", start=5, end=15)
    scores = Scores.of([Score(value=-1.0, errors=(found_error,)), Score(value=0.0)])
    results = Results(
        items=["1", "2"],
        systems=["a", "a"],
        metrics=(build_stored_metric("mine", "", True, scores),),
        scores={"mine": scores},
        signatures={"mine": ""},
    )
    result = meta_evaluate([results, metrist.read_records(rows)], group="none", draws=20)
    (table,) = analyse(result, "errors")
    assert [value.value for value in table.rows[0][2:5]] == [0.5, 0.5, 0.5]
    assert table.notes[1].endswith("are left out: 1 of the humans', 0 of the metric's.")
    (reductions,) = analyse(result, "reductions")
    assert reductions.rows[0][2].value == 0.5


def test_marked_errors_are_ratings_of_the_raters_who_looked() -> None:
    """One rater marked 2, 0 and 1 errors, the other 2 and 1; the third output has only one rater."""
    marks = [{"ann": 2, "ben": 2}, {"ann": 0, "ben": 1}, {"ann": 1}]
    rows = [
        {
            "item": str(number),
            "system": "a",
            "output": "x" * 20,
            "raters": list(counts),
            "errors": [
                {"start": 5 * i, "end": 5 * i + 4, "severity": "major", "rater": rater}
                for rater, count in counts.items()
                for i in range(count)
            ],
            "scores": {"near": -number},
        }
        for number, counts in enumerate(marks)
    ]
    ratings = meta_evaluate(rows, group="none", draws=20).dataset.ratings["errors"]
    assert sorted(zip(ratings.output.tolist(), ratings.rater.tolist(), ratings.value.tolist(), strict=True)) == [
        (0, 0, -2.0),
        (0, 1, -2.0),
        (1, 0, 0.0),
        (1, 1, -1.0),
        (2, 0, -1.0),
    ]
    del rows[0]["raters"], rows[1]["raters"], rows[2]["raters"]
    with raises_code(RunError, "no_data", "raters"):
        meta_evaluate(rows, group="none", draws=20)


def reversed_rows() -> list[Any]:
    """`back` falls as ratings rise on summaries, and rises a little with them on answers."""
    rng = np.random.default_rng(2)
    return [
        {**row, "scores": {"near": row["scores"]["near"], "back": float(rng.normal()) + sign * row["scores"]["near"]}}
        for row in ROWS
        for sign in [-3 if row["task"] == "summary" else 0.5]
    ]


@pytest.mark.parametrize("measure", ["acc_eq", "kendall_b", "pearson", "pair_accuracy"])
@pytest.mark.parametrize("group", ["item", "none"])
def test_a_metric_that_runs_against_people_is_pointed_out(measure: str, group: str) -> None:
    result = meta_evaluate(reversed_rows(), "quality", measure, group=group, slices="task", draws=200)
    marked = {(row["metric"], row["slice"]) for row in result.rows() if row["against"]}
    assert marked == {("back", "all"), ("back", "task=summary")}
    (warning,) = [note for note in result.notes if "runs against people" in note]
    assert warning.startswith("Warning: back ")
    assert "quality on task=summary: " in warning
    assert "lower_is_better=['back']" in warning
    assert "] ↓" in result.table().text()
    message = advice(result)
    assert "Do not use back: it runs against people." in message[0]
    assert "against people" not in message[1]
    turned = meta_evaluate(reversed_rows(), "quality", measure, group=group, lower_is_better="back", draws=200)
    assert not any(row["against"] for row in turned.rows())
    assert "against people" not in "".join(turned.notes)


@pytest.mark.parametrize("measure", ["pair_accuracy", "darr_wmt17"])
def test_a_metric_that_ties_most_outputs_does_not_run_against_people(measure: str) -> None:
    rows = [
        {
            "item": str(n),
            "system": s,
            "output": s,
            "ratings": {"quality": r},
            "scores": {"flat": r if n % 5 == 0 else 1},
        }
        for n in range(40)
        for s, r in (("a", 1), ("b", 2), ("c", 3))
    ]
    (row,) = meta_evaluate(rows, "quality", measure, draws=200).rows()
    assert row["high"] < row["chance"]
    assert not row["against"]


def test_mean_ratings_are_listed_by_slice_with_majorities() -> None:
    result = meta_evaluate(ROWS, "quality", slices="task", metrics=["near", "judge"], draws=200)
    (table,) = analyse(result, "ratings")
    scale = [value for row in ROWS for value in row["ratings"]["quality"]]
    for number, task in enumerate([None, "qa", "summary"]):
        rows = [row for row in ROWS if task in (None, row["task"])]
        human, near, judge = table.rows[3 * number : 3 * number + 3]
        mean = np.mean([np.mean(row["ratings"]["quality"]) for row in rows])
        assert human[1:3] == ["humans", Count(len(rows))]
        assert human[3].value == pytest.approx(mean)
        assert human[3].low < mean < human[3].high
        assert human[4].value == pytest.approx((mean - min(scale)) / (max(scale) - min(scale)))
        # Three raters have a majority unless all three differ.
        assert human[5].value == pytest.approx(np.mean([len(set(row["ratings"]["quality"])) < 3 for row in rows]))
        assert near[3].value == pytest.approx(np.mean([row["scores"]["near"] for row in rows]))
        assert np.isnan(near[4].value)
        assert not np.isnan(judge[4].value)
    alone = meta_evaluate(ROWS, "quality", metrics=(), slices="task", draws=0)
    assert [row[1] for row in analyse(alone, "ratings")[0].rows] == ["humans"] * 3
    turned = meta_evaluate(ROWS, "quality", lower_is_better="quality", draws=200)
    (other,) = analyse(turned, "ratings")
    assert other.rows[0][3].value == pytest.approx(table.rows[0][3].value)
    assert (other.rows[0][3].low, other.rows[0][3].high) == pytest.approx((table.rows[0][3].low, table.rows[0][3].high))


def test_advice_names_the_best_the_level_and_the_floor() -> None:
    message = advice(meta_evaluate(ROWS, "quality", slices="task", draws=200, metrics=["near", "noise"]))
    assert message[0].startswith("On all outputs near is best with 0.")
    assert "It is significantly better than all others." in message[0]
    assert "One rater against the others reaches" in message[0]
    assert message[1].startswith("On task=qa ")
    noise = advice(meta_evaluate(ROWS, "quality", draws=200, metrics=["noise"]))
    assert "no metric is reliably better than" in noise[0] or "no metric reaches .6" in noise[0]


def test_a_metric_whose_interval_lies_apart_is_not_on_a_par_although_no_test_could_tell() -> None:
    result = meta_evaluate(make_rows(items=5), "quality", metrics=["near", "noise"], draws=200)
    near, noise = result.figure("near"), result.figure("noise")
    assert noise.high < near.low
    assert result.tests[0].compare("near", "noise")[1] > 0.05
    (message,) = advice(result)
    assert message.startswith("On all outputs near is best with 0.833. One rater")


def test_a_level_is_reached_as_it_is_shown() -> None:
    result = meta_evaluate(ROWS, "quality", metrics=["near"], draws=200)
    for value, start in ((0.5996, "near is best with 0.600"), (0.5994, "no metric reaches .6: the best is near")):
        figure = replace(result.figure("near"), value=value)
        assert advice(replace(result, figures=(figure,)))[0].startswith(f"On all outputs {start}")


def test_wrong_answers_of_a_closed_set_are_scored_by_their_overlap() -> None:
    """The example of the reliability study: of "B entails A" and its like, two words of three are always shared."""
    answers = ["B entails A", "B contradicts A", "B neutral A"]
    rows = [
        {
            "item": str(item),
            "system": system,
            "task": "1615",
            "output": answers[(item + shift) % 3],
            "references": [answers[item % 3]],
            "ratings": {"correctness": 3 - 2 * shift},
        }
        for item in range(9)
        for shift, system in enumerate(("right", "wrong"))
    ]
    results = metrist.score(rows, ["rougeL", "exact"])
    result = meta_evaluate([results, metrist.read_records(rows)], draws=20)
    (table,) = analyse(result, "label-space")
    ratio = {row[2]: row[-1].value for row in table.rows}
    assert ratio["rougeL"] == pytest.approx(2 / 3)
    assert ratio["exact"] == 0
    (inflation,) = analyse(result, "inflation")
    assert [row[3].value for row in inflation.rows if row[1] == "rougeL"] == [pytest.approx(2 / 3)]


@pytest.mark.parametrize(
    "metric",
    [
        "judge(llm=openai(model='m', url='http://127.0.0.1:9/v1'))",
        "their grades",  # Its scale is unknown: the lowest grade in the data is 1 as well.
    ],
)
def test_inflation_is_counted_from_the_lowest_grade(metric: str) -> None:
    """The scale is 1 to 3: at the lowest rating the mean is 1.5, a quarter of the way."""
    grades = [(1, 1.0), (1, 2.0), (2, 2.0), (3, 3.0), (3, 3.0)]
    rows = [
        {"item": str(n), "system": "s", "output": "x", "ratings": {"q": rating}, "scores": {metric: grade}}
        for n, (rating, grade) in enumerate(grades)
    ]
    (table,) = analyse(meta_evaluate(rows, draws=20, group="none"), "inflation")
    (row,) = table.rows
    assert row[2:5] == ["1 and 3", Number(1.5), Number(3.0)]
    assert row[5].value == pytest.approx(0.25)


def test_inflation_is_counted_from_the_highest_score_where_lower_is_better() -> None:
    rows = [
        {"item": str(n), "system": "s", "output": "x", "ratings": {"q": rating}, "scores": {"ter": score}}
        for n, (rating, score) in enumerate([(1, 100.0), (1, 80.0), (3, 20.0), (3, 40.0)])
    ]
    evaluation = meta_evaluate(rows, draws=20, group="none", lower_is_better=["ter"])
    (table,) = analyse(evaluation, "inflation")
    assert table.rows[0][5].value == pytest.approx(10 / 70)  # 90 and 30, counted down from 100.


def test_a_judge_named_in_a_file_makes_no_llm_call() -> None:
    rows = [
        {"item": str(item), "system": "s", "task": "t", "output": "no", "references": [answer], "ratings": {"q": item}}
        for item, answer in enumerate(["yes", "no"] * 4)
    ]
    judge = "judge(llm=openai(model='m', url='http://127.0.0.1:9/v1'))"
    scored = [{**row, "scores": {judge: n % 3}} for n, row in enumerate(rows)]
    with raises_code(RunError, "invalid_value", "answers"):
        analyse(meta_evaluate(scored, draws=20, group="none"), "label-space")


def test_free_answers_are_no_closed_set(evaluation: Any) -> None:
    with raises_code(RunError, "run_failed", "answers"):
        analyse(evaluation, "label-space")


def test_mean_ranks_are_over_single_slices(evaluation: Any) -> None:
    (table,) = analyse(evaluation, "matrix")
    names = [f"task={t}" for t in ("qa", "summary")] + [f"kind={k}" for k in ("extractive", "abstractive")]
    metrics = evaluation.metrics()
    figures = [{m: evaluation.figure(m, on=name).value for m in metrics} for name in names]
    # Equals share the mean of their places.
    above = [sum(values[m] > values["far"] for m in metrics) for values in figures]
    equal = [sum(values[m] == values["far"] for m in metrics) for values in figures]
    ranks = [more + (same + 1) / 2 for more, same in zip(above, equal, strict=True)]
    assert cell(table, "far", "mean rank").value == pytest.approx(np.mean(ranks))
    (matrix,) = analyse(meta_evaluate(ROWS, "quality", draws=0), "matrix")
    assert sorted(row[-1].value for row in matrix.rows if row[0] != "(one rater)") == [1, 2, 3, 4]


def test_reductions_are_of_the_systems_that_take_part() -> None:
    rows = [{**row, "scores": {"off": -float(row["system"] == "a")}} for row in ROWS]
    (table,) = analyse(meta_evaluate(rows, exclude_systems="a", draws=0), "reductions")
    assert [row[1] for row in table.rows] == ["b", "c", "d"]
    (best,) = analyse(meta_evaluate(rows, top_k=2, draws=0), "reductions")
    assert [row[1] for row in best.rows] == ["c", "d"]


def test_reductions_are_counted_by_slice() -> None:
    """By hand: twelve scores of a system's references in two tasks."""
    scores = {"summ": [0, 0, -1, -1.5, -2, -3], "math": [0, -0.5, -2, -2, -4, -9]}
    rows = [
        {
            "item": f"{task}{n}",
            "system": "gold",
            "output": "x",
            "task": task,
            "ratings": {"q": n},
            "scores": {"off": value},
        }
        for task, values in scores.items()
        for n, value in enumerate(values)
    ]
    (table,) = analyse(meta_evaluate(rows, slices="task", group="none", draws=0), "reductions")
    assert [[row[1], *(cell.value for cell in row[3:])] for row in table.rows] == [
        ["all", 3 / 12, 6 / 12, 5 / 12, 12],
        ["task=summ", 2 / 6, 4 / 6, 3 / 6, 6],
        ["task=math", 1 / 6, 2 / 6, 2 / 6, 6],
    ]


def test_confidence_reaches_every_interval() -> None:
    wide, narrow = (meta_evaluate(ROWS, "quality", gold="median", confidence=c, draws=200) for c in (0.99, 0.5))
    for name in ("levels", "agreement"):
        first, second = (analyse(result, name)[0].rows[2][2] for result in (wide, narrow))
        assert first.high - first.low > second.high - second.low


def test_a_table_says_where_its_intervals_are_over_items_alone() -> None:
    result = meta_evaluate(ROWS, resample="systems", measures="pearson", group="none", draws=20)
    assert analyse(result, "agreement")[0].notes[-1].endswith("items.")
    assert not analyse(meta_evaluate(ROWS, draws=20), "agreement")[0].notes


def test_raters_are_compared_without_any_metric() -> None:
    bare = drop_fields(ROWS, "scores")
    alone = meta_evaluate(bare, metrics=(), draws=50)
    (table,) = analyse(alone, "agreement")
    assert [row[1:] for row in table.rows] == [
        row[1:] for row in analyse(meta_evaluate(ROWS, draws=50), "agreement")[0].rows
    ]
    twice = meta_evaluate([*drop_fields(bare, "raters"), *drop_fields(bare, "raters")], metrics=(), draws=0)
    assert any("more than one row" in note for note in analyse(twice, "agreement")[0].notes)
    with raises_code(RunError, "unknown_name", "'qualty'"):
        meta_evaluate(bare, "qualty", metrics=())
    with raises_code(RunError, "run_failed", "agreement"):
        analyse(alone, "bias")
    (best,) = analyse(meta_evaluate(bare, metrics=(), top_k=2, draws=0), "agreement")
    assert best.rows[0][3].value == len(ROWS) // 2
