"""`complete`: the one function through which metrics call LLMs.

It answers from the cache what was answered before, sends equal requests once, keeps within the budget, and stores each
answer before it is used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from metrist.errors import MetristError, ModelError
from metrist.llm import base, pricing
from metrist.llm.base import LLM, Call, build_llm
from metrist.llm.budget import Budget
from metrist.llm.cache import (
    AnswerCache,
    CachedAnswer,
    Request,
    StoredCompletion,
    build_requests,
    is_blank,
    is_cacheable,
    open_cache,
)
from metrist.llm.messages import Completion, Conversation, Message, Sampling, Usage, mark_cached
from metrist.llm.openai_format import NO_TEXT
from metrist.runtime import Runtime
from metrist.scores import Failure, FailureKind
from metrist.spec import Spec

#: Takes all calls instead of LLMs, with the arguments of `complete`, in the dry run of this context. One in one thread
#: does not affect others.
dry_run: ContextVar[Callable[..., list[Completion]] | None] = ContextVar("dry_run", default=None)


@dataclass(frozen=True, slots=True)
class AnswerParser:
    """How the caller reads answers: `can_read` gets an answer with the index of its conversation. `name` tells the
    callers of a run apart. `needs_logprobs` says why an LLM that returns no token probabilities is of no use; None: it
    is."""

    can_read: Callable[[int, Completion], bool]
    name: str = ""
    needs_logprobs: str | None = None


def complete(
    llm: LLM | Spec | str,
    conversations: Sequence[Conversation | str],
    sampling: Sampling | None = None,
    *,
    runtime: Runtime | None = None,
    parser: AnswerParser | None = None,
    **options: Any,
) -> list[Completion]:
    """One completion per conversation, in order.

    `llm` is an LLM or its spec, such as "openai(model='gpt-4o-mini')". A conversation is a list of messages, or a text
    that becomes a single user message. Options such as `max_tokens=64` set or override fields of `sampling`. `runtime`
    sets concurrency, rate limits, budget and cache folder; without it, environment variables do.

    Completions come from the cache where it has them. A failure is not cached unless it was paid for and will not
    change, so another run sends the request again. With `parser`, answers that it cannot read are marked. With
    `runtime.fresh`, all answers of other runs are requested again, and with `runtime.retry_failed` those that failed or
    cannot be read.

    `ModelError` is raised where no answer of a run was of use so far, and `MAX_USELESS` were empty or not readable for
    `parser`, or the first has no token probabilities and `parser` needs them.
    """
    llm = build_llm(llm)
    messages = [(Message("user", text),) if isinstance(text, str) else text for text in conversations]
    if unknown := options.keys() - {field.name for field in fields(Sampling)}:
        raise TypeError(f"complete() got an unexpected option {min(unknown)!r}")
    sampling = replace(sampling or Sampling(), **options)
    if not messages:
        return []
    if llm.disabled_reason is not None:
        raise ModelError(llm.disabled_reason)
    runtime = runtime or Runtime.current()
    if (count_calls := dry_run.get()) is not None:
        return count_calls(llm, messages, sampling, runtime, parser)
    requests = build_requests(llm, messages, sampling)
    reader = AnswerReader(parser, requests)
    cache = open_cache(runtime) if llm.cacheable else None
    completions: dict[bytes, Completion] = {}
    missing = {request.key: request for request in requests}
    base.report_requests(len(missing))
    while missing:
        # Of threads that request the same at once, one sends it and the others wait and look again.
        claim: AbstractContextManager[dict[bytes, threading.Event]] = cache.claim(missing) if cache else nullcontext({})
        with claim as sent:
            stored = cache.find(list(missing.values())) if cache else {}
            current = find_current(stored, reader, runtime)
            rejected = [
                k for k, answer in current.items() if not answer.is_marked and reader.rejects(k, answer.completion)
            ]
            if cache and rejected:
                with suppress(ModelError):  # Where stored answers can only be read, they can still be used.
                    cache.mark_unreadable(rejected)
            completions |= _recall(llm, {key: (missing[key], current[key].completion) for key in current}, runtime)
            base.report_completions(len(current))
            own = [request for key, request in missing.items() if key not in current and key not in sent]
            if own:
                replaced = {key: stored[key].arrived for key in stored.keys() - current.keys()}
                batch = RequestBatch(llm, cache, own, runtime, replaced=replaced, reader=reader)
                completions |= batch.run(sampling, completions)
        missing = {key: request for key, request in missing.items() if key not in completions}
        for key in missing:
            sent[key].wait()
    ordered, seen = [], set()
    for request in requests:
        # Of several equal requests, only the first has a cost.
        completion = completions[request.key]
        completion = mark_cached(completion, repeated=True) if request.key in seen else completion
        ordered.append(replace(completion, key=request.key))
        seen.add(request.key)
    return ordered


class AnswerReader:
    """Tells which answers the caller's parser cannot read; without a parser, none."""

    def __init__(self, parser: AnswerParser | None, requests: Sequence[Request]) -> None:
        self.parser = parser
        self._index_of = {request.key: index for index, request in reversed(list(enumerate(requests)))}

    def rejects(self, key: bytes, completion: Completion) -> bool:
        if self.parser is None or completion.failure is not None:
            return False
        try:
            return not self.parser.can_read(self._index_of[key], completion)
        except Exception:
            # The metric raises the same when it reads the answer, and reports it with the record.
            return False


