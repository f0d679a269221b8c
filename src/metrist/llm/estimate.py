"""The estimate of a dry run: which calls of LLMs a run would make, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from metrist.llm import pricing
from metrist.llm.base import LLM
from metrist.llm.cache import Request, build_requests, llm_identity, open_cache
from metrist.llm.gateway import AnswerParser, AnswerReader, dry_run, find_current
from metrist.llm.messages import Completion, Conversation, Sampling, Usage
from metrist.llm.pricing import Price
from metrist.runtime import Runtime

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
        parser: AnswerParser | None,
    ) -> list[Completion]:
        """Count the requests; the result has the form of real completions."""
        requests = build_requests(llm, conversations, sampling)
        name = llm_identity(llm)
        if name not in self.by_llm:
            self.by_llm[name] = LLMEstimate(name, pricing.find_price(llm, runtime))
        estimate = self.by_llm[name]
        if conversations:
            self.prompts.setdefault((self.metric, name), conversations[0])
        # Completions that need no call: those in the cache, or those that the LLM has itself.
        if llm.cacheable:
            cache = open_cache(runtime)
            stored = cache.find(requests) if cache.exists else {}  # A dry run creates no file.
            current = find_current(stored, AnswerReader(parser, requests), runtime)
            known = {key: answer.completion for key, answer in current.items()}
        else:
            recalled = zip(requests, llm.recall(conversations, sampling), strict=True)
            known = {request.key: completion for request, completion in recalled if completion is not None}
        if any(request.key not in known for request in requests):
            # The upper bound includes what the LLM sends on its own account.
            for conversation, own_sampling in llm.own_requests(sampling):
                (request,) = build_requests(llm, [conversation], own_sampling)
                if request.key not in self._seen:
                    self._seen.add(request.key)
                    estimate.most_prompt_tokens += pricing.max_prompt_tokens(request)
                    estimate.most_completion_tokens += own_sampling.max_tokens
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


_current: ContextVar[CallEstimate | None] = ContextVar("estimate", default=None)


@contextmanager
def estimate_calls() -> Iterator[CallEstimate]:
    """Inside the block, `gateway.complete` calls no LLM from this thread and counts what it would call."""
    estimate = CallEstimate()
    current = _current.set(estimate)
    calls = dry_run.set(estimate.complete)
    try:
        yield estimate
    finally:
        dry_run.reset(calls)
        _current.reset(current)


def current_estimate() -> CallEstimate | None:
    """The estimate of the current dry run in this thread, if any."""
    return _current.get()
