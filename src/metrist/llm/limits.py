"""How much is asked at once and in a minute. None of it changes an answer, so all of it comes from the environment."""

from __future__ import annotations

import os
import threading
import time
from functools import lru_cache

from metrist.errors import ModelError

CONCURRENCY = "METRIST_LLM_CONCURRENCY"
RPM = "METRIST_LLM_RPM"
TPM = "METRIST_LLM_TPM"
TIMEOUT = "METRIST_LLM_TIMEOUT"
ATTEMPTS = "METRIST_LLM_ATTEMPTS"
PATIENCE = "METRIST_LLM_PATIENCE"

_MINUTE = 60.0


#: Requests in flight at most where nothing is said.
_AT_ONCE = 16


def concurrency() -> int:
    """Requests in flight at most, in this process."""
    return whole_number(CONCURRENCY) or _AT_ONCE


def most_sharers() -> int:
    """So many processes at most can share the limits: each must be allowed one of everything."""
    return min(_limits().values())


def shares(processes: int) -> dict[str, str]:
    """The variables for one of so many processes that ask side by side: together they keep to the limits."""
    return {variable: str(max(1, limit // processes)) for variable, limit in _limits().items()}


def _limits() -> dict[str, int]:
    found = {variable: whole_number(variable) for variable in (RPM, TPM)}
    return {CONCURRENCY: concurrency(), **{variable: limit for variable, limit in found.items() if limit is not None}}


def timeout() -> float:
    """Seconds that one attempt may take, from sending to the last byte."""
    return float(whole_number(TIMEOUT) or 300)


def whole_number(variable: str) -> int | None:
    """The number in an environment variable; None where it is not set."""
    text = os.environ.get(variable)
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ModelError(f"{variable} must be a whole number of at least 1, got {text!r}")
    return int(text)


class Bucket:
    """Hands out at most `limit` in any minute, spread evenly: it holds a second's worth and fills steadily. Of amounts
    other than 1, a minute may hold one more, which was mostly waited for before that minute.

    What is taken is owed: the level goes below zero and the taker waits until the debt is filled, so that takers are
    served in the order in which they came and a large one is not starved by small ones.
    """

    def __init__(self, limit: int, now: float) -> None:
        self._most = max(1.0, limit / _MINUTE)
        # A minute can begin with a full bucket, which is why it fills a little more slowly than the limit allows.
        self._rate = (limit - self._most + 1) / _MINUTE
        self._level = self._most
        self._at = now
        self._lock = threading.Lock()

    def take(self, amount: float, now: float) -> float:
        """Seconds to wait before what was taken may be used."""
        with self._lock:
            self._fill(now)
            self._level -= amount
            return max(0.0, -self._level / self._rate)

    def put_back(self, amount: float, now: float) -> None:
        """Corrects what was taken: less was used, or more where `amount` is negative."""
        with self._lock:
            self._fill(now)
            self._level = min(self._most, self._level + amount)

    def _fill(self, now: float) -> None:
        self._level = min(self._most, self._level + (now - self._at) * self._rate)
        self._at = max(now, self._at)


class Rates:
    """The limits per minute of one server, shared by all that ask it in this process."""

    def __init__(self, requests: int | None, tokens: int | None) -> None:
        now = time.monotonic()
        self._requests = Bucket(requests, now) if requests else None
        self._tokens = Bucket(tokens, now) if tokens else None

    def book(self, tokens: int) -> float:
        """Books a request of about so many tokens: the seconds to wait before it may be sent."""
        now = time.monotonic()
        waits = [self._requests.take(1, now)] if self._requests else []
        waits += [self._tokens.take(tokens, now)] if self._tokens else []
        return max(waits, default=0.0)

    def correct(self, booked: int, used: int) -> None:
        """What was booked by guess is counted as the server counted it."""
        if self._tokens:
            self._tokens.put_back(booked - used, time.monotonic())


def rates(url: str) -> Rates:
    """The limits of the server at that address, as the environment sets them now."""
    return _rates(url, whole_number(RPM), whole_number(TPM))


_rates_lock = threading.Lock()


def _rates(url: str, requests: int | None, tokens: int | None) -> Rates:
    with _rates_lock:  # Two threads at once must not get a bucket each.
        return _made(url, requests, tokens)


@lru_cache(maxsize=64)
def _made(_url: str, requests: int | None, tokens: int | None) -> Rates:
    return Rates(requests, tokens)