def find_current(
    stored: Mapping[bytes, StoredCompletion], reader: AnswerReader, runtime: Runtime
) -> dict[bytes, StoredCompletion]:
    """The stored completions that are not to be requested again; see `complete`."""

    current = {}
    for key, answer in stored.items():
        if answer.arrived != runtime.answer_time:  # It is of another run.
            if runtime.fresh is not None:
                continue
            failed = answer.completion.failure is not None
            if runtime.retry_failed is not None and (failed or reader.rejects(key, answer.completion)):
                continue
        current[key] = answer
    return current


def _recall(llm: LLM, stored: Mapping[bytes, tuple[Request, Completion]], runtime: Runtime) -> dict[bytes, Completion]:
    """Completions as they come from the cache: free now, with what they would cost at today's price, or cost then."""
    price = pricing.find_price(llm, runtime) if stored else None
    recalled = {}
    for key, (request, completion) in stored.items():
        unpriced = completion if price is None else replace(completion, usage=replace(completion.usage, cost=None))
        recalled[key] = mark_cached(completion, saved=pricing.add_cost(request, unpriced, price).usage.cost)
    return recalled


@dataclass(slots=True)
class _Tally:
    """Whether an answer was of use to one caller in one run, and how many were not before. Threads share it."""

    useful: bool = False
    useless: int = 0


@lru_cache(maxsize=256)
def _run_tally(_run: str, _llm: str, _caller: str) -> _Tally:
    return _Tally()


