"""Error analysis by any LLM in two steps: it first analyses freely, then gives the errors as JSON.

The steps are those of the TIGERScore paper, appendices A.2 and A.3. With `check='second_pass'`, a further question per
error asks whether it is real; errors that the LLM rejects then are dropped.

The wording is in the folder `prompts` beside the metrics. Worked examples are JSONL, one output with its errors a line:

    {"source": "…", "output": "…", "errors": [{"text": "…", "aspect": "…", "severity": "Minor", "penalty": 1,
     "explanation": "…", "revision": "…"}], "analysis": "…"}

`instruction`, `source`, `references`, `task`, `revision` and `analysis` are optional. An output without errors is an
example, too.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np

from metrist.errors import SpecError, agree, format_count
from metrist.llm.messages import Completion, Message
from metrist.metrics.base import Shard
from metrist.metrics.errors import answers as json_answers
from metrist.metrics.errors.answers import (
    MAX_PENALTY,
    MIN_PENALTY,
    SEVERITIES,
    ErrorAnswer,
    JsonPairs,
    WrittenError,
    find_json_values,
)
from metrist.metrics.errors.aspect_tables import (
    AspectTable,
    choose_table,
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
from metrist.metrics.errors.span_alignment import ground_errors
from metrist.metrics.llm_metric import (
    NOT_ASKED,
    UnparsableAnswer,
    ask_and_parse,
    ask_llm,
    continue_conversations,
    is_retryable,
    sum_usage,
)
from metrist.metrics.prompt_layout import (
    REMINDER,
    PromptText,
    escape_control_tokens,
    fence_texts,
    fill_template,
    load_templates,
)
from metrist.ratings import Error
from metrist.records import Need, Record
from metrist.runtime import Runtime
from metrist.scores import Failure, Score, Scores

Reference = Literal["hidden", "shown"]
ANALYSIS, AS_JSON, CHECK = "error_analysis", "error_analysis_json", "error_analysis_check"

# These texts are sent to the LLM: a change makes another metric.
_WITH_REFERENCE = (
    " The reference is one way to do the task well, not the only one: what differs from it is no error for that alone, "
    "and your reasons do not mention it."
)
_NO_ASPECTS = "Look at everything that matters for the task."

OF_TASK, NONE = "task", "none"
SPREAD, REFUSED = "spread", "refused"
_VERDICTS = {"yes": True, "true": True, "no": False, "false": False}


@dataclass(frozen=True, slots=True)
class _RecordAnalysis:
    """One sample's analysis of a record: the parsed answer, its errors with their offsets, and both completions.
    `unreadable`: the second of them came and could not be parsed."""

    answer: ErrorAnswer
    errors: tuple[Error, ...]
    completions: tuple[Completion, Completion]
    unreadable: bool = False

    @property
    def raw(self) -> str:
        return "\n\n".join(completion.text for completion in self.completions if completion.text)


@dataclass(frozen=True, slots=True)
class CheckedErrors:
    """The errors that passed the second pass, how many were rejected, and notes on the answers."""

    accepted: tuple[Error, ...]
    rejected: int = 0
    notes: tuple[str, ...] = ()
    completions: tuple[Completion, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ErrorAnalysis(ErrorMetric):
    """Errors with aspect, severity and penalty, listed by any LLM."""

    catalog_name: ClassVar[str | None] = "error_analysis"
    catalog_example: ClassVar[str | None] = "error_analysis(llm=openai(model='gpt-4o-mini'), task='summarization')"

    #: A task with a table of aspects; None: the task of each record.
    task: str | None = None
    #: 'task': the table of the task; 'none': the LLM chooses; otherwise a TOML file.
    aspects: str = OF_TASK
    #: A JSONL file with worked examples.
    examples: str | None = None
    reference: Reference = "hidden"
    samples: int = 1
    check: Literal["none", "second_pass"] = "none"
    max_tokens: int = 2048
    #: A TOML file of texts that replace those of the prompts: `error_analysis`, `error_analysis_json`,
    #: `error_analysis_check`.
    templates: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._load_templates()
        if self.samples < 1:
            raise SpecError(f"{self.name}: samples must be at least 1, got {self.samples}")
        if self.samples > 1 and not self.temperature:
            raise SpecError(
                f"{self.name}: samples={self.samples} needs a temperature above 0, such as temperature=0.7",
                code="conflict",
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("references",) if self.reference == "shown" else ()

    def prompt_text(self) -> str:
        templates = self._load_templates()
        names = [ANALYSIS, AS_JSON, *([CHECK] if self.check != NONE else [])]
        shared_table = self._shared_table()
        tables = shipped_tables().values() if shared_table is None else (shared_table,)
        examples = [repr(example) for example in read_examples(self.examples)] if self.examples else []
        return "\n".join([REMINDER, *(templates[name] for name in names), *map(format_toml, tables), *examples])

    def _load_templates(self) -> Mapping[str, str]:
        return load_templates((ANALYSIS, AS_JSON, CHECK), self.templates)

    def score(self, shard: Shard) -> Scores:
        records, runtime = shard.records, shard.runtime
        shared_table = self._shared_table()
        tables = [shared_table or choose_table(record.task) for record in records]
        questions = [self._build_questions(record, table) for record, table in zip(records, tables, strict=True)]
        example_turns: tuple[Message, ...] = ()
        for example in read_examples(self.examples) if self.examples else ():
            question = self._build_questions(example.record, shared_table or choose_table(example.record.task))
            example_turns += (
                Message("user", question.analysis),
                Message("assistant", example.analysis or describe_errors(example.errors)),
                Message("user", question.as_json),
                Message("assistant", json_answers.format_errors(example.errors, question.mark)),
            )
        samples = [self._analyse(records, questions, example_turns, n, runtime) for n in range(self.samples)]
        analyses = [[sample[i] for sample in samples] for i in range(len(records))]
        merged = [
            merge_errors([analysis.errors for analysis in group if analysis.answer.failure is None])
            for group in analyses
        ]
        checks = self._check_errors(records, tables, [[entry.error for entry in group] for group in merged], runtime)
        words = count_words([record.output for record in records])
        columns = zip(records, tables, analyses, merged, checks, words, strict=True)
        return Scores.of(self._score_record_errors(*row) for row in columns)

    def remarks(self, scores: Scores) -> list[str]:
        rejected = int(np.nansum(scores.parts.get(REFUSED, np.zeros(0))))
        if not rejected:
            return super().remarks(scores)
        errors = format_count(rejected, "error was", "errors were")
        return [*super().remarks(scores), f"{self.label}: {errors} rejected by the second pass"]

    def _shared_table(self) -> AspectTable | None:
        if self.aspects not in (OF_TASK, NONE):
            table = read_table(self.aspects)
            return dataclasses.replace(table, task=self.task) if self.task else table
        return require_table(self.task) if self.task else None

    def _build_questions(self, record: Record, table: AspectTable) -> AnalysisQuestions:
        """The questions about a record. With aspects='none', the LLM chooses what to look at."""
        aspects = self.aspects != NONE
        fenced = fence_texts(_prompt_texts(record, table, self.reference))
        templates = self._load_templates()
        names = f"one of {', '.join(table.names)}" if aspects else "what kind of error it is, in one or two words"
        return AnalysisQuestions(
            analysis=fill_template(
                templates[ANALYSIS],
                task=table.task.replace("_", " "),
                reminder=REMINDER,
                texts=fenced.text,
                mark=fenced.mark,
                output=table.output,
                aspects=f"These are the aspects to look at:\n\n{table.describe_aspects()}" if aspects else _NO_ASPECTS,
                reference=_WITH_REFERENCE if self.reference == "shown" and record.references else "",
            ),
            as_json=fill_template(templates[AS_JSON], mark=fenced.mark, output=table.output, names=names),
            mark=fenced.mark,
        )

    def _analyse(
        self,
        records: Sequence[Record],
        questions: Sequence[AnalysisQuestions],
        example_turns: tuple[Message, ...],
        sample: int,
        runtime: Runtime | None,
    ) -> list[_RecordAnalysis]:
        conversations = [(*example_turns, Message("user", question.analysis)) for question in questions]
        free_answers = ask_llm(self.llm, conversations, self.sampling(sample=sample), runtime)
        json_conversations = continue_conversations(
            conversations, free_answers, [question.as_json for question in questions]
        )
        sampling = self.sampling(sample=sample, schema=json_answers.errors_schema())
        greedy = dataclasses.replace(sampling, temperature=0.0)

        parsed: dict[int, ErrorAnswer] = {}

        def parse(index: int, formatted: Completion) -> ErrorAnswer:
            record = records[index]
            judged_texts = [record.output, record.source or "", record.instruction or "", *record.references]
            parsed[index] = json_answers.parse_errors(
                formatted.text, judged_texts, mark=questions[index].mark, truncated=formatted.finish == "length"
            )
            if parsed[index].failure is not None:
                raise UnparsableAnswer(parsed[index].failure)
            return parsed[index]

        results = ask_and_parse(self, json_conversations, greedy, runtime, parse)
        return [
            _build_analysis(records[index], free_answers[index], formatted, parsed.get(index))
            for index, (formatted, _) in enumerate(results)
        ]

    def _check_errors(
        self,
        records: Sequence[Record],
        tables: Sequence[AspectTable],
        merged: Sequence[Sequence[Error]],
        runtime: Runtime | None,
    ) -> list[CheckedErrors]:
        """The second pass, one entry per record. An error without a readable verdict is accepted, with a note."""
        if self.check == NONE:
            return [CheckedErrors(tuple(errors)) for errors in merged]
        template = self._load_templates()[CHECK]
        questions = [
            build_check_question(record, table, error, self.reference, template)
            for record, table, errors in zip(records, tables, merged, strict=True)
            for error in errors
        ]
        conversations = [(Message("user", text),) for text, _ in questions]
        sampling = dataclasses.replace(self.sampling(), temperature=0.0)
        answers = ask_llm(self.llm, conversations, sampling, runtime)
        verdicts = [
            parse_verdict(answer.text, mark) if answer.failure is None else None
            for answer, (_, mark) in zip(answers, questions, strict=True)
        ]
        checks, start = [], 0
        for errors in merged:
            own = slice(start, start + len(errors))
            start = own.stop
            notes = []
            if unchecked := verdicts[own].count(None):
                failure = Failure.combine(answer.failure for answer in answers[own])
                count = agree(unchecked, "counts", "count")
                reason = f" ({failure})" if failure else ""
                notes.append(f"{format_count(unchecked, 'error')} could not be checked and {count}{reason}")
            accepted = tuple(error for error, real in zip(errors, verdicts[own], strict=True) if real is not False)
            rejected = verdicts[own].count(False)
            checks.append(CheckedErrors(accepted, rejected, tuple(notes), tuple(answers[own])))
        return checks

    def _score_record_errors(
        self,
        record: Record,
        table: AspectTable,
        analyses: Sequence[_RecordAnalysis],
        merged: Sequence[MergedError],
        checked: CheckedErrors,
        words: int,
    ) -> Score:
        usage = sum_usage(
            [*(c for analysis in analyses for c in analysis.completions), *checked.completions],
            [analysis.completions[-1] for analysis in analyses if analysis.unreadable],
        )
        readable = [analysis for analysis in analyses if analysis.answer.failure is None]
        raw = "\n\n".join(analysis.raw for analysis in analyses) or None
        failure = Failure.combine(analysis.answer.failure for analysis in analyses)
        if not readable:
            return Score.failed(failure, raw=raw, usage=usage)
        notes = [note for analysis in readable for note in analysis.answer.notes] + list(checked.notes)
        if unreadable := len(analyses) - len(readable):
            notes.append(f"{unreadable} of {len(analyses)} analyses cannot be parsed: {failure}")
        answer = ErrorAnswer(notes=tuple(notes), partial=any(analysis.answer.partial for analysis in readable))
        score = score_errors(checked.accepted, answer, words, ungrounded=self.ungrounded)
        parts = {
            **score.parts,
            DEFAULT_INSTRUCTION: float(not record.instruction),
            REFUSED: float(checked.rejected),
        }
        if self.samples > 1:
            parts[SPREAD] = compute_spread(merged, score.errors)
        explanations = [score.explanation] if score.explanation else []
        known = {name.casefold() for name in table.names}
        unknown = dict.fromkeys(e.aspect for e in score.errors if e.aspect and e.aspect.strip().casefold() not in known)
        if unknown and self.aspects != NONE:
            listed = ", ".join(map(repr, unknown))
            explanations.append(f"errors under aspects that the table does not have: {listed}")
        return dataclasses.replace(
            score,
            parts=parts,
            explanation="; ".join(explanations) or None,
            raw=raw if notes else None,
            usage=usage,
            incomplete=failure.kind.is_retryable or any(is_retryable(c.failure) for c in checked.completions),
        )


def _build_analysis(
    record: Record, free: Completion, formatted: Completion, answer: ErrorAnswer | None
) -> _RecordAnalysis:
    completions = (free, formatted)
    if (failure := formatted.failure) is not None or answer is None:
        reason = free.failure or failure if failure == NOT_ASKED else failure
        return _RecordAnalysis(ErrorAnswer(failure=reason), (), completions)
    unreadable = answer.failure is not None
    if answer.failure is not None and formatted.finish == "length":
        answer = ErrorAnswer(failure=f"{answer.failure} (the answer was truncated; try a larger max_tokens)")
    elif answer.failure is None and free.finish == "length":
        if answer.errors:
            notes = (*answer.notes, "the analysis was truncated; the errors up to there count")
            answer = dataclasses.replace(answer, notes=notes, partial=True)
        else:
            # That a truncated analysis lists no error does not mean that there is none.
            answer = ErrorAnswer(failure="the analysis was truncated and lists no errors (try a larger max_tokens)")
    return _RecordAnalysis(answer, ground_errors(answer.errors, record), completions, unreadable)


def parse_verdict(answer: str, mark: str) -> bool | None:
    """Whether the answer calls the error real: the last JSON object with the mark decides; None if there is none."""
    objects = [value for value, _ in find_json_values(answer) if isinstance(value, JsonPairs)]
    marked = [value for value in objects if value.get("mark") == mark]
    return _VERDICTS.get(str(marked[-1].get("real")).strip().lower()) if marked else None


# --- The questions


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisQuestions:
    """The two questions about a record, and the mark that identifies an answer as the LLM's own."""

    analysis: str
    as_json: str
    mark: str


