"""Settings and requests of the OpenAI-compatible client, and how it reads answers, on a loopback server."""

from __future__ import annotations

import builtins
import json
import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from error_codes import raises_code
from fault_server import Act, FaultServer, Request, answer, status
from metrist.errors import MissingExtra, ModelError, SpecError
from metrist.llm.base import build_llm
from metrist.llm.messages import Completion, Conversation, Message, Sampling, TokenChoice
from metrist.llm.openai import OpenAI

HELLO = (Message("system", "Be kind."), Message("user", "Say hello."))


def ask(llm: OpenAI, *conversations: Conversation, sampling: Sampling | None = None) -> list[Completion]:
    return llm.complete(conversations or [HELLO], sampling or Sampling())


def capture_request(sampling: Sampling | None = None, conversation: Conversation = HELLO, **settings: Any) -> Request:
    """The one request that such settings make."""
    with FaultServer(lambda _: answer("hello")) as server:
        ask(OpenAI(model="m", url=server.url, **settings), conversation, sampling=sampling)
    (request,) = server.requests
    return request


def answered(act: Act) -> Completion:
    with FaultServer(lambda _: act) as server:
        (completion,) = ask(OpenAI(model="m", url=server.url))
    return completion


@pytest.mark.parametrize(
    "text",
    [
        "openai(model='gpt-4o-mini')",
        "openai(model='m', url='http://127.0.0.1:8000/v1', system='user', max_tokens_field='max_completion_tokens')",
        "openai(model='m', url='https://a.openai.azure.com/openai/deployments/d', key='AZURE_KEY', api_version='1')",
        "openai(model='o', headers=['X-Team: red', 'X-Gate: $GATE_KEY'], omit=['temperature', 'seed'], body='{}')",
        "openai(model='o', turns='none')",
    ],
)
def test_an_llm_is_its_text(text: str) -> None:
    llm = build_llm(text)
    assert str(llm) == text
    assert build_llm(str(llm)) == llm
    assert pickle.loads(pickle.dumps(llm)) == llm
    assert hash(llm) == hash(build_llm(text))


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"model": ""}, ["model", "''"]),
        ({"url": "127.0.0.1:8000"}, ["url", "https://", "'127.0.0.1:8000'"]),
        ({"url": "http://h/v1/chat/completions/"}, ["url", "/chat/completions"]),
        ({"url": "http://h/v1/completions"}, ["/completions", "'http://h/v1/completions'"]),
        ({"url": "http://h/v1?key=hunter2"}, ["url", "'?'"]),
        ({"url": "http://me:hunter2@h/v1"}, ["url", "password"]),
        ({"key": "sk-hunter2"}, ["key", "environment variable"]),
        ({"key": "AKIAHUNTER2HUNTER2HUNTER2"}, ["key", "20 or more"]),
        ({"headers": ["X-Team"]}, ["headers", "'Name: value'"]),
        ({"headers": ["Authorization: Bearer hunter2"]}, ["environment variable", "'api-key: $NAME'"]),
        ({"headers": ["X-Gate: $not a name"]}, ["'$'", "environment variable"]),
        ({"headers": ["X-Gate: $AKIAHUNTER2HUNTER2HUNTER2"]}, ["environment variable"]),
        ({"api_version": "1&b=2"}, ["api_version", "'2024-10-21'", "'1&b=2'"]),
        ({"system": "boss"}, ["system", "'developer'", "'boss'"]),
        ({"max_tokens_field": "n"}, ["max_tokens_field", "None, 'max_tokens', 'max_completion_tokens'", "'n'"]),
        ({"omit": ["model"]}, ["omit", "'top_p', 'temperature', 'seed', 'stop'", "'model'"]),
        ({"body": "[1]"}, ["body", "JSON"]),
        ({"body": '{"api_key": "hunter2"'}, ["body", "JSON"]),
        ({"body": '{"model": "other"}'}, ["body", "'model'", "model=…"]),
        ({"body": '{"prompt": "x"}', "turns": "none"}, ["body", "'prompt'"]),
    ],
)
def test_a_setting_that_cannot_be_is_refused_and_a_key_in_it_not_repeated(settings: Any, values: list[str]) -> None:
    with raises_code(SpecError, "invalid_value", *values) as caught:
        OpenAI(**{"model": "m", **settings})
    assert "hunter2" not in str(caught.value).lower()


@pytest.mark.parametrize(
    ("field", "instead"),
    [
        ("max_tokens", "max_tokens_field=…"),
        ("max_completion_tokens", "max_tokens_field=…"),
        ("n_predict", "max_tokens=…"),
        ("n", "samples=…"),
        ("best_of", "samples=…"),
        ("temperature", "omit=['temperature']"),
        ("top_p", "omit=['top_p']"),
        ("seed", "omit=['seed']"),
        ("stop", "omit=['stop']"),
        ("logprobs", "metric"),
        ("top_logprobs", "metric"),
        ("response_format", "metric"),
        ("stream", "whole"),
        ("messages", "metric"),
    ],
)
def test_what_a_question_is_known_by_cannot_be_set_behind_its_back(field: str, instead: str) -> None:
    with raises_code(SpecError, "invalid_value", f"body cannot set {field!r}", instead):
        OpenAI(model="m", body=json.dumps({"user": "u", field: 9000}))


