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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache

from metrist.errors import ModelError
from metrist.llm import pricing, rate_limit
from metrist.llm.base import LLM
from metrist.llm.cache import AnswerCache, Request, build_requests, llm_identity, open_cache
from metrist.llm.messages import Completion, Conversation, Sampling, Usage
from metrist.llm.pricing import Price, find_price
from metrist.models.sqlite_store import transaction

#: Seconds between two looks at what other processes have settled.
_PAUSE = 0.1
#: Seconds after which a process that cannot be looked at, on another machine, is taken for dead if it says nothing.
_SILENCE = 600.0


@dataclass(frozen=True, slots=True)
class BudgetState:
    """US dollars that a run has paid, and that questions under way may still cost; `pending`: some of those are another
    living process's."""

    paid: float
    reserved: float
    pending: bool


class Budget:
    """What one run spends, as this process sees it."""

    def __init__(self, cache: AnswerCache, limit: float) -> None:
        self._cache = cache
        self._limit = limit
        self._run = os.environ.get(rate_limit.RUN) or _own_run(os.getpid())
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

    def standing(self) -> BudgetState:
        """Where the run stands."""
        return self._cache.work(self._standing)

    def _reserve(self, connection: sqlite3.Connection, worst: Sequence[float]) -> tuple[int, BudgetState]:
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

    def _standing(self, connection: sqlite3.Connection) -> BudgetState:
        rows = connection.execute(
            "SELECT process, paid, reserved, changed FROM spending WHERE run = ?", (self._run,)
        ).fetchall()
        pending = any(
            reserved > 1e-12 and process != self._process and _lives(process, changed)
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

    def _reached(self, standing: BudgetState, worst: Sequence[float]) -> str:
        lost = f", and ${standing.reserved:.4f} for questions without an answer" if standing.reserved > 1e-9 else ""
        return (
            f"the limit of ${self._limit:g} on what a run may cost is reached: ${standing.paid:.4f} are spent{lost}; "
            f"the next question could cost ${worst[0]:.4f}, and {len(worst):,} or more are left. A second run with a "
            f"higher limit (--max-cost, {rate_limit.MAX_COST}) goes on from here and pays for no answer again"
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


# What a run would ask, before it asks: inside `estimating()` no question leaves, and all are counted.
#
# Metrics run as ever. A question that is answered in the cache gets its answer; any other gets a
# text that stands for the
# answer to come, and where a later question quotes it, it counts for as many tokens as that answer
# may have. Questions
# that a metric asks only after it has seen what was answered (a second look at the errors found) cannot be foreseen.


#: Stands for an answer to come. A metric cannot make sense of it, which is a failed score that nobody looks at.
PLACEHOLDER = "⟦the answer to come⟧"


@dataclass(slots=True)
class LLMEstimate:
    """What one LLM would be asked. Tokens and costs are of the questions that have no answer yet; costs are in US
    dollars, None where no price is known."""

    llm: str
    price: Price | None
    calls: int = 0
    answered: int = 0
    prompt_tokens: int = 0
    most_prompt_tokens: int = 0
    most_completion_tokens: int = 0

    @property
    def least_cost(self) -> float | None:
        """About what the prompts alone cost."""
        return None if self.price is None else self.price.cost(self.prompt_tokens, 0)

    @property
    def most_cost(self) -> float | None:
        """What it cannot pass: with this as the limit on cost, a run is not stopped."""
        if self.price is None:
            return None
        return self.price.cost(self.most_prompt_tokens, self.most_completion_tokens)


@dataclass(slots=True)
class Estimate:
    """Would-be calls, by LLM."""

    by_llm: dict[str, LLMEstimate] = field(default_factory=dict)
    _seen: set[bytes] = field(default_factory=set)
    _longest_to_come: int = 0

    def complete(self, llm: LLM, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """Count these questions; what comes back is of the same shape as real answers."""
        asked = build_requests(llm, conversations, sampling)
        name = llm_identity(llm)
        counted = self.by_llm.setdefault(name, LLMEstimate(name, find_price(llm)))
        known = _known(llm, asked, conversations, sampling)
        answers = [self._answer(counted, question, known.get(question.key)) for question in asked]
        self._longest_to_come = max(self._longest_to_come, sampling.max_tokens)
        return answers

    def _answer(self, counted: LLMEstimate, question: Request, known: Completion | None) -> Completion:
        if question.key not in self._seen:
            self._seen.add(question.key)
            self._count(counted, question, known)
        return known or Completion(text=PLACEHOLDER, usage=Usage(cached=True))

    def _count(self, counted: LLMEstimate, question: Request, known: Completion | None) -> None:
        counted.calls += 1
        if known is not None:
            counted.answered += 1
            return
        to_come = sum(one.text.count(PLACEHOLDER) for one in question.messages)
        counted.prompt_tokens += pricing.prompt_about(question)
        counted.most_prompt_tokens += pricing.prompt_most(question) + to_come * self._longest_to_come
        counted.most_completion_tokens += question.sampling.max_tokens


def _known(
    llm: LLM, asked: Sequence[Request], conversations: Sequence[Conversation], sampling: Sampling
) -> dict[bytes, Completion]:
    """Answers that are there already, in the cache or with the LLM itself."""
    if llm.kept:
        cache = open_cache()
        return cache.find(asked) if cache.begun else {}  # A dry run leaves no file behind.
    remembered = zip(asked, llm.remembered(conversations, sampling), strict=True)
    return {question.key: answer for question, answer in remembered if answer is not None}


_estimate: ContextVar[Estimate | None] = ContextVar("estimate", default=None)


@contextmanager
def estimate_calls() -> Iterator[Estimate]:
    """Inside, `calls.complete` asks nobody and counts what it would ask."""
    estimate = Estimate()
    before = _estimate.set(estimate)
    try:
        yield estimate
    finally:
        _estimate.reset(before)


def current_estimate() -> Estimate | None:
    """The estimate under way, if any."""
    return _estimate.get()
