"""Mean ratings of systems, estimated from what raters have answered so far.

They are means over all outputs that the project was made from. Metrics' scores, which all outputs of the project have,
make the intervals narrower; ratings alone decide where the means lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrist.report.cells import or_none
from metrist.stats.survey import Design, estimate_means
from metrist.web.annotation.answers import Answers
from metrist.web.annotation.informative import FIRST_TASKS, stack_scores, weigh_tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRating:
    """A system's estimated mean answer to a question. `worth` is how many of its outputs, rated in random order and
    without scores of metrics, would give as narrow an interval."""

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
    """Return the mean rating of each system by each question; none where raters choose between outputs."""
    project = answers.project
    if project.schema.kind not in ("rating", "errors"):
        return []
    tasks = project.sampled_tasks
    names = sorted({task.records[0].system for task in tasks})
    codes = {name: code for code, name in enumerate(names)}
    system = np.array([codes[task.records[0].system] for task in tasks])
    before = np.array([task.weight for task in tasks])
    scores = stack_scores(tasks)
    population = np.zeros((len(names), scores.shape[1]))
    np.add.at(population, system, before[:, None] * scores)
    population /= np.bincount(system, before)[:, None]
    outputs = np.bincount(system).tolist()
    found = []
    for question in answers.question_names:
        numbers = answers.mean_numbers(question)
        rated = np.array([at for at, task in enumerate(tasks) if task.id in numbers], np.intp)
        values = np.array([numbers[tasks[at].id] for at in rated])
        design = Design.of(*weigh_tasks(answers, tasks, rated), before[rated])
        means = estimate_means(values, system[rated], design, scores[rated], population)
        counts = np.bincount(system[rated], minlength=len(names)).tolist()
        found += [
            MeanRating(
                question=question,
                system=name,
                value=float(means.value[code]),
                low=float(means.low[code]),
                high=float(means.high[code]),
                worth=float(means.worth[code]),
                rated=counts[code],
                outputs=outputs[code],
            )
            for code, name in enumerate(names)
        ]
    return found


def describe_means(answers: Answers, means: Sequence[MeanRating]) -> list[str]:
    """Return notes on the means, with the order of the tasks and what it and the scores of metrics save."""
    notes = ["Means of all outputs, with 95 % intervals, as far as they can be told from those rated so far."]
    if answers.project.chances:
        notes.append(f"After {FIRST_TASKS} tasks, those come first whose rating tells most; means account for it.")
    elif answers.project.order == "informative":
        notes.append(f"Tasks come in random order until {FIRST_TASKS} are rated.")
    known = [mean for mean in means if math.isfinite(mean.worth)]
    rated, worth = (sum(getattr(mean, name) for mean in known) for name in ("rated", "worth"))
    if worth > rated:
        plain = f"about {worth:,.0f} in random order without scores of metrics"
        notes.append(f"{rated:,} ratings give intervals as narrow as {plain} do.")
    return notes