def build_check_question(
    record: Record, table: AspectTable, error: Error, reference: Reference, template: str
) -> tuple[str, str]:
    """The question whether an error is real, and the mark that its answer must carry."""
    fenced = fence_texts(_prompt_texts(record, table, reference))
    question = fill_template(
        template,
        task=table.task.replace("_", " "),
        reminder=REMINDER,
        texts=fenced.text,
        output=table.output,
        mark=fenced.mark,
        words=_quote(error.text),
        aspect=_quote(error.aspect),
        reason=_quote(error.explanation),
        severity=_quote(error.severity or ""),
    )
    return question, fenced.mark


def describe_errors(errors: Sequence[WrittenError]) -> str:
    """An analysis in words, for examples that have none."""
    if not errors:
        return "I find no errors."
    return "\n".join(
        f'{number}. "{error.location}" ({error.aspect}, {error.severity}): {error.explanation}'
        + (f" Better: {error.revision}." if error.revision else "")
        + f" It takes off {error.penalty:g}."
        for number, error in enumerate(errors, 1)
    )


def _prompt_texts(record: Record, table: AspectTable, reference: Reference) -> list[PromptText]:
    texts = [PromptText("instruction", record.instruction or table.instruction)]
    if record.source is not None:
        texts.append(PromptText("source", record.source))
    if reference == "shown":
        texts += [PromptText("reference", text) for text in record.references]
    return [*texts, PromptText(table.output, record.output)]


