"""The budget of a run, which no request can exceed, and the estimate of a dry run.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache

from metrist.errors import ModelError
from metrist.llm import pricing
from metrist.llm.base import LLM
from metrist.llm.cache import (
    AnswerCache,
    AnswerParser,
    Request,
    build_requests,
    find_current,
    llm_identity,
    open_cache,
)
from metrist.llm.messages import Completion, Conversation, Sampling, Usage
from metrist.llm.pricing import Price
from metrist.models.sqlite_store import transaction
from metrist.runtime import VARIABLES, Runtime

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
            count, state = self._cache.execute(lambda connection: self._reserve(connection, costs))
            if count:
                return count
            if not state.pending:
                raise ModelError(self._describe_exhausted(state, costs))
            time.sleep(_POLL)

    def try_reserve(self, cost: float) -> bool:
        """Reserve for one request if the budget allows it now."""
        count, _ = self._cache.execute(lambda connection: self._reserve(connection, [cost]))
        return count == 1

    def settle(self, reserved: float, paid: float) -> None:
        """Replace a reservation by the actual cost."""

        def write(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                self._add(connection, paid=paid, reserved=-reserved)

        self._cache.execute(write)

    def state(self) -> BudgetState:
        """What is paid and reserved now."""
        return self._cache.execute(self._read_state)

    def _reserve(self, connection: sqlite3.Connection, costs: Sequence[float]) -> tuple[int, BudgetState]:
        with transaction(connection):
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

    def _describe_exhausted(self, state: BudgetState, costs: Sequence[float]) -> str:
        lost = f", and ${state.reserved:.4f} is reserved for requests without an answer" * (state.reserved > 1e-9)
        return (
            f"the limit of ${self._limit:g} on the cost of a run is reached: ${state.paid:.4f} is spent{lost}; the "
            f"next request could cost ${costs[0]:.4f}, and at least {len(costs):,} are left. Run again with a higher "
            f"limit (--max-cost, {VARIABLES['max_cost']}) to continue; no answer is paid for twice"
        )


@lru_cache(maxsize=1)
def _own_run_id(_process: int) -> str:
    """The id of calls that belong to no run: one per process."""
    return uuid.uuid4().hex


def is_process_alive(pid: int) -> bool | None:
    """Whether a process of this machine is alive; None on Windows, where asking would end it."""
    if os.name == "nt":
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # Another user's.
        return True
    return True


def _is_alive(process: str, changed: float) -> bool:
    machine, _, number = process.rpartition(":")
    is_alive = is_process_alive(int(number)) if machine == platform.node() else None
    return time.time() - changed < _SILENCE if is_alive is None else is_alive


#: Takes the place of an answer in a dry run. A metric cannot parse it; the failed score is discarded.
PLACEHOLDER = "⟦the answer to come⟧"


@dataclass(slots=True)
class LLMEstimate:
    """The calls to one LLM. Tokens and costs are those of requests that the cache does not answer; costs are in US
    dollars, None if no price is known."""

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
        """An upper bound: with this budget, a run is not stopped."""
        if self.price is None:
            return None
        return self.price.cost(self.most_prompt_tokens, self.most_completion_tokens)


@dataclass(slots=True)
class CallEstimate:
    """The calls that a run would make, by LLM.

    Metrics run as usual. A request that the cache answers gets its answer; any other gets a placeholder, and where a
    later request quotes it, it counts as many tokens as the answer may have. Requests that depend on the content of an
    answer, such as a second pass over errors, cannot be foreseen.
    """

    by_llm: dict[str, LLMEstimate] = field(default_factory=dict)
    #: The metric that is asking now, and the first conversation of each metric with each LLM.
    metric: str = ""
    prompts: dict[tuple[str, str], Conversation] = field(default_factory=dict)
    _seen: set[bytes] = field(default_factory=set)
    _longest_answer: int = 0

    def complete(
        self,
        llm: LLM,
        conversations: Sequence[Conversation],
        sampling: Sampling,
        runtime: Runtime,
        parser: AnswerParser | None = None,
    ) -> list[Completion]:
        """Count the requests; the result has the form of real completions."""
        requests = build_requests(llm, conversations, sampling)
        name = llm_identity(llm)
        if name not in self.by_llm:
            self.by_llm[name] = LLMEstimate(name, pricing.find_price(llm, runtime))
        estimate = self.by_llm[name]
        if conversations:
            self.prompts.setdefault((self.metric, name), conversations[0])
        known = _known_completions(llm, requests, conversations, sampling, runtime, parser)
        if any(request.key not in known for request in requests):
            self._count_own_requests(llm, estimate, sampling)
        completions = []
        for request in requests:
            completion = known.get(request.key)
            if request.key not in self._seen:
                self._seen.add(request.key)
                self._count(estimate, request, completion)
            completions.append(completion or Completion(text=PLACEHOLDER, usage=Usage(cached=True)))
        self._longest_answer = max(self._longest_answer, sampling.max_tokens)
        return completions

    def _count(self, estimate: LLMEstimate, request: Request, known: Completion | None) -> None:
        estimate.calls += 1
        if known is not None:
            estimate.answered += 1
            return
        placeholders = sum(message.text.count(PLACEHOLDER) for message in request.messages)
        estimate.prompt_tokens += pricing.estimate_prompt_tokens(request)
        estimate.most_prompt_tokens += pricing.max_prompt_tokens(request) + placeholders * self._longest_answer
        estimate.most_completion_tokens += request.sampling.max_tokens

    def _count_own_requests(self, llm: LLM, estimate: LLMEstimate, sampling: Sampling) -> None:
        """Include the requests that the LLM sends on its own account in the upper bound."""
        for conversation, own_sampling in llm.own_requests(sampling):
            (request,) = build_requests(llm, [conversation], own_sampling)
            if request.key not in self._seen:
                self._seen.add(request.key)
                estimate.most_prompt_tokens += pricing.max_prompt_tokens(request)
                estimate.most_completion_tokens += own_sampling.max_tokens


def _known_completions(
    llm: LLM,
    requests: Sequence[Request],
    conversations: Sequence[Conversation],
    sampling: Sampling,
    runtime: Runtime,
    parser: AnswerParser | None,
) -> dict[bytes, Completion]:
    """Completions that need no call: those in the cache, or those that the LLM has itself."""
    if llm.cacheable:
        cache = open_cache(runtime)
        stored = cache.look_up(requests) if cache.exists else {}  # A dry run creates no file.
        return find_current(stored, requests, runtime, parser)
    recalled = zip(requests, llm.recall(conversations, sampling), strict=True)
    return {request.key: completion for request, completion in recalled if completion is not None}


#: A context variable: a dry run in one thread does not affect the calls of another.
_estimate: ContextVar[CallEstimate | None] = ContextVar("estimate", default=None)


@contextmanager
def estimate_calls() -> Iterator[CallEstimate]:
    """Inside the block, `gateway.complete` calls no LLM from this thread and counts what it would call."""
    estimate = CallEstimate()
    token = _estimate.set(estimate)
    try:
        yield estimate
    finally:
        _estimate.reset(token)


def current_estimate() -> CallEstimate | None:
    """The estimate of the current dry run in this thread, if any."""
    return _estimate.get()
