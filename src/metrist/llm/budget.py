"""The budget of a run, which no request can exceed.

Before a request is sent, the most that it can cost is reserved; when the answer is there, the actual cost takes its
place. The processes of a run share one account in the file of the answer cache. What a killed process had reserved
stays reserved, and a request that failed without a token count is charged in full, since it may have been billed.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from metrist.errors import ModelError
from metrist.llm.cache import AnswerCache
from metrist.runtime import VARIABLES, is_process_alive

#: Seconds between two checks of what other processes have settled.
_POLL = 0.1
#: Seconds after which a silent process on another machine is taken for dead.
_SILENCE = 600.0


@dataclass(frozen=True, slots=True)
class BudgetState:
    """US dollars that a run has paid, and that its requests in flight may still cost. `pending`: some of those belong
    to another live process."""

    paid: float
    reserved: float
    pending: bool


class Budget:
    """The account of one run, as this process sees it. Threads can share it."""

    def __init__(self, cache: AnswerCache, limit: float, run_id: str | None = None) -> None:
        self._cache = cache
        self._limit = limit
        self._run = run_id or _own_run_id(os.getpid())
        self._process = f"{platform.node()}:{os.getpid()}"

    def admit(self, costs: Sequence[float]) -> int:
        """Reserve for as many requests, from the first on, as the budget allows, given the most that each can cost.

        Waits while other processes hold reservations that they may not need; ModelError if not even the first fits.
        """
        while True:
            count, state = self._cache.write(lambda connection: self._reserve(connection, costs))
            if count:
                return count
            if not state.pending:
                lost = f", and ${state.reserved:.4f} is reserved for requests without an answer"
                raise ModelError(
                    f"the limit of ${self._limit:g} on the cost of a run is reached: ${state.paid:.4f} is spent"
                    f"{lost if state.reserved > 1e-9 else ''}; the next request could cost ${costs[0]:.4f}, and at "
                    f"least {len(costs):,} are left. Run again with a higher limit (`max_cost`, "
                    f"{VARIABLES['max_cost']}) to continue; no answer is paid for twice",
                    code="budget",
                )
            time.sleep(_POLL)

    def try_reserve(self, cost: float) -> bool:
        """Reserve for one request if the budget allows it now."""
        count, _ = self._cache.write(lambda connection: self._reserve(connection, [cost]))
        return count == 1

    def settle(self, reserved: float, paid: float) -> None:
        """Replace a reservation by the actual cost."""
        self._cache.write(lambda connection: self._add(connection, paid=paid, reserved=-reserved))

    def state(self) -> BudgetState:
        """What is paid and reserved now."""
        return self._cache.write(self._read_state)

    def _reserve(self, connection: sqlite3.Connection, costs: Sequence[float]) -> tuple[int, BudgetState]:
        state = self._read_state(connection)
        # A sum that equals the limit must not be refused for a rounding error.
        left = self._limit * (1 + 1e-9) - state.paid - state.reserved
        count, total = 0, 0.0
        while count < len(costs) and total + costs[count] <= left:
            total += costs[count]
            count += 1
        if count:
            self._add(connection, paid=0.0, reserved=total)
        return count, state

    def _read_state(self, connection: sqlite3.Connection) -> BudgetState:
        rows = connection.execute(
            "SELECT process, paid, reserved, changed FROM spending WHERE run = ?", (self._run,)
        ).fetchall()
        pending = any(
            reserved > 1e-12 and process != self._process and _is_alive(process, changed)
            for process, _, reserved, changed in rows
        )
        return BudgetState(sum(row[1] for row in rows), max(0.0, sum(row[2] for row in rows)), pending)

    def _add(self, connection: sqlite3.Connection, *, paid: float, reserved: float) -> None:
        connection.execute(
            "INSERT INTO spending (run, process, paid, reserved, changed) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (run, process) DO UPDATE SET paid = paid + excluded.paid, "
            "reserved = reserved + excluded.reserved, changed = excluded.changed",
            (self._run, self._process, paid, reserved, time.time()),
        )


@lru_cache(maxsize=1)
def _own_run_id(_process: int) -> str:
    """The id of calls that belong to no run: one per process."""
    return uuid.uuid4().hex


def _is_alive(process: str, changed: float) -> bool:
    machine, _, number = process.rpartition(":")
    is_alive = is_process_alive(int(number)) if machine == platform.node() else None
    return time.time() - changed < _SILENCE if is_alive is None else is_alive
