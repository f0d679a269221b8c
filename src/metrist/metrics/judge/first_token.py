"""Judge by the probability of an LLM's first token: a choice between two outputs, or a grade of one.

The LLM writes no reasons, so that one pass over the prompt is all the work. This suits a model that was trained to
judge in this form, such as an adapter of `local`. The wording of the prompts is part of their hash.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from metrist.errors import SpecError, agree, format_count
from metrist.llm.messages import Completion, Conversation, Message
from metrist.metrics.base import Shard
from metrist.metrics.comparator import Comparator, Judgment
from metrist.metrics.judge.judge import record_texts
from metrist.metrics.llm_metric import LLMMetric, UnparsableAnswer, ask_and_parse, ask_for_scores, sum_usage
from metrist.metrics.prompt_layout import PromptText, fence_texts, fill_template, load_templates
from metrist.ratings import Choice
from metrist.records import Pair, Record
from metrist.runtime import Runtime
from metrist.scores import Failure, Score, Scores

_RULES, _PAIR, _GRADE = "first_token_rules", "first_token_pair", "first_token_grade"
LETTERS = ("A", "B")
GRADES = ("1", "2", "3", "4", "5")
GENERAL_CRITERIA = (
    "whether the output does what was asked: it is right and does no harm, it leaves out nothing that matters, it "
    "keeps to the point, and it reads well."
)
#: Alternatives requested for the first token: the maximum of common servers.
_ALTERNATIVES = 20
#: The part with the probability of anything but an answer that was offered, and the part with that of the first output.
OUTSIDE, FIRST = "outside", "first"


def build_pair_question(first: Record, second: Record, criteria: str | None = None) -> Conversation:
    """The question which of two outputs is better; `first` is shown as A."""
    *context, output = record_texts(first, references=False)
    texts = [*context, replace(output, name="output A"), PromptText("output B", second.output)]
    return _build_question(_PAIR, texts, criteria)


def build_grade_question(record: Record, criteria: str | None = None) -> Conversation:
    return _build_question(_GRADE, record_texts(record, references=False), criteria)


def _build_question(name: str, texts: Sequence[PromptText], criteria: str | None) -> Conversation:
    templates = load_templates((_RULES, name), None)
    rules = fill_template(templates[_RULES], criteria=criteria or GENERAL_CRITERIA)
    return Message("system", rules), Message("user", fill_template(templates[name], material=fence_texts(texts).text))


def read_shares(answer: Completion, offered: Sequence[str]) -> tuple[list[float], float]:
    """The probabilities of the offered answers as the first token, which sum to 1, and that of all others."""
    if not answer.tokens:
        raise UnparsableAnswer("the answer has no token probabilities")
    token = answer.tokens[0]
    shares = dict.fromkeys(offered, 0.0)
    for text, logprob in {token.text: token.logprob, **dict(token.alternatives)}.items():
        if text.strip() in shares and math.isfinite(logprob):
            shares[text.strip()] += math.exp(min(0.0, logprob))
    total = math.fsum(shares.values())
    if not total:
        raise UnparsableAnswer(f"none of the likely first tokens is {', '.join(offered[:-1])} or {offered[-1]}")
    return [shares[name] / total for name in offered], max(0.0, 1.0 - total)


@dataclass(frozen=True, kw_only=True)
class _FirstToken(LLMMetric):
    """What both metrics share. The answer is one token."""

    max_tokens: int = 1
    #: What makes an output better, in words; None: general criteria.
    criteria: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.criteria is not None and not self.criteria.strip():
            raise SpecError(f"{self.name}: criteria must not be empty, got {self.criteria!r}")

    @property
    def _needs_logprobs(self) -> str:
        return (
            f"{self.llm} returns no token probabilities, which {self.name} needs: use a server that does, or local or "
            "transformers in process"
        )

    def _describe_prompt(self, name: str) -> str:
        return "\n".join([*load_templates((_RULES, name), None).values(), self.criteria or GENERAL_CRITERIA])


@dataclass(frozen=True, kw_only=True)
class JudgeChoice(Comparator, _FirstToken):
    """The better of two outputs by the probability of an LLM's first token, over both orders."""

    catalog_name: ClassVar[str | None] = "judge_choice"
    catalog_example: ClassVar[str | None] = "judge_choice(llm=openai(model='gpt-4o-mini'))"

    #: Probabilities within this distance of .5 are a tie.
    tie: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.tie < 0.5:
            raise SpecError(f"{self.name}: tie must be from 0 to below .5, got {self.tie!r}")

    def prompt_text(self) -> str:
        return self._describe_prompt(_PAIR)

    def prefer(self, pairs: Sequence[Pair]) -> list[Judgment]:
        decided: dict[int, Judgment] = {}
        for i, pair in enumerate(pairs):
            first, second = (record_texts(record, references=False)[:-1] for record in (pair.first, pair.second))
            if first != second:
                decided[i] = Judgment.failed(
                    "the two records differ in instruction or source, by which they are judged: give both the same"
                )
            elif pair.first.output == pair.second.output:
                decided[i] = Judgment(preference="tie", explanation="The two outputs are equal; the LLM was not asked.")
        undecided = [pair for i, pair in enumerate(pairs) if i not in decided]
        judgments = iter(self._ask(undecided, getattr(pairs, "runtime", None)))
        return [decided.get(i) or next(judgments) for i in range(len(pairs))]

    def observations(self, judgments: Sequence[Judgment]) -> list[str]:
        flips = [judgment.flipped for judgment in judgments if judgment.flipped is not None]
        if not flips:
            return []
        changed = f"{sum(flips):,} of {format_count(len(flips), 'choice')} {agree(sum(flips), 'changes', 'change')}"
        return [f"{self.label}: {changed} with the order; the mean of both orders decides"]

    def _ask(self, pairs: Sequence[Pair], runtime: Runtime | None) -> list[Judgment]:
        conversations = [
            build_pair_question(*shown, self.criteria)
            for pair in pairs
            for shown in ((pair.first, pair.second), (pair.second, pair.first))
        ]
        results = ask_and_parse(
            self,
            conversations,
            self.sampling(logprobs=_ALTERNATIVES),
            runtime,
            lambda _, answer: read_shares(answer, LETTERS),
            needs_logprobs=self._needs_logprobs,
        )
        return [self._judge(results[at : at + 2]) for at in range(0, len(results), 2)]

    def _judge(self, results: Sequence[tuple[Completion, tuple[list[float], float] | Failure]]) -> Judgment:
        answers = [answer for answer, _ in results]
        failures = [result for _, result in results if isinstance(result, Failure)]
        usage = sum_usage(answers)
        if failures:
            return Judgment.failed(
                Failure.combine(failures), raws=tuple(answer.text for answer in answers), usage=usage
            )
        shares = [result[0][0] for _, result in results if not isinstance(result, Failure)]
        outside = max(result[1] for _, result in results if not isinstance(result, Failure))
        first = combine_orders(*shares)
        shown: tuple[Choice, ...] = tuple("first" if share > 0.5 else "second" for share in shares)
        choice: Choice = "tie" if abs(first - 0.5) <= self.tie else "first" if first > 0.5 else "second"
        return Judgment(
            preference=choice,
            explanation=f"The first output is better with probability {first:.2f}.",
            flipped=shown[0] == shown[1],
            shown=shown,
            usage=usage,
            scores=tuple(Score(value=p, parts={OUTSIDE: outside}) for p in (first, 1 - first)),
        )


