"""Choose between two outputs with an LLM.

The LLM is asked twice, with each output shown first once: a choice that changes with the order is a tie, and the share
of such choices is reported. The wording in this module is part of the prompt's hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

from metrist.errors import SpecError, agree, format_count
from metrist.llm.messages import Completion, Message
from metrist.metrics.comparator import REVERSED, Comparator, Judgment
from metrist.metrics.judge.judge import JudgeQuestion, answer_schema, parse_grades, record_texts
from metrist.metrics.judge.rubrics import MARK_KEY, REASONS_KEY, Aspect, Level, load_rubric
from metrist.metrics.llm_metric import LLMMetric, ask_and_parse, sum_usage
from metrist.metrics.prompt_layout import REMINDER, PromptText, fence_texts, fill_template, load_templates
from metrist.ratings import Choice
from metrist.records import Need, Pair, Record
from metrist.runtime import Runtime
from metrist.scores import Failure, FailureKind

_RULES, _QUESTION = "judge_pair_rules", "judge_pair"
#: The choice is parsed like a grade, with the same protection against text that imitates answers.
_BETTER = Aspect(
    "better", "Which output is better?", (Level("A", 1), Level("B", -1), Level("tie", 0)), categorical=True
)
_CHOICES: Mapping[str, Choice] = {"A": "first", "B": "second", "tie": "tie"}
_GENERAL_CRITERIA = (
    "Whether the output does what was asked: it is right, it leaves out nothing that matters, it keeps to the point, "
    "and it reads well, in this order."
)
_ABOUT_REFERENCES = (
    "A reference is a right answer; there may be others, and an output may differ from it and be as good. "
)
_NEEDS: Mapping[str, tuple[Need, ...]] = {"hidden": (), "shown": ("references",)}
_ORDERS = ("in the given order", "in reverse order")


class ParsedChoice(NamedTuple):
    """One answer's choice between the outputs in the order shown, with its reasons."""

    choice: Choice
    reasons: str


