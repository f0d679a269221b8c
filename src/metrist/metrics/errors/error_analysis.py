"""A second look at errors that were found: the LLM is asked of each whether it is real, and those that it does not hold
for real are dropped."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from metrist.errors import SpecError
from metrist.llm.base import LLM
from metrist.llm.messages import Completion, Message, Sampling
from metrist.metrics.base import Shard, check_choice
from metrist.metrics.errors import answers as json_answers
from metrist.metrics.errors.answers import ErrorAnswer, JsonPairs, find_json_values
from metrist.metrics.errors.aspect_tables import (
    GENERAL_TASK,
    AspectTable,
    find_table,
    format_toml,
    read_table,
    require_table,
    shipped_tables,
)
from metrist.metrics.errors.base import (
    DEFAULT_INSTRUCTION,
    ErrorMetric,
    MergedError,
    compute_spread,
    count_words,
    merge_errors,
    score_errors,
)
from metrist.metrics.errors.prompts import (
    ANALYSIS,
    AS_JSON,
    CHECK,
    AnalysisQuestions,
    Reference,
    build_check_question,
    build_questions,
    describe_errors,
    read_examples,
    user_message,
)
from metrist.metrics.errors.span_alignment import ground_errors
from metrist.metrics.llm_metric import NOT_ASKED, ask_llm, continue_conversations, is_retryable, sum_usage
from metrist.metrics.prompt_layout import REMINDER, load_template
from metrist.ratings import Error
from metrist.records import Need, Record
from metrist.scores import Failure, Score, Scores

_SAID = {"yes": True, "true": True, "no": False, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedErrors:
    """The errors that stand, how many were refused, and what is odd about the answers."""

    kept: tuple[Error, ...]
    refused: int = 0
    notes: tuple[str, ...] = ()
    completions: tuple[Completion, ...] = ()


def check_errors(
    llm: LLM,
    records: Sequence[Record],
    own: Sequence[AspectTable],
    found: Sequence[Sequence[Error]],
    reference: Reference,
    sampling: Sampling,
) -> list[CheckedErrors]:
    """One entry per record. An error whose answer is missing or cannot be read stands, and that is noted."""
    asked = [
        build_check_question(record, table, error, reference)
        for record, table, errors in zip(records, own, found, strict=True)
        for error in errors
    ]
    answers = iter(zip(ask_llm(llm, [(user_message(text),) for text, _ in asked], sampling), asked, strict=True))
    return [_verdicts(errors, [next(answers) for _ in errors]) for errors in found]


def _verdicts(errors: Sequence[Error], answers: Sequence[tuple[Completion, tuple[str, str]]]) -> CheckedErrors:
    said = [parse_verdict(answer.text, mark) if answer.failure is None else None for answer, (_, mark) in answers]
    silent = sum(one is None for one in said)
    why = Failure.combine(answer.failure for answer, _ in answers)
    return CheckedErrors(
        kept=tuple(error for error, real in zip(errors, said, strict=True) if real is not False),
        refused=sum(one is False for one in said),
        notes=(f"{silent} errors could not be checked and stand{f' ({why})' if why else ''}",) if silent else (),
        completions=tuple(answer for answer, _ in answers),
    )


def parse_verdict(answer: str, mark: str) -> bool | None:
    """The verdict of an answer: the last JSON object that carries the mark decides; None where there is none."""
    own = [value for value, _ in find_json_values(answer) if isinstance(value, JsonPairs) and value.get("mark") == mark]
    return _SAID.get(str(own[-1].get("real")).strip().lower()) if own else None


# Error analysis by any LLM in two steps: it first analyses freely, then says the same as JSON (paper 001, A.2).


OF_TASK, NONE = "task", "none"
SPREAD, REFUSED = "spread", "refused"
_REFERENCE_NEEDS: Mapping[str, tuple[Need, ...]] = {"hidden": (), "shown": ("references",)}


@dataclass(frozen=True, slots=True)
class _Analysis:
    """One sample's errors of a record, with their places; what was asked and answered on the way."""

    answer: ErrorAnswer
    errors: tuple[Error, ...]
    completions: tuple[Completion, Completion]

    @property
    def raw(self) -> str:
        return "\n\n".join(one.text for one in self.completions if one.text)


