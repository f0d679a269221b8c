"""Metrics that ask an LLM.

`LLMMetric` turns a prompt and a parser into a metric. Protocols with several questions per record override `score` and
use the functions of this module: `ask_llm` sends conversations, `continue_conversations` adds a further question,
`score_answers` turns answers into scores. `ask_and_parse` and `ask_for_scores` do both, parse each answer once, and
remember answers that cannot be read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from metrist.errors import RunError, SpecError, agree, format_count
from metrist.llm import gateway, pricing
from metrist.llm.base import LLM
from metrist.llm.gateway import AnswerParser
from metrist.llm.messages import Completion, Conversation, Message, Sampling
from metrist.metrics.base import Metric, Shard, iterate_nested
from metrist.records import Record
from metrist.runtime import Runtime
from metrist.scores import Failure, FailureKind, Score, Scores, count_reasons

_T = TypeVar("_T")

#: The key of a usage that counts answers withheld by the server's content filter.
FILTERED = "filtered"
NOT_ASKED = Failure(FailureKind.not_asked, "not asked, because an earlier question was not answered")
#: Characters of an answer that a remark quotes.
_MAX_QUOTE = 80
_PARSE_ERRORS = (ValueError, LookupError, TypeError, AttributeError)


@dataclass(frozen=True, kw_only=True)
class LLMMetric(Metric):
    """A metric that asks an LLM one question per record.

    A subclass defines `prompt` and `parse`. Answers are cached, requests are retried and count towards the budget,
    and an answer that `parse` rejects becomes a failed score with the raw answer. `llm` may be given as text, such as
    `"openai(model='gpt-4o-mini')"`.
    """

    extra: ClassVar[str | None] = "llm"
    #: Requests run concurrently within one process, which enforces the limits on their rate and cost.
    resident: ClassVar[bool] = True
    asks_llm: ClassVar[bool] = True

    llm: LLM
    temperature: float = 0.0
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.llm, LLM):
            raise SpecError(f"{self.name}: llm must be an LLM such as openai(model='gpt-4o-mini'), got {self.llm!r}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise SpecError(f"{self.name}: temperature must be 0 or more, got {self.temperature!r}")
        if self.max_tokens < 1:
            raise SpecError(f"{self.name}: max_tokens must be at least 1, got {self.max_tokens!r}")

    def prompt(self, record: Record) -> str | Sequence[Message | Mapping[str, str]]:
        """The question about a record: text, or messages such as `{"role": "user", "content": "…"}`."""
        raise NotImplementedError(f"{type(self).__name__} must define prompt(self, record)")

    def parse(self, text: str) -> float | Score:
        """The score that an answer gives. A ValueError, or what Python raises where a key, an index or a match is
        missing, makes the score a failure of kind `unparsable`."""
        raise NotImplementedError(f"{type(self).__name__} must define parse(self, text)")

    def prompt_text(self) -> str:
        """Everything the LLM is told apart from the records' texts. Its hash is part of the signature.

        The default is the source code of `prompt`. Override it where the wording comes from elsewhere, such as a file.
        """
        if type(self).prompt is LLMMetric.prompt:
            raise SpecError(
                f"{self.name} must define prompt(self, record), or score(self, shard) together with prompt_text(self)"
            )
        try:
            return inspect.getsource(type(self).prompt)
        except (OSError, TypeError):
            code = type(self).prompt.__code__
            return repr((code.co_code, [const for const in code.co_consts if not inspect.iscode(const)]))

    def facts(self) -> Mapping[str, str]:
        """The hash of the prompt, and what the LLM reports about itself."""
        digest = hashlib.sha256(self.prompt_text().encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return {"prompt": digest, **self.llm.facts()}

    def sampling(self, **options: Any) -> Sampling:
        """How the LLM is to answer: the metric's settings and further options of the question."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens, **options)

    def score(self, shard: Shard) -> Scores:
        def parse(_: int, answer: Completion) -> Score:
            try:
                value = self.parse(answer.text)
                if isinstance(value, Score):
                    return value
                number = float(value)
            except UnparsableAnswer:
                raise
            except _PARSE_ERRORS as error:
                raise UnparsableAnswer(f"the answer cannot be parsed ({type(error).__name__}: {error})") from error
            if math.isnan(number):
                raise UnparsableAnswer("the answer cannot be parsed: parse() returned NaN")
            return Score(value=number)

        conversations = [_to_conversation(self.name, self.prompt(record)) for record in shard.records]
        return Scores.of(ask_for_scores(self, conversations, self.sampling(), shard.runtime, parse))

    def remarks(self, scores: Scores) -> list[str]:
        """Outputs without a score and the range of the mean, then tokens and cost."""
        return [*coverage_remarks(self, scores), *cost_remarks(self, scores)]


