"""What raters are asked about each task.

rating         one grade for each aspect of an output, on the levels of a rubric (the files that judges use)
pairwise       which of two outputs is better, for each aspect, or a tie; raters do not see the systems
errors         spans of the output, or of the source, with aspect, severity and a note
questionnaire  what the listed errors of an analysis are worth (TIGERScore paper, Tables 16 and 17)

One project may ask several of them at once: any ratings, and errors; or choices, and errors in either output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import msgspec

from metrist import criteria
from metrist.errors import SpecError, did_you_mean
from metrist.evaluate.explain.questionnaire import load_questionnaire
from metrist.metrics.errors.aspect_tables import AspectTable, choose_table, read_table
from metrist.metrics.judge.rubrics import list_rubrics, load_rubric

Kind = Literal["rating", "pairwise", "errors", "questionnaire"]
KINDS: tuple[Kind, ...] = get_args(Kind)
#: What `--schema` takes besides a rubric.
NAMES = ("likert", "pairwise", "errors", "questionnaire")
SEVERITIES = ("minor", "major", "critical")
#: The answers to a pair, and its outputs, as raters see it: A is on the left, or above where there is little room.
LEFT, RIGHT, TIE = "left", "right", "tie"
_OVERALL = "overall"
_MAX_POINTS = 11
#: The points of Likert scales by their number; longer ones have names at their ends.
_POINT_NAMES: Mapping[int, tuple[str, ...]] = {
    2: ("low", "high"),
    3: ("low", "medium", "high"),
    4: ("very low", "low", "high", "very high"),
    5: ("very low", "low", "medium", "high", "very high"),
    7: ("very low", "low", "rather low", "medium", "rather high", "high", "very high"),
}
#: No answer is larger.
_LARGE = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOption:
    """An answer that a rater may give: its value, its label and its meaning ('' if the label says it all)."""

    value: float | str | bool
    label: str
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaQuestion:
    """One question about a task. `name` is the aspect of the ratings that its answers become."""

    name: str
    text: str
    choices: tuple[AnswerOption, ...]

    def accepts(self, value: Any) -> bool:
        """Whether the value is one of the answers; `True` is not 1."""
        return any(type(value) is type(choice.value) and value == choice.value for choice in self.choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """What raters are asked. `kind` says what a task shows: one output, two, or an analysis; it is `errors` if there
    are no questions. `aspects` and `severities` are those of errors to mark, with their definitions.

    A questionnaire asks `each_error` about every listed error besides its questions.
    """

    kind: Kind
    name: str
    about: str
    questions: tuple[SchemaQuestion, ...] = ()
    aspects: Mapping[str, str] | None = None
    severities: tuple[str, ...] = ()
    each_error: SchemaQuestion | None = None

    @property
    def marks_errors(self) -> bool:
        """Whether raters mark errors, besides the questions if there are any."""
        return self.aspects is not None

    def question_names(self, errors: int = 0) -> list[str]:
        """Return the names of all questions about a task with this number of listed errors."""
        each = [] if self.each_error is None else [f"error:{number}" for number in range(errors)]
        return [question.name for question in self.questions] + each

    def question(self, name: str, errors: int = 0) -> SchemaQuestion | None:
        """Return the question of this name; `error:2` is the one about the third listed error."""
        if self.each_error is not None and name.startswith("error:"):
            number = name.removeprefix("error:")
            known = number.isdecimal() and number.isascii() and str(int(number)) == number and int(number) < errors
            return self.each_error if known else None
        return next((question for question in self.questions if question.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as JSON, for the project's file and for the page."""
        return asdict(self)

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Schema:
        """Return the schema that `to_dict` wrote. A file may have been written by hand: 1 is 1.0."""
        return msgspec.convert(content, Schema)


def load_schemas(
    names: Sequence[str],
    *,
    aspects: Sequence[str] = (),
    points: int = 5,
    table: str | None = None,
    task: str | None = None,
) -> Schema:
    """Return what these schemas ask together; `aspects` are those of the first. The rest is that of `load_schema`."""
    if not names:
        raise SpecError("a project needs a schema", code="missing_value")
    if table is not None and "errors" not in names:
        raise SpecError(f"an aspect table says which errors to mark; {', '.join(names)} marks none")
    schemas = [load_schema(names[0], aspects=aspects, points=points, table=table, task=task)]
    schemas += [load_schema(name, points=points, table=table, task=task) for name in names[1:]]
    if len(schemas) == 1:
        return schemas[0]
    kinds = [schema.kind for schema in schemas]
    asked = [schema for schema in schemas if schema.kind != "errors"]
    if "questionnaire" in kinds or len({schema.kind for schema in asked}) != 1 or kinds.count("errors") > 1:
        raise SpecError(f"{' and '.join(names)} cannot be asked at once: make a project for each", code="conflict")
    questions = tuple(question for schema in asked for question in schema.questions)
    marking = next((schema for schema in schemas if schema.marks_errors), None)
    asked_about = [question.name for question in questions] + [schema.name for schema in schemas if schema is marking]
    if len(set(asked_about)) < len(asked_about):
        raise SpecError(f"{' and '.join(names)} ask about the same aspect: leave one out", code="conflict")
    return Schema(
        kind=asked[0].kind,
        name=" and ".join(schema.name for schema in schemas),
        about=asked[0].about,
        questions=questions,
        aspects=marking.aspects if marking else None,
        severities=marking.severities if marking else (),
    )


