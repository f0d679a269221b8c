"""Bound the requests to a server: per minute (`RateLimiter`) and in flight (`run_requests`)."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from metrist.errors import ModelError
from metrist.llm.messages import Completion
from metrist.runtime import Runtime

_MINUTE = 60.0


class Bucket:
    """A token bucket: hands out at most `limit` per minute, spread evenly. It holds one second's worth and refills
    steadily. With amounts other than 1, a minute may see one more, most of which was waited for before.

    `take` may push the level below zero; the taker then waits until the debt is refilled. So takers are served in
    order, and small amounts do not starve a large one.
    """

    def __init__(self, limit: int, now: float) -> None:
        self._capacity = max(1.0, limit / _MINUTE)
        # A minute can begin with a full bucket, so it refills a little more slowly than the limit allows.
        self._rate = (limit - self._capacity + 1) / _MINUTE
        self._level = self._capacity
        self._updated = now
        self._lock = threading.Lock()

    def take(self, amount: float, now: float) -> float:
        """Take an amount; the result is the number of seconds to wait before using it."""
        with self._lock:
            self._refill(now)
            self._level -= amount
            return max(0.0, -self._level / self._rate)

    def put_back(self, amount: float, now: float) -> None:
        """Correct what was taken: less was used, or more if `amount` is negative."""
        with self._lock:
            self._refill(now)
            self._level = min(self._capacity, self._level + amount)

    def _refill(self, now: float) -> None:
        self._level = min(self._capacity, self._level + (now - self._updated) * self._rate)
        self._updated = max(now, self._updated)


class RateLimiter:
    """The requests and tokens per minute of one server."""

    def __init__(self, requests: int | None, tokens: int | None) -> None:
        now = time.monotonic()
        self._requests = Bucket(requests, now) if requests else None
        self._tokens = Bucket(tokens, now) if tokens else None

    def book(self, tokens: int) -> float:
        """Book a request of about this many tokens; return the seconds to wait before sending it."""
        now = time.monotonic()
        waits = [self._requests.take(1, now)] if self._requests else []
        waits += [self._tokens.take(tokens, now)] if self._tokens else []
        return max(waits, default=0.0)

    def correct(self, booked: int, used: int) -> None:
        """Replace the estimated number of tokens by the actual one."""
        if self._tokens:
            self._tokens.put_back(booked - used, time.monotonic())


def rate_limiter(url: str, runtime: Runtime) -> RateLimiter:
    """The limiter of the server at this address. All calls of this process with the same limits share it, also from
    several runs at once, since a server counts all requests of an account."""
    with _limiters_lock:
        return _limiters.setdefault((url, runtime.rpm, runtime.tpm), RateLimiter(runtime.rpm, runtime.tpm))


#: By address and limits. Two threads at once must not get one limiter each.
_limiters: dict[tuple[str, int | None, int | None], RateLimiter] = {}
_limiters_lock = threading.Lock()


#: Seconds given to requests in flight after a fatal error: their answers may be paid for.
GRACE = 30.0
#: Waits are split, because on some systems an interrupt is not noticed during a wait.
_POLL = 0.5

#: A completion, an error that ends the batch, or None if the pool was stopped before the request was sent.
Result = Completion | ModelError | None


def run_requests(
    send: Callable[[int], Result],
    count: int,
    *,
    size: int,
    stop: threading.Event,
    close: Callable[[], None],
    deliver: Callable[[int, Completion], None],
) -> list[Completion]:
    """The completions of all numbers below `count`, in order, from as many daemon threads as `size` says.

    `deliver` is called in the caller's thread only, and the next request starts only after a result was delivered, so
    that few results are ever held in memory alone. An error is raised once the requests in flight have ended (or
    `GRACE` has passed), whose answers may be paid for; an interrupt is raised at once. The last thread to end calls
    `close`, when nothing uses the connections any more.

    concurrent.futures is not used because the interpreter joins its threads on exit: after Ctrl-C it would wait for
    the server to answer every request in flight.
    """
    jobs: SimpleQueue[int | None] = SimpleQueue()
    results: SimpleQueue[tuple[int, Result]] = SimpleQueue()
    ended = itertools.count(1)

    def work() -> None:
        for number in iter(jobs.get, None):
            results.put((number, send(number)))
        if next(ended) == size:
            close()

    threads = [threading.Thread(target=work, name="metrist-llm", daemon=True) for _ in range(size)]
    for thread in threads:
        thread.start()
    completions: dict[int, Completion] = {}
    error: Exception | None = None
    until = math.inf
    try:
        for number in range(min(size, count)):
            jobs.put(number)
        started, in_flight = size, min(size, count)
        while in_flight and time.monotonic() < until:
            try:
                number, result = results.get(timeout=_POLL)
            except Empty:
                continue
            in_flight -= 1
            try:
                if result is None:
                    raise ModelError("the run was stopped before this conversation was answered", code="run_failed")
                if isinstance(result, ModelError):
                    raise result
                deliver(number, result)
                completions[number] = result
            except Exception as fault:
                if error is None:
                    error, until = fault, time.monotonic() + GRACE
                    stop.set()
            if error is None and started < count:
                jobs.put(started)
                started += 1
                in_flight += 1
    finally:
        stop.set()
        for _ in threads:
            jobs.put(None)
    if error is not None:
        raise error
    for thread in threads:
        thread.join()
    return [completions[number] for number in range(count)]