class RequestBatch(Call):
    """Requests on their way to an LLM: reserves their cost, stores and collects their completions."""

    def __init__(
        self,
        llm: LLM,
        cache: AnswerCache | None,
        requests: Sequence[Request],
        runtime: Runtime,
        *,
        replaced: Mapping[bytes, float],
        reader: AnswerReader,
    ) -> None:
        super().__init__(runtime)
        self._llm = llm
        self._cache = cache
        self._requests = requests
        #: Requests whose stored answers are replaced, with the times of their arrival, unless another process has done
        #: so since.
        self._replaced = replaced
        self._reader = reader
        caller = reader.parser.name if reader.parser else ""
        self._tally = _run_tally(runtime.run_id, str(llm), caller) if runtime.run_id is not None else _Tally()
        self._price = pricing.find_price(llm, runtime)
        self._budget: Budget | None = None
        limit = runtime.max_cost
        if limit is not None and not llm.free:
            if self._price is None:
                raise ModelError(
                    f"no price is known for {llm}, so the limit of ${limit:g} on cost cannot be enforced: "
                    f"{pricing.price_hint(llm)}",
                    code="budget",
                )
            self._budget = Budget(open_cache(runtime), limit, runtime.run_id)
        #: The requests that were given to the LLM last: `deliver` counts in these.
        self._current: Sequence[Request] = ()
        self._completions: dict[bytes, Completion] = {}
        #: What is reserved for each of the LLM's own requests, and what those have used that no completion reports yet.
        self._own_reserved: dict[bytes, float] = {}
        self._own_usage: Usage | None = None
        self._error: MetristError | None = None
        # An LLM may call from several threads.
        self._lock = threading.RLock()

    def run(self, sampling: Sampling, cached: Mapping[bytes, Completion]) -> dict[bytes, Completion]:
        """Send all requests, as many at a time as the budget allows; completions by key. `cached` are the completions
        of the same call that came from the cache."""
        self.has_cached_answers = bool(cached)
        self._tally.useful = self._tally.useful or any(self._is_useful(*answer) for answer in cached.items())
        if self._cache:
            self._cache.check_writable()
        costs = [pricing.max_cost(request, self._price) for request in self._requests] if self._price else []
        start = 0
        while start < len(self._requests):
            count = self._admit(costs[start:], sampling) if self._budget else len(self._requests)
            self._current = self._requests[start : start + count]
            start += count
            try:
                conversations = [request.messages for request in self._current]
                completions = self._llm.complete_batch(conversations, sampling, self)
            finally:
                if self._cache and self._completions and not self._error:
                    self._cache.sync()
            if self._error:
                raise self._error
            if len(completions) != len(self._current):
                raise ModelError(
                    f"{self._llm} returned {len(completions)} completions for {len(self._current)} conversations",
                    code="llm_failed",
                )
            # An LLM may deliver nothing before it returns.
            for index, completion in enumerate(completions):
                self.deliver(index, completion)
        for reserved in self._own_reserved.values():
            # The LLM did not need to send these.
            if self._budget:
                self._budget.settle(reserved, 0.0)
        return self._completions

    def _admit(self, costs: Sequence[float], sampling: Sampling) -> int:
        """Reserve for the next requests, and for what the LLM sends on its own account before it answers them."""
        assert self._budget is not None
        assert self._price is not None
        own = {
            request.key: pricing.max_cost(request, self._price)
            for conversation, own_sampling in self._llm.own_requests(sampling)
            for request in build_requests(self._llm, [conversation], own_sampling)
            if request.key not in self._own_reserved
        }
        extra = sum(own.values())
        count = self._budget.admit([costs[0] + extra, *costs[1:]])
        self._own_reserved |= own
        return count

    def deliver(self, index: int, completion: Completion) -> None:
        """Store a completion, settle its cost, and report it."""
        request = self._current[index]
        if is_blank(completion, request.sampling):
            completion = replace(completion, failure=_BLANK)
        with self._lock:
            if request.key in self._completions:
                return
            try:
                stored = self._store(request, pricing.add_cost(request, completion, self._price))
                own, self._own_usage = self._own_usage, None
                self._completions[request.key] = replace(stored, usage=stored.usage.include(own)) if own else stored
                base.report_completions(1)
                self._check_use(request, self._completions[request.key])
            except MetristError as error:
                # The LLM may take this for a failure of one request: it is raised again when the LLM returns.
                self._error = self._error or error
                raise

    def _check_use(self, request: Request, completion: Completion) -> None:
        """Raise an error if answers cost money and none has been of use in this run."""
        tally, failure = self._tally, completion.failure
        if tally.useful or self._llm.allows_unreadable:
            return
        needs_logprobs = self._reader.parser.needs_logprobs if self._reader.parser else None
        if failure is None and needs_logprobs and completion.tokens is None:
            raise ModelError(needs_logprobs)
        if self._is_useful(request.key, completion):
            tally.useful = True
            return
        # Other failures are counted where they arise, or are the record's own: a filter, or a text that is too long.
        is_cut = failure is not None and failure.kind is FailureKind.too_long
        spent = is_cut and bool(completion.usage.completion_tokens)
        if completion.finish == "filter" or not (failure in (None, _BLANK, NO_TEXT) or spent):
            return
        tally.useless += 1
        if tally.useless >= MAX_USELESS:
            tally.useless = 0
            last = f"{completion.text.strip()[:80]!r}" if completion.text.strip() else "empty"
            cut = "; it was truncated: try a larger max_tokens" if completion.finish == "length" else ""
            raise ModelError(
                f"{self._llm}: the first {MAX_USELESS} answers are all empty or cannot be read, so the records are not "
                f"the cause (the last answer: {last}{cut}). Try one question with this model, or another model; "
                f"the same command goes on",
                code="llm_failed",
            )

    def _is_useful(self, key: bytes, completion: Completion) -> bool:
        return completion.failure is None and not self._reader.rejects(key, completion)

    def _store(self, request: Request, completion: Completion) -> Completion:
        stored = completion
        if self._cache and is_cacheable(request, completion):
            answer = CachedAnswer(
                request=request, completion=completion, arrived=self.runtime.answer_time or time.time()
            )
            (stored,) = self._cache.store([answer], self._replaced)
            if self._reader.rejects(request.key, stored):
                # Now, and not only when all answers are there: the run may be killed before.
                self._cache.mark_unreadable([request.key])
            base.stored_completions += 1
        if self._budget and self._price:
            reserved = pricing.max_cost(request, self._price)
            self._budget.settle(reserved, reserved if completion.usage.cost is None else completion.usage.cost)
        # Another process was first: its answer counts from now on, although this one was paid for too.
        return completion if stored is completion else replace(stored, usage=completion.usage)

    def reserve(self, conversation: Conversation, sampling: Sampling) -> bool:
        """Reserve the most that a request of the LLM's own may cost; False if the budget does not allow it."""
        if not (self._budget and self._price):
            return True
        (request,) = build_requests(self._llm, [conversation], sampling)
        with self._lock:
            if request.key in self._own_reserved:
                return True
            cost = pricing.max_cost(request, self._price)
            if not self._budget.try_reserve(cost):
                return False
            self._own_reserved[request.key] = cost
            return True

    def settle(self, conversation: Conversation, sampling: Sampling, completion: Completion | None) -> None:
        """Charge a request of the LLM's own, and add its usage to that of the next completion."""
        (request,) = build_requests(self._llm, [conversation], sampling)
        charged = pricing.add_cost(request, completion or Completion(failure=_NOT_ANSWERED), self._price)
        with self._lock:
            self._own_usage = self._own_usage.include(charged.usage) if self._own_usage else charged.usage
            reserved = self._own_reserved.pop(request.key, None)
            if self._budget and reserved is not None:
                self._budget.settle(reserved, reserved if charged.usage.cost is None else charged.usage.cost)


#: Answers of a run that may be of no use before the LLM, and not a record, is held responsible.
MAX_USELESS = 20
#: The next run asks again: a model that has something to say does not send nothing.
_BLANK = Failure(FailureKind.transient, "the answer is empty")
_NOT_ANSWERED = Failure(FailureKind.transient, "no answer came")
