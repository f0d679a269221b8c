"""What metrics that ask an LLM have in common: how answers become scores, what identifies the question, and what a
reader is told of outputs without a score and of what the answers took.

A protocol is plain code: `ask` puts one question per record or several, `follow_up` takes a conversation on with what
was answered, `scores_of` makes a score of each answer.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from metrist.errors import SpecError
from metrist.llm import gateway
from metrist.llm.base import LLM
from metrist.llm.messages import Completion, Conversation, Message, Sampling
from metrist.metrics.base import Metric
from metrist.scores import Failure, FailureKind, Score, Scores

#: How many answers a filter of the server took, among what they took.
FILTERED = "filtered"
NOT_ASKED = Failure(FailureKind.not_asked, "it was not asked, since an earlier question was not answered")


@dataclass(frozen=True, kw_only=True)
class Judging(Metric):
    """A metric that asks an LLM. The answers come through `metrist.llm.gateway`, which keeps each of them."""

    extra: ClassVar[str | None] = "llm"
    #: Requests run side by side within one process, which keeps to the limits on their rate and cost.
    resident: ClassVar[bool] = True

    llm: LLM
    temperature: float = 0.0
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        if not isinstance(self.llm, LLM):
            raise SpecError(f"{self.name}: llm must be an LLM such as openai(model='gpt-4o-mini'), got {self.llm!r}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise SpecError(f"{self.name}: temperature must be 0 or more, got {self.temperature!r}")
        if self.max_tokens < 1:
            raise SpecError(f"{self.name}: max_tokens must be at least 1, got {self.max_tokens!r}")

    def wording(self) -> str:
        """All that is said to the LLM besides the records' own texts: prompts, rubrics, tables."""
        raise NotImplementedError(f"{type(self).__name__} must define wording(self)")

    def facts(self) -> Mapping[str, str]:
        """The hash of the wording, and what the LLM says of itself."""
        digest = hashlib.sha256(self.wording().encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return {"prompt": digest, **self.llm.facts()}

    def sampling(self, **more: Any) -> Sampling:
        """How the LLM is to answer: the metric's settings, and what else the question asks for."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens, **more)

    def remarks(self, scores: Scores) -> list[str]:
        """Outputs without a score and where the mean could lie, then tokens and cost."""
        return [*coverage_remarks(self, scores), *cost_remarks(self, scores)]


class Unreadable(ValueError):
    """An answer of which no score can be made; the text says why and becomes the failure of the score."""


def ask(llm: LLM, conversations: Sequence[Conversation | None], sampling: Sampling) -> list[Completion]:
    """One completion per conversation, in order; a failed one in each place where there is none to be asked."""
    asked = [i for i, conversation in enumerate(conversations) if conversation is not None]
    found = gateway.complete(llm, [conversations[i] or () for i in asked], sampling) if asked else []
    answers = dict(zip(asked, map(_mark_unanswered, found), strict=True))
    return [answers.get(i) or Completion(failure=NOT_ASKED) for i in range(len(conversations))]


def _mark_unanswered(answer: Completion) -> Completion:
    if answer.failure is None:
        return answer
    # An LLM that gives no kind is taken to have failed for a reason that may pass.
    kind = answer.failure.kind if isinstance(answer.failure, Failure) else FailureKind.transient
    return dataclasses.replace(answer, failure=Failure(kind, f"no answer came: {answer.failure}"))


def is_retryable(failure: str | None) -> bool:
    """Whether asking again may succeed where this failure came from."""
    return isinstance(failure, Failure) and failure.kind.is_retryable


def follow_up(
    conversations: Sequence[Conversation | None], answers: Sequence[Completion], text: str | Sequence[str]
) -> list[Conversation | None]:
    """Each conversation with its answer and what is said next (to all the same, or to each its own); None where there
    was no answer."""
    said = [text] * len(answers) if isinstance(text, str) else text
    turns = zip(conversations, answers, said, strict=True)
    return [
        None if before is None or answer.failure else (*before, Message("assistant", answer.text), Message("user", now))
        for before, answer, now in turns
    ]


def scores_of(answers: Sequence[Completion], read: Callable[[int, Completion], Score]) -> list[Score]:
    """A score per answer. `read` gets each answer with its number, and raises `Unreadable` where it makes no sense of
    it: the score is then a failed one with the raw answer."""
    return [_score(i, answer, read) for i, answer in enumerate(answers)]


def _score(number: int, answer: Completion, read: Callable[[int, Completion], Score]) -> Score:
    usage = spent([answer])
    if answer.failure is not None:
        return Score.failed(answer.failure, raw=answer.text or None, usage=usage)
    try:
        score = read(number, answer)
    except Unreadable as fault:
        return Score.failed(_why(answer, fault), raw=answer.text, usage=usage)
    return score if score.usage is not None else dataclasses.replace(score, usage=usage)


def _why(answer: Completion, fault: Unreadable) -> Failure:
    if not answer.text.strip():
        fault = Unreadable("the answer is empty")
    if answer.finish == "filter":
        return Failure(FailureKind.filtered, f"{fault} (the server filtered the answer)")
    cut = " (the answer was cut off: more max_tokens may help)" if answer.finish == "length" else ""
    return Failure(FailureKind.unparsable, f"{fault}{cut}")


def spent(answers: Iterable[Completion]) -> dict[str, Any]:
    """What these answers took together, as plain numbers: calls, of how many the answer was there before, of how many
    the tokens are an estimate, the cost is not known or a filter of the server took the answer, tokens, US dollars,
    seconds, attempts. A number that no answer knows is left out."""
    asked = [answer for answer in answers if answer.failure != NOT_ASKED]
    usages = [answer.usage for answer in asked]
    known = {
        name: [value for usage in usages if (value := getattr(usage, name)) is not None]
        for name in ("prompt_tokens", "completion_tokens", "cost", "seconds", "attempts")
    }
    sums = {name: sum(values) for name, values in known.items() if values}
    counts = {name: sum(getattr(usage, name) for usage in usages) for name in ("cached", "estimated")}
    rare = {"unpriced": sum(map(_is_unpriced, asked)), FILTERED: sum(map(_is_filtered, asked))}
    return {"calls": len(usages), **counts, **{name: count for name, count in rare.items() if count}, **sums}


def _is_filtered(answer: Completion) -> bool:
    return answer.finish == "filter"


def _is_unpriced(answer: Completion) -> bool:
    """A question to which nothing came, not even a count of tokens, is no answer of unknown cost."""
    came = answer.failure is None or answer.usage.prompt_tokens is not None
    return came and answer.usage.cost is None


def spent_together(usages: Iterable[Mapping[str, Any] | None]) -> dict[str, Any]:
    """What several scores took together; see `spent`."""
    total: dict[str, Any] = {}
    for usage in usages:
        for name, value in (usage or {}).items():
            total[name] = total.get(name, 0) + value
    return total


def coverage_remarks(metric: Metric, scores: Scores) -> list[str]:
    """How many outputs have no score and most often why, and between which bounds the mean of all would lie."""
    failed = len(scores.failures)
    if not failed:
        return []
    reason, times = Counter(scores.failures.values()).most_common(1)[0]
    judged = len(scores) - failed
    said = f"{metric.text}: {judged:,} of {len(scores):,} outputs were judged; most often ({times:,}): {reason}"
    return [said, *_mean_bounds(metric, scores)]


def _mean_bounds(metric: Metric, scores: Scores) -> list[str]:
    low, high = metric.bounds
    judged = scores.values[~np.isnan(scores.values)]
    if not len(judged) or not (math.isfinite(low) or math.isfinite(high)):
        return []
    failed = len(scores) - len(judged)
    ends = [(float(judged.sum()) + failed * end) / len(scores) for end in (low, high)]
    worst, best = ends if metric.higher_is_better is not False else ends[::-1]
    sides = [
        f"{end:.4g} if {'it' if failed == 1 else 'they'} were the {how}"
        for end, how in ((worst, "worst"), (best, "best"))
        if math.isfinite(end)
    ]
    return [
        f"{metric.text}: the mean of the judged is {judged.mean():.4g}; with the {failed:,} that failed it would be "
        + " and ".join(sides)
    ]


def cost_remarks(metric: Metric, scores: Scores) -> list[str]:
    """Calls, tokens and cost, as far as they are known: a run that is only read back does not know them."""
    total = spent_together(scores.usages.values())
    if not total.get("calls"):
        return []
    sent = total["calls"] - total["cached"]
    cached = f" ({sent:,} sent, {total['cached']:,} from the cache or equal to another)" if total["cached"] else ""
    about = "about " if total["estimated"] else ""
    tokens = [
        f"{about}{total[name]:,} tokens {way}"
        for name, way in (("prompt_tokens", "in"), ("completion_tokens", "out"))
        if name in total
    ]
    cost = [f"{total['cost']:.4g} US dollars"] if "cost" in total else []
    if "unpriced" in total:
        # What costs an unknown amount must not look as if it cost nothing.
        cost.append(f"{total['unpriced']:,} calls whose cost is not known (METRIST_PRICES names prices)")
    return [
        f"{metric.text}: "
        + ", ".join([f"{total['calls']:,} call{'' if total['calls'] == 1 else 's'}{cached}", *tokens, *cost])
    ]
