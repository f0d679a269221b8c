"""What an LLM that was asked for errors answered: the errors as it wrote them, and what is odd about the answer.

The forms that answers come in are read by `tiger_answers` and `json_answers`. Both follow the same rules: the penalties
count, not a total that the answer claims; what is complete in a cut-off answer is kept; what cannot be read is a
failure, never an output without errors.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrist.metrics.answer_parsing import find_objects

#: Between these a penalty is asked for.
MIN_PENALTY, MAX_PENALTY = 0.5, 5.0
#: The severities that are asked for.
SEVERITIES = ("Major", "Minor")

#: What is noted of an answer that ends before its end.
CUT_OFF = "the answer is cut off; what was complete is kept"

#: More than this is no penalty: a grade of a hundred, a year, a slip.
_MOST_READABLE = 100.0
# The number opens the field and stands whole: no fraction, range, product, percentage or version. Of "1,000" nobody can
# tell whether it is one or a thousand.
_NUMBER = re.compile(
    r"[\s\"'`*_(\[“‘]*[-+−]?[ \t]?(?!\d+,\d{3}(?!\d))(?P<number>\d+(?:[.,]\d+)?|[.,]\d+)(?:(?:pts?|points?)\b)?"
    r"(?![\w%‰]|[.,]\d|[ \t]*[/*×^–—~-]+[ \t]*[.,]?\d|[ \t]+(?:to|or|and|x|times|percent)[ \t]+[.,]?\d)",
    re.IGNORECASE,
)
_AROUND = " \t\r\n\"'`*_.,;:()[]“”‘’"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenError:
    """One error in the words of the answer; a field that the answer lacks is empty, a penalty that it lacks is None."""

    location: str = ""
    aspect: str = ""
    explanation: str = ""
    severity: str = ""
    penalty: float | None = None
    revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """What an answer says. `partial`: some of it is missing, so that the penalties may be too few. `failure` says why
    nothing could be read; then there are no errors, which does not mean that the output has none."""

    errors: tuple[WrittenError, ...] = ()
    notes: tuple[str, ...] = ()
    partial: bool = False
    failure: str | None = None

    @property
    def penalty(self) -> float:
        """The sum of the penalties."""
        return math.fsum(error.penalty or 0.0 for error in self.errors)


def unreadable(reason: str) -> ErrorAnswer:
    """An answer that says nothing that could be used."""
    return ErrorAnswer(failure=reason)


def check_errors(
    errors: Sequence[WrittenError],
    *,
    claimed_count: int | None = None,
    claimed_total: float | None = None,
    notes: Sequence[str] = (),
    cut: bool = False,
) -> ErrorAnswer:
    """The answer with these errors, and all that is odd about them noted. `cut`: the answer ends before its end."""
    whole = [error for error in errors if error.penalty is not None]
    if not whole and (errors or claimed_count or cut):
        return unreadable(_nothing_whole(errors, claimed_count, cut))
    short = claimed_count is not None and len(whole) < claimed_count
    noted = [*notes, *_against_claims(whole, claimed_count, claimed_total), *_oddities(errors)]
    if cut:
        noted.append(CUT_OFF)
    return ErrorAnswer(
        errors=tuple(errors), notes=tuple(noted), partial=cut or short or len(whole) < len(errors), failure=None
    )


def parse_penalty(text: str) -> float | None:
    """The number that a field opens with: `4.5`, `4,5`, `-4`, `4 points`. A number elsewhere may say anything, and what
    stands on further lines is not the field's."""
    first = text.strip().split("\n", 1)[0]
    found = _NUMBER.match(first[:1000])
    return normalise_penalty(float(found["number"].replace(",", "."))) if found else None


def normalise_penalty(number: float) -> float | None:
    """The penalty that a number says. A reduction is a reduction whatever its sign; None where it can be none."""
    return abs(number) if abs(number) <= _MOST_READABLE else None


def parse_severity(written: str) -> str | None:
    """A severity as data files have it, in small letters; None where there is none."""
    bare = written.strip(_AROUND)
    return bare.lower() if bare.lower() in {one.lower() for one in SEVERITIES} else bare or None