class UnparsableAnswer(ValueError):
    """An answer that gives no score; the message becomes the failure of the score."""


def _to_conversation(name: str, prompt: str | Sequence[Message | Mapping[str, str]]) -> Conversation:
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    try:
        return tuple(
            message if isinstance(message, Message) else Message(message["role"], message["content"])  # type: ignore[arg-type]
            for message in prompt
        )
    except (TypeError, LookupError):
        raise RunError(
            f'{name}: prompt must return a text or a list of messages such as {{"role": "user", "content": "…"}}, '
            f"got {prompt!r:.200}",
            code="invalid_value",
        ) from None


def ask_llm(
    llm: LLM,
    conversations: Sequence[Conversation | None],
    sampling: Sampling,
    runtime: Runtime | None = None,
    parser: AnswerParser | None = None,
) -> list[Completion]:
    """One completion per conversation, in order; `NOT_ASKED` in place of each None. With `parser`, answers that
    it cannot read are marked; see `gateway.complete`."""
    positions = [i for i, conversation in enumerate(conversations) if conversation is not None]
    requested = [conversations[i] or () for i in positions]
    if parser is not None and len(positions) < len(conversations):
        can_read = parser.can_read
        parser = dataclasses.replace(parser, can_read=lambda i, answer: can_read(positions[i], answer))
    completions = gateway.complete(llm, requested, sampling, runtime=runtime, parser=parser) if positions else []
    answers = [Completion(failure=NOT_ASKED)] * len(conversations)
    for i, answer in zip(positions, completions, strict=True):
        answers[i] = answer
        if answer.failure is not None:
            # An LLM that gives no kind is assumed to have failed for a reason that may pass.
            kind = answer.failure.kind if isinstance(answer.failure, Failure) else FailureKind.transient
            answers[i] = dataclasses.replace(answer, failure=Failure(kind, f"no answer: {answer.failure}"))
    return answers


def is_retryable(failure: str | None) -> bool:
    """Whether the request that failed may succeed later."""
    return isinstance(failure, Failure) and failure.kind.is_retryable


def continue_conversations(
    conversations: Sequence[Conversation | None], answers: Sequence[Completion], text: str | Sequence[str]
) -> list[Conversation | None]:
    """Each conversation with its answer and a further question (one for all, or one each); None where there was no
    answer."""
    questions = [text] * len(answers) if isinstance(text, str) else text
    return [
        None
        if conversation is None or answer.failure
        else (*conversation, Message("assistant", answer.text), Message("user", question))
        for conversation, answer, question in zip(conversations, answers, questions, strict=True)
    ]


def ask_and_parse(
    metric: LLMMetric,
    conversations: Sequence[Conversation | None],
    sampling: Sampling,
    runtime: Runtime | None,
    parse: Callable[[int, Completion], _T],
    *,
    needs_logprobs: str | None = None,
) -> list[tuple[Completion, _T | Failure]]:
    """`ask_llm`, with what `parse` makes of each answer; a failure where there is no answer, or where `parse` raises
    `UnparsableAnswer`, which the cache remembers."""
    # An answer is parsed when it arrives, so that the gateway knows whether it is of use, and not again.
    results: dict[int, tuple[Completion, _T | Failure]] = {}

    def read(index: int, answer: Completion) -> _T | Failure:
        known = results.get(index)
        if known is None or (known[0].text, known[0].finish) != (answer.text, answer.finish):
            known = (answer, _parse_answer(index, answer, parse))
            results[index] = known
        return known[1]

    parser = AnswerParser(
        can_read=lambda index, answer: not isinstance(read(index, answer), Failure),
        name=str(metric),
        needs_logprobs=needs_logprobs,
    )
    answers = ask_llm(metric.llm, conversations, sampling, runtime, parser)
    return [(answer, answer.failure or read(index, answer)) for index, answer in enumerate(answers)]


def ask_for_scores(
    metric: LLMMetric,
    conversations: Sequence[Conversation | None],
    sampling: Sampling,
    runtime: Runtime | None,
    parse: Callable[[int, Completion], Score],
    *,
    needs_logprobs: str | None = None,
) -> list[Score]:
    """As `ask_and_parse`, with a failed score for a failure, and the usage in each."""
    results = ask_and_parse(metric, conversations, sampling, runtime, parse, needs_logprobs=needs_logprobs)
    return [_add_usage(answer, result) for answer, result in results]


