"""The form in which the published TIGERScore checkpoints answer: read, and written.

    The model-generated output contains 2 errors, with a total score reduction of 4.5.
    Error location 1: …
    Error aspect 1: …
    Explanation 1: …
    Severity 1: Major
    Score reduction 1: 4
    Error location 2: …

A field may run over several lines and may quote anything, such as an output that imitates this form. So a header or a
label that stands word for word in what was judged is not read, and of the others a label counts only where it continues
the longest run of labels in their order; of equally long runs the last one counts, since what a field quotes stands
before the labels that follow the field.
"""

from __future__ import annotations

import dataclasses
import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from metrist.llm.messages import Completion, Message
from metrist.metrics.base import Shard
from metrist.metrics.errors.answers import ErrorAnswer, WrittenError, check_errors, parse_penalty, unreadable
from metrist.metrics.errors.aspect_tables import GENERAL_TASK, find_table, shipped_tables
from metrist.metrics.errors.base import DEFAULT_INSTRUCTION, ErrorMetric, count_words, score_errors
from metrist.metrics.errors.span_alignment import ground_errors
from metrist.metrics.llm_metric import UnparsableAnswer, ask_llm, score_answers
from metrist.metrics.prompt_layout import fill_template, load_template
from metrist.records import Record
from metrist.scores import Score, Scores

#: What the prompt begins and ends with.
OPENING = "You are evaluating errors in a model-generated output for a given instruction."
CLOSING = "Your evaluation output:"
#: What follows the record's texts in it.
_REQUEST = "For each error you give in the response, please also elaborate"

_LABELS = ("Error location", "Error aspect", "Explanation", "Severity", "Score reduction")
_FIELDS = ("location", "aspect", "explanation", "severity", "penalty")
_LAST = len(_LABELS) - 1

