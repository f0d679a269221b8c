"""Dry runs: metrics run as ever, nothing is asked, all is counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from metrist.llm import gateway
from metrist.llm.cache import open_cache
from metrist.llm.estimate import PLACEHOLDER, estimate_calls
from metrist.llm.messages import Message, Sampling
from metrist.models.local_llm import Transformers
from scripted_llm import Scripted, read_log, say

GREEDY = Sampling(max_tokens=100)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "prices.toml").write_text("[[price]]\nmodel = 'm'\ninput = 10_000\noutput = 10_000\n")
    monkeypatch.setenv("METRIST_PRICES", str(tmp_path / "prices.toml"))
    return tmp_path / "asked.txt"


def two_steps(llm: Scripted, texts: Sequence[str]) -> None:
    """A protocol with a second question that quotes the first answer."""
    first = gateway.complete(llm, say(*texts), GREEDY)
    again = [
        [Message("user", text), Message("assistant", answer.text), Message("user", "and as JSON?")]
        for text, answer in zip(texts, first, strict=True)
    ]
    gateway.complete(llm, again, Sampling(max_tokens=40))


def test_questions_are_counted_and_not_asked(log):
    with estimate_calls() as result:
        answers = gateway.complete(Scripted(log=str(log)), say("a" * 40, "b" * 80, "a" * 40), GREEDY)
    assert read_log(log) == []
    assert not open_cache().path.parent.exists()
    assert [answer.text for answer in answers] == [PLACEHOLDER] * 3
    (counted,) = result.by_llm.values()
    # Equal questions are asked once. Four bytes a token and four tokens around each message.
    assert (counted.calls, counted.answered) == (2, 0)
    assert counted.prompt_tokens == 10 + 4 + 20 + 4
    assert counted.most_prompt_tokens == 40 + 80 + 2 * 32
    assert counted.most_completion_tokens == 200
    assert counted.least_cost == pytest.approx(0.38)
    assert counted.most_cost == pytest.approx(1.84 + 2.0)


def test_what_is_answered_already_is_told_apart_and_costs_nothing(log):
    gateway.complete(Scripted(log=str(log)), say("a"), GREEDY)
    with estimate_calls() as result:
        answers = gateway.complete(Scripted(log=str(log)), say("a", "b"), GREEDY)
    assert [answer.text for answer in answers] == ["A", PLACEHOLDER]
    (counted,) = result.by_llm.values()
    assert (counted.calls, counted.answered, counted.most_completion_tokens) == (2, 1, 100)
    assert read_log(log) == ["a"]


def test_a_quoted_answer_to_come_counts_for_as_long_as_it_may_be(log):
    llm = Scripted(log=str(log))
    with estimate_calls() as result:
        two_steps(llm, ["a", "b"])
    (counted,) = result.by_llm.values()
    assert counted.calls == 4
    assert counted.most_completion_tokens == 2 * 100 + 2 * 40
    step_one = 1 + 32
    step_two = 1 + len(PLACEHOLDER.encode()) + 12 + 3 * 16 + 16 + 100
    assert counted.most_prompt_tokens == 2 * (step_one + step_two)


def test_a_limit_of_the_highest_cost_does_not_stop_the_run(log, monkeypatch):
    llm = Scripted(log=str(log), tokens=(30, 40))
    texts = ["ä" * n for n in range(1, 8)]
    with estimate_calls() as result:
        two_steps(llm, texts)
    (counted,) = result.by_llm.values()
    monkeypatch.setenv("METRIST_MAX_COST", repr(counted.most_cost))
    two_steps(llm, texts)
    assert len(read_log(log)) == counted.calls


def test_no_price_is_no_cost_and_this_process_is_free(tiny):
    with estimate_calls() as result:
        gateway.complete(Scripted(), say("a"), GREEDY)
        gateway.complete(Transformers(model=str(tiny("llama"))), say("a"), GREEDY)
    unknown, free = result.by_llm.values()
    assert (unknown.least_cost, unknown.most_cost) == (None, None)
    assert (free.least_cost, free.most_cost) == (0, 0)


def test_after_a_dry_run_questions_are_asked_again(log):
    with estimate_calls():
        gateway.complete(Scripted(log=str(log)), say("a"), GREEDY)
    assert gateway.complete(Scripted(log=str(log)), say("a"), GREEDY)[0].text == "A"
