"""What every metric that asks an LLM can build on: questions in several rounds, failures, what was spent."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import RunError, SpecError
from metrist.llm.base import LLM, Call
from metrist.llm.cache import open_cache
from metrist.llm.messages import Completion, Conversation, Message, Sampling, Usage
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
    describe_usage,
    is_retryable,
    merge_usage,
    score_answers,
    sum_usage,
)
from metrist.metrics.prompt_layout import fill_template, load_template
from metrist.records import Record
from metrist.run import Results, load, score
from metrist.run.estimate import estimate
from metrist.run.tasks import score_shard
from metrist.runtime import Runtime
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
        "unpaid_prompt_tokens": 7,
        "unpaid_completion_tokens": 2,
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


def test_equal_failures_are_counted_together_whatever_their_records_are_called():
    @dataclass(frozen=True, kw_only=True)
    class Sourced(TwoSteps):
        needs = ("source",)

    metric = Sourced(llm=FakeLLM(two_steps))
    rows = [Record(item=str(n), system="s", output="good", source=None if n < 3 else "s") for n in range(5)]
    coverage, _ = coverage_remarks(metric, score_shard(metric, Shard(rows)))
    assert "2 of 5 outputs were scored; most frequent failure (3)" in coverage


def test_failures_that_differ_in_the_answer_they_quote_are_counted_together():
    class Plain(LLMMetric):
        def prompt(self, record):
            return record.output

        def parse(self, text):
            return float(text)

    metric = Plain(llm=FakeLLM(lambda conversation, _: conversation[0].text))
    coverage = coverage_remarks(metric, metric.score(Shard(records("it's 'a'", "b", "c", "", "4"))))[0]
    assert "most frequent failure (3): the answer cannot be parsed" in coverage
    assert coverage.endswith("""float: …), such as "it's 'a'\"""")


def test_outputs_that_were_not_asked_for_are_no_failures():
    metric = TwoSteps(llm=FakeLLM(two_steps))
    pending = [Score.failed("not yet", "pending") for _ in range(5)]
    scores = Scores.of([*failed(2, 0.25, 0.75), *pending])
    assert coverage_remarks(metric, scores) == coverage_remarks(metric, failed(2, 0.25, 0.75))
    assert coverage_remarks(metric, Scores.of([0.5, *pending])) == []
    assert coverage_remarks(metric, Scores.of(pending)) == []


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
    texts, replayed = cost_remarks(metric, Scores.of([Score(value=1, usage=usage)]))
    assert "1 of 3 answers came from the cache" in replayed
    calls = "3 calls (2 sent, 1 from the cache)"
    assert texts == f"{metric.text}: {calls}, about 1,200 tokens in, 0.0123 US dollars"
    assert cost_remarks(metric, Scores.of([1.0])) == []


def test_tokens_are_those_that_were_paid_as_the_cost_is():
    paid = Completion(text="1", usage=Usage(prompt_tokens=100, completion_tokens=10, cost=0.5))
    recalled = Completion(
        text="1", usage=Usage(prompt_tokens=70, completion_tokens=7, cost=0.0, cached=True, saved=0.25)
    )
    repeats = [
        Completion(text="1", usage=Usage(prompt_tokens=100, completion_tokens=10, cost=0.0, cached=True, repeated=True))
    ] * 2
    told, _ = describe_usage("m", merge_usage(sum_usage([answer]) for answer in [paid, recalled, *repeats]))
    sources = "1 sent, 1 from the cache, 2 repeated questions were asked once"
    assert told == f"m: 4 calls ({sources}), 100 tokens in, 10 tokens out, 0.5 US dollars, 0.75 without the cache"


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

    with raises_code(SpecError, "invalid_value", "Wordless"):
        Wordless(llm=FakeLLM(two_steps)).facts()


@pytest.mark.parametrize("prompt", [None, {"role": "user", "content": "?"}, [{"role": "user"}], 3])
def test_a_prompt_that_is_neither_text_nor_messages_is_refused(prompt):
    class Odd(LLMMetric):
        def prompt(self, record):  # noqa: ARG002
            return prompt

    with raises_code(RunError, "invalid_value", "messages"):
        Odd(llm=FakeLLM("1")).score(Shard([Record(item="1", system="s", output="o")]))


