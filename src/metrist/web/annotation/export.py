"""Answers as rows: ratings, preferences, errors, or answers of the questionnaire; and as Label Studio's JSON.

Rows have the sampling weight of their task as `sampling_weight`, which `metrist meta` reads. Attention items, skipped
tasks and incomplete answers are left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from metrist.errors import InputError, RunError
from metrist.io.convert.label_studio import format_task, labeling_config
from metrist.io.fields import SAMPLING_WEIGHT
from metrist.io.writer import atomic_write, write_rows
from metrist.records import Record
from metrist.web.annotation.answers import Answers
from metrist.web.annotation.project import AnnotationTask, record_to_dict

Format = Literal["rows", "label-studio"]
_CHOICES = {"first": 1, "second": 2, "tie": 0}
Row = dict[str, Any]


def export_rows(answers: Answers, *, min_attention: float = 0.0) -> Iterator[Row]:
    """Yield one row per output, pair or (for the questionnaire) answer, with all raters who passed at least this share
    of their attention items."""
    project = answers.project
    raters = [rater.name for rater in project.raters if attention_share(answers, rater.name) >= min_attention]
    make: Callable[[Answers, AnnotationTask, list[str]], Iterator[Row]] = {
        "rating": _rating_rows,
        "pairwise": _preference_rows,
        "errors": _error_rows,
        "questionnaire": _questionnaire_rows,
    }[project.schema.kind]
    for task in project.tasks.values():
        if task.expected is None:
            own = [rater for rater in raters if _counts(answers, rater, task)]
            if own:
                yield from make(answers, task, own)


def attention_share(answers: Answers, rater: str) -> float:
    """Return the share of attention items that a rater passed, 1 if there are none."""
    passed, seen = answers.attention(rater)
    return passed / seen if seen else 1.0


def write_export(
    answers: Answers, out: str | os.PathLike[str], form: Format = "rows", *, min_attention: float = 0.0
) -> int:
    """Write the answers to a file and return the number of rows or Label Studio tasks."""
    answers.refresh()
    if form == "rows":
        return write_rows(export_rows(answers, min_attention=min_attention), out)
    if Path(out).suffix != ".json":
        raise RunError(f"{out}: Label Studio's tasks are one JSON list; name the file .json", code="cannot_write")
    tasks = export_label_studio(answers)
    with atomic_write(out) as file:
        json.dump(tasks, file, ensure_ascii=False, indent=1)
    return len(tasks)


def _counts(answers: Answers, rater: str, task: AnnotationTask) -> bool:
    if (rater, task.id) not in answers.project.assigned:
        return False
    return answers.is_complete(rater, task.id) and not answers.find(rater, task.id).skipped


def _rating_rows(answers: Answers, task: AnnotationTask, raters: list[str]) -> Iterator[Row]:
    names = [question.name for question in answers.project.schema.questions]
    values = {name: [answers.find(rater, task.id).values[name] for rater in raters] for name in names}
    yield {**_describe(task, task.records[0]), "ratings": values, "raters": raters, **_notes(answers, task, raters)}


def _preference_rows(answers: Answers, task: AnnotationTask, raters: list[str]) -> Iterator[Row]:
    row = _describe(task, task.records[0])
    first, second = task.records
    row.pop("system"), row.pop("output")
    names = [question.name for question in answers.project.schema.questions]
    choices = {name: [_CHOICES[answers.choice(rater, task.id, name) or "tie"] for rater in raters] for name in names}
    yield {
        **row,
        "systems": [first.system, second.system],
        "outputs": [first.output, second.output],
        "ratings": choices,
        "raters": raters,
        **_notes(answers, task, raters),
    }


def _error_rows(answers: Answers, task: AnnotationTask, raters: list[str]) -> Iterator[Row]:
    record = task.records[0]
    texts = {"output": record.output, "source": record.source or ""}
    errors = [
        {
            "rater": rater,
            "aspect": mark["aspect"],
            "severity": mark["severity"],
            "start": mark["start"],
            "end": mark["end"],
            "side": mark["side"],
            "text": texts[mark["side"]][mark["start"] : mark["end"]],
            "explanation": mark["note"],
        }
        for rater in raters
        for mark in sorted(
            answers.find(rater, task.id).marks.values(), key=lambda mark: (mark["side"], mark["start"], mark["end"])
        )
    ]
    yield {**_describe(task, record), "errors": errors, "raters": raters, **_notes(answers, task, raters)}


def _questionnaire_rows(answers: Answers, task: AnnotationTask, raters: list[str]) -> Iterator[Row]:
    record = task.records[0]
    for rater in raters:
        values = answers.find(rater, task.id).values
        row: Row = {"item": record.item, "system": record.system, "rater": rater}
        if record.task is not None:
            row["task"] = record.task
        row["errors"] = [values[f"error:{number}"] for number in range(len(task.errors))]
        row |= {question.name: int(values[question.name]) for question in answers.project.schema.questions}
        yield {**row, SAMPLING_WEIGHT: task.weight}


def _describe(task: AnnotationTask, record: Record) -> Row:
    return {**record_to_dict(record), SAMPLING_WEIGHT: task.weight}


def _notes(answers: Answers, task: AnnotationTask, raters: list[str]) -> Row:
    notes = {rater: note for rater in raters if (note := answers.find(rater, task.id).note)}
    return {"rater_notes": notes} if notes else {}


# ---- Label Studio


def export_label_studio(answers: Answers) -> list[Row]:
    """Return the tasks with all complete answers, as Label Studio imports them under the labeling configuration of
    `label_studio_config`."""
    project = answers.project
    if project.schema.kind == "questionnaire":
        raise InputError("the questionnaire asks about each listed error, which Label Studio has no form for")
    tasks = []
    for number, task in enumerate(project.tasks.values(), 1):
        if task.expected is None:
            given = {
                rater.name: _label_studio_answer(answers, rater.name, task)
                for rater in project.raters
                if _counts(answers, rater.name, task)
            }
            tasks.append(format_task(number, [record_to_dict(r) for r in task.records], given, task.weight))
    return tasks


def label_studio_config(answers: Answers) -> str:
    """Return the labeling configuration of the project's schema."""
    schema = answers.project.schema
    questions: Mapping[str, tuple[str, ...]] = {
        question.name: tuple(choice.label for choice in question.choices) for question in schema.questions
    }
    return labeling_config(schema.kind, questions, tuple(schema.aspects or ()), schema.severities)


def _label_studio_answer(answers: Answers, rater: str, task: AnnotationTask) -> Row:
    """Return an answer in the words of metrist's rows, which `format_task` turns into Label Studio's results."""
    answer, schema = answers.find(rater, task.id), answers.project.schema
    if schema.kind == "errors":
        return {"errors": list(answer.marks.values())}
    if schema.kind == "pairwise":
        return {"choices": {q.name: answers.choice(rater, task.id, q.name) for q in schema.questions}}
    return {"ratings": {question.name: answer.values[question.name] for question in schema.questions}}
