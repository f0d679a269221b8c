"""What every metric that asks an LLM can build on: questions in several rounds, failures, what was spent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from metrist.errors import RunError, SpecError
from metrist.llm.messages import Completion, Message, Sampling, Usage
from metrist.llm.replay import FakeLLM
from metrist.metrics.base import Shard
from metrist.metrics.llm_metric import (
    NOT_ASKED,
    LLMMetric,
    UnparsableAnswer,
    ask_llm,
    continue_conversations,
    cost_remarks,
    coverage_remarks,
    is_retryable,
    merge_usage,
    score_answers,
    sum_usage,
)
from metrist.metrics.prompt_layout import fill_template, load_template
from metrist.records import Record
from metrist.scores import Failure, Score, Scores


@dataclass(frozen=True, kw_only=True)
class TwoSteps(LLMMetric):
    """Asks for an opinion first, then for a number; as a protocol in two rounds is written."""

    bounds = (0.0, 1.0)

    def prompt_text(self):
        return "What do you think? As a number?"

    def score(self, shard):
        first = [(Message("user", f"What do you think of {record.output}?"),) for record in shard.records]
        opinions = ask_llm(self.llm, first, self.sampling())
        numbers = ask_llm(self.llm, continue_conversations(first, opinions, "As a number?"), self.sampling())

        def read(number, answer):
            try:
                value = float(answer.text)
            except ValueError:
                raise UnparsableAnswer(f"no number: {answer.text!r}") from None
            usage = sum_usage([opinions[number], answer])
            return Score(value=value, explanation=opinions[number].text, usage=usage)

        return Scores.of(score_answers(numbers, read))


def two_steps(conversation, _):
    if len(conversation) == 1:
        text = conversation[0].text
        return Completion(failure="too long") if "long" in text else f"I like {text[21:-1]}."
    return Completion(text="0.5" if "good" in conversation[1].text else "so so", usage=Usage(cost=0.5))


def records(*outputs: str) -> list[Record]:
    return [Record(item=output, system="s", output=output) for output in outputs]


def test_a_protocol_of_two_rounds_keeps_order_failures_and_raw_answers():
    llm = FakeLLM(two_steps)
    scores = TwoSteps(llm=llm).score(Shard(records("good", "long", "bad")))
    np.testing.assert_array_equal(scores.values, [0.5, np.nan, np.nan])
    assert scores.failures == {1: NOT_ASKED, 2: "no number: 'so so'"}
    assert scores.raws == {2: "so so"}
    assert scores.explanations == {0: "I like good."}
    assert [message.text for message in llm.requests[-1]] == [
        "What do you think of bad?",
        "I like bad.",
        "As a number?",
    ]
    assert (scores.usages[0]["calls"], scores.usages[1]["calls"]) == (2, 0)


def test_nothing_is_asked_where_there_is_nothing_to_ask():
    llm = FakeLLM(two_steps)
    assert ask_llm(llm, [], Sampling()) == []
    assert ask_llm(llm, [None], Sampling()) == [Completion(failure=NOT_ASKED)]
    assert llm.requests == []
    assert len(TwoSteps(llm=llm).score(Shard([]))) == 0


def test_each_conversation_can_go_on_in_its_own_words():
    begun = [(Message("user", "a"),), (Message("user", "b"),), None]
    answers = [Completion(text="1"), Completion(text="2"), Completion(text="3")]
    gone_on = continue_conversations(begun, answers, ["x", "y", "z"])
    assert [one and one[-1].text for one in gone_on] == ["x", "y", None]


def test_what_was_spent_is_summed_as_far_as_it_is_known():
    answers = [
        Completion(usage=Usage(prompt_tokens=5, cost=0.5, seconds=1.0)),
        Completion(usage=Usage(prompt_tokens=7, completion_tokens=2, seconds=1.0, cached=True)),
        Completion(failure=NOT_ASKED),
    ]
    result = sum_usage(answers)
    assert result == {
        "calls": 2,
        "cached": 1,
        "estimated": 0,
        "unpriced": 1,
        "prompt_tokens": 12,
        "completion_tokens": 2,
        "cost": 0.5,
        "seconds": 2.0,
        "attempts": 2,
    }
    assert merge_usage([result, None, {"calls": 1}])["calls"] == 3


def test_signatures_name_the_prompt_by_its_hash():
    # The first 12 digits of `printf 'What do you think? As a number?' | sha256sum`.
    assert TwoSteps(llm=FakeLLM(two_steps)).facts() == {"prompt": "51bf71c0ba63"}


def failed(count: int, *values: float) -> Scores:
    lost = [Score(value=np.nan, failure="no answer") for _ in range(count)]
    return Scores.of([*lost, *values])


def test_the_mean_is_told_with_its_bounds_if_the_failed_ones_were_worst_or_best():
    metric = TwoSteps(llm=FakeLLM(two_steps))
    texts = coverage_remarks(metric, failed(2, 0.25, 0.75))
    assert [remark.removeprefix(f"{metric.text}: ") for remark in texts] == [
        "2 of 4 outputs were scored; most frequent failure (2): no answer",
        "the mean of the scored outputs is 0.5; with the 2 failed it would be 0.25 if they had the worst score and "
        "0.75 if they had the best score",
    ]
    assert coverage_remarks(metric, failed(0, 0.5)) == []
    assert len(coverage_remarks(metric, failed(1))) == 1


@dataclass(frozen=True, kw_only=True)
class Penalties(TwoSteps):
    bounds = (-np.inf, 0.0)


@dataclass(frozen=True, kw_only=True)
class Boundless(TwoSteps):
    bounds = (-np.inf, np.inf)


def test_a_scale_without_an_end_has_a_bound_on_one_side_or_none():
    _, texts = coverage_remarks(Penalties(llm=FakeLLM(two_steps)), failed(1, -3.0))
    assert texts.endswith("with the 1 failed it would be -1.5 if it had the best score")
    assert len(coverage_remarks(Boundless(llm=FakeLLM(two_steps)), failed(1, -3.0))) == 1


def test_cost_is_told_where_it_is_known():
    metric = TwoSteps(llm=FakeLLM(two_steps))
    usage = {"calls": 3, "cached": 1, "estimated": 2, "prompt_tokens": 1200, "cost": 0.0123}
    (texts,) = cost_remarks(metric, Scores.of([Score(value=1, usage=usage)]))
    calls = "3 calls (2 sent, 1 cached or repeated)"
    assert texts == f"{metric.text}: {calls}, about 1,200 tokens in, 0.0123 US dollars"
    assert cost_remarks(metric, Scores.of([1.0])) == []


def test_a_question_to_which_nothing_came_is_no_answer_of_unknown_cost():
    silent = Completion(failure="given up after 8 attempts", usage=Usage(attempts=8))
    billed = Completion(failure="the server filtered the answer", usage=Usage(prompt_tokens=10, completion_tokens=0))
    unpriced = Completion(text="7", usage=Usage(prompt_tokens=10, completion_tokens=1))
    assert "unpriced" not in sum_usage([silent])
    assert sum_usage([silent, billed, unpriced])["unpriced"] == 2


def test_a_failure_for_want_of_an_answer_is_told_from_an_answer_that_makes_no_sense():
    llm = FakeLLM(lambda *_: Completion(failure="the server answered 500: overloaded"))
    (answer,) = ask_llm(llm, [(Message("user", "a"),)], Sampling())
    assert answer.failure == "no answer: the server answered 500: overloaded"
    assert is_retryable(answer.failure)
    assert is_retryable(NOT_ASKED)
    assert not is_retryable(Failure("unparsable", "the answer has no JSON object"))


def test_a_metric_without_wording_or_with_odd_settings_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Wordless(LLMMetric):
        pass

    with pytest.raises(SpecError, match=r"Wordless must define prompt\(self, record\)"):
        Wordless(llm=FakeLLM(two_steps)).facts()


@pytest.mark.parametrize("prompt", [None, {"role": "user", "content": "?"}, [{"role": "user"}], 3])
def test_a_prompt_that_is_neither_text_nor_messages_is_refused(prompt):
    class Odd(LLMMetric):
        def prompt(self, record):  # noqa: ARG002
            return prompt

    with pytest.raises(RunError, match="Odd: prompt must return a text or a list of messages"):
        Odd(llm=FakeLLM("1")).score(Shard([Record(item="1", system="s", output="o")]))


def test_what_is_put_into_a_template_is_not_looked_at_again():
    assert fill_template("{{a}} and {{b}}", a="{{b}}", b="{{a}}") == "{{b}} and {{a}}"
    assert load_template("judge_rules").startswith("You judge")