def test_what_is_put_into_a_template_is_not_looked_at_again():
    assert fill_template("{{a}} and {{b}}", a="{{b}}", b="{{a}}") == "{{b}} and {{a}}"
    assert load_template("judge_rules").startswith("You judge")


@dataclass(frozen=True, kw_only=True)
class Moody(LLM):
    """Gives the current answer to each text, and notes what it is asked."""

    answers: ClassVar[dict[str, str]] = {}
    requests: ClassVar[list[str]] = []

    def complete_batch(self, conversations: Sequence[Conversation], _sampling: Sampling, _call: Call):
        texts = [conversation[-1].text for conversation in conversations]
        self.requests.extend(texts)
        known = [self.answers.get(text) for text in texts]
        usage = Usage(prompt_tokens=1000, completion_tokens=500)
        return [Completion(text=text, usage=usage) if text else Completion(failure="busy") for text in known]


@pytest.fixture(autouse=True)
def moody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Moody]:
    (tmp_path / "prices.toml").write_text("[[price]]\nmodel = '*'\ninput = 1.0\noutput = 2.0\n")
    monkeypatch.setenv("METRIST_PRICES", str(tmp_path / "prices.toml"))
    Moody.answers, Moody.requests = {"good": "1", "odd": "one", "fine": "1"}, []
    return Moody


@dataclass(frozen=True, kw_only=True)
class AsNumber(LLMMetric):
    bounds = (0.0, 1.0)

    def prompt(self, record):
        return record.output

    def parse(self, text):
        return float(text)


@dataclass(frozen=True, kw_only=True)
class AsNumberOrWord(AsNumber):
    """The next version of the parser."""

    def parse(self, text):
        return {"one": 1.0, "two": 2.0}[text] if text.isalpha() else float(text)


@dataclass(frozen=True, kw_only=True)
class AsDigit(AsNumber):
    """Another version, which can read no more than the first."""

    def parse(self, text):
        return float("0123456789".index(text))


def run(metric: type[LLMMetric], *outputs: str, **options: Any) -> Results:
    several = [Record(item=str(n), system="s", output=output) for n, output in enumerate(outputs)]
    return score(several, metric(llm=Moody()), **options)


def requests_of(metric: type[LLMMetric], *outputs: str, **options: Any) -> list[str]:
    """What is requested of the LLM, and leaves the list empty."""
    run(metric, *outputs, **options)
    requests, Moody.requests[:] = Moody.requests.copy(), []
    return requests


def test_answers_from_the_cache_are_announced_with_what_they_would_cost():
    first = run(AsNumber, "good", "odd", "good", "fine")
    assert not any("came from the cache" in note for note in first.notes)
    told = "4 calls (3 sent, 1 repeated question was asked once)"
    assert any(told in note and "0.006 US dollars" in note for note in first.notes)
    again = run(AsNumber, "good", "odd", "good", "new", "fine")
    notes = [note for note in again.notes if "came from the cache" in note]
    assert len(notes) == 1
    assert "3 of 5 answers came from the cache, 1 of them is unreadable (`retry_failed`" in notes[0]
    assert any("0 US dollars, 0.006 without the cache" in note for note in again.notes)
    both = run(AsNumber, "good", "fine")
    assert any("2 of 2 answers came from the cache (`fresh` asks again)" in note for note in both.notes)


def test_an_unknown_cost_names_the_model_and_the_file_of_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    metric = AsNumber(llm=Moody())
    # Two of the answers were repeated, which costs nothing: that is not the cost of the other 58.
    usage = {"calls": 60, "cached": 2, "estimated": 0, "unpriced": 58, "cost": 0.0, "repeated": 2}
    start = f"{metric.label}: 60 calls (58 sent, 2 repeated questions were asked once), 58 calls of unknown cost"
    (tmp_path / "prices.toml").write_text("[[price]]\nmodel = 'm1'\ninput = 1.0\noutput = 2.0\n")
    assert describe_usage(metric.label, usage, metric) == [f"{start} (no price for moody in prices.toml)"]
    monkeypatch.delenv("METRIST_PRICES")
    assert describe_usage(metric.label, usage, metric) == [f"{start} (no price for moody: set METRIST_PRICES)"]
    monkeypatch.setenv("METRIST_PRICES", str(tmp_path / "gone.toml"))
    assert describe_usage(metric.label, usage, metric) == [f"{start} (no price for moody in gone.toml)"]
    known = describe_usage(metric.label, {**usage, "cost": 0.25}, metric)[0]
    assert "0.25 US dollars, 58 calls of unknown cost" in known


