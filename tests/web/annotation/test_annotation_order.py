"""The order of tasks by what their ratings tell, and weights that undo it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import metrist
from annotation_projects import clicker, make_project, make_rows, open_answers
from error_codes import raises_code
from metrist.errors import InputError
from metrist.io.writer import write_rows
from metrist.stats.survey import draw_priorities
from metrist.web.annotation import estimates
from metrist.web.annotation.answers import Answers
from metrist.web.annotation.estimates import (
    describe_means,
    estimate_ratings,
    order_open_tasks,
    sampling_weights,
    weigh_tasks,
)
from metrist.web.annotation.export import export_rows
from metrist.web.annotation.project import Chance, Project, open_project


@pytest.fixture(autouse=True)
def few_first_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "FIRST_TASKS", 20)


def make_scored_rows(items: int, systems: tuple[str, ...] = ("a", "b")) -> list[dict[str, Any]]:
    """Rows with a score that says how good an output is; `grade` spreads more where it is low."""
    rng = np.random.default_rng(items)
    rows = make_rows(items, systems)
    return [{**row, "scores": {"m": float(score)}} for row, score in zip(rows, rng.normal(size=len(rows)), strict=True)]


def grade(project: Project, task: str) -> int:
    (score,) = project.tasks[task].scores
    assert score is not None
    spread = 0 if score > 0.5 else (int(task[1:]) * 7) % 3 - 1
    return min(5, max(1, round(3 + score) + spread))


def rate_next(answers: Answers, click: Any, rater: str, count: int) -> list[str]:
    """Rate the next tasks of a rater as the page does, and return them."""
    rated: list[str] = []
    while len(rated) < count:
        own = answers.project.raters_by_name[rater].assignments
        task = next(own.task for own in own if not answers.is_complete(rater, own.task))
        for question in answers.project.schema.questions:
            value: Any = grade(answers.project, task) if answers.project.schema.kind == "rating" else "left"
            click(rater, task, "set", name=question.name, value=value)
        order_open_tasks(answers)
        rated.append(task)
    return rated


def test_tasks_come_by_what_they_tell_once_enough_are_rated(tmp_path: Path) -> None:
    rows = make_scored_rows(100)
    project = make_project(tmp_path, "likert", rows=rows, order="informative", raters=["ann"])
    with open_answers(project) as (answers, click):
        rate_next(answers, click, "ann", 19)
        assert not answers.project.chances
        rate_next(answers, click, "ann", 61)
        chances = answers.project.chances
        assert len(chances) == 180
        order = [own.task for own in answers.project.raters[0].assignments]
        priorities = [chances[task].priority for task in order[20:]]
        assert priorities == sorted(priorities)
        assert open_project(project.folder) == answers.project
        # Of the outputs that come next, more are bad ones, whose ratings spread.
        scores = np.array([project.tasks[task].scores[0] for task in order[20:]], np.float64)
        assert scores[:60].mean() < scores.mean() - 0.1
        # An order that is there stays.
        order_open_tasks(answers)
        assert answers.project.chances == chances
        notes = " ".join(describe_means(answers, estimate_ratings(answers)))
        assert "come first" in notes


def test_the_weights_of_all_ratings_are_exact_when_everything_is_rated(tmp_path: Path) -> None:
    rows = make_scored_rows(30)
    project = make_project(tmp_path, "likert", rows=rows, order="informative", raters=2, overlap=1)
    with open_answers(project) as (answers, click):
        rate_next(answers, click, "r1", 30)
        rate_next(answers, click, "r2", 30)
        assert answers.project.chances
        assert set(sampling_weights(answers).values()) == {1.0}
        assert len({chance.group for chance in answers.project.chances.values()}) == 2
        means = estimate_ratings(answers)
    for mean in means:
        own = [grade(project, task.id) for task in project.sampled_tasks if task.records[0].system == mean.system]
        assert (mean.value, mean.low, mean.high) == pytest.approx([np.mean(own)] * 3)


def test_weights_are_unbiased_wherever_raters_stop(tmp_path: Path) -> None:
    """Totals over many orders against those of all outputs: of two raters, one stops early or has not begun. Means, if
    one leaves out some tasks and rates others out of order."""
    project = make_project(tmp_path, "likert", rows=make_scored_rows(40), order="informative")
    tasks = project.sampled_tasks
    grades = np.array([grade(project, task.id) for task in tasks])
    rng = np.random.default_rng(0)
    sizes = np.where(grades < 3, 2.0, 0.5)
    for done, stray in (((15, 4), 0), ((20, 0), 0), ((15, 4), 3)):
        totals, means = [], []
        for _ in range(600):
            order = rng.permutation(80)
            priorities = draw_priorities(sizes, rng)
            chances = {
                tasks[place].id: Chance(float(sizes[place]), float(priorities[place]), number % 2)
                for number, place in enumerate(order[20:])
            }
            complete = {tasks[place].id for place in order[:20]}
            for group, count in enumerate(done):
                own = sorted((chance.priority, task) for task, chance in chances.items() if chance.group == group)
                complete |= {own[number][1] for number in rng.permutation(count)[min(stray, 2) :]}
            complete |= {tasks[place].id for place in rng.permutation(80)[:stray]}
            rated = np.array([place for place, task in enumerate(tasks) if task.id in complete])
            stub: Any = SimpleNamespace(project=replace(project, chances=chances), complete_tasks=complete.copy)
            weights, _ = weigh_tasks(stub, tasks, rated)
            totals.append(weights @ grades[rated])
            means.append(totals[-1] / weights.sum())
        if stray:
            assert np.mean(means) == pytest.approx(grades.mean(), rel=0.03)
        else:
            assert abs(np.mean(totals) - grades.sum()) < 4 * np.std(totals) / len(totals) ** 0.5


def test_a_rater_who_comes_later_gets_open_tasks_in_their_order(tmp_path: Path) -> None:
    project = make_project(
        tmp_path, "likert", rows=make_scored_rows(40), order="informative", raters=["ann", "ben"], overlap=1
    )
    with open_answers(project) as (answers, click):
        early = answers.add_rater("early", 10)
        assert len({project.tasks[own.task].item for own in early.assignments}) > 5
        rate_next(answers, click, "ann", 24)
        before = sampling_weights(answers)
        zoe = answers.add_rater("zoe", 12)
        ranks = [answers.project.rank(own.task) for own in zoe.assignments]
        assert ranks == sorted(ranks)
        assert not answers.complete_tasks() & {own.task for own in zoe.assignments}
        assert sampling_weights(answers) == before
        rate_next(answers, clicker(answers.project, answers), "zoe", 12)
        weights = sampling_weights(answers)
        assert sum(weights[task] for task in answers.complete_tasks()) == pytest.approx(80, rel=0.5)


def test_pairs_and_attention_items_are_ordered_too(tmp_path: Path) -> None:
    rows = make_scored_rows(30, ("a", "b", "c"))
    checks = [{"item": "x", "systems": ["a", "b"], "outputs": ["one", "two"], "ratings": {"overall": 1}}]
    write_rows(iter(checks), tmp_path / "checks.jsonl")
    project = make_project(
        tmp_path, "pairwise", rows=rows, order="informative", attention=[str(tmp_path / "checks.jsonl")]
    )
    with open_answers(project) as (answers, click):
        rate_next(answers, click, "r1", 25)
        assert answers.project.chances
        before, after = project.raters[0].assignments, answers.project.raters[0].assignments
        assert {own.task: own.swapped for own in before} == {own.task: own.swapped for own in after}
        exported = list(export_rows(answers))
    assert len({row["sampling_weight"] for row in exported}) > 1
    board = metrist.leaderboard(exported, draws=0)
    assert any("sampling_weight" in note for note in board.notes)


def test_scores_are_needed(tmp_path: Path) -> None:
    with raises_code(InputError, "missing_value", "`run`"):
        make_project(tmp_path, order="informative")
