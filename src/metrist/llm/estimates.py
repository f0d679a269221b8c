"""What a run would ask, before it asks: inside `estimating()` no question leaves, and all are counted.

Metrics run as ever. A question that is answered in the cache gets its answer; any other gets a text that stands for the
answer to come, and where a later question quotes it, it counts for as many tokens as that answer may have. Questions
that a metric asks only after it has seen what was answered (a second look at the errors found) cannot be foreseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from metrist.llm import counting
from metrist.llm.answer_cache import answer_cache
from metrist.llm.base import LLM
from metrist.llm.prices import Price, price_of
from metrist.llm.questions import Question, identity, questions
from metrist.llm.talk import Completion, Conversation, Sampling, Usage

#: Stands for an answer to come. A metric cannot make sense of it, which is a failed score that nobody looks at.
TO_COME = "⟦the answer to come⟧"


@dataclass(slots=True)
class Asked:
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

    by_llm: dict[str, Asked] = field(default_factory=dict)
    _seen: set[bytes] = field(default_factory=set)
    _longest_to_come: int = 0

    def complete(self, llm: LLM, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """Count these questions; what comes back is of the same shape as real answers."""
        asked = questions(llm, conversations, sampling)
        name = identity(llm)
        counted = self.by_llm.setdefault(name, Asked(name, price_of(llm)))
        known = _known(llm, asked, conversations, sampling)
        answers = [self._answer(counted, question, known.get(question.key)) for question in asked]
        self._longest_to_come = max(self._longest_to_come, sampling.max_tokens)
        return answers

    def _answer(self, counted: Asked, question: Question, known: Completion | None) -> Completion:
        if question.key not in self._seen:
            self._seen.add(question.key)
            self._count(counted, question, known)
        return known or Completion(text=TO_COME, usage=Usage(cached=True))

    def _count(self, counted: Asked, question: Question, known: Completion | None) -> None:
        counted.calls += 1
        if known is not None:
            counted.answered += 1
            return
        to_come = sum(one.text.count(TO_COME) for one in question.messages)
        counted.prompt_tokens += counting.prompt_about(question)
        counted.most_prompt_tokens += counting.prompt_most(question) + to_come * self._longest_to_come
        counted.most_completion_tokens += question.sampling.max_tokens


def _known(
    llm: LLM, asked: Sequence[Question], conversations: Sequence[Conversation], sampling: Sampling
) -> dict[bytes, Completion]:
    """Answers that are there already, in the cache or with the LLM itself."""
    if llm.kept:
        cache = answer_cache()
        return cache.find(asked) if cache.begun else {}  # A dry run leaves no file behind.
    remembered = zip(asked, llm.remembered(conversations, sampling), strict=True)
    return {question.key: answer for question, answer in remembered if answer is not None}


_estimate: ContextVar[Estimate | None] = ContextVar("estimate", default=None)


@contextmanager
def estimating() -> Iterator[Estimate]:
    """Inside, `calls.complete` asks nobody and counts what it would ask."""
    estimate = Estimate()
    before = _estimate.set(estimate)
    try:
        yield estimate
    finally:
        _estimate.reset(before)


def current() -> Estimate | None:
    """The estimate under way, if any."""
    return _estimate.get()
