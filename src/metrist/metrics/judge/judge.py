"""An LLM that grades outputs by a rubric."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from metrist.errors import ModelError, SpecError
from metrist.llm import budget
from metrist.llm.messages import Completion, Conversation, Message
from metrist.metrics.base import check_choice
from metrist.metrics.judge import rubrics
from metrist.metrics.judge.grades import Grades, expected_grade, read_grades, spelled, unfit
from metrist.metrics.judge.rubrics import ALL, MARK, REASONS, Aspect, Rubric
from metrist.metrics.llm_metric import Judging, Unreadable, ask, scores_of, spent_together
from metrist.metrics.prompt_layout import REMINDER, Material, filled, instruction_of, lay_out, template
from metrist.metrics.shard import Shard
from metrist.records import Need, Record
from metrist.scores import Failure, Score, Scores

RULES, QUESTION = "judge_rules", "judge_question"
_WITH_REASONS = (
    "Weigh the output against every aspect before you settle on a grade: the reasons come first, a few sentences with "
    "what is good and what is wrong, and the grades follow from them."
)
_WITHOUT_REASONS = "Give the grades alone, without reasons."
_SEVERAL = "Each of the references is a right answer in its own way. "
_ONE = "The reference is a right answer; there may be others. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A conversation about one record, the mark that the answer is to carry, and the record's texts in it."""

    conversation: Conversation
    mark: str
    texts: tuple[str, ...]


def question(record: Record, rubric: Rubric, *, references: bool, reasons: bool) -> Question:
    """What is asked of a record by all aspects of the rubric."""
    materials = materials_of(record, references=references)
    laid_out = lay_out(materials)
    text = filled(
        template(QUESTION),
        material=laid_out.text,
        mark=laid_out.mark,
        references=_of_references(record) if references else "",
        reasons="Reasons first, then grades. " if reasons else "",
        form=_form(rubric.aspects, laid_out.mark, reasons=reasons),
    )
    conversation = (Message("system", rules(rubric, reasons=reasons)), Message("user", text))
    return Question(conversation=conversation, mark=laid_out.mark, texts=tuple(one.text for one in materials))


def materials_of(record: Record, *, references: bool) -> list[Material]:
    """The record's texts in the order in which a judge reads them."""
    found = [Material("instruction", instruction_of(record)[0])]
    if record.source is not None:
        found.append(Material("source", record.source))
    if references:
        several = len(record.references) > 1
        named = [f"reference {n}" if several else "reference" for n in range(1, len(record.references) + 1)]
        found += map(Material, named, record.references)
    return [*found, Material("output", record.output)]


def rules(rubric: Rubric, *, reasons: bool) -> str:
    """What all records are judged by."""
    return filled(
        template(RULES),
        reminder=REMINDER,
        rubric="\n\n".join([*([f"For: {rubric.about}"] if rubric.about else []), *map(_described, rubric.aspects)]),
        answer=_WITH_REASONS if reasons else _WITHOUT_REASONS,
    )


def prompt_wording(rubric: Rubric, *, reasons: bool) -> str:
    """All that a judge is told by this rubric besides the records' texts."""
    defaults = template("judge_instructions", ".toml")
    form = _form(rubric.aspects, "", reasons=reasons)
    return "\n".join([rules(rubric, reasons=reasons), template(QUESTION), _SEVERAL, _ONE, form, defaults])


def answer_schema(aspects: Sequence[Aspect], *, reasons: bool) -> Mapping[str, Any]:
    """The JSON schema of an answer, for servers that can be held to one."""
    grades = {aspect.name: {"enum": [_literal(aspect, n) for n in range(len(aspect.levels))]} for aspect in aspects}
    said: dict[str, Any] = {REASONS: {"type": "string"}} if reasons else {}
    properties = {**said, **grades, MARK: {"type": "string"}}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _described(aspect: Aspect) -> str:
    levels = [f"  {level.name}: {level.meaning}" for level in aspect.levels if level.meaning]
    offered = f" (grades: {aspect.offered})" if len(levels) < len(aspect.levels) else ""
    return "\n".join([f"{aspect.name}: {aspect.question}{offered}", *levels])


