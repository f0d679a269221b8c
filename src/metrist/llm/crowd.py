"""Many conversations at once, by threads: at most so many are out, each answer is handed over as it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import islice
from queue import Empty, SimpleQueue

from metrist.errors import ModelError
from metrist.llm.base import Arrived
from metrist.llm.talk import Completion

#: After a fault of the whole, seconds given to answers that are on their way: they may be paid for.
GRACE = 30.0
# Waits are cut into pieces because on some systems an interrupt is not seen during a wait.
_GLANCE = 0.5

Outcome = Completion | ModelError | None
Answers = SimpleQueue[tuple[int, Outcome]]


class Crowd:
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
