"""What users build on: `metrist.complete`, their own LLMs, and `metrist.FakeLLM` in their tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

import metrist
from error_codes import raises_code
from fault_server import FaultServer, answer
from metrist.errors import ModelError, SpecError


@dataclass(frozen=True)
class Shout(metrist.LLM):
    """A user's own LLM: one method."""

    mark: str = "!"

    def complete(
        self, conversations: Sequence[Sequence[metrist.Message]], sampling: metrist.Sampling
    ) -> list[metrist.Completion]:
        return [metrist.Completion(text=c[-1].text.upper()[: sampling.max_tokens] + self.mark) for c in conversations]


def test_complete_takes_a_spec_and_plain_texts() -> None:
    with FaultServer(lambda request: answer(f"to {request.prompt}")) as server:
        spec = f"openai(model='m', url='{server.url}')"
        answers = metrist.complete(spec, ["a", "b", "a"], max_tokens=7)
    assert [completion.text for completion in answers] == ["to a", "to b", "to a"]
    assert len(server.requests) == 2
    assert {request.fields["max_tokens"] for request in server.requests} == {7}


def test_an_llm_of_ones_own_needs_one_method_and_is_cached_by_its_settings() -> None:
    assert [answer.text for answer in metrist.complete(Shout(), ["ab", "c"])] == ["AB!", "C!"]
    (again,) = metrist.complete(Shout(), ["ab"])
    assert (again.text, again.usage.cached) == ("AB!", True)
    (other,) = metrist.complete(Shout(mark="?"), ["ab"])
    assert (other.text, other.usage.cached) == ("AB?", False)
    assert str(Shout(mark="?")) == "shout(mark='?')"


def test_an_llm_that_returns_too_few_completions_is_an_error() -> None:
    class Half(metrist.LLM):
        def complete(
            self, conversations: Sequence[Sequence[metrist.Message]], _: metrist.Sampling
        ) -> list[metrist.Completion]:
            return [metrist.Completion(text="x") for _ in conversations[:1]]

    with raises_code(ModelError, "llm_failed", "half", 1, 2):
        metrist.complete(Half(), ["a", "b"])


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(TypeError, match="max_token"):
        metrist.complete(Shout(), ["a"], max_token=3)
    with raises_code(SpecError, "unknown_name", "'shout'"):
        metrist.complete("shout(mark='?')", ["a"])
    with pytest.raises(NotImplementedError, match=r"LLM must define complete"):
        metrist.LLM().complete([], metrist.Sampling())


def test_the_fake_answers_from_a_text_a_list_a_dict_or_a_function_and_records_requests() -> None:
    assert [one.text for one in metrist.complete(metrist.FakeLLM("4"), ["a", "b"])] == ["4", "4"]
    llm = metrist.FakeLLM(["first", "second"])
    assert [one.text for one in metrist.complete(llm, ["a", "b"])] == ["first", "second"]
    assert [conversation[-1].text for conversation in llm.requests] == ["a", "b"]
    with raises_code(ModelError, "model_unusable", "request 3", "2 answers"):
        metrist.complete(llm, ["c"])
    by_word = metrist.FakeLLM({"good": "5", "bad": "1"})
    assert [one.text for one in metrist.complete(by_word, ["so bad", "a good one"])] == ["1", "5"]
    with raises_code(ModelError, "model_unusable", "'good', 'bad'", "'unknown'"):
        metrist.complete(by_word, ["unknown"])
    lengths = metrist.FakeLLM(lambda conversation, sampling: f"{len(conversation[-1].text)} {sampling.max_tokens}")
    assert metrist.complete(lengths, ["abc"], max_tokens=9)[0].text == "3 9"


@pytest.mark.parametrize("kind", list(metrist.FailureKind))
def test_the_fake_fails_with_the_kind_it_is_given(kind: metrist.FailureKind) -> None:
    answers = metrist.complete(metrist.FakeLLM(["fine", kind]), ["a", "b"])
    assert answers[0].failure is None
    assert answers[1].failure is not None
    assert answers[1].failure.kind is kind
