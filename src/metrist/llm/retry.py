"""The possible outcomes of one request to a server, and when to send it again.

Which responses may be sent again is decided by `classify_error` in `http`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Literal

from metrist.llm.messages import Completion, Finish, Usage
from metrist.scores import Failure

#: Seconds before the second attempt; each further wait is twice as long, up to the longest.
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
#: Attempts at a server that has never responded, so that a wrong address is reported soon.
FIRST_CONTACT = 3


@dataclass(frozen=True, slots=True)
class Response:
    """What a server sent, complete."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class TransportError:
    """Why no complete response came: no connection ('unreachable'), a certificate that is not trusted ('untrusted'),
    or a timeout or a connection that broke off ('broken')."""

    reason: str
    kind: Literal["unreachable", "untrusted", "broken"] = "broken"


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