_LABEL = re.compile(
    rf"^[ \t>*#_-]{{0,8}}({'|'.join(_LABELS)})[ \t]{{0,4}}#?(\d{{1,6}})?[ \t*_]{{0,6}}:[*_]{{0,4}}",
    re.MULTILINE | re.IGNORECASE,
)
#: A penalty at the very end of an answer.
_OPEN_ENDED = re.compile(rf"{_LABELS[_LAST]}[^:\n]{{0,20}}:[*_\s]{{0,20}}[-+−]?[ \t]?[\d.,]+\Z", re.IGNORECASE)
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COUNTS = {word: count for count, word in enumerate(_WORDS)} | {"zero": 0, "an": 1, "a": 1}
# A sentence that goes on ("no errors of grammar, but …") is no header.
_HEADER = re.compile(
    r"^[ \t>*#_\"'-]{0,8}(?:The )?(?:model[- ]generated )?output (?:contains|has) "
    rf"(\d{{1,6}}|{'|'.join(_COUNTS)}) errors?\b"
    r"(?:[^\n]{0,80}?score reduction of[ \t]{1,4}([-−]?\d{1,9}(?:[.,]\d{1,20})?|[.,]\d{1,20})|[*_\"'.!: \t]{0,20}$)",
    re.MULTILINE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Label:
    """A label in the answer: which field of which error, where it starts and where its text begins."""

    field: int
    number: int | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Header:
    count: int
    total: float | None
    end: int


def format_tiger_answer(errors: Sequence[WrittenError]) -> str:
    """The errors as a checkpoint writes them."""
    total = sum(error.penalty or 0.0 for error in errors)
    lines = [f"The model-generated output contains {len(errors)} errors, with a total score reduction of {total:.12g}."]
    for number, error in enumerate(errors, 1):
        texts = (error.location, error.aspect, error.explanation, error.severity, _penalty_text(error))
        lines += [f"{label} {number}: {text}" for label, text in zip(_LABELS, texts, strict=True)]
    return "\n".join(lines)


def parse_tiger_answer(answer: str, prompt: str | None = None, *, cut: bool = False) -> ErrorAnswer:
    """What the answer says. `prompt` is what was asked: a model may repeat it before its answer, and what stands in it
    is not the answer. `cut`: the model is known to have been stopped before its end."""
    said = _without_prompt(answer, prompt)
    if not said.strip():
        return unreadable("the answer is empty")
    quoted = _Quoted(_judged(prompt or ""))
    header = _header(said, quoted)
    every = _labels(said, header.end if header else 0)
    labels = [label for label in every if not quoted.has(_line(said, label))]
    if len(labels) < len(every) and not _are_whole(labels):
        return unreadable("what the answer says cannot be told from the text that was judged, which imitates an answer")
    errors, notes, whole = _errors(said, labels, header)
    if cut and errors and _OPEN_ENDED.search(said) and not _bears_out(header, errors):
        # "1" at the end may have been about to be "1.5".
        errors[-1] = dataclasses.replace(errors[-1], penalty=None)
    if header is None and not errors:
        return unreadable("the answer has neither a header nor errors of the form that was asked for")
    if header is None:
        notes.append("the answer has no header")
    elif header.count == 0 and not errors and header.total:
        return unreadable(f"the answer says that there are no errors, and a reduction of {header.total:g}")
    return check_errors(
        errors,
        claimed_count=header.count if header else None,
        claimed_total=header.total if header else None,
        notes=notes,
        cut=(cut or not whole) and bool(errors or (header and header.count)),
    )


def _bears_out(header: _Header | None, errors: Sequence[WrittenError]) -> bool:
    """Whether the header announced just these errors with just these penalties."""
    if header is None or header.total is None or header.count != len(errors):
        return False
    return math.isclose(header.total, math.fsum(error.penalty or 0.0 for error in errors), abs_tol=1e-6)


def _penalty_text(error: WrittenError) -> str:
    return "" if error.penalty is None else repr(error.penalty)


def _without_prompt(answer: str, prompt: str | None) -> str:
    """The answer without the prompt before it, whose spaces a tokenizer may have changed."""
    if prompt is not None:
        return _after(answer, prompt)
    if answer.lstrip().startswith(OPENING) and CLOSING in answer:
        return answer[answer.rindex(CLOSING) + len(CLOSING) :]
    return answer


def _after(answer: str, prompt: str) -> str:
    """What follows the prompt, if the answer begins with all its characters but white space."""
    at = 0
    for character in prompt:
        if character.isspace():
            continue
        while at < len(answer) and answer[at].isspace():
            at += 1
        if at == len(answer) or answer[at] != character:
            return answer
        at += 1
    return answer[at:]


def _judged(prompt: str) -> str:
    """The record's own texts in a prompt: that the rest of it names the labels too says nothing."""
    end = prompt.rfind(_REQUEST)
    return prompt[:end].removeprefix(OPENING) if end >= 0 else prompt


def _line(said: str, label: _Label) -> str:
    """A label with what stands beside it, or below it where the line ends with the label."""
    rest = said[label.end :]
    beside = rest.split("\n", 1)[0]
    below = "" if beside.strip(" \t\r*_") else rest.lstrip().split("\n", 1)[0]
    return f"{said[label.start : label.end]}{beside} {below}"


class _Quoted:
    """What stands in the texts that were judged, apart from spaces, marks and case."""

    def __init__(self, judged: str) -> None:
        self._text = _bare(judged)

    def has(self, line: str) -> bool:
        """Whether the line stands there."""
        return bool(self._text) and re.sub(r"^\W+|\W+$", "", _bare(line)) in self._text


def _bare(text: str) -> str:
    # A quotation may be put in quotes, end in a full stop, or have its line breaks written out.
    return re.sub(r"(?:\\n|[\s>*#_\"'`-])+", " ", text).lower().strip()


def _header(said: str, quoted: _Quoted) -> _Header | None:
    """The first header that is the model's own."""
    for found in _HEADER.finditer(said):
        if not quoted.has(found.group()):
            count = found.group(1).lower()
            total = None if found.group(2) is None else parse_penalty(found.group(2))
            return _Header(_COUNTS[count] if count in _COUNTS else int(count), total, found.end())
    return None


def _are_whole(labels: Sequence[_Label]) -> bool:
    """Whether there are errors, each with all its fields, and no label besides."""
    run = _longest_run(_numbered(labels))
    return 0 < len(run) == len(labels) and all(len(group) == len(_LABELS) for group in _grouped(run))


def _labels(said: str, start: int) -> list[_Label]:
    found = []
    for one in _LABEL.finditer(said, start):
        name = next(n for n, label in enumerate(_LABELS) if label.lower() == one.group(1).lower())
        number = None if one.group(2) is None else int(one.group(2))
        found.append(_Label(name, number, one.start(), one.end()))
    return found


def _errors(said: str, labels: Sequence[_Label], header: _Header | None) -> tuple[list[WrittenError], list[str], bool]:
    """The errors, notes on their numbering, and whether the last of them is there in full."""
    if not labels:
        return [], [], True
    by_number = _longest_run(_numbered(labels))
    chosen, notes = by_number, list[str]()
    if _runs_in_turn(labels) and len(by_number) < len(labels):
        in_turn = [_Label(label.field, n // len(_LABELS), label.start, label.end) for n, label in enumerate(labels)]
        if header is None or header.count != len(_grouped(by_number)):
            chosen, notes = in_turn, ["the errors are not numbered one after the other"]
    groups = _grouped(chosen)
    ends = [label.start for label in chosen[1:]] + [len(said)]
    texts = {label: said[label.end : end].strip() for label, end in zip(chosen, ends, strict=True)}
    errors = [_error({label.field: texts[label] for label in group}) for group in groups]
    return errors, notes, groups[-1][-1].field == _LAST and bool(texts[groups[-1][-1]])


def _numbered(labels: Sequence[_Label]) -> list[_Label]:
    """Labels without a number belong to the error before them, or begin the next where their field had its turn."""
    number, last, numbered = 1, -1, []
    for label in labels:
        if label.number is None:
            number += label.field <= last
        else:
            number = label.number
        last = label.field
        numbered.append(_Label(label.field, number, label.start, label.end))
    return numbered


def _longest_run(labels: Sequence[_Label]) -> list[_Label]:
    """The longest run of labels whose errors and fields go upwards; of several the one that stands last."""
    keys = [(label.number or 0, label.field) for label in labels]
    tails: list[tuple[int, int]] = []
    lengths = []
    for key in keys:
        at = bisect_left(tails, key)
        tails[at : at + 1] = [key]
        lengths.append(at + 1)
    run: list[int] = []
    wanted = len(tails)
    for n in reversed(range(len(keys))):
        if lengths[n] == wanted and (not run or keys[n] < keys[run[-1]]):
            run.append(n)
            wanted -= 1
    return [labels[n] for n in reversed(run)]


def _runs_in_turn(labels: Sequence[_Label]) -> bool:
    """Whether the labels are whole errors one after the other, whatever their numbers."""
    return all(label.field == n % len(_LABELS) for n, label in enumerate(labels))


def _grouped(labels: Sequence[_Label]) -> list[list[_Label]]:
    groups: dict[int | None, list[_Label]] = {}
    for label in labels:
        groups.setdefault(label.number, []).append(label)
    return list(groups.values())


def _error(texts: dict[int, str]) -> WrittenError:
    fields = {_FIELDS[field]: text for field, text in texts.items() if field != _LAST}
    return WrittenError(**fields, penalty=parse_penalty(texts.get(_LAST, "")))


# TIGERScore: an LLM lists the errors of an output, and the score is minus the sum of their penalties (paper 001).
#
# The prompt is the one that the published checkpoints were trained on, to the letter. Any other LLM can be asked in the
# same way; `error_analysis` asks general ones better.


_PROMPT = "tigerscore"


@dataclass(frozen=True, kw_only=True)
class TigerScore(ErrorMetric):
    """Errors in the wire format of the published TIGERScore checkpoints. Needs no reference."""

    catalog_name: ClassVar[str | None] = "tigerscore"

    def prompt_text(self) -> str:
        """The prompt, and the instructions of records that have none."""
        return "\n".join([load_template(_PROMPT), *(table.instruction for table in shipped_tables().values())])

    def remarks(self, scores: Scores) -> list[str]:
        """Besides the usual: that a published checkpoint was spoken to as it was not trained."""
        model, turns = (getattr(self.llm, name, "") for name in ("model", "turns"))
        if turns != "chat" or _PROMPT not in str(model).lower():
            return super().remarks(scores)
        said = (
            f"{self.text}: the published checkpoints were trained on the prompt alone, and here it went through a chat "
            "template: turns='none' gives it as it is, unless the template does"
        )
        return [*super().remarks(scores), said]

    def score(self, shard: Shard) -> Scores:
        records = shard.records
        prompts = [build_prompt(resolve_instruction(one), one.source or "", one.output) for one in records]
        answers = ask_llm(self.llm, [(Message("user", prompt),) for prompt in prompts], self.sampling())
        words = count_words([record.output for record in records])

        def read(number: int, answer: Completion) -> Score:
            return self._read(records[number], prompts[number], words[number], answer)

        return Scores.of(score_answers(answers, read))

    def _read(self, record: Record, prompt: str, words: int, answer: Completion) -> Score:
        found = parse_tiger_answer(answer.text, prompt, cut=answer.finish == "length")
        if found.failure is not None:
            raise UnparsableAnswer(found.failure)
        score = score_errors(ground_errors(found.errors, record), found, words, ungrounded=self.ungrounded)
        parts = {**score.parts, DEFAULT_INSTRUCTION: float(not record.instruction)}
        return dataclasses.replace(score, parts=parts, raw=answer.text if found.notes else None)


def resolve_instruction(record: Record) -> str:
    """What the output was asked to be; where the record does not say it, what is usual for its task."""
    return record.instruction or (find_table(record.task) or shipped_tables()[GENERAL_TASK]).instruction


def build_prompt(instruction: str, source: str, output: str) -> str:
    """The prompt of the published checkpoints."""
    texts = {"instruction": _whole(instruction), "source": _whole(source), "output": _whole(output)}
    return fill_template(load_template(_PROMPT), **texts)


def _whole(text: str) -> str:
    """The text with halves of characters, which no server can be sent, as the sign for a missing character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