@dataclass(frozen=True, kw_only=True)
class ErrorAnalysis(ErrorMetric):
    """Errors by aspect, severity and penalty, found by any LLM."""

    catalog_name: ClassVar[str | None] = "error_analysis"

    #: A task with a table of aspects; None: each record's own.
    task: str | None = None
    #: 'task': the table of the task; 'none': the LLM chooses; else a TOML file.
    aspects: str = OF_TASK
    #: A JSONL file with worked examples.
    examples: str | None = None
    reference: Reference = "hidden"
    samples: int = 1
    check: Literal["none", "second_pass"] = "none"
    max_tokens: int = 2048

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "check", ("none", "second_pass"))
        check_choice(self, "reference", _REFERENCE_NEEDS)
        if self.samples < 1:
            raise SpecError(f"{self.name}: samples must be at least 1, got {self.samples}")
        if self.samples > 1 and not self.temperature:
            raise SpecError(
                f"{self.name}: samples={self.samples} wants a temperature above 0, such as temperature=0.7, since at 0 "
                "all samples are alike"
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        """References, if they are to be shown."""
        return _REFERENCE_NEEDS[self.reference]

    def prompt_text(self) -> str:
        """The prompts, the tables that may be asked for, and the examples."""
        asked = [ANALYSIS, AS_JSON, *([CHECK] if self.check != NONE else [])]
        fixed = self._fixed_table()
        used = shipped_tables().values() if fixed is None else (fixed,)
        shown = [repr(example) for example in read_examples(self.examples)] if self.examples else []
        return "\n".join([REMINDER, *map(load_template, asked), *map(format_toml, used), *shown])

    def score(self, shard: Shard) -> Scores:
        records = shard.records
        fixed = self._fixed_table()
        own = [fixed or _table_of(record) for record in records]
        asked = [self._questions(record, table) for record, table in zip(records, own, strict=True)]
        start = self._example_turns(fixed)
        samples = [self._analyses(records, asked, start, number) for number in range(self.samples)]
        by_record = [[sample[i] for sample in samples] for i in range(len(records))]
        joined = [merge_errors([one.errors for one in read if one.answer.failure is None]) for read in by_record]
        verdicts = self._verdicts(records, own, [[one.error for one in found] for found in joined])
        words = count_words([record.output for record in records])
        return Scores.of(
            self._noting_aspects(self._score(record, read, found, verdict, count), table)
            for record, table, read, found, verdict, count in zip(
                records, own, by_record, joined, verdicts, words, strict=True
            )
        )

    def _noting_aspects(self, score: Score, table: AspectTable) -> Score:
        """The score with a note on errors under aspects that were not asked for: they count, and belong to none."""
        known = {name.casefold() for name in table.names}
        strange = dict.fromkeys(e.aspect for e in score.errors if e.aspect and e.aspect.strip().casefold() not in known)
        if self.aspects == NONE or not strange:
            return score
        note = f"errors under aspects that the table does not have: {', '.join(map(repr, strange))}"
        return dataclasses.replace(score, explanation="; ".join(filter(None, (score.explanation, note))))

    def remarks(self, scores: Scores) -> list[str]:
        """Besides what all metrics that find errors say: how many errors the second look refused."""
        refused = scores.parts.get(REFUSED, np.zeros(0))
        if not np.nansum(refused):
            return super().remarks(scores)
        said = (
            f"{self.text}: {int(np.nansum(refused)):,} errors were not held for real at a second look and do not count"
        )
        return [*super().remarks(scores), said]

    def _fixed_table(self) -> AspectTable | None:
        """The table for all records; None where each has that of its own task."""
        if self.aspects not in (OF_TASK, NONE):
            table = read_table(self.aspects)
            return dataclasses.replace(table, task=self.task) if self.task else table
        return require_table(self.task) if self.task else None

    def _questions(self, record: Record, table: AspectTable) -> AnalysisQuestions:
        return build_questions(record, table, aspects=self.aspects != NONE, reference=self.reference)

    def _example_turns(self, fixed: AspectTable | None) -> tuple[Message, ...]:
        turns: list[Message] = []
        for example in read_examples(self.examples) if self.examples else ():
            asked = self._questions(example.record, fixed or _table_of(example.record))
            turns += [
                user_message(asked.analysis),
                Message("assistant", example.analysis or describe_errors(example.errors)),
                user_message(asked.as_json),
                Message("assistant", json_answers.format_errors(example.errors, asked.mark)),
            ]
        return tuple(turns)

    def _analyses(
        self, records: Sequence[Record], asked: Sequence[AnalysisQuestions], start: tuple[Message, ...], number: int
    ) -> list[_Analysis]:
        """The number-th sample of each record: two questions, the second with the answer to the first before it."""
        opened = [(*start, user_message(one.analysis)) for one in asked]
        free = ask_llm(self.llm, opened, self.sampling(sample=number))
        plain = dataclasses.replace(self.sampling(sample=number, schema=json_answers.errors_schema()), temperature=0.0)
        formatted = ask_llm(self.llm, continue_conversations(opened, free, [one.as_json for one in asked]), plain)
        return [
            _analysis(record, question.mark, (first, second))
            for record, question, first, second in zip(records, asked, free, formatted, strict=True)
        ]

    def _verdicts(
        self, records: Sequence[Record], own: Sequence[AspectTable], joined: Sequence[Sequence[Error]]
    ) -> list[CheckedErrors]:
        if self.check == NONE:
            return [CheckedErrors(kept=tuple(errors)) for errors in joined]
        plain = dataclasses.replace(self.sampling(), temperature=0.0)
        return check_errors(self.llm, records, own, joined, self.reference, plain)

    def _score(
        self,
        record: Record,
        read: Sequence[_Analysis],
        found: Sequence[MergedError],
        verdict: CheckedErrors,
        words: int,
    ) -> Score:
        usage = sum_usage([*(one for analysis in read for one in analysis.completions), *verdict.completions])
        whole = [one for one in read if one.answer.failure is None]
        raw = "\n\n".join(one.raw for one in read) or None
        why = Failure.combine(one.answer.failure for one in read)
        if not whole:
            return Score.failed(why, raw=raw, usage=usage)
        failed = len(read) - len(whole)
        notes = [note for one in whole for note in one.answer.notes] + list(verdict.notes)
        if failed:
            notes.append(f"{failed} of {len(read)} analyses could not be read: {why}")
        joined = ErrorAnswer(notes=tuple(notes), partial=any(one.answer.partial for one in whole))
        score = score_errors(verdict.kept, joined, words, ungrounded=self.ungrounded)
        more = {DEFAULT_INSTRUCTION: float(not record.instruction), REFUSED: float(verdict.refused)}
        if self.samples > 1:
            more[SPREAD] = compute_spread(found, score.errors)
        incomplete = why.kind.is_retryable or any(is_retryable(answer.failure) for answer in verdict.completions)
        return dataclasses.replace(
            score, parts={**score.parts, **more}, raw=raw if notes else None, usage=usage, incomplete=incomplete
        )


def _table_of(record: Record) -> AspectTable:
    return find_table(record.task) or shipped_tables()[GENERAL_TASK]


def _analysis(record: Record, mark: str, answers: tuple[Completion, Completion]) -> _Analysis:
    first, second = answers
    if (failure := second.failure) is not None:
        why = first.failure or failure if failure == NOT_ASKED else failure
        return _Analysis(ErrorAnswer(failure=why), (), answers)
    judged = [record.output, record.source or "", record.instruction or "", *record.references]
    found = json_answers.parse_errors(second.text, judged, mark=mark, cut=second.finish == "length")
    if found.failure is not None and second.finish == "length":
        found = ErrorAnswer(failure=f"{found.failure} (the answer was cut off: more max_tokens may help)")
    elif found.failure is None and first.finish == "length":
        found = _of_a_cut_analysis(found)
    return _Analysis(found, ground_errors(found.errors, record), answers)


def _of_a_cut_analysis(found: ErrorAnswer) -> ErrorAnswer:
    """What was told of an analysis that did not come to its end. That it named no error says nothing."""
    if not found.errors:
        return ErrorAnswer(failure="the analysis was cut off, and no errors were told (more max_tokens may help)")
    notes = (*found.notes, "the analysis was cut off; what it had said until then is kept")
    return dataclasses.replace(found, notes=notes, partial=True)
