"""Answers of LLMs that list errors: the errors as written, checks of what the answer claims, and the JSON form.

`parse_errors` reads JSON; `tigerscore.parse_tiger_answer` reads the form of the TIGERScore checkpoints. Both follow the
same rules: the penalties count, not the total that the answer claims; what is complete in a truncated answer counts; an
answer that cannot be parsed is a failure, never an output without errors.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from metrist.errors import agree, format_count
from metrist.metrics.answer_parsing import find_objects

#: The range of penalties that the prompts ask for.
MIN_PENALTY, MAX_PENALTY = 0.5, 5.0
#: The severities that the prompts ask for.
SEVERITIES = ("Major", "Minor")

_TRUNCATED = "the answer is truncated; what is complete counts"

#: A larger number is not a penalty but a grade out of a hundred, a year or a slip.
_MAX_PARSED_PENALTY = 100.0
# The number opens the field and stands alone: no fraction, range, product, percentage or version. "1,000" is ambiguous:
# one or a thousand.
_NUMBER = re.compile(
    r"[\s\"'`*_(\[“‘]*[-+−]?[ \t]?(?!\d+,\d{3}(?!\d))(?P<number>\d+(?:[.,]\d+)?|[.,]\d+)(?:(?:pts?|points?)\b)?"
    r"(?![\w%‰]|[.,]\d|[ \t]*[/*×^–—~-]+[ \t]*[.,]?\d|[ \t]+(?:to|or|and|x|times|percent)[ \t]+[.,]?\d)",
    re.IGNORECASE,
)
_SURROUNDING = " \t\r\n\"'`*_.,;:()[]“”‘’"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenError:
    """One error in the words of the answer. A missing field is empty, a missing penalty None."""

    location: str = ""
    aspect: str = ""
    explanation: str = ""
    severity: str = ""
    penalty: float | None = None
    revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """A parsed answer. `partial`: some of it is missing, so the penalties may be too few. `failure`: why it cannot be
    parsed; it then has no errors, which does not mean that the output has none."""

    errors: tuple[WrittenError, ...] = ()
    notes: tuple[str, ...] = ()
    partial: bool = False
    failure: str | None = None

    @property
    def penalty(self) -> float:
        """The sum of the penalties."""
        return math.fsum(error.penalty or 0.0 for error in self.errors)


def build_answer(
    errors: Sequence[WrittenError],
    *,
    claimed_count: int | None = None,
    claimed_total: float | None = None,
    notes: Sequence[str] = (),
    truncated: bool = False,
) -> ErrorAnswer:
    """The answer with these errors, with notes on everything irregular about them."""
    complete = [error for error in errors if error.penalty is not None]
    if not complete and errors:
        where = ", truncated before the first penalty" if truncated else ""
        return ErrorAnswer(failure=f"the answer lists errors without a readable penalty{where}")
    if not complete and claimed_count:
        return ErrorAnswer(failure=f"the answer claims {format_count(claimed_count, 'error')} and lists none")
    if not complete and truncated:
        return ErrorAnswer(failure="the answer is truncated")
    all_notes = [*notes]
    if claimed_count is not None and claimed_count != len(complete):
        are = agree(len(complete), "is", "are")
        all_notes.append(f"the header claims {format_count(claimed_count, 'error')}, {len(complete)} {are} complete")
    total = math.fsum(error.penalty or 0.0 for error in complete)
    if claimed_total is not None and not math.isclose(claimed_total, total, abs_tol=1e-6):
        all_notes.append(
            f"the header claims a reduction of {claimed_total:g}, the penalties add up to {total:g}; their sum counts"
        )
    all_notes += _find_irregularities(errors)
    if truncated:
        all_notes.append(_TRUNCATED)
    short = claimed_count is not None and len(complete) < claimed_count
    partial = truncated or short or len(complete) < len(errors)
    return ErrorAnswer(errors=tuple(errors), notes=tuple(all_notes), partial=partial)


def parse_penalty(text: str) -> float | None:
    """The number at the start of a field: `4.5`, `4,5`, `-4`, `4 points`. A number elsewhere may mean anything, and
    further lines are not part of the field."""
    match = _NUMBER.match(text.strip().split("\n", 1)[0][:1000])
    return normalise_penalty(float(match["number"].replace(",", "."))) if match else None


def normalise_penalty(number: float) -> float | None:
    """The penalty without its sign, which models write either way; None if the number is too large."""
    return abs(number) if abs(number) <= _MAX_PARSED_PENALTY else None


def parse_severity(text: str) -> str | None:
    """A known severity in lower case, another one as written; None if there is none."""
    severity = text.strip(_SURROUNDING)
    return severity.lower() if _is_known_severity(severity) else severity or None


def _is_known_severity(severity: str | None) -> bool:
    return severity is not None and severity.capitalize() in SEVERITIES


def _find_irregularities(errors: Sequence[WrittenError]) -> Iterator[str]:
    for number, error in enumerate(errors, 1):
        fields = {name: getattr(error, name) for name in ("location", "aspect", "explanation", "severity")}
        missing = [name for name, text in fields.items() if not text.strip()]
        if missing:
            yield f"error {number} has no {', no '.join(missing)}"
        if error.severity.strip() and not _is_known_severity(parse_severity(error.severity)):
            yield f"error {number} has the severity {error.severity.strip()[:40]!r}, expected Major or Minor"
        if error.penalty is None:
            yield f"error {number} has no readable penalty and does not count"
        elif not MIN_PENALTY <= error.penalty <= MAX_PENALTY:
            yield f"error {number} has a penalty of {error.penalty:g}, expected {MIN_PENALTY:g} to {MAX_PENALTY:g}"


# --- Errors as JSON: `{"errors": {"error_1": {…}}}`, a list instead of the inner object, or a list alone
#
# The answer is the last such object that is not a quotation of the judged text. The inside of JSON strings is never
# searched for JSON, so the quotation in an error cannot be taken for the answer.

#: The name that the prompt asks for, then names that models use instead.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "location": ("error_location", "location", "span", "text", "quote"),
    "aspect": ("error_aspect", "aspect", "category", "error_type", "type"),
    "explanation": ("explanation", "reason", "description"),
    "severity": ("severity", "error_severity"),
    "penalty": ("score_reduction", "penalty", "reduction"),
    "revision": ("revision", "correction", "suggestion", "suggested_revision"),
}
#: An object with at least two of these keys is an error.
_ERROR_KEYS = frozenset(_NAMES["location"] + _NAMES["penalty"] + ("explanation", "severity"))
_ERRORS, _MARK = "errors", "mark"
#: The start of a list of errors, in any quotes.
_ERRORS_KEY = re.compile(r"\berrors[\"'”’]?\s*:", re.IGNORECASE)
#: The same, but only as a member of an object: prose has "errors:", too.
_ERRORS_MEMBER = re.compile(r"(?:[\"'“‘]errors[\"'”’]|[{,]\s*errors)\s*:", re.IGNORECASE)
#: An empty list of errors that is closed: the object ends there or continues with another member.
_EMPTY_LIST = re.compile(r"\s*(?:\[\s*\]|\{\s*\})(?=\s*(?:,|\}|```|$))")
#: Each opening bracket costs an attempt to parse; an answer does not have more of them.
_MAX_OPENINGS = 5_000
_NOT_OWN = "the only JSON with errors in the answer is quoted from the judged text"


class JsonPairs(list[tuple[str, Any]]):
    """A JSON object with all its pairs, so that a repeated name loses nothing."""

    def get(self, name: str) -> Any:
        """The last value of that name."""
        return next((value for key, value in reversed(self) if _normalise_key(key) == name), None)

    def has(self, name: str) -> bool:
        """Whether there is a value of that name."""
        return any(_normalise_key(key) == name for key, _ in self)


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=JsonPairs)


def format_errors(errors: Sequence[WrittenError], mark: str | None = None) -> str:
    """The errors in the JSON form that the prompt asks for, with the mark of the LLM's own answer."""
    rows = [{names[0]: getattr(error, field) for field, names in _NAMES.items()} for error in errors]
    return json.dumps({**({_MARK: mark} if mark else {}), _ERRORS: rows}, ensure_ascii=False, indent=1)