@dataclass(frozen=True, kw_only=True)
class JudgePair(Comparator, LLMMetric):
    """The better of two outputs according to an LLM."""

    catalog_name: ClassVar[str | None] = "judge_pair"
    catalog_example: ClassVar[str | None] = "judge_pair(llm=openai(model='gpt-4o-mini'))"

    #: What makes an output better, in words; None: the questions of the rubric, or general criteria.
    criteria: str | None = None
    #: A rubric whose questions are the criteria: the name of a shipped one, or the path of a TOML file.
    rubric: str | None = None
    reference: Literal["hidden", "shown"] = "hidden"
    #: 'both': each output is shown first once; 'one': a hash of the texts decides which is shown first.
    orders: Literal["both", "one"] = "both"
    #: A TOML file of texts that replace those of the prompt: `judge_pair_rules`, `judge_pair`.
    templates: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.criteria is not None and not self.criteria.strip():
            raise SpecError(f"{self.name}: criteria must not be empty, got {self.criteria!r}")
        if self.criteria is not None and self.rubric is not None:
            raise SpecError(f"{self.name}: set either criteria or rubric, not both", code="conflict")
        self.describe_criteria()
        self._load_templates()

    @property
    def needs(self) -> tuple[Need, ...]:
        rubric = load_rubric(self.rubric).needs if self.rubric is not None else ()
        return tuple(dict.fromkeys((*rubric, *_NEEDS[self.reference])))

    def prompt_text(self) -> str:
        return "\n".join([self._build_rules(), self._load_templates()[_QUESTION], _ABOUT_REFERENCES, _answer_form("")])

    def prefer(self, pairs: Sequence[Pair]) -> list[Judgment]:
        decided: dict[int, Judgment] = {}
        for i, pair in enumerate(pairs):
            *first, _ = record_texts(pair.first, references=self.reference == "shown")
            *second, _ = record_texts(pair.second, references=self.reference == "shown")
            if first != second:
                name = next(text.name for text in (*first, *second) if text not in first or text not in second)
                decided[i] = Judgment.failed(
                    f"the two records differ in {name}, by which they are judged: give both the same"
                )
            elif pair.first.output == pair.second.output:
                explanation = "The two outputs are equal; the LLM was not asked."
                decided[i] = Judgment(preference="tie", explanation=explanation)
        undecided = [pair for i, pair in enumerate(pairs) if i not in decided]
        judgments = iter(self._ask(undecided, getattr(pairs, "runtime", None)))
        return [decided.get(i) or next(judgments) for i in range(len(pairs))]

    def observations(self, judgments: Sequence[Judgment]) -> list[str]:
        flips = [judgment.flipped for judgment in judgments if judgment.flipped is not None]
        if self.orders == "one":
            return [f"{self.label}: each pair was shown in one order only, so the effect of the order is unknown"]
        if not flips:
            return []
        changed = f"{sum(flips):,} of {format_count(len(flips), 'choice')} changed with the order"
        return [f"{self.label}: {changed} and {agree(sum(flips), 'counts as a tie', 'count as ties')}"]

    def _ask(self, pairs: Sequence[Pair], runtime: Runtime | None) -> list[Judgment]:
        rules, template = self._build_rules(), self._load_templates()[_QUESTION]
        questions: list[JudgeQuestion] = []
        for pair in pairs:
            both = [(pair.first, pair.second), (pair.second, pair.first)]
            orders = both
            if self.orders == "one":
                orders = both[1:] if _is_reversed(pair) else both[:1]
            questions += [self._build_question(first, second, rules, template) for first, second in orders]
        sampling = self.sampling(schema=answer_schema([_BETTER], reasons=True))
        results = ask_and_parse(
            self,
            [question.conversation for question in questions],
            sampling,
            runtime,
            lambda index, answer: parse_choice(answer, questions[index]),
        )
        size = len(questions) // max(len(pairs), 1)
        return [self._judge(pair, results[i * size : (i + 1) * size]) for i, pair in enumerate(pairs)]

    def _judge(self, pair: Pair, results: Sequence[tuple[Completion, ParsedChoice | Failure]]) -> Judgment:
        """The judgment from the answers for one or both orders. If one of two is missing the pair fails: the other
        alone could be an order effect."""
        answers = [answer for answer, _ in results]
        raws = tuple(answer.text for answer in answers)
        shown = tuple(result.choice for _, result in results if isinstance(result, ParsedChoice))
        failures = {i: result for i, (_, result) in enumerate(results) if isinstance(result, Failure)}
        unreadable = [
            answers[i]
            for i, failure in failures.items()
            if failure.kind is FailureKind.unparsable and answers[i].failure is None
        ]
        usage = sum_usage(answers, unreadable)
        reasons = []
        for answer, result in results:
            if isinstance(result, ParsedChoice):
                reasons.append(result.reasons)
            else:
                reasons.append("" if answer.failure else answer.text.strip())
        if self.orders == "one":
            if failures:
                return Judgment.failed(failures[0], raws=raws, usage=usage)
            is_reversed = _is_reversed(pair)
            note = "(output A is the second of the pair) " if is_reversed else ""
            choice = REVERSED[shown[0]] if is_reversed else shown[0]
            return Judgment(preference=choice, explanation=f"{note}{reasons[0]}", shown=shown, raws=raws, usage=usage)
        explanation = "\n\n".join(f"{order}: {reason}" for order, reason in zip(_ORDERS, reasons, strict=True))
        if failures:
            first, failure = next(iter(failures.items()))
            kind = Failure.combine(failures.values()).kind
            message = f"asked {_ORDERS[first]}: {failure}"
            return Judgment.failed(message, kind, explanation=explanation, raws=raws, usage=usage)
        flipped = shown[0] != REVERSED[shown[1]]
        choice = "tie" if flipped else shown[0]
        return Judgment(
            preference=choice, explanation=explanation, flipped=flipped, shown=shown, raws=raws, usage=usage
        )

    def describe_criteria(self) -> str:
        """What makes an output better, as the LLM is told."""
        if self.rubric is None:
            return self.criteria or _GENERAL_CRITERIA
        return "\n".join(f"- {aspect.name}: {aspect.question}" for aspect in load_rubric(self.rubric).aspects)

    def _load_templates(self) -> Mapping[str, str]:
        return load_templates((_RULES, _QUESTION), self.templates)

    def _build_rules(self) -> str:
        return fill_template(self._load_templates()[_RULES], reminder=REMINDER, criteria=self.describe_criteria())

    def _build_question(self, first: Record, second: Record, rules: str, template: str) -> JudgeQuestion:
        shown = self.reference == "shown"
        *context, output = record_texts(first, references=shown)
        texts = [*context, replace(output, name="output A"), PromptText("output B", second.output)]
        fenced = fence_texts(texts)
        prompt = fill_template(
            template,
            material=fenced.text,
            mark=fenced.mark,
            references=_ABOUT_REFERENCES if shown else "",
            form=_answer_form(fenced.mark),
        )
        conversation = (Message("system", rules), Message("user", prompt))
        return JudgeQuestion(conversation=conversation, mark=fenced.mark, texts=tuple(text.text for text in texts))


def parse_choice(answer: Completion, question: JudgeQuestion) -> ParsedChoice:
    """The LLM's own choice; `UnparsableAnswer` if it is none of those offered."""
    grades = parse_grades(answer.text, [_BETTER], question.mark, question.texts)
    grades.require([_BETTER.name])
    return ParsedChoice(choice=_CHOICES[grades.levels[_BETTER.name].name], reasons=grades.reasons)


def _answer_form(mark: str) -> str:
    # The slot for the choice is not valid JSON: an LLM that repeats the form has not chosen.
    return f'{{"{REASONS_KEY}": "…", "{_BETTER.name}": <"A" or "B" or "tie">, "{MARK_KEY}": "{mark}"}}'


def _is_reversed(pair: Pair) -> bool:
    """Whether the second output is shown first. A hash of the texts decides, so that a pair is always shown alike."""
    key = "\0".join((pair.first.item, pair.first.output, pair.second.output)).encode("utf-8", "surrogatepass")
    return bool(hashlib.sha256(key).digest()[0] & 1)