def _nothing_whole(errors: Sequence[WrittenError], claimed: int | None, cut: bool) -> str:
    if errors:
        end = " before its first penalty" if cut else ""
        return f"the answer lists errors without a penalty that could be read{', cut off' + end if cut else ''}"
    return f"the answer says that there are {claimed} errors and lists none" if claimed else "the answer is cut off"


def _against_claims(errors: Sequence[WrittenError], count: int | None, total: float | None) -> Iterator[str]:
    if count is not None and count != len(errors):
        yield f"the header says {count} errors, {len(errors)} could be read"
    found = math.fsum(error.penalty or 0.0 for error in errors)
    if total is not None and not math.isclose(total, found, abs_tol=1e-6):
        yield f"the header says a reduction of {total:g}, the penalties add up to {found:g}; their sum counts"


def _oddities(errors: Sequence[WrittenError]) -> Iterator[str]:
    for number, error in enumerate(errors, 1):
        fields = {"location": error.location, "aspect": error.aspect, "explanation": error.explanation}
        missing = [name for name, text in {**fields, "severity": error.severity}.items() if not text.strip()]
        if missing:
            yield f"error {number} has no {', no '.join(missing)}"
        if error.severity.strip() and parse_severity(error.severity) not in {one.lower() for one in SEVERITIES}:
            yield f"error {number} has the severity {error.severity.strip()[:40]!r}, wanted Major or Minor"
        if error.penalty is None:
            yield f"error {number} has no penalty that could be read and does not count"
        elif not MIN_PENALTY <= error.penalty <= MAX_PENALTY:
            yield f"error {number} has a penalty of {error.penalty:g}, wanted {MIN_PENALTY:g} to {MAX_PENALTY:g}"


# Errors as JSON: `{"errors": {"error_1": {…}}}`, a list instead of the inner object, or a list alone; read, and
# written.
#
# The answer is the last such object that is not a quotation of the text that was judged. Words within JSON strings are
# never looked at for JSON, so what an error quotes cannot pass for the answer.


#: What is asked for comes first; the others are what models make of it.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "location": ("error_location", "location", "span", "text", "quote"),
    "aspect": ("error_aspect", "aspect", "category", "error_type", "type"),
    "explanation": ("explanation", "reason", "description"),
    "severity": ("severity", "error_severity"),
    "penalty": ("score_reduction", "penalty", "reduction"),
    "revision": ("revision", "correction", "suggestion", "suggested_revision"),
}
_MARKS = frozenset(name for name in _NAMES["location"] + _NAMES["penalty"] + ("explanation", "severity"))
_ERRORS, _MARK = "errors", "mark"
#: Where the list of errors begins, in whatever quotes.
_ERRORS_KEY = re.compile(r"\berrors[\"'”’]?\s*:", re.IGNORECASE)
#: The same, only where it can be an object's member: prose has "errors:" too.
_MEMBER = re.compile(r"(?:[\"'“‘]errors[\"'”’]|[{,]\s*errors)\s*:", re.IGNORECASE)
#: A list of no errors, which is closed and in its place: the object ends there or goes on with another member.
_NOTHING = re.compile(r"\s*(?:\[\s*\]|\{\s*\})(?=\s*(?:,|\}|```|$))")
#: More openings than this hold no answer; each costs a look at what follows.
_MOST_OPENINGS = 5_000


class JsonPairs(list[tuple[str, Any]]):
    """A JSON object with all its pairs: a name that is used twice loses nothing."""

    def get(self, name: str) -> Any:
        """The last value of that name."""
        return next((value for key, value in reversed(self) if _plain(key) == name), None)

    def has(self, name: str) -> bool:
        """Whether there is a value of that name."""
        return any(_plain(key) == name for key, _ in self)


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=JsonPairs)


def format_errors(errors: Sequence[WrittenError], mark: str | None = None) -> str:
    """The errors in the form that is asked for, with the mark that shows the answer to be the model's own."""
    listed = [{names[0]: getattr(error, field) for field, names in _NAMES.items()} for error in errors]
    return json.dumps({**({_MARK: mark} if mark else {}), _ERRORS: listed}, ensure_ascii=False, indent=1)


