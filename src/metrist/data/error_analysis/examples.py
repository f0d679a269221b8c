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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from metrist.data.fault_kinds import quote
from metrist.errors import InputError
from metrist.io.compression import open_bytes
from metrist.io.json_rows import json_line_rows
from metrist.io.row_model import RowError
from metrist.io.writer import write_rows
from metrist.metrics.errors.answers import WrittenError
from metrist.metrics.errors.aspect_tables import choose_table
from metrist.metrics.errors.tigerscore import build_prompt, format_tiger_answer
from metrist.metrics.prompt_layout import resolve_task
from metrist.ratings import Error
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
            "errors": [_error_dict(error) for error in self.errors],
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
    instruction, source, output = map(_make_encodable, (instruction, record.source or "", record.output))
    anchored = tuple(_anchor(_make_error_encodable(error), output, exact) for error in errors)
    content = "\0".join([record.item, record.system, instruction, source, output, repr(anchored)])
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
        errors=anchored,
    )


_SURROGATE = re.compile("[\ud800-\udfff]")


def _make_encodable(text: str) -> str:
    """The text with replacement characters for lone surrogates, which no file can hold; of the same length."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def _make_error_encodable(error: Error) -> Error:
    texts = {name: getattr(error, name) for name in ("text", "aspect", "explanation", "revision")}
    clean: dict[str, Any] = {name: _make_encodable(text) for name, text in texts.items()}
    return error if clean == texts else replace(error, **clean)


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
    penalty = error.penalty
    return WrittenError(
        location=_one_line(error.text),
        aspect=_one_line(error.aspect),
        explanation=_one_line(f"{error.explanation} {_suggest(error)}"),
        severity=(error.severity or "").capitalize(),
        # 4 rather than 4.0, as people write it.
        penalty=int(penalty) if penalty is not None and penalty == int(penalty) else penalty,
    )


def _suggest(error: Error) -> str:
    """The correction, unless the explanation names it."""
    revision = " ".join(error.revision.split())
    if not revision or revision in " ".join(error.explanation.split()):
        return ""
    return f"Better: {quote(revision, 200)}."


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _error_dict(error: Error) -> dict[str, Any]:
    names = ("text", "aspect", "severity", "penalty", "explanation", "revision", "start", "end", "side")
    return {name: getattr(error, name) for name in names}


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
            yield _parse_example(row, f"{path}:{number}")


def _parse_example(row: Mapping[str, Any], place: str) -> AnalysisExample:
    for name in ("id", "item", "system", "instruction", "source", "output"):
        if not isinstance(row.get(name), str):
            raise InputError(
                f"{place}: {name!r} must be a text, got {row.get(name)!r:.80}; expected a file of examples as "
                "`metrist build error-analysis` writes it"
            )
    if row.get("channel") not in CHANNELS:
        raise InputError(f"{place}: 'channel' must be one of {', '.join(CHANNELS)}, got {row.get('channel')!r:.80}")
    for name in ("task", "language"):
        if not isinstance(row.get(name), str | None):
            raise InputError(f"{place}: {name!r} must be a text or null, got {row[name]!r:.80}")
    errors = row.get("errors")
    if not isinstance(errors, list):
        raise InputError(f"{place}: 'errors' must be a list, got {errors!r:.80}")
    return AnalysisExample(
        id=row["id"], channel=row["channel"], task=row.get("task"), item=row["item"], system=row["system"],
        language=row.get("language"), instruction=row["instruction"], source=row["source"], output=row["output"],
        errors=tuple(_parse_error(error, f"{place}: error {number}") for number, error in enumerate(errors, 1)),
    )  # fmt: skip


def _parse_error(row: Any, place: str) -> Error:
    if not isinstance(row, Mapping):
        raise InputError(f"{place} must be an object, got {row!r:.80}")
    texts: dict[str, Any] = {name: row.get(name) for name in ("aspect", "explanation", "revision", "text")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise InputError(f"{place}: {name!r} must be a text, got {text!r:.80}")
    penalty, severity, side = row.get("penalty"), row.get("severity"), row.get("side", "output")
    if isinstance(penalty, bool) or not isinstance(penalty, int | float):
        raise InputError(f"{place}: 'penalty' must be a number, got {penalty!r:.80}")
    if severity not in ("major", "minor"):
        raise InputError(f"{place}: 'severity' must be 'major' or 'minor', got {severity!r:.80}")
    if side not in ("output", "source"):
        raise InputError(f"{place}: 'side' must be 'output' or 'source', got {side!r:.80}")
    start, end = row.get("start"), row.get("end")
    for name, at in (("start", start), ("end", end)):
        if at is not None and (type(at) is not int or at < 0):
            raise InputError(f"{place}: {name!r} must be an offset or null, got {at!r:.80}")
    return Error(**texts, penalty=float(penalty), severity=severity, side=side, start=start, end=end)
