"""Compute from the clicks of a project each rater's answer to each task, progress, agreement, attention and disputes.

Clicks are applied in the order of the log, those that were taken back left out:

    set     {"name": question, "value": answer or null}
    mark    {"id": …, "start": …, "end": …, "side": …, "aspect": …, "severity": …, "note": …}   add or change an error
    unmark  {"id": …}
    note    {"text": …}                                                                           a remark on the task
    done    {"value": true or false}     the rater has marked all errors
    skip    {"value": true or false}     the rater cannot judge this
    undo    {"target": id of a click}

An answer to a task that was skipped ends the skipping. The side of a mark is output or source, or left or right of a
pair, as the rater saw it.

The disagreement about a question is the mean distance of two raters' answers, from 0 to 1: of grades, their difference
as a share of the scale; of choices, 1 between the two sides and half of it to a tie; of errors, the share of the marked
characters that only one of the two marked (one minus Dice's coefficient). That about a task is that of the question
about which its raters disagree most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from metrist.errors import InputError, RunError, format_count
from metrist.stats.agreement import agreement
from metrist.stats.error_spans import compare_marks
from metrist.stats.gold import Ratings
from metrist.web.annotation.project import (
    PROJECT,
    AnnotationTask,
    Project,
    Rater,
    append_rater,
    check_names,
    choose_tasks,
    open_project,
)
from metrist.web.annotation.schemas import LEFT, RIGHT, TIE, normalise
from metrist.web.annotation.store import Click, ClickStore

MAX_NOTE = 10_000
#: What alpha says, for those who read it seldom (Krippendorff, Content Analysis, 2004, names the two limits).
ALPHA_NOTE = (
    "Alpha is 1 if raters always agree and 0 if they agree as often as by chance; with less than .8 conclusions are "
    "tentative, with less than .667 there is little to conclude."
)
#: What a click of each kind has, and the longest texts in it.
_CONTENTS = {
    "set": {"name", "value"},
    "mark": {"id", "start", "end", "side", "aspect", "severity", "note"},
    "unmark": {"id"},
    "note": {"text"},
    "done": {"value"},
    "skip": {"value"},
}
_LONGEST = {"name": 1000, "aspect": 1000, "id": 64, "text": MAX_NOTE, "note": MAX_NOTE}
#: The name of the number of errors, among those of questions.
ERRORS = "errors"
#: An answer to a pair as a number, for agreement.
_SIGNS = {"first": 1.0, "second": -1.0, "tie": 0.0}


@dataclass(slots=True)
class TaskAnswer:
    """One rater's answer to one task so far. `values` has an entry per answered question."""

    values: dict[str, Any] = field(default_factory=dict)
    marks: dict[str, dict[str, Any]] = field(default_factory=dict)
    note: str = ""
    done: bool = False
    skipped: bool = False

    def apply(self, click: Click) -> None:
        content = click.content
        if click.kind in ("set", "mark", "done"):
            self.skipped = False
        match click.kind:
            case "set" if content["value"] is None:
                self.values.pop(content["name"], None)
            case "set":
                self.values[content["name"]] = normalise(content["value"])
            case "mark":
                self.marks[content["id"]] = content
            case "unmark":
                self.marks.pop(content["id"], None)
            case "note":
                self.note = content["text"]
            case "done":
                self.done = content["value"]
            case "skip":
                self.skipped = content["value"]

    def to_dict(self) -> dict[str, Any]:
        return {
            "values": self.values,
            "marks": list(self.marks.values()),
            "note": self.note,
            "done": self.done,
            "skipped": self.skipped,
        }


