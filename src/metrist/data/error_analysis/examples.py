"""Examples that an error analyst learns from: a prompt about an output, and the analysis that it should give.

A line of a file of examples is a JSON object; prompt and completion have the form of the TIGERScore checkpoints:

    {"id": "human/41d0…", "task": "translation", "channel": "human", "item": "7", "system": "online-a",
     "language": "en-de", "instruction": "…", "source": "…", "output": "…",
     "prompt": "You are evaluating errors in …", "completion": "The model-generated output contains 1 errors, …",
     "score": -5.0, "errors": [{"text": "…", "aspect": "Accuracy", "severity": "major", "penalty": 5.0,
     "explanation": "…", "revision": "…", "start": 11, "end": 19, "side": "output"}]}
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, get_args

import msgspec

from metrist.data.faults import quote
from metrist.errors import InputError
from metrist.io.compression import open_bytes
from metrist.io.convert import metric_instruct
from metrist.io.fields import as_text
from metrist.io.json_rows import json_line_rows
from metrist.io.row_model import RowError, format_value
from metrist.io.writer import write_rows
from metrist.metrics.errors.answers import WrittenError, parse_penalty
from metrist.metrics.errors.aspect_tables import choose_table
from metrist.metrics.errors.span_alignment import ground_errors
from metrist.metrics.errors.tigerscore import build_prompt, format_tiger_answer, parse_tiger_answer
from metrist.metrics.prompt_layout import resolve_task
from metrist.ratings import Error, Side
from metrist.records import Record

#: Where the errors of an example come from: an LLM that analysed a system's output; faults that were put into a good
#: text; people; a reference, which has none. The aspects of `freeform` examples are not those of the task's table.
Channel = Literal["real", "synthetic", "human", "reference", "freeform"]
CHANNELS: tuple[Channel, ...] = get_args(Channel)

#: What stands for the words of an error of an empty output.
NOTHING = "(nothing)"
#: Words beside a gap that stand for what is missing there.
_ANCHOR = 4
_WORD = re.compile(r"\S+")
_LETTER = re.compile(r"\w")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisExample:
    """An output with its errors. `errors` are in the order of the analysis; those about the output have offsets that
    bound their words."""

    id: str
    channel: Channel
    task: str | None
    item: str
    system: str
    language: str | None
    instruction: str
    source: str
    output: str
    errors: tuple[Error, ...]

    @property
    def prompt(self) -> str:
        """The question, as the TIGERScore checkpoints get it."""
        return build_prompt(self.instruction, self.source, self.output)

    @property
    def completion(self) -> str:
        """The answer, as the TIGERScore checkpoints give it."""
        return format_tiger_answer([_write_error(error) for error in self.errors])

    @property
    def score(self) -> float:
        """Minus the sum of the penalties."""
        return 0.0 - sum(error.penalty or 0.0 for error in self.errors)

    def to_dict(self) -> dict[str, Any]:
        """The line of a file of examples."""
        return {
            "id": self.id,
            "task": self.task,
            "channel": self.channel,
            "item": self.item,
            "system": self.system,
            "language": self.language,
            "instruction": self.instruction,
            "source": self.source,
            "output": self.output,
            "prompt": self.prompt,
            "completion": self.completion,
            "score": self.score,
            "errors": [{name: getattr(error, name) for name in _ErrorRow.__struct_fields__} for error in self.errors],
        }

    def to_chat(self) -> dict[str, Any]:
        """The example as a conversation, for models with a chat template."""
        turns = (("user", self.prompt), ("assistant", self.completion))
        return {"id": self.id, "messages": [{"role": role, "content": text} for role, text in turns]}


def make_example(record: Record, errors: Iterable[Error], channel: Channel, *, exact: bool = False) -> AnalysisExample:
    """The example of a record. An error without words, such as an omission, gets the words beside the gap. `exact`: an
    empty revision means that the words should go, and not that nobody knows better."""
    instruction = record.instruction or ""
    if not instruction.strip():
        instruction = choose_table(record.task).instruction
    # Lone surrogates, which no file can hold, become replacement characters; offsets stay.
    instruction = _SURROGATE.sub("\ufffd", instruction)
    source = _SURROGATE.sub("\ufffd", record.source or "")
    output = _SURROGATE.sub("\ufffd", record.output)
    anchored: list[Error] = []
    for error in errors:
        names = ("text", "aspect", "explanation", "revision")
        clean: dict[str, Any] = {name: _SURROGATE.sub("\ufffd", getattr(error, name)) for name in names}
        anchored.append(_anchor(replace(error, **clean), output, exact))
    content = "\0".join([record.item, record.system, instruction, source, output, repr(tuple(anchored))])
    return AnalysisExample(
        id=f"{channel}/{hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}",
        channel=channel,
        task=resolve_task(record.task) or record.task,
        item=record.item,
        system=record.system,
        language=record.language,
        instruction=instruction,
        source=source,
        output=output,
        errors=tuple(anchored),
    )


def _anchor(error: Error, output: str, exact: bool) -> Error:
    """The error with words that can be found: a gap, or a mark without letters, gets the words beside it, and so does
    the revision."""
    if error.side != "output" or error.start is None or error.end is None or _LETTER.search(error.text):
        return error
    words = [match.span() for match in _WORD.finditer(output)]
    if not words:
        return replace(error, text=NOTHING, start=None, end=None)
    chosen = [(start, end) for start, end in words if start <= error.end and end >= error.start]
    if not chosen or (not error.text.strip() and _LETTER.search(error.revision)):
        chosen = [(start, end) for start, end in words if end <= error.start][-_ANCHOR:] or words[:_ANCHOR]
    start, end = min(chosen[0][0], error.start), max(chosen[-1][1], error.end)
    revision = output[start : error.start] + error.revision + output[error.end : end]
    return replace(
        error,
        text=output[start:end],
        start=start,
        end=end,
        revision=revision.strip() if exact or error.revision else "",
    )


def _write_error(error: Error) -> WrittenError:
    """The error in the words of an answer, each field on one line."""
    penalty, revision, explanation = error.penalty, _one_line(error.revision), _one_line(error.explanation)
    if revision and revision not in explanation:
        explanation = f"{explanation} Better: {quote(revision, 200)}.".strip()
    return WrittenError(
        location=_one_line(error.text),
        aspect=_one_line(error.aspect),
        explanation=explanation,
        severity=(error.severity or "").capitalize(),
        # 4 rather than 4.0, as people write it.
        penalty=int(penalty) if penalty is not None and penalty == int(penalty) else penalty,
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


# ---- Files


def write_examples(path: str | os.PathLike[str], examples: Iterable[AnalysisExample], *, chat: bool = False) -> int:
    """Write examples, one a line, and return how many. The file appears when all of it is written."""
    return write_rows((example.to_chat() if chat else example.to_dict() for example in examples), path)


def read_examples(path: str | os.PathLike[str]) -> Iterator[AnalysisExample]:
    """Read a file that `write_examples` wrote; InputError with the line of whatever is wrong."""
    with open_bytes(path) as stream:
        for number, row in json_line_rows(stream):
            if isinstance(row, RowError):
                raise InputError(f"{path}:{number}: {row}")
            try:
                values = msgspec.convert(row, _ExampleRow)
            except msgspec.ValidationError as fault:
                raise InputError(
                    f"{path}:{number}: no example as `metrist build error-analysis` writes it: {fault}",
                    code="invalid_value",
                ) from None
            errors = tuple(Error(**msgspec.structs.asdict(error)) for error in values.errors)
            yield AnalysisExample(**{**msgspec.structs.asdict(values), "errors": errors})


_Offset = Annotated[int, msgspec.Meta(ge=0)]


class _ErrorRow(msgspec.Struct):
    text: str
    aspect: str
    severity: Literal["major", "minor"]
    penalty: float
    explanation: str
    revision: str
    start: _Offset | None = None
    end: _Offset | None = None
    side: Side = "output"


class _ExampleRow(msgspec.Struct):
    id: str
    channel: Channel
    item: str
    system: str
    instruction: str
    source: str
    output: str
    errors: list[_ErrorRow]
    task: str | None = None
    language: str | None = None


# ---- Analyses as TIGERScore's authors publish them, in the fields of a file of examples
#
# MetricInstruct  {"id", "task", "instruction", "input_context", "hypo_output", "errors": "The model-generated …"}
#                 with errors {"error_1": {"error_location", "error_aspect", "explanation", "severity",
#                 "score_reduction"}, …} in other versions, or a list of such objects
# alpaca          {"instruction": the prompt's first line, "input": the rest of it, "output": the analysis}

#: The texts in the rest of the prompt. An instruction of several lines cannot be told from the source: the first line
#: counts.
_INPUT = re.compile(
    r"\s*Instruction: ?\n(?P<instruction>[^\n]*)\n(?P<source>.*)\n\nModel-generated Output: ?\n(?P<output>.*)"
    r"\n\nFor each error you give in the response",
    re.DOTALL,
)
_ERROR_FIELDS = {
    "location": "error_location",
    "aspect": "error_aspect",
    "explanation": "explanation",
    "severity": "severity",
}


def read_published_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with `prompt`, `completion` and `errors` with their places; a row in another layout as it is. Raise
    RowError if its errors cannot be read."""
    if not metric_instruct.is_entry(row):
        return dict(row)
    values = {metric_instruct.ALIASES.get(name, name): value for name, value in row.items()}
    errors = values.pop("errors", None)
    if metric_instruct.is_alpaca(row):
        prompt = f"{row['instruction']}\n{as_text('input', row.get('input'))}"
        errors = values.pop("output")
        texts = _INPUT.match(as_text("input", values.pop("input")))
        if texts is None:
            raise RowError("'input' must be the rest of TIGERScore's prompt, with 'Model-generated Output:'")
        values |= texts.groupdict()
    else:
        instruction, source, output = (
            as_text(name, values.get(name) or "") for name in ("instruction", "source", "output")
        )
        prompt = build_prompt(instruction, source, output)
    completion = as_text("errors", errors) if isinstance(errors, str) else format_tiger_answer(_read_errors(errors))
    answer = parse_tiger_answer(completion)
    if answer.failure is not None:
        raise RowError(f"the errors cannot be read as an analysis: {answer.failure}")
    record = Record(item="", system="", output=values["output"], source=values.get("source"))
    # The other fields of an error are about places in the source, and about raters.
    fields = ("aspect", "severity", "penalty", "explanation", "revision", "text", "start", "end", "side")
    placed = [asdict(error) for error in ground_errors(answer.errors, record)]
    listed = [{name: error[name] for name in fields} for error in placed]
    return {**values, "prompt": prompt, "completion": completion, "errors": listed}


def _read_errors(errors: Any) -> list[WrittenError]:
    """The errors of an object or a list, which may be empty."""
    values = list(errors.values()) if isinstance(errors, dict) else errors
    if not isinstance(values, Sequence) or not all(isinstance(error, dict) for error in values):
        raise RowError(f"'errors' must be an analysis, or objects with 'error_location' …, got {format_value(errors)}")
    written = []
    for number, error in enumerate(values, 1):
        penalty = error.get("score_reduction")
        if parse_penalty(str(penalty)) is None:
            raise RowError(f"'score_reduction' of error {number} must be a number, got {format_value(penalty)}")
        texts = {ours: as_text(theirs, error.get(theirs) or "") for ours, theirs in _ERROR_FIELDS.items()}
        value = abs(parse_penalty(str(penalty)) or 0.0)
        # 4 rather than 4.0, as the authors write it.
        written.append(WrittenError(**texts, penalty=int(value) if value == int(value) else value))
    return written