def _form(aspects: Sequence[Aspect], mark: str, *, reasons: bool) -> str:
    # The places for grades are no JSON: a judge that repeats the form has not graded anything.
    said = [f'"{REASONS}": "…"'] if reasons else []
    grades = [f'"{aspect.name}": <{_choices(aspect)}>' for aspect in aspects]
    return "{" + ", ".join([*said, *grades, f'"{MARK}": "{mark}"']) + "}"


def _choices(aspect: Aspect) -> str:
    return " or ".join(f'"{level.name}"' for level in aspect.levels) if aspect.categorical else aspect.offered


def _literal(aspect: Aspect, number: int) -> Any:
    level = aspect.levels[number]
    return level.name if aspect.categorical else json.loads(level.name)


def _of_references(record: Record) -> str:
    return _SEVERAL if len(record.references) > 1 else _ONE


Reference = Literal["shown", "hidden"]
Method = Literal["answer", "expectation"]
#: The part that says 1 where a record had no instruction of its own.
DEFAULT_INSTRUCTION = "default_instruction"
#: The part that says how much probability lay on anything but grades.
OUTSIDE = "outside"
#: Alternatives asked for at each token: as many as the common servers give.
_ALTERNATIVES = 20


@dataclass(frozen=True, kw_only=True)
class Judge(Judging):
    """The grade that an LLM gives an output by a rubric: of one aspect, or the mean over all of them."""

    catalog_name: ClassVar[str | None] = "judge"

    #: The name of a rubric that ships, or the path of a TOML file.
    rubric: str = "reliability"
    reference: Reference = "hidden"
    #: Which aspect is the value. One answer grades all, and all are parts; expectations are asked for one by one.
    aspect: str = ALL
    method: Method = "answer"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "reference", get_args(Reference))
        check_choice(self, "method", get_args(Method))
        loaded = self.loaded()
        valued = self._valued(loaded)
        if self.method == "expectation":
            _check_expectation(self.name, valued)
        for name, value in {"bounds": valued[0].bounds, "higher_is_better": loaded.higher_is_better}.items():
            object.__setattr__(self, name, value)

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("references",) if self.reference == "shown" else ()

    def loaded(self) -> Rubric:
        """The rubric itself."""
        return rubrics.load(self.rubric)

    def wording(self) -> str:
        return prompt_wording(self.loaded(), reasons=self._reasons)

    def facts(self) -> Mapping[str, str]:
        """The hash of the rubric besides those of the prompt and of the LLM: a path does not say what stands there."""
        return {"rubric": self.loaded().digest, **super().facts()}

    def score(self, shard: Shard) -> Scores:
        if not len(shard):
            return Scores.of([])
        found = self._answered(shard.records) if self.method == "answer" else self._expected(shard.records)
        return Scores.of(_noting(score, record) for score, record in zip(found, shard.records, strict=True))

    def remarks(self, scores: Scores) -> list[str]:
        """What all judges remark, and how many records were judged by a task's default instruction."""
        column = scores.parts.get(DEFAULT_INSTRUCTION)
        assumed = int(np.nansum(column)) if column is not None else 0
        said = (
            f"{self.text}: {assumed:,} of the {len(scores) - len(scores.failures):,} judged outputs came without an "
            "instruction and were judged by the default of their task"
        )
        return [*super().remarks(scores), *([said] if assumed else [])]

    @property
    def _reasons(self) -> bool:
        # After its reasons a model is nearly certain of the grade: the expectation would say no more than the grade.
        return self.method == "answer" and self.loaded().reasons == "first"

    def _valued(self, rubric: Rubric) -> tuple[Aspect, ...]:
        """The aspects whose mean is the value."""
        if self.aspect != ALL:
            return (rubric.aspect(self.aspect),)
        if len({aspect.bounds for aspect in rubric.aspects}) > 1:
            scales = ", ".join("{} {:g} to {:g}".format(one.name, *one.bounds) for one in rubric.aspects)
            raise SpecError(
                f"{self.name}: the aspects of the rubric {rubric.name!r} have different scales ({scales}), so their "
                f"mean says nothing: name the one that counts, as in aspect={rubric.aspects[0].name!r}"
            )
        return rubric.aspects

    def _questions(self, records: Sequence[Record], alone: Sequence[Rubric]) -> list[Question]:
        """What is asked of each record by each rubric."""
        shown, reasons = self.reference == "shown", self._reasons
        return [question(record, one, references=shown, reasons=reasons) for record in records for one in alone]

    def _answered(self, records: Sequence[Record]) -> list[Score]:
        """One question per record, about all aspects at once."""
        rubric = self.loaded()
        asked = self._questions(records, [rubric])
        form = answer_schema(rubric.aspects, reasons=self._reasons)
        answers = ask(self.llm, [one.conversation for one in asked], self.sampling(schema=form))

        def read(number: int, answer: Completion) -> Score:
            one = asked[number]
            return self._score(rubric, read_grades(answer.text, rubric.aspects, one.mark, one.texts), answer)

        return scores_of(answers, read)

    def _score(self, rubric: Rubric, grades: Grades, answer: Completion) -> Score:
        grades.need(aspect.name for aspect in self._valued(rubric))
        parts = {
            one.name: grades.levels[one.name].value if one.name in grades.levels else math.nan for one in rubric.aspects
        }
        return Score(
            value=self._mean(rubric, parts),
            parts=parts,
            explanation=grades.reasons or None,
            # What was mended on the way is shown as it came.
            raw=answer.text if grades.repaired or grades.faults else None,
        )

    def _mean(self, rubric: Rubric, parts: Mapping[str, float]) -> float:
        values = [parts[aspect.name] for aspect in self._valued(rubric)]
        return math.fsum(values) / len(values)

    def _expected(self, records: Sequence[Record]) -> list[Score]:
        """One question per record and aspect that counts: a grade that was written before would sway the next."""
        rubric = self.loaded()
        valued = self._valued(rubric)
        asked = self._questions(records, [replace(rubric, aspects=(aspect,)) for aspect in valued])
        sampling = self.sampling(logprobs=_ALTERNATIVES)
        answers = ask(self.llm, [one.conversation for one in asked], sampling)
        _check_logprobs(self, answers)

        def read(number: int, answer: Completion) -> Score:
            return _expected_score(answer, asked[number], valued[number % len(valued)])

        single = scores_of(answers, read)
        rows = [single[start : start + len(valued)] for start in range(0, len(single), len(valued))]
        return [self._together(rubric, row) for row in rows]

    def _together(self, rubric: Rubric, row: Sequence[Score]) -> Score:
        """The score of a record from those of its aspects."""
        usage = spent_together(score.usage for score in row)
        if failed := next((score for score in row if score.failure is not None), None):
            return replace(failed, failure=Failure.combine(score.failure for score in row), usage=usage)
        parts = {aspect.name: score.value for aspect, score in zip(self._valued(rubric), row, strict=True)}
        outside = max(score.parts[OUTSIDE] for score in row)
        return Score(value=self._mean(rubric, parts), parts={**parts, OUTSIDE: outside}, usage=usage)