def load_schema(
    name: str, *, aspects: Sequence[str] = (), points: int = 5, table: str | None = None, task: str | None = None
) -> Schema:
    """Return the schema of this name, or the rubric in this file or of this shipped name.

    `aspects` are the criteria of a Likert scale or of a choice, those of a rubric to ask about, or the errors to mark;
    `points` is the length of the Likert scale. The errors to mark are those of the aspect table in the file `table`, or
    of the shipped table of the `task`.
    """
    match name:
        case "likert":
            return _make_likert(aspects or (_OVERALL,), points)
        case "pairwise":
            return _make_pairwise(aspects or (_OVERALL,))
        case "errors":
            return _make_errors(read_table(table) if table else choose_table(task), aspects)
        case "questionnaire":
            if aspects:
                raise SpecError("the questionnaire has its own questions and takes no aspects")
            return _make_questionnaire()
    if name not in list_rubrics() and not name.endswith(".toml"):
        known = [*NAMES, *list_rubrics(), "a rubric's .toml file"]
        hint = did_you_mean(name, known)
        raise SpecError(f"no schema {name!r}{hint}; it is one of {', '.join(known)}", code="unknown_name")
    return _make_rating(name, aspects)


def _make_likert(aspects: Sequence[str], points: int) -> Schema:
    if not 2 <= points <= _MAX_POINTS:
        raise SpecError(f"a Likert scale has 2 to {_MAX_POINTS} points, got {points}")
    questions = []
    for aspect in dict.fromkeys(aspects):
        names = list(_POINT_NAMES.get(points, ["very low", *[""] * (points - 2), "very high"]))
        if criterion := criteria.known(aspect):  # The ends say what it has more or less of.
            names[0], names[-1] = f"{names[0]} {criterion.higher}", f"{names[-1]} {criterion.higher}"
        choices = tuple(AnswerOption(value=float(n), label=str(n), meaning=name) for n, name in enumerate(names, 1))
        text = criterion.instruction if criterion else aspect
        questions.append(SchemaQuestion(name=aspect, text=text, choices=choices))
    return Schema(kind="rating", name="likert", about="How good is the output?", questions=tuple(questions))


def _make_pairwise(aspects: Sequence[str]) -> Schema:
    choices = (
        AnswerOption(value=LEFT, label="A is better"),
        AnswerOption(value=TIE, label="Tie"),
        AnswerOption(value=RIGHT, label="B is better"),
    )
    questions = []
    for aspect in dict.fromkeys(aspects):
        criterion = criteria.known(aspect)
        text = f"Which is better? {criterion.instruction}" if criterion else f"Which is better: {aspect}?"
        if aspect == _OVERALL:
            text = "Which is better on the whole?"
        questions.append(SchemaQuestion(name=aspect, text=text, choices=choices))
    about = "Which of the two outputs is better?"
    return Schema(kind="pairwise", name="pairwise", about=about, questions=tuple(questions))


def _make_rating(rubric_name: str, aspects: Sequence[str]) -> Schema:
    rubric = load_rubric(rubric_name)
    questions = []
    for aspect in [rubric.aspect(name) for name in dict.fromkeys(aspects)] if aspects else rubric.aspects:
        choices = [AnswerOption(value=float(own.value), label=own.name, meaning=own.meaning) for own in aspect.levels]
        questions.append(SchemaQuestion(name=aspect.name, text=aspect.question, choices=tuple(choices)))
    return Schema(kind="rating", name=rubric_name, about=rubric.about, questions=tuple(questions))


def _make_errors(table: AspectTable, aspects: Sequence[str]) -> Schema:
    definitions = {aspect.name: aspect.definition for aspect in table.aspects}
    for name in aspects:
        if name not in definitions:
            hint = did_you_mean(name, definitions)
            raise SpecError(
                f"the aspect table of {table.task!r} has no {name!r}{hint}; it has {', '.join(definitions)}",
                code="unknown_name",
            )
    chosen = {name: definitions[name] for name in (aspects or definitions)}
    about = "Mark every error: select the words, then say what is wrong with them and how badly."
    return Schema(kind="errors", name="errors", about=about, aspects=chosen, severities=SEVERITIES)


def _make_questionnaire() -> Schema:
    content = load_questionnaire()
    each = SchemaQuestion(
        name="error",
        text=content.errors,
        choices=(
            AnswerOption(value=True, label="reasonable", meaning=content.reasonable),
            AnswerOption(value=False, label="not reasonable", meaning=content.unreasonable),
        ),
    )
    scales = []
    for scale in content.scales:
        levels = sorted(scale.levels.items())
        choices = tuple(
            AnswerOption(value=float(level), label=str(level), meaning=meaning) for level, meaning in levels
        )
        scales.append(SchemaQuestion(name=scale.name, text=scale.question, choices=choices))
    about = "How good is the analysis of the output's errors?"
    return Schema(kind="questionnaire", name="questionnaire", about=about, questions=tuple(scales), each_error=each)


def normalise(value: Any) -> Any:
    """Return a JSON value with whole numbers as floats, as the choices have them."""
    return float(value) if type(value) is int and abs(value) < _LARGE else value
