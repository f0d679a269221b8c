"""What answers may cost and where they are kept: nothing of it changes one. It comes from the environment, and worker
processes inherit it."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue

from metrist.errors import ModelError
from metrist.llm.base import Arrived
from metrist.llm.messages import Completion

#: US dollars that a run may cost; unset: any.
MAX_COST = "METRIST_MAX_COST"
#: The folder of the answer cache.
CACHE = "METRIST_LLM_CACHE"
#: A file of prices beside the shipped ones.
PRICES = "METRIST_PRICES"
#: Which run this process belongs to: what its processes spend is counted together.
RUN = "METRIST_LLM_RUN"


def max_cost() -> float | None:
    """US dollars that a run may cost; None: any."""
    text = os.environ.get(MAX_COST)
    if not text:
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0 <= limit < math.inf:
        raise ModelError(f"{MAX_COST} must be an amount in US dollars such as 2.50, got {text!r}")
    return limit


def cache_folder() -> Path:
    """Where answers are kept: as the environment says, else in the user's folder for caches."""
    if named := os.environ.get(CACHE):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "metrist" / "llm"


def prices_file() -> Path | None:
    """The user's own prices, if any."""
    named = os.environ.get(PRICES)
    return Path(named).expanduser() if named else None


# How much is asked at once and in a minute. None of it changes an answer, so all of it comes from the environment.


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


class RateLimiter:
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


def rate_limiter(url: str) -> RateLimiter:
    """The limits of the server at that address, as the environment sets them now."""
    return _rates(url, whole_number(RPM), whole_number(TPM))


_rates_lock = threading.Lock()


def _rates(url: str, requests: int | None, tokens: int | None) -> RateLimiter:
    with _rates_lock:  # Two threads at once must not get a bucket each.
        return _made(url, requests, tokens)


@lru_cache(maxsize=64)
def _made(_url: str, requests: int | None, tokens: int | None) -> RateLimiter:
    return RateLimiter(requests, tokens)


# Many conversations at once, by threads: at most so many are out, each answer is handed over as it comes.


#: After a fault of the whole, seconds given to answers that are on their way: they may be paid for.
GRACE = 30.0
# Waits are cut into pieces because on some systems an interrupt is not seen during a wait.
_GLANCE = 0.5

Outcome = Completion | ModelError | None
Answers = SimpleQueue[tuple[int, Outcome]]


class RequestPool:
    """Threads that ask, and the caller's thread that takes in: `arrived` is called there and nowhere else, and the next
    conversation goes out only when an answer was taken in, so that few answers are ever in memory alone."""

    def __init__(
        self, ask: Callable[[int], Outcome], at_once: int, stop: threading.Event, last: Callable[[], None]
    ) -> None:
        self._ask = ask
        self._at_once = at_once
        self._stop = stop
        self._last = last
        self._jobs: SimpleQueue[int | None] = SimpleQueue()
        self._answers: Answers = SimpleQueue()
        self._leaving = threading.Lock()
        self._inside = at_once

    def answer(self, count: int, arrived: Arrived) -> list[Completion]:
        """All answers, in order. A fault is raised when what was on its way has been taken in; an interrupt at once."""
        threads = [threading.Thread(target=self._work, name="metrist-llm", daemon=True) for _ in range(self._at_once)]
        for thread in threads:
            thread.start()
        try:
            found = self._taken_in(count, arrived)
        finally:
            self._stop.set()
            for _ in threads:
                self._jobs.put(None)
        for thread in threads:
            thread.join()
        return found

    def _taken_in(self, count: int, arrived: Arrived) -> list[Completion]:
        found: dict[int, Completion] = {}
        numbers = iter(range(count))
        out = sum(self._send_out(number) for number in islice(numbers, self._at_once))
        while out:
            number, outcome = self._next()
            out -= 1
            try:
                found[number] = _taken(number, outcome, arrived)
            except Exception:
                self._stop.set()
                self._wind_up(out, arrived)
                raise
            out += sum(self._send_out(following) for following in islice(numbers, 1))
        return [found[number] for number in range(count)]

    def _send_out(self, number: int) -> int:
        self._jobs.put(number)
        return 1

    def _wind_up(self, out: int, arrived: Arrived) -> None:
        """Takes in what is still on its way, within the time of grace; the first fault is the one that counts."""
        until = time.monotonic() + GRACE
        for _ in range(out):
            try:
                number, outcome = self._next(until)
                _taken(number, outcome, arrived)
            except TimeoutError:
                return
            except Exception:
                continue

    def _next(self, until: float = float("inf")) -> tuple[int, Outcome]:
        while True:
            try:
                return self._answers.get(timeout=_GLANCE)
            except Empty:
                if time.monotonic() > until:
                    raise TimeoutError from None

    def _work(self) -> None:
        """Asks until there is no more to ask; the last one out turns off the light."""
        for number in iter(self._jobs.get, None):
            self._answers.put((number, self._ask(number)))
        with self._leaving:
            self._inside -= 1
            last = self._inside == 0
        if last:
            self._last()


def _taken(number: int, outcome: Outcome, arrived: Arrived) -> Completion:
    if outcome is None:
        raise ModelError("the run was stopped before this conversation was answered")
    if isinstance(outcome, ModelError):
        raise outcome
    arrived(number, outcome)
    return outcome
