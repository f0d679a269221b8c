"""The one door through which metrics come to an LLM: what was answered before is not asked again, what is answered now
is kept before it is used, and nothing is sent that could pass the limit on cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from metrist.errors import MetristError, ModelError
from metrist.llm import base, budget, pricing, rate_limit
from metrist.llm.base import LLM
from metrist.llm.budget import Budget
from metrist.llm.cache import AnswerCache, CachedAnswer, Request, build_requests, is_cacheable, open_cache
from metrist.llm.messages import Completion, Conversation, Sampling
from metrist.llm.pricing import find_price, price_hint


def complete(llm: LLM, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
    """One completion per conversation, in order. Equal questions are asked once; failures are not kept unless they
    were paid for, so another run asks again."""
    if not conversations:
        return []
    if llm.mute is not None:
        raise ModelError(llm.mute)
    if (estimate := budget.current_estimate()) is not None:
        return estimate.complete(llm, conversations, sampling)
    asked = build_requests(llm, conversations, sampling)
    cache = open_cache() if llm.kept else None
    found = {key: _from_cache(answer) for key, answer in cache.find(asked).items()} if cache else {}
    missing = {question.key: question for question in asked if question.key not in found}
    base.asked(len(found) + len(missing))
    base.arrived(len(found))
    if missing:
        if found:
            llm.note_answered_before()
        found |= _Asking(llm, cache, list(missing.values())).all(sampling)
    return _in_order([question.key for question in asked], found)


def _in_order(keys: Sequence[bytes], found: dict[bytes, Completion]) -> list[Completion]:
    """An answer to several equal questions was paid for once."""
    seen: set[bytes] = set()
    answers = []
    for key in keys:
        answers.append(_from_cache(found[key]) if key in seen else found[key])
        seen.add(key)
    return answers


def _from_cache(answer: Completion) -> Completion:
    usage = replace(answer.usage, cached=True, cost=0.0, seconds=0.0, attempts=0)
    return replace(answer, usage=usage)


class _Asking:
    """Questions on their way to an LLM, and what came of them."""

    def __init__(self, llm: LLM, cache: AnswerCache | None, missing: Sequence[Request]) -> None:
        self._llm = llm
        self._cache = cache
        self._missing = missing
        self._price = find_price(llm)
        self._account = self._opened(open_cache())
        self._done: dict[bytes, Completion] = {}
        self._fault: MetristError | None = None
        self._lock = threading.Lock()

    def all(self, sampling: Sampling) -> dict[bytes, Completion]:
        """Ask; as many at a time as the limit on cost lets through."""
        if self._cache:
            self._cache.check()
        worst = [pricing.worst_cost(one, self._price) for one in self._missing] if self._price else []
        at = 0
        while at < len(self._missing):
            count = self._account.admit(worst[at:]) if self._account else len(self._missing)
            self._ask(self._missing[at : at + count], sampling)
            at += count
        return self._done

    def _opened(self, cache: AnswerCache) -> Budget | None:
        limit = rate_limit.max_cost()
        if limit is None or self._llm.free:
            return None
        if self._price is None:
            raise ModelError(
                f"no price is known for {self._llm}, so the limit of ${limit:g} on cost cannot be kept: "
                f"{price_hint(self._llm)}"
            )
        return Budget(cache, limit)

    def _ask(self, some: Sequence[Request], sampling: Sampling) -> None:
        def arrived(number: int, answer: Completion) -> None:
            self._arrived(some[number], answer)

        try:
            answers = self._llm.complete([one.messages for one in some], sampling, arrived)
        finally:
            self._sync()
        if self._fault:
            raise self._fault
        # An LLM that keeps silent until all is done is heard now.
        for question, answer in zip(some, answers, strict=True):
            self._arrived(question, answer)

    def _arrived(self, question: Request, answer: Completion) -> None:
        # An LLM may ask from several threads.
        with self._lock:
            if question.key in self._done:
                return
            try:
                self._done[question.key] = self._kept(question, pricing.accounted(question, answer, self._price))
                base.arrived(1)
            except MetristError as fault:
                # Whoever calls may hold this to be a fault of one question: it is raised again when the call returns.
                self._fault = self._fault or fault
                raise

    def _kept(self, question: Request, answer: Completion) -> Completion:
        stands = answer
        if self._cache and is_cacheable(question, answer):
            (stands,) = self._cache.keep([CachedAnswer(question=question, answer=answer, arrived=time.time())])
            base.note_kept()
        if self._account and self._price:
            reserved = pricing.worst_cost(question, self._price)
            self._account.settle(reserved, reserved if answer.usage.cost is None else answer.usage.cost)
        # Another process was first: its answer counts from now on, though this one was paid for too.
        return answer if stands is answer else replace(stands, usage=answer.usage)

    def _sync(self) -> None:
        if self._cache and self._done and not self._fault:
            self._cache.sync()
