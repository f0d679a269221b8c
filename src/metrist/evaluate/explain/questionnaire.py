"""What people say about error analyses: the questionnaire of the TIGERScore paper (Tables 16 and 17) and its results
(Table 5).

A row of answers is what one rater says about the analysis of one output:

    {"item": "7", "system": "a", "task": "summarization", "rater": "r1",
     "errors": [true, false], "overlooked": 3, "revision": 4, "overall": 4}

`errors` has one answer per listed error, whether it is reasonable; the others are levels of `questionnaire.toml`, a
higher one being better. An answer may be left out.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from metrist.errors import InputError, format_count
from metrist.io.fields import rename_rows
from metrist.io.row_model import RowError
from metrist.io.rows import open_source
from metrist.io.table_rows import Cells, parse_cells
from metrist.report.tables import Table, name_columns
from metrist.stats.resampling import pooled_interval

#: The row of all tasks.
TOTAL = "Total"
_DRAWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A question with a level as its answer; from `positive` on an answer is a good one."""

    name: str
    question: str
    levels: Mapping[int, str]
    positive: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Questionnaire:
    """The question about each error, its two answers, and the questions about the whole analysis."""

    errors: str
    reasonable: str
    unreasonable: str
    scales: tuple[Scale, ...]

    def schema(self) -> dict[str, Any]:
        """The JSON schema of a row of answers."""
        properties: dict[str, Any] = {name: {"type": "string"} for name in ("item", "system", "task", "rater")}
        properties["errors"] = {"type": "array", "items": {"type": "boolean"}, "description": self.errors}
        for scale in self.scales:
            choices = [{"const": level, "description": text} for level, text in sorted(scale.levels.items())]
            properties[scale.name] = {"description": scale.question, "oneOf": choices}
        return {"type": "object", "properties": properties, "required": ["item", "system"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionnaireAnswers:
    """One rater's answers about the analysis of one output."""

    item: str
    system: str
    task: str | None = None
    rater: str | None = None
    errors: tuple[bool, ...] = ()
    levels: Mapping[str, int] = field(default_factory=dict)


@cache
def load_questionnaire() -> Questionnaire:
    """Load the questions."""
    text = (resources.files("metrist.evaluate.explain") / "questionnaire.toml").read_text(encoding="utf-8")
    content = tomllib.loads(text)
    scales = [
        Scale(
            name=row["name"],
            question=row["question"],
            levels={int(level): words for level, words in row["levels"].items()},
            positive=row["positive"],
        )
        for row in content["scales"]
    ]
    errors = content["errors"]
    return Questionnaire(
        errors=errors["question"], reasonable=errors["true"], unreasonable=errors["false"], scales=tuple(scales)
    )


def read_answers(
    paths: Iterable[str | os.PathLike[str]], fields: Mapping[str, str] | None = None
) -> list[QuestionnaireAnswers]:
    """Read files of answers; InputError with the line of whatever is wrong. A rater answers once about an
    output. `fields` maps fields to columns of another name."""
    answers: list[QuestionnaireAnswers] = []
    places: dict[tuple[str, str, str], str] = {}
    for path in paths:
        source = open_source(path)
        for line, row in rename_rows(source.read(), fields or {}, source.name):
            place = str(source.location(line))
            try:
                if isinstance(row, RowError):
                    raise row
                own = _parse_answers(parse_cells(row) if type(row) is Cells else row)
            except RowError as fault:
                raise InputError(f"{place}: {fault}", code="invalid_row") from None
            if own.rater is not None:
                key = own.item, own.system, own.rater
                if key in places:
                    raise InputError(
                        f"{place}: rater {own.rater!r} has answered about system {own.system!r} of item {own.item!r} "
                        f"before, at {places[key]}",
                        code="invalid_row",
                    )
                places[key] = place
            answers.append(own)
    if not answers:
        raise InputError("the files have no answers", code="no_data")
    return answers


def _parse_answers(row: Any) -> QuestionnaireAnswers:
    if not isinstance(row, Mapping):
        raise RowError(f"expected an object with the answers of a rater, got {type(row).__name__}")
    names: dict[str, Any] = {}
    for name in ("item", "system", "task", "rater"):
        value = row.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
            raise RowError(f"{name!r} must be a text, got {value!r:.40}")
        if value is None and name in ("item", "system"):
            raise RowError(f"lacks {name!r}: which output is the analysis about?")
        names[name] = None if value is None else str(value)
    errors = row.get("errors")
    errors = [] if errors is None else errors
    if not isinstance(errors, list) or not all(isinstance(answer, bool) for answer in errors):
        raise RowError(f"'errors' must be a list of true and false, one per listed error, got {errors!r:.60}")
    levels = {}
    for scale in load_questionnaire().scales:
        value = row.get(scale.name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value not in scale.levels:
            low, high = min(scale.levels), max(scale.levels)
            raise RowError(f"{scale.name!r} must be a whole number from {low} to {high}, got {value!r:.40}")
        levels[scale.name] = value
    if not errors and not levels:
        expected = ", ".join(("errors", *(scale.name for scale in load_questionnaire().scales)))
        raise RowError(f"has no answers; expected some of {expected}")
    return QuestionnaireAnswers(**names, errors=tuple(errors), levels=levels)


# ---- Results


def tabulate_answers(answers: Sequence[QuestionnaireAnswers]) -> Table:
    """Count the answers by task, as Table 5 of the TIGERScore paper: errors whose explanation is right and others, then
    how often each level was given."""
    scales = load_questionnaire().scales
    names = ["explanation error: no", "explanation error: yes"]
    names += [f"{scale.name} {level}" for scale in scales for level in sorted(scale.levels)]
    groups = _group_by_task(answers)
    rows: list[list[Any]] = []
    for task, own in groups.items():
        errors = Counter(error for answer in own for error in answer.errors)
        row: list[Any] = [task, errors[True], errors[False]]
        for scale in scales:
            counts = Counter(answer.levels[scale.name] for answer in own if scale.name in answer.levels)
            row += [counts[level] for level in sorted(scale.levels)]
        rows.append(row)
    return Table(
        title="Answers about error analyses",
        columns=name_columns("task", right=names),
        rows=rows,
        notes=["Errors are counted one by one, the other answers by analysis; a higher level is better."],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerShare:
    """The share of good answers to a question, with a 95 % interval over items."""

    task: str
    question: str
    answers: int
    value: float
    low: float
    high: float


def summarise_answers(answers: Sequence[QuestionnaireAnswers]) -> list[AnswerShare]:
    """The shares of reasonable errors, of good answers to each other question, and of the best overall answer, by
    task and in total. NaN where there is no answer or no interval."""
    scales = load_questionnaire().scales
    overall = scales[-1]
    levels = [(scale, scale.positive, f"{scale.name} {scale.positive} or better") for scale in scales]
    levels.append((overall, max(overall.levels), f"{overall.name} {max(overall.levels)}"))
    shares = []
    for task, own in _group_by_task(answers).items():
        errors = [(answer.item, answer.errors) for answer in own]
        shares.append(_measure(task, "errors that are reasonable", errors))
        for scale, least, question in levels:
            rated = [(a.item, (a.levels[scale.name] >= least,)) for a in own if scale.name in a.levels]
            shares.append(_measure(task, question, rated))
    return shares


def tabulate_shares(answers: Sequence[QuestionnaireAnswers]) -> Table:
    """The shares of `summarise_answers` as a table, tasks below each other."""
    rows = [
        [share.task, share.question, share.answers]
        + ["" if math.isnan(number) else f"{number:.3f}" for number in (share.value, share.low, share.high)]
        for share in summarise_answers(answers)
        if share.answers
    ]
    raters = {answer.rater for answer in answers if answer.rater is not None}
    outputs = {(answer.item, answer.system) for answer in answers}
    return Table(
        title="Good answers about error analyses",
        columns=name_columns("task", "question", right=("answers", "share", "low", "high")),
        rows=rows,
        notes=[
            f"{format_count(len(answers), 'row')} of answers about {format_count(len(outputs), 'analysis', 'analyses')}"
            + (f" by {format_count(len(raters), 'rater')}" if raters else "")
            + "; 95 % intervals resample items."
        ],
    )


def _measure(task: str, question: str, answers: Iterable[tuple[str, Sequence[bool]]]) -> AnswerShare:
    """The share of good answers, which come with the item that they are about."""
    by_item: dict[str, list[bool]] = {}
    for item, good in answers:
        by_item.setdefault(item, []).extend(good)
    rows = np.array([[sum(own), len(own)] for own in by_item.values() if own], np.float64).reshape(-1, 2)
    if not len(rows):
        return AnswerShare(task=task, question=question, answers=0, value=math.nan, low=math.nan, high=math.nan)
    low, high = pooled_interval(rows, lambda sums: sums[..., 0] / sums[..., 1], _DRAWS, np.random.default_rng(0))
    good_answers, total = rows.sum(axis=0).tolist()
    return AnswerShare(task=task, question=question, answers=int(total), value=good_answers / total, low=low, high=high)


def _group_by_task(answers: Sequence[QuestionnaireAnswers]) -> dict[str, list[QuestionnaireAnswers]]:
    """The answers by task, and all of them if there are several tasks."""
    groups: dict[str, list[QuestionnaireAnswers]] = {}
    for answer in answers:
        groups.setdefault(answer.task or "not stated", []).append(answer)
    return {**groups, TOTAL: list(answers)} if len(groups) > 1 else groups