def errors_schema() -> Mapping[str, Any]:
    """The JSON schema of an answer, for servers that enforce schemas."""
    text = {"type": "string"}
    fields: dict[str, Any] = {names[0]: text for names in _NAMES.values()}
    fields |= {"severity": {"type": "string", "enum": [*SEVERITIES]}, _NAMES["penalty"][0]: {"type": "number"}}
    error = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    return {
        "type": "object",
        "properties": {_MARK: text, _ERRORS: {"type": "array", "items": error}},
        "required": [_MARK, _ERRORS],
        "additionalProperties": False,
    }


def parse_errors(
    answer: str, judged_texts: Sequence[str] = (), *, mark: str | None = None, truncated: bool = False
) -> ErrorAnswer:
    """Parse an answer in JSON.

    JSON that occurs in one of the `judged_texts` is not the answer. JSON with the `mark` takes precedence.
    `truncated`: the model is known to have been stopped before the end.
    """
    if not answer.strip():
        return ErrorAnswer(failure="the answer is empty")
    # If there is no valid JSON, almost valid JSON (a missing comma, wrong quotation marks) is accepted.
    candidates = _select_answers(find_json_values(answer), answer) or _select_answers(_find_repaired(answer), answer)
    judged = _JudgedTexts(judged_texts)
    own, marked = [], []
    for value, text in candidates:
        has_mark = mark is not None and isinstance(value, JsonPairs) and value.has(_MARK)
        # What carries another mark is another's answer.
        if judged.contain(text) or (has_mark and value.get(_MARK) != mark):
            continue
        own.append(value)
        if has_mark:
            marked.append(value)
    if not marked and mark is not None and mark in answer and not _only_mentions(mark, answer, own):
        # The judge's own answer has begun and cannot be parsed: other objects that look like one are quoted in it.
        once = len(_ERRORS_KEY.findall(answer)) == 1
        return _parse_damaged(answer, 0 if once else answer.index(mark), judged, truncated)
    if own:
        return _parse_value((marked or own)[-1])
    if candidates:
        return ErrorAnswer(failure=_NOT_OWN)
    if mark is not None and mark not in answer and re.search(rf"[\"'“‘]{_MARK}[\"'”’]\s*:", answer):
        return ErrorAnswer(failure=_NOT_OWN)
    last = list(_ERRORS_MEMBER.finditer(answer))[-1:]
    return _parse_damaged(answer, last[0].start() if last else 0, judged, truncated)