def errors_schema() -> Mapping[str, Any]:
    """What a server that can be held to a schema is held to."""
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


def parse_errors(answer: str, judged: Sequence[str] = (), *, mark: str | None = None, cut: bool = False) -> ErrorAnswer:
    """What the answer says. `judged` are the texts that it is about: JSON that stands in them is not the answer. JSON
    that carries the mark goes before all other. `cut`: the model is known to have been stopped before its end."""
    if not answer.strip():
        return unreadable("the answer is empty")
    # What is no JSON by a comma or by its quotation marks is read too, where there is nothing better.
    found = _answers(find_json_values(answer), answer) or _answers(_mended(answer), answer)
    quoted = _Quoted(judged)
    own = [value for value, text in found if not quoted.has(text) and _may_be(value, mark)]
    marked = [value for value in own if _carries(value, mark)]
    if not marked and mark is not None and mark in answer and not _only_mentions(mark, answer, own):
        # The judge's own answer has begun and cannot be read as a whole: what else looks like one is quoted in it.
        once = len(_ERRORS_KEY.findall(answer)) == 1
        return _read_damaged(answer, 0 if once else answer.index(mark), quoted, cut)
    if own:
        return _read_whole((marked or own)[-1])
    if found:
        return unreadable("the only JSON with errors in the answer is not the judge's own")
    if mark is not None and mark not in answer and _has_mark(answer):
        return unreadable("the only JSON with errors in the answer is not the judge's own")
    last = list(_MEMBER.finditer(answer))[-1:]
    return _read_damaged(answer, last[0].start() if last else 0, quoted, cut)


def _answers(found: Iterable[tuple[Any, str]], answer: str) -> list[tuple[Any, str]]:
    return [(value, text) for value, text in found if _is_answer(value, text, answer)]


def _mended(answer: str) -> Iterator[tuple[Any, str]]:
    for one in find_objects(answer):
        yield _as_object(one.values), answer[one.start : one.end]


def _as_object(value: Any) -> Any:
    if isinstance(value, Mapping):
        return JsonPairs((key, _as_object(one)) for key, one in value.items())
    return [_as_object(one) for one in value] if isinstance(value, list) else value


def _carries(value: Any, mark: str | None) -> bool:
    return mark is not None and isinstance(value, JsonPairs) and value.get(_MARK) == mark


def _may_be(value: Any, mark: str | None) -> bool:
    """Whether it carries the mark, or none: another's mark is another's answer."""
    return mark is None or not isinstance(value, JsonPairs) or not value.has(_MARK) or _carries(value, mark)


def _only_mentions(mark: str, answer: str, own: Sequence[Any]) -> bool:
    """Whether the mark is told beside the JSON, as in "The mark is …", and there is no doubt which JSON is meant: only
    one object has errors, and no other place of the answer could be where such an object begins."""
    member = re.search(rf"{_MARK}[\"'”’]?\s*[:=]\s*[\"'“‘]?{re.escape(mark)}", answer, re.IGNORECASE)
    return not member and len(_ERRORS_KEY.findall(answer)) == len(own) == 1 and isinstance(own[0], JsonPairs)


def _read_whole(value: Any) -> ErrorAnswer:
    rows = _rows(value)
    if rows is None:
        return unreadable(f"the answer's 'errors' must be an object or a list, got {_kind(value.get(_ERRORS))}")
    odd = [row for row in rows if not _is_error(row)]
    notes = [f"{len(odd)} entries of 'errors' are no errors"] if odd else []
    errors = [_error(row) for row in rows if _is_error(row)]
    if odd and not errors:
        return unreadable("the answer's 'errors' lists nothing that is an error")
    return check_errors(errors, notes=notes)


def _read_damaged(answer: str, start: int, quoted: _Quoted, cut: bool) -> ErrorAnswer:
    """The errors that are whole in JSON that is not: cut off, or broken in one place."""
    end = ", and is cut off" if cut else ""
    key = _MEMBER.search(answer, start)
    if key is None:
        return unreadable(f"the answer has no JSON object with 'errors'{end}")
    rows = _own_rows(find_json_values(answer, key.end()), quoted) or _own_rows(_mended(answer[key.end() :]), quoted)
    notes = [] if cut else ["the answer's JSON is damaged"]
    if not rows and _lists_nothing(answer, key, quoted):
        return ErrorAnswer(notes=(*notes, CUT_OFF), partial=True)
    if not rows:
        return unreadable(f"the answer's JSON cannot be read{end}")
    return check_errors([_error(row) for row in rows], notes=notes, cut=True)