def combine_orders(forward: float, backward: float) -> float:
    """The probability that the first output is better, from that of A in both orders: the mean of the log-odds, in
    which a liking for A or B cancels."""
    odds = [math.log(max(p, 1e-9)) - math.log(max(1 - p, 1e-9)) for p in (forward, backward)]
    return 1 / (1 + math.exp(-(odds[0] - odds[1]) / 2))


@dataclass(frozen=True, kw_only=True)
class JudgeGrade(_FirstToken):
    """The grade of an output from 1 to 5, weighted by the probabilities of an LLM's first token."""

    catalog_name: ClassVar[str | None] = "judge_grade"
    catalog_example: ClassVar[str | None] = "judge_grade(llm=openai(model='gpt-4o-mini'))"
    bounds: ClassVar[tuple[float, float]] = (1.0, 5.0)
    higher_is_better: ClassVar[bool | None] = True

    def prompt_text(self) -> str:
        return self._describe_prompt(_GRADE)

    def score(self, shard: Shard) -> Scores:
        def parse(_: int, answer: Completion) -> Score:
            shares, outside = read_shares(answer, GRADES)
            parts: Mapping[str, float] = {OUTSIDE: outside}
            return Score(value=math.fsum(n * share for n, share in enumerate(shares, 1)), parts=parts)

        conversations = [build_grade_question(record, self.criteria) for record in shard.records]
        sampling = self.sampling(logprobs=_ALTERNATIVES)
        return Scores.of(
            ask_for_scores(self, conversations, sampling, shard.runtime, parse, needs_logprobs=self._needs_logprobs)
        )
