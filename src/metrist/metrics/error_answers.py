"""What an LLM that was asked for errors answered: the errors as it wrote them, and what is odd about the answer.

The forms that answers come in are read by `tiger_answers` and `json_answers`. Both follow the same rules: the penalties
count, not a total that the answer claims; what is complete in a cut-off answer is kept; what cannot be read is a
failure, never an output without errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: Between these a penalty is asked for.
LEAST_PENALTY, MOST_PENALTY = 0.5, 5.0
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


def checked(
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


def penalty_in(text: str) -> float | None:
    """The number that a field opens with: `4.5`, `4,5`, `-4`, `4 points`. A number elsewhere may say anything, and what
    stands on further lines is not the field's."""
    first = text.strip().split("\n", 1)[0]
    found = _NUMBER.match(first[:1000])
    return readable_penalty(float(found["number"].replace(",", "."))) if found else None


def readable_penalty(number: float) -> float | None:
    """The penalty that a number says. A reduction is a reduction whatever its sign; None where it can be none."""
    return abs(number) if abs(number) <= _MOST_READABLE else None


def severity_of(written: str) -> str | None:
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
        if error.severity.strip() and severity_of(error.severity) not in {one.lower() for one in SEVERITIES}:
            yield f"error {number} has the severity {error.severity.strip()[:40]!r}, wanted Major or Minor"
        if error.penalty is None:
            yield f"error {number} has no penalty that could be read and does not count"
        elif not LEAST_PENALTY <= error.penalty <= MOST_PENALTY:
            yield f"error {number} has a penalty of {error.penalty:g}, wanted {LEAST_PENALTY:g} to {MOST_PENALTY:g}"
