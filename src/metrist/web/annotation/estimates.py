"""Mean ratings of systems, or the shares of choices that they win, estimated from what raters have answered so far.

They are means over all outputs, or pairs, that the project was made from. Metrics' scores, which all tasks of the
project have, make the intervals narrower; people's answers alone decide where the means lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrist.report.cells import or_none
from metrist.stats.survey import Design, estimate_means
from metrist.web.annotation.answers import ERRORS, Answers
from metrist.web.annotation.informative import FIRST_TASKS, stack_scores, weigh_tasks


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