@pytest.mark.parametrize(
    ("cost", "text"), [(0.0, "0"), (0.0123456, "0.01235"), (0.0000465, "0.000046"), (12.3456, "12.35")]
)
def test_small_amounts_are_shown_without_an_exponent(cost: float, text: str):
    usage = {"calls": 1, "cached": 0, "estimated": 0, "cost": cost}
    assert describe_usage("m", usage) == [f"m: 1 call, {text} US dollars"]


def test_an_unreadable_answer_is_kept_until_it_is_asked_for_again(moody):
    assert requests_of(AsNumber, "good", "odd") == ["good", "odd"]
    assert requests_of(AsNumber, "good", "odd") == []
    assert open_cache().contents().unreadable == {"moody": 1}
    # Another parser gets the stored answer, whether it can read it or not.
    assert run(AsNumberOrWord, "good", "odd").scores[AsNumberOrWord(llm=Moody()).text].values.tolist() == [1, 1]
    assert requests_of(AsNumberOrWord, "good", "odd") == []
    assert requests_of(AsDigit, "good", "odd") == []
    moody.answers["odd"] = "2"
    assert requests_of(AsDigit, "good", "odd", retry_failed=True) == ["odd"]
    assert open_cache().contents().unreadable == {}
    assert requests_of(AsNumber, "good", "odd") == []


def test_failed_and_unreadable_answers_are_asked_for_again_on_request(moody):
    requests_of(AsNumber, "good", "odd", "busy")
    assert requests_of(AsNumber, "good", "odd", "busy", retry_failed=True) == ["odd", "busy"]
    moody.answers["odd"] = "0.5"
    assert requests_of(AsNumber, "good", "odd", retry_failed=True) == ["odd"]
    assert requests_of(AsNumber, "good", "odd", retry_failed=True) == []


def test_unreadable_answers_of_an_earlier_version_are_found_too():
    requests_of(AsNumber, "good", "odd")
    with closing(sqlite3.connect(open_cache().path)) as connection, connection:
        connection.execute("DELETE FROM unreadable")  # Earlier versions did not mark them.
    assert requests_of(AsNumber, "good", "odd", retry_failed=True) == ["odd"]


def test_all_answers_are_asked_for_again_on_request_each_once(moody):
    requests_of(AsNumber, "good", "fine")
    moody.answers["good"] = "0.25"
    assert requests_of(AsNumber, "good", "fine", "good", fresh=True, shard_size=1) == ["good", "fine"]
    results = run(AsNumber, "good", "fine")
    assert (results.scores[AsNumber(llm=Moody()).text].values.tolist(), moody.requests) == ([0.25, 1], [])


def test_a_stored_answer_is_not_lost_if_it_cannot_be_had_again(moody):
    requests_of(AsNumber, "good", "fine")
    del moody.answers["good"]
    assert requests_of(AsNumber, "good", "fine", fresh=True) == ["good", "fine"]
    assert requests_of(AsNumber, "good", "fine") == []


@pytest.mark.parametrize(("option", "expected"), [("fresh", ["good", "odd", "fine"]), ("retry_failed", ["odd"])])
def test_a_run_folder_is_scored_again_where_answers_are_asked_for_again(moody, tmp_path, option, expected):
    where = {"out": tmp_path / "run", "shard_size": 2}
    requests_of(AsNumber, "good", "odd", "fine", **where)
    moody.answers |= {"odd": "0.5", "good": "0.75"}
    assert requests_of(AsNumber, "good", "odd", "fine", **where) == []
    assert requests_of(AsNumber, "good", "odd", "fine", **where, **{option: True}) == expected
    values = load(tmp_path / "run").scores[AsNumber(llm=Moody()).text].values
    assert values.tolist() == [0.75 if option == "fresh" else 1, 0.5, 1]


def test_a_dry_run_counts_what_would_be_asked_for_again():
    metric = AsNumber(llm=Moody())
    score(records("good", "odd"), metric)

    def answered(**options: Any) -> int:
        with Runtime.current().override(**options).activate():
            (llm,) = estimate(records("good", "odd"), [metric]).by_llm.values()
        return llm.answered

    assert (answered(), answered(retry_failed=True), answered(fresh=True)) == (2, 1, 0)