def check_click(project: Project, click: Click) -> None:
    """Raise InputError unless the click is one that the rater may make."""
    task = project.tasks.get(click.task)
    if task is None or (click.rater, click.task) not in project.assigned:
        raise InputError(f"the rater has no task {click.task!r:.40}", code="unknown_name")
    content = click.content
    if click.kind not in _CONTENTS:
        raise InputError(f"there is no click of the kind {click.kind!r:.40}", code="unknown_name")
    if set(content) != _CONTENTS[click.kind]:
        raise InputError(f"a click of this kind has {', '.join(_CONTENTS[click.kind])}", code="invalid_value")
    for name in content.keys() & _LONGEST.keys():
        if not isinstance(content[name], str) or len(content[name]) > _LONGEST[name]:
            raise InputError(f"{name} must be a text of at most {_LONGEST[name]} characters", code="invalid_value")
    if click.kind == "mark":
        schema = project.schema
        if not schema.marks_errors:
            raise InputError("this schema marks no errors")
        if content["aspect"] not in (schema.aspects or {}):
            raise InputError(f"there is no aspect {content['aspect']!r:.40}", code="unknown_name")
        if content["severity"] not in schema.severities:
            raise InputError(f"there is no severity {content['severity']!r:.40}")
        texts = project.markable_texts(click.rater, click.task)
        text = texts.get(str(content["side"]))
        if text is None:
            raise InputError(f"an error is in one of: {', '.join(texts)}", code="invalid_value")
        start, end = content["start"], content["end"]
        if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(text):
            raise InputError(f"an error lies within the {len(text)} characters of its text")
    elif click.kind == "set":
        question = project.schema.question(content["name"], len(task.errors))
        if question is None:
            raise InputError(f"there is no question {content['name']!r:.40}", code="unknown_name")
        if content["value"] is not None and not question.accepts(normalise(content["value"])):
            raise InputError(f"{content['value']!r:.40} is no answer to {content['name']!r:.40}", code="invalid_value")
    elif click.kind in ("done", "skip") and not isinstance(content["value"], bool):
        raise InputError(f"{click.kind} is true or false")


