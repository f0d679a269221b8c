"""TIGERScore: an LLM lists the errors of an output, and the score is minus the sum of their penalties.

The prompt is exactly the one that the published checkpoints were trained on, and works with any other LLM, though
`error_analysis` suits general LLMs better. The checkpoints answer in this form:

    The model-generated output contains 2 errors, with a total score reduction of 4.5.
    Error location 1: …
    Error aspect 1: …
    Explanation 1: …
    Severity 1: Major
    Score reduction 1: 4
    Error location 2: …

A field may span several lines and may quote anything, including an output that imitates this form. Headers and labels
that occur word for word in the judged texts are therefore ignored. Of the others, a label counts only if it belongs to
the longest run of labels in the right order; of equally long runs the last counts, because a quotation in a field
precedes the labels that follow the field.
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
from metrist.metrics.errors.answers import ErrorAnswer, WrittenError, build_answer, parse_penalty
from metrist.metrics.errors.aspect_tables import choose_table, shipped_tables
from metrist.metrics.errors.base import DEFAULT_INSTRUCTION, ErrorMetric, count_words, score_errors
from metrist.metrics.errors.span_alignment import ground_errors
from metrist.metrics.llm_metric import UnparsableAnswer, ask_for_scores
from metrist.metrics.prompt_layout import fill_template, load_template
from metrist.scores import Score, Scores

_PROMPT = "tigerscore"


@dataclass(frozen=True, kw_only=True)
class TigerScore(ErrorMetric):
    """Errors in the format of the published TIGERScore checkpoints. Needs no reference."""

    catalog_name: ClassVar[str | None] = "tigerscore"
    catalog_example: ClassVar[str | None] = (
        "tigerscore(llm=transformers(model='TIGER-Lab/TIGERScore-7B', turns='none'))"
    )

    def prompt_text(self) -> str:
        return "\n".join([load_template(_PROMPT), *(table.instruction for table in shipped_tables().values())])

    def remarks(self, scores: Scores) -> list[str]:
        model = str(getattr(self.llm, "model", ""))
        if getattr(self.llm, "turns", "") != "chat" or _PROMPT not in model.lower():
            return [*super().remarks(scores), *(f"{self.label}: {remark}" for remark in self.llm.remarks())]
        remark = "the published checkpoints know the bare prompt, not a chat template; turns='none' avoids it"
        return [*super().remarks(scores), f"{self.label}: {remark}"]

    def score(self, shard: Shard) -> Scores:
        records = shard.records
        instructions = [record.instruction or choose_table(record.task).instruction for record in records]
        prompts = [
            build_prompt(instruction, record.source or "", record.output)
            for instruction, record in zip(instructions, records, strict=True)
        ]
        conversations = [(Message("user", prompt),) for prompt in prompts]
        words = count_words([record.output for record in records])

        def parse(index: int, completion: Completion) -> Score:
            answer = parse_tiger_answer(completion.text, prompts[index], truncated=completion.finish == "length")
            if answer.failure is not None:
                raise UnparsableAnswer(answer.failure)
            errors = ground_errors(answer.errors, records[index])
            score = score_errors(errors, answer, words[index], ungrounded=self.ungrounded)
            parts = {**score.parts, DEFAULT_INSTRUCTION: float(not records[index].instruction)}
            return dataclasses.replace(score, parts=parts, raw=completion.text if answer.notes else None)

        return Scores.of(ask_for_scores(self, conversations, self.sampling(), shard.runtime, parse))


def build_prompt(instruction: str, source: str, output: str) -> str:
    """The prompt of the published checkpoints."""
    texts = {"instruction": instruction, "source": source, "output": output}
    # Lone surrogates, which cannot be sent to a server, become replacement characters.
    valid = {name: text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for name, text in texts.items()}
    return fill_template(load_template(_PROMPT), **valid)


# --- The format of the answers

#: The first and the last words of the prompt.
OPENING = "You are evaluating errors in a model-generated output for a given instruction."
CLOSING = "Your evaluation output:"
#: The words that follow the record's texts in the prompt.
_REQUEST = "For each error you give in the response, please also elaborate"

_LABELS = ("Error location", "Error aspect", "Explanation", "Severity", "Score reduction")
_FIELDS = ("location", "aspect", "explanation", "severity", "penalty")
_LAST = len(_LABELS) - 1

_LABEL = re.compile(
    rf"^[ \t>*#_-]{{0,8}}({'|'.join(_LABELS)})[ \t]{{0,4}}#?(\d{{1,6}})?[ \t*_]{{0,6}}:[*_]{{0,4}}",
    re.MULTILINE | re.IGNORECASE,
)
#: A penalty at the very end of an answer, which may be truncated.
_FINAL_PENALTY = re.compile(rf"{_LABELS[_LAST]}[^:\n]{{0,20}}:[*_\s]{{0,20}}[-+−]?[ \t]?[\d.,]+\Z", re.IGNORECASE)
_NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COUNTS = {word: count for count, word in enumerate(_NUMBER_WORDS)} | {"zero": 0, "an": 1, "a": 1}
# A sentence that continues ("no errors of grammar, but …") is not a header.
_HEADER = re.compile(
    r"^[ \t>*#_\"'-]{0,8}(?:The )?(?:model[- ]generated )?output (?:contains|has) "
    rf"(\d{{1,6}}|{'|'.join(_COUNTS)}) errors?\b"
    r"(?:[^\n]{0,80}?score reduction of[ \t]{1,4}([-−]?\d{1,9}(?:[.,]\d{1,20})?|[.,]\d{1,20})|[*_\"'.!: \t]{0,20}$)",
    re.MULTILINE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _FieldLabel:
    """A label in the answer: the index of its field, the number of its error, its start, and the start of its text."""

    field: int
    number: int | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Header:
    """The claimed number of errors and total reduction, and the end of the header."""

    count: int
    total: float | None
    end: int


def format_tiger_answer(errors: Sequence[WrittenError]) -> str:
    total = sum(error.penalty or 0.0 for error in errors)
    lines = [f"The model-generated output contains {len(errors)} errors, with a total score reduction of {total:.12g}."]
    for number, error in enumerate(errors, 1):
        penalty = "" if error.penalty is None else repr(error.penalty)
        texts = (error.location, error.aspect, error.explanation, error.severity, penalty)
        lines += [f"{label} {number}: {text}" for label, text in zip(_LABELS, texts, strict=True)]
    return "\n".join(lines)


def parse_tiger_answer(answer: str, prompt: str | None = None, *, truncated: bool = False) -> ErrorAnswer:
    """Parse an answer. A model may repeat the `prompt` first; text that occurs in it is not part of the answer.
    `truncated`: the model is known to have been stopped before the end."""
    text = _strip_prompt(answer, prompt)
    if not text.strip():
        return ErrorAnswer(failure="the answer is empty")
    # The part of the prompt with the record's texts; the rest names the labels, too.
    before, request, _ = (prompt or "").rpartition(_REQUEST)
    judged = _simplify(before.removeprefix(OPENING) if request else prompt or "")
    header = _find_header(text, judged)
    labels, has_quoted = _find_labels(text, header.end if header else 0, judged)
    run = _find_longest_run(labels)
    complete = 0 < len(run) == len(labels) and all(len(group) == len(_LABELS) for group in _group_by_error(run))
    if has_quoted and not complete:
        return ErrorAnswer(failure="the answer cannot be told apart from the judged text, which imitates an answer")
    errors, notes, ends_complete = _parse_errors(text, labels, run, header)
    if truncated and errors and _FINAL_PENALTY.search(text):
        # The "1" at the end may be the start of "1.5", unless the header claims this number of errors and this total.
        claimed = header.total if header and header.count == len(errors) else None
        total = math.fsum(error.penalty or 0.0 for error in errors)
        if claimed is None or not math.isclose(claimed, total, abs_tol=1e-6):
            errors[-1] = dataclasses.replace(errors[-1], penalty=None)
    if header is None and not errors:
        return ErrorAnswer(failure="the answer has neither a header nor errors in the expected format")
    if header is None:
        notes.append("the answer has no header")
    elif header.count == 0 and not errors and header.total:
        return ErrorAnswer(failure=f"the answer claims no errors, but a reduction of {header.total:g}")
    return build_answer(
        errors,
        claimed_count=header.count if header else None,
        claimed_total=header.total if header else None,
        notes=notes,
        truncated=(truncated or not ends_complete) and bool(errors or (header and header.count)),
    )


def _strip_prompt(answer: str, prompt: str | None) -> str:
    """The answer without the prompt before it, in which a tokenizer may have changed the white space."""
    if prompt is None:
        if answer.lstrip().startswith(OPENING) and CLOSING in answer:
            return answer[answer.rindex(CLOSING) + len(CLOSING) :]
        return answer
    position = 0
    for character in prompt:
        if character.isspace():
            continue
        while position < len(answer) and answer[position].isspace():
            position += 1
        if position == len(answer) or answer[position] != character:
            return answer
        position += 1
    return answer[position:]


def _simplify(text: str) -> str:
    """The text without case, spacing and quotation marks, which a quotation may change."""
    # A quotation may also have its line breaks written as \\n.
    return re.sub(r"(?:\\n|[\s>*#_\"'`-])+", " ", text).lower().strip()


def _is_quoted(line: str, judged: str) -> bool:
    """Whether the line occurs in the judged texts, which are simplified."""
    return bool(judged) and re.sub(r"^\W+|\W+$", "", _simplify(line)) in judged


def _find_header(text: str, judged: str) -> _Header | None:
    for match in _HEADER.finditer(text):
        if not _is_quoted(match.group(), judged):
            count = match.group(1).lower()
            total = None if match.group(2) is None else parse_penalty(match.group(2))
            return _Header(_COUNTS[count] if count in _COUNTS else int(count), total, match.end())
    return None


def _find_labels(text: str, start: int, judged: str) -> tuple[list[_FieldLabel], bool]:
    """The labels that are not quotations, and whether there are others."""
    labels, has_quoted = [], False
    for match in _LABEL.finditer(text, start):
        following = text[match.end() :]
        rest = following.split("\n", 1)[0]
        next_line = "" if rest.strip(" \t\r*_") else following.lstrip().split("\n", 1)[0]
        if _is_quoted(f"{match.group()}{rest} {next_line}", judged):
            has_quoted = True
            continue
        field = next(n for n, label in enumerate(_LABELS) if label.lower() == match.group(1).lower())
        number = None if match.group(2) is None else int(match.group(2))
        labels.append(_FieldLabel(field, number, match.start(), match.end()))
    return labels, has_quoted


def _parse_errors(
    text: str, labels: Sequence[_FieldLabel], run: list[_FieldLabel], header: _Header | None
) -> tuple[list[WrittenError], list[str], bool]:
    """The errors, notes on their numbering, and whether the last error is complete."""
    if not labels:
        return [], [], True
    notes: list[str] = []
    # Whether the labels are complete errors in sequence, whatever their numbers.
    in_sequence = all(label.field == n % len(_LABELS) for n, label in enumerate(labels))
    if in_sequence and len(run) < len(labels) and (header is None or header.count != len(_group_by_error(run))):
        run = [_FieldLabel(label.field, n // len(_LABELS), label.start, label.end) for n, label in enumerate(labels)]
        notes = ["the errors are not numbered consecutively"]
    ends = [label.start for label in run[1:]] + [len(text)]
    texts = {label: text[label.end : end].strip() for label, end in zip(run, ends, strict=True)}
    groups = _group_by_error(run)
    errors = []
    for group in groups:
        fields = {_FIELDS[label.field]: texts[label] for label in group}
        penalty = parse_penalty(fields.pop(_FIELDS[_LAST], ""))
        errors.append(WrittenError(**fields, penalty=penalty))
    last = groups[-1][-1]
    return errors, notes, last.field == _LAST and bool(texts[last])


def _find_longest_run(labels: Sequence[_FieldLabel]) -> list[_FieldLabel]:
    """The longest run of labels with ascending errors and fields, all with a number; of several, the last one."""
    # A label without a number has that of the error before it, or the next if its field has already occurred.
    number, last_field, numbered = 1, -1, []
    for label in labels:
        if label.number is None:
            number += label.field <= last_field
        else:
            number = label.number
        last_field = label.field
        numbered.append(_FieldLabel(label.field, number, label.start, label.end))
    keys = [(label.number or 0, label.field) for label in numbered]
    tails: list[tuple[int, int]] = []
    lengths = []
    for key in keys:
        at = bisect_left(tails, key)
        tails[at : at + 1] = [key]
        lengths.append(at + 1)
    run: list[int] = []
    length = len(tails)
    for n in reversed(range(len(keys))):
        if lengths[n] == length and (not run or keys[n] < keys[run[-1]]):
            run.append(n)
            length -= 1
    return [numbered[n] for n in reversed(run)]


def _group_by_error(labels: Sequence[_FieldLabel]) -> list[list[_FieldLabel]]:
    groups: dict[int | None, list[_FieldLabel]] = {}
    for label in labels:
        groups.setdefault(label.number, []).append(label)
    return list(groups.values())