def _quote(text: str) -> str:
    """A text from an earlier answer, which may repeat the judged text, on one line and in quotes."""
    return json.dumps(escape_control_tokens(text), ensure_ascii=False)


# --- Worked examples

_Words = Annotated[str, msgspec.Meta(pattern=r"\S")]


class _PromptErrorRow(msgspec.Struct):
    text: _Words
    aspect: _Words
    severity: _Words
    explanation: _Words
    penalty: Annotated[float, msgspec.Meta(ge=MIN_PENALTY, le=MAX_PENALTY)]
    revision: str | None = None


class _PromptExampleRow(msgspec.Struct):
    output: str
    errors: list[_PromptErrorRow]
    source: str | None = None
    references: list[str] | None = None
    instruction: str | None = None
    task: str | None = None
    analysis: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptExample:
    """An output, its errors, and optionally an analysis in words. Its repr is part of the prompt's hash."""

    record: Record
    errors: tuple[WrittenError, ...]
    analysis: str = ""


def read_examples(path: str) -> tuple[PromptExample, ...]:
    """Read the examples of a file; SpecError with the line of whatever is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"the examples {path} cannot be read: {error.strerror}", code="unreadable") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: examples must be a JSONL file in UTF-8") from None
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise SpecError(f"{path}: no examples; expected one per line")
    return tuple(_parse_example(line, f"{path}:{number}") for number, line in lines)


def _parse_example(line: str, place: str) -> PromptExample:
    try:
        row = msgspec.convert(json.loads(line), _PromptExampleRow)
    except ValueError as error:
        raise SpecError(f"{place}: not an example: {error}") from None
    errors = []
    for number, written in enumerate(row.errors, 1):
        severity = written.severity.capitalize()
        if severity not in SEVERITIES:
            raise SpecError(f"{place}: error {number}: 'severity' must be Major or Minor, got {written.severity!r}")
        if written.text not in row.output:
            raise SpecError(f"{place}: error {number}: 'text' must be words of the output, got {written.text!r}")
        errors.append(
            WrittenError(
                location=written.text,
                aspect=written.aspect,
                explanation=written.explanation,
                severity=severity,
                penalty=written.penalty,
                revision=written.revision or "",
            )
        )
    record = Record(
        item=place,
        system="example",
        output=row.output,
        source=row.source,
        instruction=row.instruction,
        task=row.task,
        references=tuple(row.references or ()),
    )
    return PromptExample(record=record, errors=tuple(errors), analysis=row.analysis or "")
