"""Which tasks come next: random ones until some are rated, then first those whose rating tells most.

The first ratings show how far ratings lie from what the scores of metrics predict, and where they lie furthest. Each
open task gets a size from that and a random priority, and raters see the tasks in the order of their priorities.
However far they get, the probability of each rated task is known, so that weighted means estimate those of all tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from metrist.stats import Codes, Floats
from metrist.stats.survey import (
    draw_priorities,
    predict_residuals,
    probabilities_before,
    standardize_columns,
    weigh_phases,
)
from metrist.web.annotation.answers import ERRORS, Answers
from metrist.web.annotation.project import AnnotationTask, Chance, Project, insert_checks, write_order

#: As many tasks are rated in random order first.
FIRST_TASKS = 100


def order_open_tasks(answers: Answers) -> None:
    """Order the open tasks of a project by what their ratings tell, once enough are rated."""
    project = answers.project
    if project.order != "informative" or project.chances:
        return
    numbers = {name: answers.mean_numbers(name) for name in answers.question_names}
    if min(map(len, numbers.values())) < FIRST_TASKS:
        return
    tasks = project.sampled_tasks
    scores = stack_scores(project)
    squares = np.zeros(len(tasks))
    for name, known in numbers.items():
        values = np.array([known.get(task.id, math.nan) for task in tasks])
        signed = project.schema.kind == "pairwise" and name != ERRORS
        squares += predict_residuals(values, scores, signed=signed) ** 2
    complete = answers.complete_tasks()
    places = [place for place, task in enumerate(tasks) if task.id not in complete]
    sizes = np.sqrt(squares[places])
    rng = np.random.default_rng([project.seed, len(tasks)])
    raters_of: dict[str, tuple[str, ...]] = {}
    for rater, task_id in project.assigned:
        raters_of[task_id] = (*raters_of.get(task_id, ()), rater)
    groups: dict[tuple[str, ...], int] = {}
    chances = {
        tasks[place].id: Chance(size, priority, groups.setdefault(raters_of[tasks[place].id], len(groups)))
        for place, size, priority in zip(places, sizes.tolist(), draw_priorities(sizes, rng).tolist(), strict=True)
    }
    orders = {rater.name: _order_assignments(answers, rater.name, chances, rng) for rater in project.raters}
    answers.project = write_order(project, answers.store, chances, orders)


def _order_assignments(
    answers: Answers, rater: str, chances: Mapping[str, Chance], rng: np.random.Generator
) -> list[str]:
    """Return a rater's tasks: those done, then the open ones by priority with attention items in between, and last
    those that others have rated."""
    tasks = answers.project.tasks
    own = [assignment.task for assignment in answers.project.raters_by_name[rater].assignments]
    done = [task for task in own if answers.is_complete(rater, task)]
    left = [task for task in own if not answers.is_complete(rater, task)]
    checks = [task for task in left if tasks[task].expected is not None]
    ranked = [task for task in left if tasks[task].expected is None]
    ranked.sort(key=lambda task: chances[task].priority if task in chances else math.inf)
    return done + insert_checks(ranked, checks, rng)


def stack_scores(project: Project) -> Floats:
    """Return the standard scores of a project's tasks, a row each."""
    scores = np.array([task.scores for task in project.sampled_tasks], np.float64)
    return standardize_columns(scores, signed=project.schema.kind == "pairwise")


# ---- Weights


def weigh_tasks(answers: Answers, tasks: Sequence[AnnotationTask], rated: Codes) -> tuple[Floats, Floats]:
    """Return the weights and variances (see `Design`) of the tasks that are rated, among all. Tasks that were rated out
    of order have a weight of 0."""
    chances = answers.project.chances
    probabilities = _find_probabilities(answers)
    is_first = np.array([tasks[place].id not in chances for place in rated], np.bool_)
    is_later = np.array([tasks[place].id in probabilities for place in rated], np.bool_)
    probability = np.array([probabilities[tasks[place].id] for place in rated[is_later]])
    of_first, of_later = weigh_phases(len(tasks), max(1, int(is_first.sum())), probability)
    found = np.zeros((2, len(rated)))
    found[:, is_first] = np.array(of_first)[:, None]
    found[:, is_later] = of_later
    return found[0], found[1]


def sampling_weights(answers: Answers) -> dict[str, float]:
    """Return how many outputs or pairs each task that somebody completed stands for; those that were rated out of order
    stand for themselves."""
    weights = {task.id: task.weight for task in answers.project.tasks.values()}
    if answers.project.chances:
        tasks, complete = answers.project.sampled_tasks, answers.complete_tasks()
        rated = np.array([place for place, task in enumerate(tasks) if task.id in complete], np.intp)
        for place, weight in zip(rated, weigh_tasks(answers, tasks, rated)[0].tolist(), strict=True):
            weights[tasks[place].id] *= weight or 1.0
    return weights


def _find_probabilities(answers: Answers) -> dict[str, float]:
    """Return the probability of each task that came in the order of priorities, as far as raters got.

    Tasks with the same raters were dealt to them at random, before anything was known of them, and have an order of
    their own. It is left after the last complete task up to which at least half are complete; open ones before it are
    taken to be like the others. Groups in which nothing is complete yet are a random part of all.
    """
    chances, complete = answers.project.chances, answers.complete_tasks()
    groups: dict[int, list[str]] = {}
    for task in sorted(chances, key=lambda task: chances[task].priority):
        groups.setdefault(chances[task].group, []).append(task)
    found: dict[str, float] = {}
    seen = 0
    for ordered in groups.values():
        places = np.flatnonzero([task in complete for task in ordered])
        ends = 1 + places[2 * np.arange(1, len(places) + 1) > places]
        if len(ends):
            seen += len(ordered)
            before, after = ordered[: ends[-1]], ordered[ends[-1] :]
            limit = chances[after[0]].priority if after else math.inf
            sizes = np.array([chances[task].size for task in before])
            answered = np.searchsorted(places, ends[-1]) / len(before)
            found |= zip(before, (answered * probabilities_before(limit, sizes)).tolist(), strict=True)
    return {task: probability * seen / len(chances) for task, probability in found.items()}
