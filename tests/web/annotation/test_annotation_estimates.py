"""Mean ratings of systems from the answers so far."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import metrist
from annotation_projects import answer_all, make_project, make_rows, open_answers
from error_codes import raises_code
from metrist.errors import SpecError
from metrist.web.annotation.estimates import describe_means, estimate_ratings


def grade(rater: str, task: str) -> int:
    """A grade from 1 to 3 that depends on the task, and a little on the rater."""
    return 1 + (int(task[1:]) * 7 + (rater == "ann")) % 3


def test_means_and_intervals_are_those_of_a_plain_sample_of_the_outputs(tmp_path: Path) -> None:
    """Cochran, Sampling Techniques, 1977, equation 2.21, with Student's t."""
    project = make_project(tmp_path, rows=make_rows(12), raters=["ann", "ben"])
    with open_answers(project) as (answers, click):
        assert {mean.rated for mean in estimate_ratings(answers)} == {0}
        for rater in project.raters:
            for own in rater.assignments[:18]:
                for question in project.schema.questions:
                    click(rater.name, own.task, "set", name=question.name, value=grade(rater.name, own.task))
        numbers = answers.mean_numbers("correctness")
        means = {mean.system: mean for mean in estimate_ratings(answers) if mean.question == "correctness"}
    by_system = defaultdict(list)
    for task, value in numbers.items():
        by_system[project.tasks[task].records[0].system].append(value)
    assert set(by_system) == set(means) == {"a", "b", "c"}
    for system, values in by_system.items():
        mean, count = means[system], len(values)
        assert (mean.value, mean.rated, mean.outputs) == (pytest.approx(np.mean(values)), count, 12)
        # All systems have the probability of an output of any system.
        left = 1 - len(numbers) / 36
        half = stats.t.ppf(0.975, count - 1) * np.sqrt(np.var(values, ddof=1) / count * left)
        assert (mean.low, mean.high) == pytest.approx((mean.value - half, mean.value + half))


def test_scores_of_a_run_narrow_the_intervals(tmp_path: Path) -> None:
    rows = make_rows(40)
    for number, row in enumerate(rows):
        row["output"] = row["output"] + " word" * (number // 3 % 3)
    results = metrist.score(rows, ["length"], out=tmp_path / "run")
    grades = dict(zip(zip(results.items, results.systems, strict=True), results["length"].values, strict=True))
    lowest = min(grades.values())
    widths: list[float] = []
    for name, settings in (("without", {}), ("with", {"run": tmp_path / "run"})):
        (tmp_path / name).mkdir()
        project = make_project(tmp_path / name, "likert", rows=rows, **settings)
        with open_answers(project) as (answers, click):
            for own in project.raters[0].assignments[:60]:
                record = project.tasks[own.task].records[0]
                value = 1 + grades[record.item, record.system] - lowest + int(own.task[1:]) % 2
                click("r1", own.task, "set", name="overall", value=int(value))
            means = estimate_ratings(answers)
            widths.append(sum(mean.high - mean.low for mean in means))
            assert sum(mean.rated for mean in means) == 60
    assert project.metrics == ("length",)
    assert widths[1] < 0.8 * widths[0]
    assert sum(mean.worth for mean in means) > 80


def test_no_estimate_lies_beyond_the_scale(tmp_path: Path) -> None:
    rows = [{**row, "scores": {"m": float(row["item"][1:])}} for row in make_rows(12, ("a", "b"))]
    project = make_project(tmp_path, "likert", rows=rows)
    with open_answers(project) as (answers, click):
        for task in project.sampled_tasks:
            number, system = int(task.item[1:]), task.records[0].system
            if number <= 5:  # The scores predict more than 5 for what `a` wrote after that.
                click("r1", task.id, "set", name="overall", value=5 if system == "a" else number)
        means = {mean.system: mean for mean in estimate_ratings(answers)}
    assert (means["a"].value, means["a"].high) == (5, 5)
    assert 3 < means["b"].value < 5


def test_win_rates_of_pairs_are_those_by_counting(tmp_path: Path) -> None:
    rows = [{**row, "scores": {"m": number % 5}} for number, row in enumerate(make_rows(30))]
    counts: dict[str, list[float]] = {"a": [], "b": [], "c": []}
    widths = []
    for name, chosen in (("without", rows), ("with", [{**row, "system": row["system"]} for row in rows])):
        (tmp_path / name).mkdir()
        own = [{key: value for key, value in row.items() if key != "scores"} for row in chosen]
        project = make_project(tmp_path / name, "pairwise", rows=own if name == "without" else chosen)
        with open_answers(project) as (answers, click):
            for assignment in project.raters[0].assignments[:40]:
                first, second = project.tasks[assignment.task].records
                gap = sum(row["scores"]["m"] for row in rows if row["output"] == first.output)
                gap -= sum(row["scores"]["m"] for row in rows if row["output"] == second.output)
                choice = "tie" if gap == 0 else ("left" if (gap > 0) != assignment.swapped else "right")
                click("r1", assignment.task, "set", name="overall", value=choice)
                if name == "without":
                    counts[first.system].append((1 + np.sign(gap)) / 2)
                    counts[second.system].append((1 - np.sign(gap)) / 2)
            means = {mean.system: mean for mean in estimate_ratings(answers)}
            notes = " ".join(describe_means(answers, list(means.values())))
        widths.append(sum(mean.high - mean.low for mean in means.values()))
        assert ("40 choices give" in notes) == (name == "with")
        if name == "without":
            assert {system: mean.value for system, mean in means.items()} == pytest.approx(
                {system: np.mean(values) for system, values in counts.items()}
            )
            assert {mean.outputs for mean in means.values()} == {60}
    assert widths[1] < 0.7 * widths[0]


def test_scores_come_from_the_rows_and_pairs_have_their_differences(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {**row, "scores": {"near": number, "far": -number}} for number, row in enumerate(make_rows(2))
    ]
    del rows[0]["scores"]["near"]
    project = make_project(tmp_path, "pairwise", rows=rows, metrics=["near"])
    assert project.metrics == ("near",)
    scores = {(task.item, *(own.system for own in task.records)): task.scores for task in project.sampled_tasks}
    assert scores["i1", "a", "b"] == (None,)
    assert scores["i2", "a", "c"] == (-2.0,)
    with open_answers(project) as (answers, _):
        answer_all(project, answers, lambda *_: "tie")
        assert {mean.value for mean in estimate_ratings(answers)} == {0.5}
    (tmp_path / "other").mkdir()
    with raises_code(SpecError, "unknown_name", "nearest"):
        make_project(tmp_path / "other", rows=rows, metrics=["nearest"])