def _lists_nothing(answer: str, key: re.Match[str], quoted: _Quoted) -> bool:
    """Whether the damaged answer says that there are no errors. If only what lists errors could be read, the mean would
    lack the best outputs; but an empty list that may be quoted says nothing."""
    listed = _NOTHING.match(answer, key.end())
    once = len(_ERRORS_KEY.findall(answer)) == 1 and "{" in answer[: key.end()]
    return listed is not None and once and not quoted.has(answer[key.start() : listed.end()])


def _has_mark(answer: str) -> bool:
    return re.search(rf"[\"'“‘]{_MARK}[\"'”’]\s*:", answer) is not None


def _own_rows(found: Iterable[tuple[Any, str]], quoted: _Quoted) -> list[JsonPairs]:
    return [row for value, text in found if not quoted.has(text) for row in _errors_in(value)]


def _errors_in(value: Any) -> list[JsonPairs]:
    """An error, those of a list, or those of an object that names them."""
    if _is_error(value):
        return [value]
    return [row for row in (_members(value) if isinstance(value, JsonPairs) else value) if _is_error(row)]


def _members(value: JsonPairs) -> list[Any]:
    return [one for _, one in value]


class _Quoted:
    """The texts that an answer is about, without white space, which a quotation may change."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = ["".join(text.split()) for text in texts if text]

    def has(self, text: str) -> bool:
        """Whether it stands in one of the texts."""
        bare = "".join(text.split())
        return any(bare in one for one in self._texts)


def find_json_values(answer: str, start: int = 0) -> Iterator[tuple[Any, str]]:
    """All JSON objects and lists that stand in the answer, none of them within another, with their text."""
    at, openings = start, 0
    while openings < _MOST_OPENINGS:
        at = min((p for p in (answer.find("{", at), answer.find("[", at)) if p >= 0), default=-1)
        if at < 0:
            return
        openings += 1
        try:
            value, end = _DECODER.raw_decode(answer, at)
        except ValueError:
            at += 1
            continue
        except RecursionError:
            return  # Nobody nests an answer so deeply.
        yield value, answer[at:end]
        at = end


def _is_answer(value: Any, text: str, answer: str) -> bool:
    if isinstance(value, JsonPairs):
        return value.has(_ERRORS)
    if value:
        return all(map(_is_error, value))
    # An empty list says that there are no errors only where it is all that is said.
    return text == answer.strip().removeprefix("```json").strip("`\n ")


def _rows(value: Any) -> list[Any] | None:
    inner = value.get(_ERRORS) if isinstance(value, JsonPairs) else value
    if isinstance(inner, JsonPairs):
        # One error that was not wrapped, or errors by name.
        return [inner] if _is_error(inner) else _members(inner)
    return inner if isinstance(inner, list) else None


def _is_error(value: Any) -> bool:
    return isinstance(value, JsonPairs) and sum(_plain(key) in _MARKS for key, _ in value) >= 2


def _error(row: JsonPairs) -> WrittenError:
    texts = {field: _text(_first(row, names)) for field, names in _NAMES.items() if field != "penalty"}
    return WrittenError(**texts, penalty=_penalty(_first(row, _NAMES["penalty"])))


def _first(row: JsonPairs, names: Sequence[str]) -> Any:
    return next((row.get(name) for name in names if row.get(name) is not None), None)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _penalty(value: Any) -> float | None:
    if isinstance(value, str):
        return parse_penalty(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return normalise_penalty(float(value))
    except OverflowError:
        return None


def _plain(key: str) -> str:
    return key.strip().lower().replace(" ", "_").replace("-", "_")


def _kind(value: Any) -> str:
    kinds = {str: "a text", bool: "true or false", int: "a number", float: "a number", type(None): "null"}
    return kinds.get(type(value), "something else")
