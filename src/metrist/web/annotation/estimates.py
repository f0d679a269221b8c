"""Which tasks come next, and what the answers so far say of all outputs.

Tasks come in random order until some are rated, then first those whose rating tells most. The first ratings show how
far ratings lie from what the scores of metrics predict, and where they lie furthest. Each open task gets a size from
that and a random priority, and raters see the tasks in the order of their priorities. However far they get, the
probability of each rated task is known, so that weighted means estimate those of all tasks.

The estimates are mean ratings of systems, or the shares of choices that they win, over all outputs, or pairs, that the
project was made from. Metrics' scores, which all tasks of the project have, make the intervals narrower; people's
answers alone decide where the means lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrist.report.cells import or_none
from metrist.stats import Codes, Floats
from metrist.stats.survey import (
    Design,
    draw_priorities,
    estimate_means,
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
    for name, task_id in project.assigned:
        raters_of[task_id] = (*raters_of.get(task_id, ()), name)
    groups: dict[tuple[str, ...], int] = {}
    chances = {
        tasks[place].id: Chance(size, priority, groups.setdefault(raters_of[tasks[place].id], len(groups)))
        for place, size, priority in zip(places, sizes.tolist(), draw_priorities(sizes, rng).tolist(), strict=True)
    }
    orders = {}
    for rater in project.raters:  # Those done, the open ones by priority, and last those that others have rated.
        own = [assignment.task for assignment in rater.assignments]
        done = [task for task in own if answers.is_complete(rater.name, task)]
        left = [task for task in own if not answers.is_complete(rater.name, task)]
        checks = [task for task in left if project.tasks[task].expected is not None]
        ranked = [task for task in left if project.tasks[task].expected is None]
        ranked.sort(key=lambda task: chances[task].priority if task in chances else math.inf)
        orders[rater.name] = done + insert_checks(ranked, checks, rng)
    answers.project = write_order(project, answers.store, chances, orders)


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


# ---- Means


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRating:
    """A system's estimated mean answer to a question; of choices, its win rate. `worth` is how many of its outputs, or
    pairs, rated in random order and without scores of metrics, would give as narrow an interval."""

    question: str
    system: str
    value: float
    low: float
    high: float
    worth: float
    rated: int
    outputs: int

    def to_dict(self) -> dict[str, Any]:
        """The estimate as plain data; NaN is None."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: or_none(value) if isinstance(value, float) else value for name, value in values.items()}


def estimate_ratings(answers: Answers) -> list[MeanRating]:
    """Return the mean rating, or the win rate, of each system by each question."""
    project, tasks = answers.project, answers.project.sampled_tasks
    if project.schema.kind == "questionnaire":
        return []
    # A pair is an entry of either system, with the sign of its choice and of its scores.
    entries = [(at, own, -1 if side else 1) for at, task in enumerate(tasks) for side, own in enumerate(task.records)]
    places = np.array([at for at, _, _ in entries])
    sign = np.array([sign for _, _, sign in entries])
    names, system = np.unique([record.system for _, record, _ in entries], return_inverse=True)
    before = np.array([task.weight for task in tasks])[places]
    scores = sign[:, None] * stack_scores(project)[places]
    population = np.zeros((len(names), scores.shape[1]))
    np.add.at(population, system, before[:, None] * scores)
    population /= np.bincount(system, before)[:, None]
    outputs = np.bincount(system).tolist()
    scales = {question.name: [choice.value for choice in question.choices] for question in project.schema.questions}
    found = []
    for question in answers.question_names:
        if project.schema.kind == "pairwise" and question == ERRORS:
            continue
        numbers = answers.mean_numbers(question)
        rated = np.array([at for at, task in enumerate(tasks) if task.id in numbers], np.intp)
        weights = np.full((2, len(tasks)), np.nan)
        weights[:, rated] = weigh_tasks(answers, tasks, rated)
        known = np.isin(places, rated)
        values = np.array([numbers[tasks[at].id] for at in places[known]])
        if project.schema.kind == "pairwise":
            values = (1 + sign[known] * values) / 2
        weight, variance = weights[:, places[known]]
        design = Design.of(weight, variance, before[known])
        means = estimate_means(values, system[known], design, scores[known], population)
        counts = np.bincount(system[known], minlength=len(names)).tolist()
        scale = [0.0, 1.0] if project.schema.kind == "pairwise" else scales.get(question, [0.0, math.inf])
        # What scores predict may lie beyond the scale, where no mean does.
        value, low, high = np.clip([means.value, means.low, means.high], min(scale), max(scale))
        found += [
            MeanRating(
                question=question,
                system=str(name),
                value=float(value[code]),
                low=float(low[code]),
                high=float(high[code]),
                worth=float(means.worth[code]),
                rated=counts[code],
                outputs=outputs[code],
            )
            for code, name in enumerate(names)
        ]
    return found


def describe_means(answers: Answers, means: Sequence[MeanRating]) -> list[str]:
    """Return notes on the means, with the order of the tasks and what it and the scores of metrics save."""
    # A choice counts for both systems of its pair.
    pairs = answers.project.schema.kind == "pairwise"
    what, unit, share = ("Shares of all pairs won", "choices", 0.5) if pairs else ("Means of all outputs", "ratings", 1)
    notes = [f"{what}, with 95 % intervals, as far as they can be told from those rated so far."]
    if answers.project.chances:
        notes.append(f"After {FIRST_TASKS} tasks, those come first whose rating tells most; means account for it.")
    elif answers.project.order == "informative" and len(answers.project.sampled_tasks) > FIRST_TASKS:
        notes.append(f"Tasks come in random order until {FIRST_TASKS} are rated.")
    known = [mean for mean in means if math.isfinite(mean.worth)]
    rated = share * sum(mean.rated for mean in known)
    worth = share * sum(mean.worth for mean in known)
    if worth > rated:
        plain = f"about {worth:,.0f} in random order without scores of metrics"
        notes.append(f"{rated:,.0f} {unit} give intervals as narrow as {plain} do.")
    return notes