def _select_answers(values: Iterable[tuple[Any, str]], answer: str) -> list[tuple[Any, str]]:
    selected = []
    for value, text in values:
        if isinstance(value, JsonPairs):
            is_answer = value.has(_ERRORS)
        elif value:
            is_answer = all(map(_is_error, value))
        else:
            # An empty list means that there are no errors only if the answer consists of nothing else.
            is_answer = text == answer.strip().removeprefix("```json").strip("`\n ")
        if is_answer:
            selected.append((value, text))
    return selected


def _find_repaired(answer: str) -> Iterator[tuple[Any, str]]:
    for parsed in find_objects(answer):
        yield _to_pairs(parsed.values), answer[parsed.start : parsed.end]


def _to_pairs(value: Any) -> Any:
    if isinstance(value, Mapping):
        return JsonPairs((key, _to_pairs(member)) for key, member in value.items())
    return [_to_pairs(element) for element in value] if isinstance(value, list) else value


def _only_mentions(mark: str, answer: str, own: Sequence[Any]) -> bool:
    """Whether the mark is mentioned outside the JSON, as in "The mark is …", and only one object can be meant: it alone
    has errors, and no other place of the answer could be the start of such an object."""
    member = re.search(rf"{_MARK}[\"'”’]?\s*[:=]\s*[\"'“‘]?{re.escape(mark)}", answer, re.IGNORECASE)
    return not member and len(_ERRORS_KEY.findall(answer)) == len(own) == 1 and isinstance(own[0], JsonPairs)