def _expected_score(answer: Completion, asked: Question, aspect: Aspect) -> Score:
    if not answer.tokens:
        raise Unreadable("the answer came without the probabilities of its tokens")
    # Grades are read from what the tokens spell, so that their places are the tokens' own.
    grades = read_grades(spelled(answer.tokens), (aspect,), asked.mark, asked.texts)
    grades.need((aspect.name,))
    found = expected_grade(answer.tokens, grades.spans[aspect.name], aspect)
    return Score(value=found.value, parts={OUTSIDE: found.outside})


def _noting(score: Score, record: Record) -> Score:
    if score.failure is not None:
        return score
    return replace(score, parts={**score.parts, DEFAULT_INSTRUCTION: float(instruction_of(record)[1])})


def _check_expectation(name: str, aspects: Sequence[Aspect]) -> None:
    for aspect in aspects:
        if why := unfit(aspect):
            raise SpecError(f"{name}: method='expectation' cannot be used for the aspect {aspect.name!r}: {why}")


def _check_logprobs(judge: Judge, answers: Sequence[Completion]) -> None:
    """A server that never tells probabilities is a fault of the whole run."""
    given = [answer for answer in answers if answer.failure is None]
    # A dry run is answered by nobody.
    if given and budget.current_estimate() is None and not any(answer.tokens for answer in given):
        raise ModelError(
            f"{judge.llm} gives no probabilities of tokens, which method='expectation' needs: take a server that does "
            "(vLLM, llama.cpp, OpenAI's models without reasoning), transformers in process, or method='answer'"
        )