def score_answers(answers: Sequence[Completion], parse: Callable[[int, Completion], Score]) -> list[Score]:
    """A score per answer. `parse` receives each answer with its index and raises `UnparsableAnswer` to reject it: the
    score is then a failure with the raw answer."""
    return [_add_usage(answer, _parse_answer(index, answer, parse)) for index, answer in enumerate(answers)]


def _parse_answer(index: int, answer: Completion, parse: Callable[[int, Completion], _T]) -> _T | Failure:
    """The result of `parse`; or the failure, with the likely cause where `parse` rejects the answer."""
    if answer.failure is not None:
        return answer.failure
    try:
        return parse(index, answer)
    except UnparsableAnswer as error:
        reason = str(error) if answer.text.strip() else "the answer is empty"
    if answer.finish == "filter":
        return Failure(FailureKind.filtered, f"{reason} (the server filtered the answer)")
    hint = " (the answer was truncated; try a larger max_tokens)" if answer.finish == "length" else ""
    return Failure(FailureKind.unparsable, f"{reason}{hint}")


def _add_usage(answer: Completion, result: Score | Failure) -> Score:
    if isinstance(result, Failure):
        unreadable = [answer] if answer.failure is None else []
        raw = answer.text if unreadable else answer.text or None
        return Score.failed(result, raw=raw, usage=sum_usage([answer], unreadable))
    return result if result.usage is not None else dataclasses.replace(result, usage=sum_usage([answer]))


def sum_usage(answers: Iterable[Completion], unreadable: Sequence[Completion] = ()) -> dict[str, Any]:
    """The total usage of these answers, some of them unreadable, as plain numbers.

    `calls`, and how many of them answered no request of the metric's own (`probes`), came from the cache or repeat
    another (`cached`), repeat another (`repeated`), could not be read (`unreadable`) although they came from the cache
    (`unreadable_cached`), have estimated token counts (`estimated`), an unknown cost (`unpriced`), token counts of the
    server that cannot be right (`unusable`), or were withheld by a filter (`filtered`); the tokens of all answers, and
    of those that came from the cache or repeat another (`unpaid_prompt_tokens`, `unpaid_completion_tokens`); US dollars
    paid (`cost`) and not paid thanks to the cache (`saved`), seconds and attempts. A number that no answer reports is
    left out.
    """
    asked_answers = [answer for answer in answers if answer.failure != NOT_ASKED]
    usages = [answer.usage for answer in asked_answers]
    reported = {
        name: [value for usage in usages if (value := getattr(usage, name)) is not None]
        for name in ("prompt_tokens", "completion_tokens", "cost", "saved", "seconds", "attempts")
    }
    sums = {name: sum(values) for name, values in reported.items() if values}
    unpaid = {
        f"unpaid_{name}": sum(getattr(usage, name) or 0 for usage in usages if usage.cached)
        for name in ("prompt_tokens", "completion_tokens")
    }
    counts = {name: sum(getattr(usage, name) for usage in usages) for name in ("cached", "estimated")}
    rare = {
        # A request without any response, not even a token count, cost nothing.
        "unpriced": sum(
            answer.usage.cost is None
            for answer in asked_answers
            if answer.failure is None or answer.usage.prompt_tokens is not None
        ),
        "unusable": sum(usage.unusable for usage in usages),
        "probes": sum(usage.calls - 1 for usage in usages),
        "repeated": sum(usage.repeated for usage in usages),
        "unreadable": len(unreadable),
        "unreadable_cached": sum(answer.usage.cached and not answer.usage.repeated for answer in unreadable),
        FILTERED: sum(answer.finish == "filter" for answer in asked_answers),
    }
    calls = sum(usage.calls for usage in usages)
    return {"calls": calls, **counts, **{name: n for name, n in (rare | unpaid).items() if n}, **sums}


def merge_usage(usages: Iterable[Mapping[str, Any] | None]) -> dict[str, Any]:
    """The total of several scores' usages; see `sum_usage`."""
    total: dict[str, Any] = {}
    for usage in usages:
        for name, value in (usage or {}).items():
            total[name] = total.get(name, 0) + value
    return total


