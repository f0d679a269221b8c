"""What becomes of one attempt to ask a server."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Literal

from metrist.llm import rate_limit
from metrist.llm.messages import Completion, Usage


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server sent, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why nothing whole came back. 'unreachable': not even a connection could be made; 'untrusted': never will be."""

    reason: str
    kind: Literal["unreachable", "untrusted", "broken"] = "broken"


@dataclass(frozen=True, slots=True)
class Answered:
    """The server answered; its completion may still be a failure of that record (a filter, an empty answer)."""

    completion: Completion


@dataclass(frozen=True, slots=True)
class Again:
    """Worth another attempt, after `wait` seconds at least. `crowded`: only too early, and not counted as a fault."""

    reason: str
    wait: float = 0.0
    crowded: bool = False
    unreachable: bool = False
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Refused:
    """The server takes no such field; without it the request may do."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """This record cannot be answered, whenever asked."""

    reason: str
    finish: Literal["stop", "length", "filter", "other"] = "other"
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Fatal:
    """No record can be answered."""

    reason: str


Verdict = Answered | Again | Refused | Failed | Fatal


# When to ask again: longer after each fault, never all at the same moment, and not before the server said so.


#: Seconds before the second attempt; each further wait is twice as long, up to the longest.
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
#: Attempts to reach a server that has not answered anything yet: a wrong address is to be known soon.
FIRST_CONTACT = 3


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and for how many seconds one conversation is asked. Being told to come later is not counted as an
    attempt, since only time mends it."""

    attempts: int
    seconds: float


def patience() -> RetryPolicy:
    """As the environment has it."""
    attempts, seconds = rate_limit.whole_number(rate_limit.ATTEMPTS), rate_limit.whole_number(rate_limit.PATIENCE)
    return RetryPolicy(attempts or 8, float(seconds or 900))


def backoff_delay(attempt: int, told: float, rng: random.Random) -> float:
    """Seconds before that attempt (the second is number 2); `told` is what the server asked for.

    Half of the wait is left to chance, and a little is added to what the server said: it tells all askers the same.
    """
    most = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(attempt - 2, 30))
    own = most * rng.uniform(0.5, 1.0)
    return max(own, told + FIRST_WAIT * rng.uniform(0.0, 0.5)) if told else own


def parse_retry_after(headers: Mapping[str, str], now: float) -> float:
    """Seconds that the server wants us to wait: `retry-after-ms`, or `Retry-After` as seconds or as a date; else 0.

    A date is read against the server's own clock where it sent one, since ours may differ.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None:
        return seconds
    until, here = _moment(text), _moment(headers.get("date"))
    return max(0.0, until - (here or now)) if until else 0.0


def _number(text: str | None) -> float | None:
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if 0 <= found < float("inf") else None


def _moment(text: str | None) -> float | None:
    """Seconds since 1970 of an HTTP date."""
    try:
        return parsedate_to_datetime(text or "").timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
