"""The possible outcomes of one request to a server, what its responses mean, and when to send it again."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

from metrist.errors import escape_controls
from metrist.llm.http import Response, UnreadableResponse
from metrist.llm.messages import Completion, Finish, Usage
from metrist.scores import Failure, FailureKind

#: Seconds before the second attempt; each further wait is twice as long, up to the longest.
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
#: Attempts at a server that has never responded, so that a wrong address is reported soon.
FIRST_CONTACT = 3


@dataclass(frozen=True, slots=True)
class Success:
    """The server answered. The completion may still hold a failure, such as a filtered or empty answer."""

    completion: Completion


@dataclass(frozen=True, slots=True)
class RetryableError:
    """Another attempt may succeed, after at least `wait` seconds. `throttled`: the server asked for a lower rate,
    which does not count as a failed attempt."""

    reason: str
    wait: float = 0.0
    throttled: bool = False
    unreachable: bool = False
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class RejectedField:
    """The server does not accept this field of the request; without it the request may succeed."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class RequestError:
    """This conversation cannot be answered, however often it is sent."""

    failure: Failure
    finish: Finish = "other"
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class FatalError:
    """No conversation can be answered."""

    reason: str


Outcome = Success | RetryableError | RejectedField | RequestError | FatalError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often one conversation is sent, and for how many seconds at most. Throttled attempts count against the
    seconds only."""

    attempts: int
    seconds: float

    def delay(self, attempt: int, retry_after: float, rng: random.Random) -> float:
        """Seconds to wait before this attempt (the first retry is attempt 2), at least what the server asked for.

        Half of the wait is random, and a little is added to the server's own number: all clients get the same one.
        """
        longest = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(attempt - 2, 30))
        own = longest * rng.uniform(0.5, 1.0)
        return max(own, retry_after + FIRST_WAIT * rng.uniform(0.0, 0.5)) if retry_after else own

    def is_exhausted(self, failures: int, seconds: float, *, first_contact: bool) -> bool:
        """Whether to give up after this many failed attempts, if the next one is due this long after the first."""
        return failures >= (FIRST_CONTACT if first_contact else self.attempts) or seconds > self.seconds


def parse_retry_after(headers: Mapping[str, str], now: float) -> float:
    """Seconds that the server asks to wait (`retry-after-ms`, or `Retry-After` as seconds or a date); else 0.

    A date is compared with the server's own clock if it sent one.
    """
    milliseconds = _parse_number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _parse_number(text)
    if seconds is not None:
        return seconds
    until, server_now = _parse_date(text), _parse_date(headers.get("date"))
    return max(0.0, until - (server_now or now)) if until else 0.0


def _parse_number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _parse_date(text: str | None) -> float | None:
    """Seconds since 1970 of an HTTP date."""
    try:
        return parsedate_to_datetime(text or "").timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


_TOO_LONG = re.compile(
    r"context.{0,20}(length|window|size)|maximum context|n_ctx|(prompt|input|request).{0,40}too (long|large)"
    r"|token count.{0,40}exceeds|exceeds? the (maximum|available|model)|too many tokens",
    re.IGNORECASE | re.DOTALL,
)
_FILTERED = re.compile(r"content.?(filter|policy|management)|safety|moderat(ion|ed)|flagged", re.IGNORECASE)
_NO_CREDIT = re.compile(
    r"insufficient.?(quota|funds|credits?|balance)|billing|credit balance|exceeded your current quota", re.IGNORECASE
)
#: Other words for a field in servers' error messages.
_SYNONYMS = {"response_format": ("schema", "grammar", "structured output", "guided decoding")}
_LONGEST_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class ServerError:
    """The error in a response: the server's message, and the code and the request field that it names."""

    message: str
    code: str = ""
    field: str = ""

    def matches(self, pattern: re.Pattern[str]) -> bool:
        return bool(pattern.search(self.message) or pattern.search(self.code))

    def names(self, field: str) -> bool:
        """Whether it is about this field of the request. A common word such as 'stop' must stand in quotes."""
        if self.field:
            return self.field.split(".")[0] == field
        words = [field, *_SYNONYMS.get(field, ())] if "_" in field or field in ("temperature", "logprobs") else []
        return self.quotes(field) or any(word in self.message.lower() for word in words)

    def quotes(self, word: str) -> bool:
        return bool(re.search(rf"""['"`]{re.escape(word)}['"`]""", self.message))


def classify_error(response: Response, model: str, optional: Sequence[str]) -> Outcome:
    """What an error response means for the request. `optional` are fields that the request could do without."""
    error = parse_error(response)
    status = response.status
    reason = f"the server answered {response.status}: {error.message}"
    if status < 300:
        # An error sent with a success status: the status that it names, or the usual one for its message.
        reason = f"the server answered {status} with an error: {error.message}"
        if re.fullmatch("[45][0-9]{2}", error.code):
            status = int(error.code)
        elif any(map(error.matches, (_TOO_LONG, _FILTERED, _NO_CREDIT))):
            status = 400
        else:
            status = 500
    if status in (400, 429) and error.matches(_NO_CREDIT):
        return FatalError(f"{reason} (waiting does not help: check the account's plan and balance)")
    if status in (408, 409, 425, 429) or status >= 500:
        return RetryableError(reason, parse_retry_after(response.headers, time.time()), throttled=status in (429, 529))
    if status in (400, 413, 422):
        return _classify_bad_request(error, model, optional, reason)
    if status == 403 and error.matches(_FILTERED):
        return RequestError(Failure(FailureKind.filtered, reason), "filter")
    return FatalError(f"{reason} ({_suggest_remedy(status, response)})")


def parse_error(response: Response) -> ServerError:
    """The error in a body: OpenAI's format, text (Ollama), a list of one (Gemini), 'detail' (FastAPI), no JSON."""
    try:
        data = response.data
    except UnreadableResponse:
        return ServerError(_shorten(response.body.decode("utf-8", "replace")) or "no message")
    data = data[0] if isinstance(data, list) and data else data
    error = data.get("error", data) if isinstance(data, dict) else data
    if not isinstance(error, dict):
        return ServerError(_shorten(str(error)))
    message = error.get("message") or error.get("detail") or error
    code, field = error.get("code") or error.get("type"), error.get("param")
    return ServerError(_shorten(str(message)), "" if code is None else str(code), "" if field is None else str(field))


def _classify_bad_request(error: ServerError, model: str, optional: Sequence[str], reason: str) -> Outcome:
    if error.matches(_TOO_LONG):  # First, since servers mention max_tokens in this message too.
        message = f"too long for the model's context: {reason}"
        return RequestError(Failure(FailureKind.too_long, message), "length")
    for name in optional:
        if error.names(name):
            return RejectedField(name, reason)
    if error.names("model") or error.quotes(model):
        return RejectedField("model", reason)
    if error.matches(_FILTERED):
        return RequestError(Failure(FailureKind.filtered, reason), "filter")
    return RequestError(Failure(FailureKind.refused, reason))


def _suggest_remedy(status: int, response: Response) -> str:
    if status < 400:
        address = _shorten(response.headers.get("location", "another address"))
        return f"it redirects to {address!r}; give that address as url=…"
    remedies = {
        401: "the key is wrong or missing: check the environment variable that key=… names",
        402: "check the account's balance",
        403: "this key may not use this model or address",
        404: "check model=… and url=…, which must be the server's base address such as http://127.0.0.1:8000/v1",
    }
    return remedies.get(status, "check url=…")


def _shorten(text: str) -> str:
    """One line that fits into a table."""
    line = escape_controls(" ".join(text.split()))
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]}…"