class Answers:
    """All answers of a project, kept up to date with its log. Not safe for threads: use one lock around it."""

    def __init__(self, project: Project, store: ClickStore) -> None:
        self.project = project
        self.store = store
        self._last = 0
        #: By rater and task, the clicks that were not taken back.
        self._clicks: dict[tuple[str, str], list[Click]] = {}
        self._live: Counter[str] = Counter()
        self.last_times: dict[str, float] = {}
        #: How many clicks there were on each task.
        self.clicks_of: Counter[str] = Counter()
        self._answers: dict[tuple[str, str], TaskAnswer] = {}
        self._stamp = _stamp_project(project)

    def refresh_project(self) -> None:
        """Open the project again if its file is another: somebody was added."""
        stamp = _stamp_project(self.project)
        if stamp is not None and stamp != self._stamp:
            self._stamp = stamp
            with suppress(RunError):  # A damaged file must not interrupt the raters.
                self.project = open_project(self.project.folder)

    def add_rater(self, name: str, count: int | None = None) -> Rater:
        """Add a rater with whole items of about `count` tasks, those with the fewest complete answers first."""
        self.refresh()
        project = self.project
        check_names([*project.raters_by_name, name])
        complete = Counter(task for rater, task in project.assigned if self.counts(rater, task))
        rng = np.random.default_rng([project.seed, len(project.raters)])
        assignments = choose_tasks(project, complete, count, rng)
        self.project = append_rater(project, self.store, name, assignments)
        return self.project.raters_by_name[name]

    def refresh(self) -> None:
        """Read the clicks that are new in the log, and raters who were added, also by other processes."""
        self.refresh_project()
        for click in self.store.read(self._last):
            self._last = click.number
            self.last_times[click.rater] = click.time
            self.clicks_of[click.task] += 1
            key = click.rater, click.task
            if click.kind != "undo":
                self._live[click.rater] += 1
                self._clicks.setdefault(key, []).append(click)
                self._answers.setdefault(key, TaskAnswer()).apply(click)
                continue
            self._live[click.rater] -= 1
            kept = [own for own in self._clicks.get(key, ()) if own.id != click.content["target"]]
            self._clicks[key], self._answers[key] = kept, TaskAnswer()
            for own in kept:
                self._answers[key].apply(own)

    def find(self, rater: str, task: str) -> TaskAnswer:
        """Return a rater's answer to a task, an empty one if there is none."""
        return self._answers.get((rater, task)) or TaskAnswer()

    def can_undo(self, rater: str) -> bool:
        """Whether the rater has a click to take back."""
        return self._live[rater] > 0

    def is_complete(self, rater: str, task_id: str) -> bool:
        """Whether the rater has answered all questions of the task, or skipped it."""
        answer, schema = self.find(rater, task_id), self.project.schema
        if answer.skipped:
            return True
        names = schema.question_names(len(self.project.tasks[task_id].errors))
        return all(name in answer.values for name in names) and (answer.done or not schema.marks_errors)

    def counts(self, rater: str, task_id: str) -> bool:
        """Whether the rater's answer to a task is complete, and not skipped."""
        own = (rater, task_id) in self.project.assigned
        return own and self.is_complete(rater, task_id) and not self.find(rater, task_id).skipped

    def progress(self, rater: str) -> tuple[int, int]:
        """Return how many of a rater's tasks are complete, and how many there are."""
        assigned = self.project.raters_by_name[rater].assignments
        return sum(self.is_complete(rater, own.task) for own in assigned), len(assigned)

    def choice(self, rater: str, task: str, name: str) -> str | None:
        """Return a rater's choice between the outputs of a task in the task's order: first, second or tie."""
        value = self.find(rater, task).values.get(name)
        if value is None or value == TIE:
            return value
        swapped = self.project.assigned[rater, task].swapped
        return "first" if (value == LEFT) != swapped else "second"

    def errors(self, rater: str, task_id: str) -> list[dict[str, Any]]:
        """Return the errors that a rater marked, by their places, and which `record` of the task each is in."""
        texts = self.project.markable_texts(rater, task_id)
        swapped = self.project.assigned[rater, task_id].swapped
        places = {LEFT: (int(swapped), "output"), RIGHT: (int(not swapped), "output")}
        found = []
        for mark in self.find(rater, task_id).marks.values():
            record, side = places.get(mark["side"], (0, mark["side"]))
            start, end = mark["start"], mark["end"]
            error = {name: mark[name] for name in ("aspect", "severity", "start", "end")}
            text = texts[mark["side"]][start:end]
            found.append({**error, "side": side, "text": text, "explanation": mark["note"], "record": record})
        return sorted(found, key=lambda error: (error["record"], error["side"], error["start"], error["end"]))

    def passes(self, rater: str, task: AnnotationTask) -> bool | None:
        """Return whether a rater's answer to an attention item is the expected one; None if it is not complete."""
        if task.expected is None or not self.is_complete(rater, task.id):
            return None
        values, spans = task.expected.get("values", {}), task.expected.get("spans")
        given = self.find(rater, task.id).values
        if self.project.schema.kind == "pairwise":
            given = {name: self.choice(rater, task.id, name) for name in values}
        if any(given.get(name) != value for name, value in values.items()):
            return False
        if spans is None:
            return True
        marks = [(e["start"], e["end"]) for e in self.errors(rater, task.id) if e["side"] == "output"]
        if not spans or not marks:
            return not spans and not marks
        return all(any(start < last and first < end for start, end in marks) for first, last in spans)

    def attention(self, rater: str) -> tuple[int, int]:
        """Return how many attention items a rater passed, and how many are complete."""
        assigned = self.project.raters_by_name[rater].assignments
        results = [self.passes(rater, self.project.tasks[own.task]) for own in assigned]
        return results.count(True), len(results) - results.count(None)

    def agreement(self) -> list[dict[str, Any]]:
        """Return Krippendorff's alpha for each question, and for the number of errors marked."""
        schema, tasks = self.project.schema, self.project.tasks
        numbers = {task: number for number, task in enumerate(tasks)}
        found = []
        for name in self.question_names:
            rows = [
                (numbers[own.task], code, value)
                for code, rater in enumerate(self.project.raters)
                for own in rater.assignments
                if tasks[own.task].expected is None and (value := self.number(rater.name, own.task, name)) is not None
            ]
            output, rater_codes, values = np.array(rows, np.float64).reshape(-1, 3).T
            ratings = Ratings.of(output.astype(np.intp), rater_codes.astype(np.intp), values, len(tasks))
            scale = "alpha_nominal" if schema.kind == "pairwise" and name != ERRORS else "alpha_ordinal"
            (result,) = agreement(ratings, [scale], 0, np.random.default_rng(0))
            found.append(
                {
                    "name": name,
                    "scale": scale.removeprefix("alpha_"),
                    "alpha": None if math.isnan(result.value) else result.value,
                    "tasks": result.outputs,
                    "failure": result.failure,
                }
            )
        return found

    @property
    def question_names(self) -> list[str]:
        """The names of the questions, and of the number of errors where errors are marked."""
        schema = self.project.schema
        return [*(question.name for question in schema.questions), *([ERRORS] if schema.marks_errors else [])]

    def complete_tasks(self) -> set[str]:
        """Return the tasks that some rater has completed or skipped."""
        return {task for rater, task in self._answers if self.is_complete(rater, task)}

    def mean_numbers(self, name: str) -> dict[str, float]:
        """Return the mean over raters of their answers to a question as numbers, by task, without attention items."""
        numbers: dict[str, list[float]] = {}
        for rater, task in self._answers:
            if self.project.tasks[task].expected is None and self.counts(rater, task):
                value = self.number(rater, task, name)
                numbers.setdefault(task, []).extend([] if value is None else [value])
        return {task: sum(values) / len(values) for task, values in numbers.items() if values}

    def number(self, rater: str, task: str, name: str) -> float | None:
        """Return an answer as a number, None if there is none: the grade, the number of errors, or, of a pair, 1 for
        the first output, -1 for the second, 0 for a tie. `list_units` puts that of the system whose name comes first in
        the alphabet first, so that a pair has one direction, as in `metrist meta`."""
        answer = self.find(rater, task)
        if answer.skipped:
            return None
        if name == ERRORS and self.project.schema.marks_errors:
            return float(len(answer.marks)) if answer.done else None
        if self.project.schema.kind != "pairwise":
            value = answer.values.get(name)
            return None if value is None else float(value)
        return _SIGNS.get(self.choice(rater, task, name) or "")