@pytest.mark.parametrize(
    "header",
    [
        "x-goog-api-key: hunter2",
        "X-Auth-Token: hunter2",
        "Ocp-Apim-Subscription-Key: hunter2",
        "Cookie: session=hunter2",
        "My-Credentials: hunter2",
        "X-Client-Secret: hunter2",
        "X-Gate: Bearer hunter2",
        "X-Gate: sk-hunter2",
        "X-Gate: Token hunter2",
        "X-Gate: eyJhunter2.eyJhunter2.hunter2",
        "X-Gate: gsk_hunter2",
        "X-Gate: xai-hunter2",
        "X-Gate: nvapi-hunter2",
        "X-Gate: r8_hunter2",
        "X-Gate: sk_live_hunter2",
        "X-Gate: rk_test_hunter2",
        "X-Session: hunter2",
        "X-Pass: hunter2",
        "x-accesstoken: hunter2",
        "x-apikey: hunter2",
        "Authorization: hunter2",
    ],
)
def test_a_secret_in_a_header_is_refused_by_the_headers_name_or_its_own_beginning(header: str) -> None:
    with raises_code(SpecError, "invalid_value", "environment") as caught:
        OpenAI(model="m", headers=(header,))
    assert "hunter2" not in str(caught.value)
    named = header.split(":")[0] + ": $SOME_KEY"
    assert OpenAI(model="m", headers=(named,)).headers == (named,)


@pytest.mark.parametrize(
    "header",
    [
        "x-author: me",
        "X-Keyboard: a",
        "X-Title: key metrics",
        "HTTP-Referer: https://x.y",
        "OpenAI-Organization: org-a",
    ],
)
def test_a_header_that_only_sounds_like_a_secret_is_taken(header: str) -> None:
    assert OpenAI(model="m", headers=(header,)).headers == (header,)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "max_new_tokens", "num_predict"])
@pytest.mark.parametrize(
    ("body", "place"), [('{"options": {"%s": 9000}}', "options.%s"), ('{"a": [1, {"%s": 9}]}', "a.1.%s")]
)
def test_how_long_an_answer_may_be_is_set_at_no_depth(body: str, place: str, field: str) -> None:
    with raises_code(SpecError, "invalid_value", f"'{place % field}'", "max_tokens="):
        OpenAI(model="m", body=body % field)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"api_key": "hunter2"}, "api_key"),
        ({"apiKey": "hunter2"}, "apiKey"),
        ({"provider": {"list": [{"access-token": "hunter2"}]}}, "provider.list.0.access-token"),
        ({"provider": {"note": "sk-hunter2"}}, "provider.note"),
    ],
)
def test_a_secret_in_the_body_is_refused_and_not_repeated(body: object, place: str) -> None:
    with raises_code(SpecError, "invalid_value", f"'{place}'", "key='NAME'") as caught:
        OpenAI(model="m", body=json.dumps(body))
    assert "hunter2" not in str(caught.value)


def test_fields_that_only_sound_like_secrets_are_taken() -> None:
    fields = {"stop_token_ids": [1], "min_tokens": 2, "prompt_cache_key": "k", "chat_template_kwargs": {"tokens": "x"}}
    fields |= {f"{name}_token": "</s>" for name in ("stop", "eos", "bos", "pad")}
    assert OpenAI(model="m", body=json.dumps(fields)).body == json.dumps(fields)


def test_a_request_has_the_documented_form() -> None:
    request = capture_request(Sampling(temperature=0.7, max_tokens=9, seed=5, sample=2, stop=("END",)))
    assert request.path == "/v1/chat/completions"
    assert request.headers["content-type"] == "application/json"
    assert "authorization" not in request.headers
    assert request.fields == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Say hello."}],
        "temperature": 0.7,
        "top_p": 1.0,
        "seed": 7,
        "stop": ["END"],
        "max_tokens": 9,
    }


def test_a_greedy_request_says_nothing_that_reasoning_models_refuse_needlessly() -> None:
    fields = capture_request(Sampling(seed=None)).fields
    assert set(fields) == {"model", "messages", "temperature", "max_tokens"}
    assert fields["temperature"] == 0.0


def test_settings_shape_the_request() -> None:
    request = capture_request(
        omit=["temperature", "seed"],
        max_tokens_field="max_completion_tokens",
        body='{"reasoning_effort": "low"}',
        headers=["X-Team: red"],
        system="developer",
    )
    assert {"temperature", "seed", "max_tokens"}.isdisjoint(request.fields)
    assert request.fields["max_completion_tokens"] == 1024
    assert request.fields["reasoning_effort"] == "low"
    assert request.fields["messages"][0]["role"] == "developer"
    assert request.headers["x-team"] == "red"


