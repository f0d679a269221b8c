"""The limit on what a run may cost: nothing is sent that could pass it.

Before questions are sent, the most that they can cost is reserved; what they did cost takes its place when the answer
is there. A run's processes share one account, in the file of the answer cache. What a process that was killed had
reserved stays so, and a question that failed without a word about its tokens counts in full: it may have been billed.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from metrist.errors import ModelError
from metrist.llm import options
from metrist.llm.answer_cache import AnswerCache
from metrist.models.sqlite_store import transaction

#: Seconds between two looks at what other processes have settled.
_PAUSE = 0.1
#: Seconds after which a process that cannot be looked at, on another machine, is taken for dead if it says nothing.
_SILENCE = 600.0


@dataclass(frozen=True, slots=True)
class Standing:
    """US dollars that a run has paid, and that questions under way may still cost; `pending`: some of those are another
    living process's."""

    paid: float
    reserved: float
    pending: bool


class Account:
    """What one run spends, as this process sees it."""

    def __init__(self, cache: AnswerCache, limit: float) -> None:
        self._cache = cache
        self._limit = limit
        self._run = os.environ.get(options.RUN) or _own_run(os.getpid())
        self._process = f"{platform.node()}:{os.getpid()}"

    def admit(self, worst: Sequence[float]) -> int:
        """How many of the questions, from the first on, can be sent now, given the most that each may cost; reserves
        for them. Waits while other processes have reserved what they may not need; ModelError where not even the first
        fits."""
        while True:
            count, standing = self._cache.work(lambda connection: self._reserve(connection, worst))
            if count:
                return count
            if not standing.pending:
                raise ModelError(self._reached(standing, worst))
            time.sleep(_PAUSE)

    def settle(self, reserved: float, paid: float) -> None:
        """A question for which so much was reserved did cost `paid`."""

        def settled(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                self._add(connection, paid=paid, reserved=-reserved)

        self._cache.work(settled)

    def standing(self) -> Standing:
        """Where the run stands."""
        return self._cache.work(self._standing)

    def _reserve(self, connection: sqlite3.Connection, worst: Sequence[float]) -> tuple[int, Standing]:
        with transaction(connection):
            standing = self._standing(connection)
            # What adds up to the limit must not be refused for the last digit of a sum.
            left = self._limit * (1 + 1e-9) - standing.paid - standing.reserved
            count, total = 0, 0.0
            while count < len(worst) and total + worst[count] <= left:
                total += worst[count]
                count += 1
            if count:
                self._add(connection, paid=0.0, reserved=total)
            return count, standing

    def _standing(self, connection: sqlite3.Connection) -> Standing:
        rows = connection.execute(
            "SELECT process, paid, reserved, changed FROM spending WHERE run = ?", (self._run,)
        ).fetchall()
        pending = any(
            reserved > 1e-12 and process != self._process and _lives(process, changed)
            for process, _, reserved, changed in rows
        )
        return Standing(sum(row[1] for row in rows), max(0.0, sum(row[2] for row in rows)), pending)

    def _add(self, connection: sqlite3.Connection, *, paid: float, reserved: float) -> None:
        connection.execute(
            "INSERT INTO spending (run, process, paid, reserved, changed) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (run, process) DO UPDATE SET paid = paid + excluded.paid, "
            "reserved = reserved + excluded.reserved, changed = excluded.changed",
            (self._run, self._process, paid, reserved, time.time()),
        )

    def _reached(self, standing: Standing, worst: Sequence[float]) -> str:
        lost = f", and ${standing.reserved:.4f} for questions without an answer" if standing.reserved > 1e-9 else ""
        return (
            f"the limit of ${self._limit:g} on what a run may cost is reached: ${standing.paid:.4f} are spent{lost}; "
            f"the next question could cost ${worst[0]:.4f}, and {len(worst):,} or more are left. A second run with a "
            f"higher limit (--max-cost, {options.MAX_COST}) goes on from here and pays for no answer again"
        )


@lru_cache(maxsize=1)
def _own_run(_process: int) -> str:
    """For a process that no run was announced to."""
    return uuid.uuid4().hex


def _lives(process: str, changed: float) -> bool:
    machine, _, number = process.rpartition(":")
    # Where a look at a process would be a signal to it, it is only listened to.
    if machine != platform.node() or sys.platform == "win32":
        return time.time() - changed < _SILENCE
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