def coverage_remarks(metric: Metric, scores: Scores) -> list[str]:
    """How many outputs have no score, the most frequent reason, and the bounds of the mean over all outputs. Those that
    the metric was not asked for yet are left to the notes of the run."""
    reasons = count_reasons(f for _, f in sorted(scores.failures.items()) if f.kind is not FailureKind.pending)
    if not reasons:
        return []
    reason, count = reasons[0]
    scored, total = len(scores) - len(scores.failures), len(scores) - scores.pending
    verb = agree(min(scored or 2, total), "was", "were")
    outputs = format_count(total, "output")
    coverage = f"{metric.label}: {scored:,} of {outputs} {verb} scored; most frequent failure ({count:,}): "
    alike = [i for i, failure in sorted(scores.failures.items()) if reason in (failure, failure.reason)]
    raws = (scores.raws.get(i) or "" for i in alike)
    answer = next((" ".join(raw.split()) for raw in raws if raw.strip()), "")
    shown = answer if len(answer) <= _MAX_QUOTE else f"{answer[:_MAX_QUOTE]}…"
    quote = f", such as {shown!r}" if answer else ""
    remark = f"{coverage}{reason}{quote}"
    values = scores.values[~np.isnan(scores.values)]
    if not len(values) or not any(map(math.isfinite, metric.bounds)):
        return [remark]
    failed = total - len(values)
    means = [(float(values.sum()) + failed * bound) / total for bound in metric.bounds]
    worst, best = means if metric.higher_is_better is not False else means[::-1]
    cases = [
        f"{mean:.4g} if {agree(failed, 'it', 'they')} had the {case} score"
        for mean, case in ((worst, "worst"), (best, "best"))
        if math.isfinite(mean)
    ]
    bounds = f"the mean of the scored outputs is {values.mean():.4g}; with the {failed:,} failed it would be "
    return [remark, f"{metric.label}: {bounds}{' and '.join(cases)}"]


def cost_remarks(metric: Metric, scores: Scores) -> list[str]:
    """Calls, tokens and cost, as far as known: a run that is loaded from a folder does not know them."""
    return describe_usage(metric.label, merge_usage(scores.usages.values()), metric)


def describe_usage(name: str, total: Mapping[str, Any], metric: Metric | None = None) -> list[str]:
    """Calls, tokens and cost of a metric in words, and which answers came from the cache. Tokens are those that were
    paid, as the cost is."""
    if not total.get("calls"):
        return []
    requests = total["calls"] - total["cached"]
    repeated = total.get("repeated", 0)
    sources = [f"{requests:,} sent"]
    if recalled := total["cached"] - repeated:
        sources.append(f"{recalled:,} from the cache")
    if repeated:
        sources.append(f"{format_count(repeated, 'repeated question was', 'repeated questions were')} asked once")
    cached = f" ({', '.join(sources)})" if total["cached"] else ""
    about = "about " if total["estimated"] else ""
    tokens = [
        f"{about}{format_count(total[name] - total.get(f'unpaid_{name}', 0), 'token')} {direction}"
        for name, direction in (("prompt_tokens", "in"), ("completion_tokens", "out"))
        if name in total
    ]
    # Repeated and cached answers cost nothing: next to others of unknown cost, that is no total.
    is_known = "cost" in total and (total["cost"] > 0 or "unpriced" not in total)
    cost = [f"{_format_dollars(total['cost'])} US dollars"] if is_known else []
    if total.get("saved"):
        cost.append(f"{_format_dollars(total.get('cost', 0.0) + total['saved'])} without the cache")
    if "unpriced" in total:
        # An unknown cost must not look like no cost.
        calls = format_count(total["unpriced"], "call")
        llms = [nested for nested in iterate_nested(metric) if isinstance(nested, LLM)] if metric else []
        cost.append(f"{calls} of unknown cost ({pricing.describe_missing_prices(llms)})")
    remarks = [f"{name}: " + ", ".join([f"{format_count(total['calls'], 'call')}{cached}", *tokens, *cost])]
    remarks += describe_replay(name, total)
    if unusable := total.get("unusable"):
        calls = format_count(unusable, "call")
        remarks.append(
            f"{name}: the server's token counts of {calls} cannot be right and were estimated from the texts"
        )
    return remarks


def _format_dollars(amount: float) -> str:
    """An amount with four significant digits, or two if it is small, and no exponent."""
    if not 0 < amount < 0.001:
        return f"{amount:.4g}"
    return f"{amount:.{1 - math.floor(math.log10(amount))}f}"


def describe_replay(name: str, total: Mapping[str, Any]) -> list[str]:
    """How many answers came from the cache, how many of those cannot be read, and how to ask again."""
    replayed = total.get("cached", 0) - total.get("repeated", 0)
    if replayed <= 0:
        return []
    answers = total["calls"] - total.get("probes", 0)
    share = f"{replayed:,} of {answers:,} answers" if answers > 1 else "the answer"
    if not (unreadable := total.get("unreadable_cached", 0)):
        return [f"{name}: {share} came from the cache (`fresh` asks again)"]
    which = "it is" if replayed == 1 else f"{unreadable:,} of them {'is' if unreadable == 1 else 'are'}"
    again = "`retry_failed` asks for those again, `fresh` for all"
    return [f"{name}: {share} came from the cache, {which} unreadable ({again})"]
