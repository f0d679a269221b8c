"""What raters dispute: the tasks that they answer differently, most disputed first.

The disagreement about a question is the mean distance of two raters' answers, from 0 to 1: of grades, their difference
as a share of the scale; of choices, 1 between the two sides and half of it to a tie; of errors, the share of the marked
characters that only one of the two marked (one minus Dice's coefficient). That about a task is that of the question
about which its raters disagree most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from metrist.errors import format_count
from metrist.stats.error_spans import compare_marks
from metrist.web.annotation.answers import ERRORS, Answers
from metrist.web.annotation.project import AnnotationTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispute:
    """A task with the raters who answered it differently, and the disagreement about each question."""

    task: AnnotationTask
    raters: tuple[str, ...]
    by_question: dict[str, float]

    @property
    def disagreement(self) -> float:
        return max(self.by_question.values())


class Disputes:
    """The disputes of a project. A task is looked at again only after a click on it: the owner's page asks often."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        #: By task, how many clicks it had when it was looked at, and what was found.
        self._found: dict[str, tuple[int, Dispute | None]] = {}

    def find(self) -> list[Dispute]:
        """Return the tasks about which raters disagree, most disputed first, without attention items."""
        found = []
        for task in self.answers.project.tasks.values():
            clicks, dispute = self._found.get(task.id, (0, None))
            if self.answers.clicks_of[task.id] != clicks:
                dispute = self._compare(task)
                self._found[task.id] = self.answers.clicks_of[task.id], dispute
            if dispute is not None:
                found.append(dispute)
        # Python's sort is stable: those that are disputed equally stay in the order of the tasks.
        return sorted(found, key=lambda own: (-own.disagreement, -sum(own.by_question.values())))

    def _compare(self, task: AnnotationTask) -> Dispute | None:
        answers = self.answers
        raters = tuple(rater.name for rater in answers.project.raters if answers.counts(rater.name, task.id))
        if task.expected is not None or len(raters) < 2:
            return None
        disagreement = _disagree(answers, task, raters)
        return Dispute(task=task, raters=raters, by_question=disagreement) if any(disagreement.values()) else None


def give_answer(answers: Answers, rater: str, task: AnnotationTask) -> dict[str, Any]:
    """Return a rater's answer: `values` by question, choices as the system's name, then errors and remark, if any."""
    schema, answer = answers.project.schema, answers.find(rater, task.id)
    values = {name: answer.values[name] for name in schema.question_names(len(task.errors))}
    if schema.kind == "pairwise":
        systems = {"first": task.records[0].system, "second": task.records[1].system}
        values = {name: systems.get(answers.choice(rater, task.id, name) or "", "tie") for name in values}
    given: dict[str, Any] = {"values": values} if values else {}
    if schema.marks_errors:
        errors = answers.errors(rater, task.id)
        given["errors"] = [{**error, "system": task.records[error["record"]].system} for error in errors]
    return {**given, "note": answer.note} if answer.note else given


def describe_dispute(answers: Answers, dispute: Dispute) -> str:
    """Return in one line who answered what to the questions that raters disagree about."""
    given = {rater: give_answer(answers, rater, dispute.task) for rater in dispute.raters}
    lines = []
    for name, disagreement in dispute.by_question.items():
        if disagreement:
            said = (
                f"{rater} {_describe_value(own['errors'] if name == ERRORS else own['values'][name])}"
                for rater, own in given.items()
            )
            lines.append(f"{name}: {', '.join(said)}")
    return "; ".join(lines)


def _describe_value(value: Any) -> str:
    if isinstance(value, list):
        return format_count(len(value), "error")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _disagree(answers: Answers, task: AnnotationTask, raters: Sequence[str]) -> dict[str, float]:
    """Return the disagreement about each question of a task."""
    schema, found = answers.project.schema, {}
    for name in schema.question_names(len(task.errors)):
        question = schema.question(name, len(task.errors))
        grades = [float(own.value) for own in question.choices if not isinstance(own.value, str)] if question else []
        width = max(grades) - min(grades) if grades else 2.0  # From -1, the second output, to 1, the first.
        values = [(answers.number(rater, task.id, name) or 0.0) / width for rater in raters]
        found[name] = _mean_distance(values, lambda one, other: abs(one - other))
    if schema.marks_errors:
        found[ERRORS] = _mean_distance([_mark(answers, rater, task) for rater in raters], compare_marks)
    return found


def _mean_distance(values: Sequence[Any], distance: Callable[[Any, Any], float]) -> float:
    pairs = list(combinations(values, 2))
    return sum(distance(one, other) for one, other in pairs) / len(pairs)


def _mark(answers: Answers, rater: str, task: AnnotationTask) -> Counter[Hashable]:
    marked = Counter[Hashable]()
    for error in answers.errors(rater, task.id):
        marked[error["record"], error["side"]] |= (1 << error["end"]) - (1 << error["start"])
    return marked