def _parse_value(value: Any) -> ErrorAnswer:
    inner = value.get(_ERRORS) if isinstance(value, JsonPairs) else value
    if isinstance(inner, JsonPairs):
        # A single error that is not in a list, or errors by name.
        inner = [inner] if _is_error(inner) else [member for _, member in inner]
    if not isinstance(inner, list):
        kinds = {str: "a text", bool: "true or false", int: "a number", float: "a number", type(None): "null"}
        kind = kinds.get(type(inner), "something else")
        return ErrorAnswer(failure=f"the answer's 'errors' must be an object or a list, got {kind}")
    rows = [row for row in inner if _is_error(row)]
    others = len(inner) - len(rows)
    if others and not rows:
        return ErrorAnswer(failure="the answer's 'errors' lists nothing that is an error")
    notes = [f"{others} entries of 'errors' are not errors"] if others else []
    return build_answer([_parse_error(row) for row in rows], notes=notes)


def _parse_damaged(answer: str, start: int, judged: _JudgedTexts, truncated: bool) -> ErrorAnswer:
    """The complete errors in JSON that is truncated or broken in one place."""
    suffix = ", and is truncated" if truncated else ""
    key = _ERRORS_MEMBER.search(answer, start)
    if key is None:
        return ErrorAnswer(failure=f"the answer has no JSON object with 'errors'{suffix}")
    rows = _select_errors(find_json_values(answer, key.end()), judged) or _select_errors(
        _find_repaired(answer[key.end() :]), judged
    )
    notes = [] if truncated else ["the answer's JSON is damaged"]
    if rows:
        return build_answer([_parse_error(row) for row in rows], notes=notes, truncated=True)
    # If only answers with errors could be parsed, the mean would lack the best outputs; but an empty list that may be a
    # quotation says nothing.
    empty = _EMPTY_LIST.match(answer, key.end())
    once = len(_ERRORS_KEY.findall(answer)) == 1 and "{" in answer[: key.end()]
    if empty is not None and once and not judged.contain(answer[key.start() : empty.end()]):
        return ErrorAnswer(notes=(*notes, _TRUNCATED), partial=True)
    return ErrorAnswer(failure=f"the answer's JSON cannot be parsed{suffix}")


def _select_errors(values: Iterable[tuple[Any, str]], judged: _JudgedTexts) -> list[JsonPairs]:
    """All errors among the values that are not quotations: errors themselves, or members of a list or an object."""
    rows: list[JsonPairs] = []
    for value, text in values:
        if judged.contain(text):
            continue
        if _is_error(value):
            rows.append(value)
        else:
            members = [member for _, member in value] if isinstance(value, JsonPairs) else value
            rows += [member for member in members if _is_error(member)]
    return rows


class _JudgedTexts:
    """The texts that an answer is about, without white space, which a quotation may change."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = ["".join(text.split()) for text in texts if text]

    def contain(self, text: str) -> bool:
        compact = "".join(text.split())
        return any(compact in judged for judged in self._texts)


def find_json_values(answer: str, start: int = 0) -> Iterator[tuple[Any, str]]:
    """The outermost JSON objects and lists of the answer, with their text."""
    position, openings = start, 0
    while openings < _MAX_OPENINGS:
        brackets = (answer.find("{", position), answer.find("[", position))
        position = min((p for p in brackets if p >= 0), default=-1)
        if position < 0:
            return
        openings += 1
        try:
            value, end = _DECODER.raw_decode(answer, position)
        except ValueError:
            position += 1
            continue
        except RecursionError:
            return  # No answer is nested this deeply.
        yield value, answer[position:end]
        position = end


def _is_error(value: Any) -> bool:
    return isinstance(value, JsonPairs) and sum(_normalise_key(key) in _ERROR_KEYS for key, _ in value) >= 2


def _parse_error(row: JsonPairs) -> WrittenError:
    values = {
        field: next((row.get(name) for name in names if row.get(name) is not None), None)
        for field, names in _NAMES.items()
    }
    number = values.pop("penalty")
    penalty = None
    if isinstance(number, str):
        penalty = parse_penalty(number)
    elif isinstance(number, int | float) and not isinstance(number, bool):
        with suppress(OverflowError):
            penalty = normalise_penalty(float(number))
    texts = {
        field: value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
        for field, value in values.items()
    }
    return WrittenError(**texts, penalty=penalty)


def _normalise_key(key: str) -> str:
    return key.strip().lower().replace(" ", "_").replace("-", "_")
