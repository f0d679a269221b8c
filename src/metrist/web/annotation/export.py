"""Answers as rows: ratings, preferences, errors, or answers of the questionnaire; and as Label Studio's JSON.

Rows have the sampling weight of their task as `sampling_weight`, which `metrist meta` reads. Attention items, skipped
tasks and incomplete answers are left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from metrist.errors import InputError, RunError
from metrist.io.convert.label_studio import format_task, labeling_config
from metrist.io.fields import SAMPLING_WEIGHT
from metrist.io.writer import atomic_write, write_rows
from metrist.web.annotation.answers import Answers, Disputes, give_answer
from metrist.web.annotation.estimates import sampling_weights
from metrist.web.annotation.project import AnnotationTask, record_to_dict
from metrist.web.annotation.schemas import Schema

Format = Literal["rows", "disputes", "label-studio"]
_CHOICES = {"first": 1, "second": 2, "tie": 0}
Row = dict[str, Any]


def export_rows(answers: Answers, *, min_attention: float = 0.0) -> Iterator[Row]:
    """Yield one row per output, pair or (for the questionnaire) answer, with all raters who passed at least this share
    of their attention items. Errors in the outputs of a pair are in a row for each output."""
    project = answers.project
    raters = [rater.name for rater in project.raters if attention_share(answers, rater.name) >= min_attention]
    make: Callable[[Answers, AnnotationTask, list[str]], Iterator[Row]] = {
        "rating": _output_rows,
        "pairwise": _preference_rows,
        "errors": _output_rows,
        "questionnaire": _questionnaire_rows,
    }[project.schema.kind]
    weights = sampling_weights(answers)
    for task in project.sampled_tasks:
        own = [rater for rater in raters if answers.counts(rater, task.id)]
        if own:
            yield from make(answers, replace(task, weight=weights[task.id]), own)


def attention_share(answers: Answers, rater: str) -> float:
    """Return the share of attention items that a rater passed, 1 if there are none."""
    passed, seen = answers.attention(rater)
    return passed / seen if seen else 1.0


def write_export(
    answers: Answers, out: str | os.PathLike[str], form: Format = "rows", *, min_attention: float = 0.0
) -> int:
    """Write the answers, or those that raters dispute, to a file and return the number of rows or tasks."""
    answers.refresh()
    if form == "rows":
        return write_rows(export_rows(answers, min_attention=min_attention), out)
    if form == "disputes":
        return write_rows(export_disputes(answers), out)
    if Path(out).suffix != ".json":
        raise RunError(f"{out}: Label Studio's tasks are one JSON list; name the file .json", code="cannot_write")
    tasks = export_label_studio(answers)
    with atomic_write(out) as file:
        json.dump(tasks, file, ensure_ascii=False, indent=1)
    return len(tasks)


def _output_rows(answers: Answers, task: AnnotationTask, raters: list[str]) -> Iterator[Row]:
    schema = answers.project.schema
    row = {**_describe_texts(task), SAMPLING_WEIGHT: task.weight}
    if schema.questions:
        row["ratings"] = {
            question.name: [answers.find(rater, task.id).values[question.name] for rater in raters]
            for question in schema.questions
        }
    if schema.marks_errors:
        row["errors"] = _list_errors(answers, task, raters)
    yield {**row, "raters": raters, **_notes(answers, task, raters)}


def _list_errors(answers: Answers, task: AnnotationTask, raters: list[str], record: int = 0) -> list[Row]:
    """Return the errors in an output of a task, by rater."""
    return [
        {"rater": rater, **{name: value for name, value in error.items() if name != "record"}}
        for rater in raters
        for error in answers.errors(rater, task.id)
        if error["record"] == record
    ]


def _preference_rows(answers: Answers, task: AnnotationTask, raters: list[str]) -> Iterator[Row]:
    names = [question.name for question in answers.project.schema.questions]
    choices = {name: [_CHOICES[answers.choice(rater, task.id, name) or "tie"] for rater in raters] for name in names}
    row = {**_describe_texts(task), SAMPLING_WEIGHT: task.weight}
    yield {**row, "ratings": choices, "raters": raters, **_notes(answers, task, raters)}
    if answers.project.schema.marks_errors:
        for number, record in enumerate(task.records):
            # Without a weight: the sample is one of pairs.
            yield {**record_to_dict(record), "errors": _list_errors(answers, task, raters, number), "raters": raters}


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


def _describe_texts(task: AnnotationTask) -> Row:
    """Return what a task shows, as the row of one output or of two."""
    row = record_to_dict(task.records[0])
    if len(task.records) == 2:
        del row["system"], row["output"]
        row["systems"] = [record.system for record in task.records]
        row["outputs"] = [record.output for record in task.records]
    return row


def _notes(answers: Answers, task: AnnotationTask, raters: list[str]) -> Row:
    notes = {rater: note for rater in raters if (note := answers.find(rater, task.id).note)}
    return {"rater_notes": notes} if notes else {}


def export_disputes(answers: Answers) -> Iterator[Row]:
    """Yield the tasks that raters answer differently, most disputed first, with each rater's answer."""
    for dispute in Disputes(answers).find():
        task = dispute.task
        texts = _describe_texts(task)
        given = {rater: give_answer(answers, rater, task) for rater in dispute.raters}
        yield {**texts, "disagreement": round(dispute.disagreement, 4), "answers": given}


# ---- Label Studio


def export_label_studio(answers: Answers) -> list[Row]:
    """Return the tasks with all complete answers, for the configuration of `label_studio_config`."""
    project = answers.project
    _check_label_studio(project.schema)
    tasks = []
    weights = sampling_weights(answers)
    names = [question.name for question in project.schema.questions]
    for number, task in enumerate(project.tasks.values(), 1):
        if task.expected is not None:
            continue
        given: dict[str, Row] = {}  # In the words of metrist's rows, which `format_task` turns into results.
        for rater in (rater.name for rater in project.raters if answers.counts(rater.name, task.id)):
            if project.schema.kind == "pairwise":
                given[rater] = {"choices": {name: answers.choice(rater, task.id, name) for name in names}}
            else:
                answer = answers.find(rater, task.id)
                ratings = {name: answer.values[name] for name in names}
                given[rater] = {"ratings": ratings, "errors": list(answer.marks.values())}
        tasks.append(format_task(number, list(map(record_to_dict, task.records)), given, weights[task.id]))
    return tasks


def fits_label_studio(schema: Schema) -> bool:
    """Whether Label Studio has a form for what the schema asks: not for single errors, nor for errors in pairs."""
    return schema.kind != "questionnaire" and not (schema.kind == "pairwise" and schema.marks_errors)


def _check_label_studio(schema: Schema) -> None:
    if not fits_label_studio(schema):
        raise InputError(f"Label Studio has no form for what {schema.name} asks: export rows")


def label_studio_config(answers: Answers) -> str:
    """Return the labeling configuration of the project's schema."""
    schema = answers.project.schema
    _check_label_studio(schema)
    questions = {question.name: tuple(choice.label for choice in question.choices) for question in schema.questions}
    return labeling_config(schema.kind, questions, tuple(schema.aspects or ()), schema.severities)