def _stamp_project(project: Project) -> tuple[int, int, int] | None:
    """A cheap fingerprint that changes when the file of a project is written again; None if it is gone."""
    try:
        status = (project.folder / PROJECT).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


# ---- Disputes


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
        schema = answers.project.schema
        raters = tuple(rater.name for rater in answers.project.raters if answers.counts(rater.name, task.id))
        if task.expected is not None or len(raters) < 2:
            return None
        found = {}
        for name in schema.question_names(len(task.errors)):
            question = schema.question(name, len(task.errors))
            choices = question.choices if question else ()
            grades = [float(choice.value) for choice in choices if not isinstance(choice.value, str)]
            width = max(grades) - min(grades) if grades else 2.0  # From -1, the second output, to 1, the first.
            values = [(answers.number(rater, task.id, name) or 0.0) / width for rater in raters]
            found[name] = _mean_distance(values, lambda one, other: abs(one - other))
        if schema.marks_errors:
            marks = []
            for rater in raters:
                marked = Counter[Hashable]()
                for error in answers.errors(rater, task.id):
                    marked[error["record"], error["side"]] |= (1 << error["end"]) - (1 << error["start"])
                marks.append(marked)
            found[ERRORS] = _mean_distance(marks, compare_marks)
        return Dispute(task=task, raters=raters, by_question=found) if any(found.values()) else None


def _mean_distance(values: Sequence[Any], distance: Callable[[Any, Any], float]) -> float:
    pairs = list(combinations(values, 2))
    return sum(distance(one, other) for one, other in pairs) / len(pairs)


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
            said = []
            for rater, own in given.items():
                value = format_count(len(own["errors"]), "error") if name == ERRORS else own["values"][name]
                said.append(f"{rater} {value:g}" if isinstance(value, float) else f"{rater} {value}")
            lines.append(f"{name}: {', '.join(said)}")
    return "; ".join(lines)
