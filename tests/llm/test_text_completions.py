"""`turns='none'`: the server's /completions, which gives the model the words as they are, on a loopback server.
Requests and answers have the form of OpenAI's documentation, which vLLM and llama.cpp follow."""

from __future__ import annotations

from typing import Any

import pytest

from error_codes import raises_code
from fault_server import Act, FaultServer, Request, answer, cut_off, error, status, text_answer
from metrist.compat import TIGERScorer
from metrist.errors import ModelError
from metrist.llm import gateway
from metrist.llm.messages import Completion, Message, Sampling, TokenChoice
from metrist.llm.openai import OpenAI
from metrist.metrics.base import Shard
from metrist.metrics.errors.tigerscore import TigerScore, build_prompt
from metrist.metrics.registry import build
from metrist.records import Record

HELLO = (Message("system", "Be kind."), Message("user", "Say hello."))
SCHEMA = {"type": "object", "properties": {"grade": {"type": "integer", "enum": [4]}}, "required": ["grade"]}
NO_ERRORS = "The model-generated output contains 0 errors, with a total score reduction of 0."


def ask(url: str, sampling: Sampling | None = None, **settings: Any) -> list[Completion]:
    return gateway.complete(OpenAI(model="m", url=url, turns="none", **settings), [HELLO], sampling or Sampling())


def answered(act: Act, sampling: Sampling | None = None) -> Completion:
    with FaultServer(lambda _: act) as server:
        (completion,) = ask(server.url, sampling)
    return completion


def test_a_request_has_the_documented_form() -> None:
    with FaultServer(lambda _: text_answer("hello")) as server:
        (result,) = ask(
            server.url, Sampling(temperature=0.7, max_tokens=9, seed=5, sample=2, stop=("END",), logprobs=3)
        )
    (request,) = server.requests
    assert request.path == "/v1/completions"
    assert request.fields == {
        "model": "m",
        "prompt": "Be kind.\n\nSay hello.",
        "temperature": 0.7,
        "top_p": 1.0,
        "seed": 7,
        "stop": ["END"],
        "max_tokens": 9,
        "logprobs": 3,
    }
    assert (result.text, result.finish, result.failure, result.tokens) == ("hello", "stop", None, None)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.attempts) == (12, 3, 1)


def test_an_azure_deployment_is_asked_at_its_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "abc-123-long")
    with FaultServer(lambda _: text_answer("hello")) as server:
        ask(server.url, key="SOME_KEY", api_version="2024-10-21", body='{"echo": false}')
    assert server.requests[0].path == "/v1/completions?api-version=2024-10-21"
    assert server.requests[0].headers["api-key"] == "abc-123-long"
    assert server.requests[0].fields["echo"] is False


def test_tokens_come_with_their_alternatives_likeliest_first() -> None:
    logprobs = {
        "tokens": [" 4", "!"],
        "token_logprobs": [-0.1, -2],
        "top_logprobs": [{" 5": -3.0, " 4": -0.1}, None],
        "text_offset": [0, 2],
    }
    result = answered(text_answer(" 4!", logprobs=logprobs), Sampling(logprobs=2))
    assert result.tokens == (TokenChoice(" 4", -0.1, ((" 4", -0.1), (" 5", -3.0))), TokenChoice("!", -2.0))


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        [],
        {"tokens": []},
        {"tokens": ["a"]},
        {"tokens": ["a"], "token_logprobs": [None]},
        {"tokens": ["a", "b"], "token_logprobs": [-1.0]},
        {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": ["x"]},
        {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"b": "low", "c": 1}]},
        {"tokens": 3, "token_logprobs": 3},
    ],
)
def test_log_probabilities_in_another_form_are_none(logprobs: object) -> None:
    assert answered(text_answer("a", logprobs=logprobs)).tokens is None


@pytest.mark.parametrize(
    "broken",
    [cut_off(text_answer("whole")), text_answer(3), answer("a chat's answer"), status(200, b"{"), status(500, b"")],
)
def test_a_broken_answer_is_asked_for_again(broken: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "3")
    waiting = [broken]
    with FaultServer(lambda _: waiting.pop() if waiting else text_answer("whole")) as server:
        (result,) = ask(server.url)
    assert (result.text, result.usage.attempts) == ("whole", 2)


@pytest.mark.parametrize("code", [404, 405])
def test_a_server_without_completions_is_told_as_such(code: int) -> None:
    with FaultServer(lambda _: error(code, "Not Found")) as server:
        with raises_code(ModelError, "model_unusable", "'none'"):
            ask(server.url)
        with raises_code(ModelError, "model_unusable", code) as caught:
            gateway.complete(OpenAI(model="m", url=server.url), [HELLO], Sampling())
    assert "/completions, which" not in str(caught.value)


def test_an_answer_is_kept_apart_from_that_of_a_chat_and_found_again() -> None:
    def respond(request: Request) -> Act:
        return text_answer("raw") if request.path.endswith("/v1/completions") else answer("chat")

    with FaultServer(respond) as server:
        llms = [OpenAI(model="m", url=server.url, turns=turns) for turns in ("none", "chat")]
        for cached in (False, True):
            result = [gateway.complete(llm, [HELLO], Sampling())[0] for llm in llms]
            assert [(one.text, one.usage.cached) for one in result] == [("raw", cached), ("chat", cached)]
    assert len(server.requests) == 2


def test_tigerscore_gives_a_server_its_prompt_bare() -> None:
    record = Record(item="1", system="s", output="Fine.", source="A text.", instruction="Write it.")
    with FaultServer(lambda _: text_answer(NO_ERRORS)) as server:
        metric = build(f"tigerscore(llm=openai(model='tigerscore-7b', url='{server.url}', turns='none'))")
        assert isinstance(metric, TigerScore)
        assert metric.score(Shard([record])).values.tolist() == [0.0]
        (result,) = TIGERScorer("any", llm=metric.llm).score(["Write."], ["Fine."], ["A text."])
    assert result["score"] == 0.0
    assert [request.prompt for request in server.requests] == [
        build_prompt("Write it.", "A text.", "Fine."),
        build_prompt("Write.", "A text.", "Fine."),
    ]