@pytest.mark.parametrize(
    ("conversation", "messages"),
    [
        (HELLO, [("user", "Be kind.\n\nSay hello.")]),
        ([Message("system", "Be kind.")], [("user", "Be kind.")]),
        (
            [Message("user", "a"), Message("assistant", "b"), Message("system", "c"), Message("user", "d")],
            [("user", "a"), ("assistant", "b"), ("user", "c\n\nd")],
        ),
    ],
)
def test_without_a_system_role_its_words_head_the_users(
    conversation: Conversation, messages: Sequence[tuple[str, str]]
) -> None:
    fields = capture_request(system="user", conversation=conversation).fields
    assert [(one["role"], one["content"]) for one in fields["messages"]] == messages


def test_a_key_goes_out_as_a_bearer_and_on_azure_in_its_own_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", " abc-123\n")
    monkeypatch.setenv("GATE_KEY", "open sesame")
    request = capture_request(key="SOME_KEY", headers=["X-Gate: $GATE_KEY"])
    assert request.headers["authorization"] == "Bearer abc-123"
    assert request.headers["x-gate"] == "open sesame"
    request = capture_request(key="SOME_KEY", api_version="2024-10-21")
    assert request.path == "/v1/chat/completions?api-version=2024-10-21"
    assert request.headers["api-key"] == "abc-123"
    assert "authorization" not in request.headers


def test_openais_own_key_is_sent_to_no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-precious")
    assert "authorization" not in capture_request().headers


def test_a_missing_key_is_said_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with raises_code(ModelError, "missing_value", "'m'", "OPENAI_API_KEY"):
        ask(OpenAI(model="m"))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "httpx2":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with raises_code(MissingExtra, "missing_dependency", "'metrist[llm]'"):
        ask(OpenAI(model="m", url="http://127.0.0.1:9/v1"))


def test_nothing_asked_is_nothing_answered() -> None:
    assert OpenAI(model="m").complete([], Sampling()) == []


def test_an_answer_has_its_text_and_what_it_took() -> None:
    result = answered(answer("hello", usage={"prompt_tokens": 7, "completion_tokens": 2}))
    assert (result.text, result.failure, result.finish, result.structured) == ("hello", None, "stop", False)
    usage = result.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cost, usage.attempts) == (7, 2, None, 1)
    assert 0 < usage.seconds < 60


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"),
        ("STOP", "stop"),
        (None, "stop"),
        ("length", "length"),
        ("MAX_TOKENS", "length"),
        ("content_filter", "filter"),
        ("tool_calls", "other"),
    ],
)
def test_reasons_to_finish_are_mapped(reason: str | None, finish: str) -> None:
    assert answered(answer("some", finish=reason)).finish == finish


def test_parts_are_joined_and_halves_of_characters_replaced() -> None:
    parts = [{"type": "text", "text": "a\ud800b"}, {"type": "image"}, {"type": "text", "text": "é😀"}]
    result = answered(status(200, {"choices": [{"message": {"content": parts}, "finish_reason": "stop"}]}))
    assert result.text == "a\ufffdbé😀"
    assert result.usage.prompt_tokens is None


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("length", "all of max_tokens"),
        ("content_filter", "the server's content filter withheld the answer"),
        ("stop", "the server sent an answer without text"),
    ],
)
def test_an_answer_without_text_is_a_failure_with_its_reason(finish: str, reason: str) -> None:
    result = answered(answer(None, finish=finish))
    assert reason in str(result.failure)
    assert result.usage.prompt_tokens == 12


def test_a_refusal_in_words_is_kept_as_the_answer() -> None:
    message = {"content": None, "refusal": "I will not."}
    result = answered(status(200, {"choices": [{"message": message, "finish_reason": "stop"}]}))
    assert (result.text, result.finish, result.failure) == ("I will not.", "filter", None)


def test_tokens_come_with_their_alternatives() -> None:
    entry = {
        "token": "4",
        "logprob": -0.1,
        "top_logprobs": [{"token": "4", "logprob": -0.1}, {"token": "5", "logprob": -3}],
    }
    with FaultServer(lambda _: answer("4", logprobs={"content": [entry]})) as server:
        (result,) = ask(OpenAI(model="m", url=server.url), sampling=Sampling(logprobs=2))
    assert result.tokens == (TokenChoice("4", -0.1, (("4", -0.1), ("5", -3.0))),)
    assert (server.requests[0].fields["logprobs"], server.requests[0].fields["top_logprobs"]) == (True, 2)


@pytest.mark.parametrize("logprobs", [None, {}, {"content": []}, {"content": [{"token": "4"}]}, {"content": [3]}, [1]])
def test_without_log_probabilities_in_the_answer_there_are_no_tokens(logprobs: object) -> None:
    assert answered(answer("4", logprobs=logprobs)).tokens is None
