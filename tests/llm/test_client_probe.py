"""What a server can do is found out, never assumed: structured output, log-probabilities, the name of max_tokens."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import metrist
from error_codes import raises_code
from fault_server import Act, FaultServer, Request, answer, error, status
from metrist.errors import ModelError
from metrist.llm import gateway, openai, pricing
from metrist.llm.budget import Budget
from metrist.llm.cache import build_requests, open_cache
from metrist.llm.estimate import estimate_calls
from metrist.llm.messages import Completion, Message, Sampling
from metrist.llm.openai import OpenAI
from metrist.llm.pricing import Price
from metrist.runtime import Runtime
from scripted_llm import say

SCHEMA = {"type": "object", "properties": {"grade": {"type": "integer"}}, "required": ["grade"]}
OTHER = {"type": "object", "properties": {"word": {"type": "string"}}}
ENTRY = {"token": "4", "logprob": -0.1, "top_logprobs": []}


def ask(url: str, sampling: Sampling, count: int = 1) -> list[Completion]:
    conversations = [(Message("user", f"question {number}"),) for number in range(count)]
    return OpenAI(model="m", url=url).complete(conversations, sampling)


def enforcing(request: Request) -> Act:
    """Holds answers to schemas, as far as these tests need it: every value is the first that is allowed."""
    form = request.fields.get("response_format")
    if form is None:
        return answer("Hello!")
    schema = form["json_schema"]["schema"]
    first = {"string": "a", "integer": 4}
    return answer(json.dumps({k: v.get("enum", [first[v["type"]]])[0] for k, v in schema["properties"].items()}))


def probes(server: FaultServer) -> int:
    return sum(request.prompt == openai.PROBE[0].text for request in server.requests)


def test_a_server_that_holds_to_a_schema_is_asked_to_and_probed_once() -> None:
    with FaultServer(enforcing) as server:
        result = ask(server.url, Sampling(schema=SCHEMA), 40) + ask(server.url, Sampling(schema=OTHER))
    assert {completion.text for completion in result[:-1]} == {'{"grade": 4}'}
    assert all(completion.structured for completion in result)
    assert probes(server) == 1
    assert len(server.requests) == 42
    form = server.requests[-1].fields["response_format"]
    assert form == {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": OTHER}}


def test_nothing_is_probed_where_no_schema_is_wanted() -> None:
    with FaultServer(enforcing) as server:
        (result,) = ask(server.url, Sampling())
    assert (result.structured, probes(server)) == (False, 0)


@pytest.mark.parametrize(
    "chatter",
    ["Hello!", "{}", '{"kestrel_lantern": "violet"}', '```json\n{"kestrel_lantern": "violet-7391"}\n```', "[" * 10_000],
)
def test_a_server_that_ignores_a_schema_is_found_out(chatter: str) -> None:
    with FaultServer(lambda _: answer(chatter)) as server:
        result = ask(server.url, Sampling(schema=SCHEMA), 5)
    assert [completion.structured for completion in result] == [False] * 5
    assert probes(server) == 1
    requested = [request for request in server.requests if request.prompt != openai.PROBE[0].text]
    assert not any("response_format" in request.fields for request in requested)


@pytest.mark.parametrize(
    "refusal",
    [
        error(400, "Invalid parameter", param="response_format"),
        error(400, "Unsupported: response_format of type json_schema"),
        error(400, "This model has no structured outputs"),
        error(400, "failed to parse grammar"),
        error(400, "cannot do that"),
        status(422, {"detail": [{"loc": ["body", "response_format"], "msg": "Extra inputs are not permitted"}]}),
    ],
)
def test_a_server_that_refuses_a_schema_is_asked_without(refusal: Act) -> None:
    with FaultServer(lambda request: refusal if "response_format" in request.fields else answer("4")) as server:
        result = ask(server.url, Sampling(schema=SCHEMA), 3)
    assert [(completion.text, completion.structured) for completion in result] == [("4", False)] * 3
    assert sum("response_format" in request.fields for request in server.requests) == 1


def test_a_schema_that_the_server_cannot_use_leaves_others_alone() -> None:
    def respond(request: Request) -> Act:
        expected = request.fields.get("response_format", {}).get("json_schema", {}).get("schema")
        return error(400, "Invalid schema", param="response_format") if expected == OTHER else enforcing(request)

    with FaultServer(respond) as server:
        (odd,) = ask(server.url, Sampling(schema=OTHER))
        (even,) = ask(server.url, Sampling(schema=SCHEMA))
    assert (odd.text, odd.structured) == ("Hello!", False)
    assert (even.text, even.structured) == ('{"grade": 4}', True)


def test_a_model_that_thinks_before_it_answers_is_given_room_in_the_probe() -> None:
    def respond(request: Request) -> Act:
        return answer(None, finish="length") if request.fields["max_tokens"] < 1000 else enforcing(request)

    with FaultServer(respond) as server:
        (result,) = ask(server.url, Sampling(schema=SCHEMA, max_tokens=2000))
    assert result.structured
    assert [request.fields["max_tokens"] for request in server.requests] == [64, 4096, 2000]


def test_a_probe_that_fails_by_chance_is_made_again_another_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "1")
    waiting = [status(500, b"oh no"), answer("{}")]
    with FaultServer(lambda request: waiting.pop(0) if waiting else enforcing(request)) as server:
        (first,) = ask(server.url, Sampling(schema=SCHEMA))
        (second,) = ask(server.url, Sampling(schema=SCHEMA))
    assert (first.failure, first.text, second.structured) == (None, "{}", True)
    assert not first.structured
    assert probes(server) == 2


def test_a_server_that_is_out_of_order_is_probed_once_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "2")
    with FaultServer(lambda _: status(500, b"oh no")) as server:
        result = ask(server.url, Sampling(schema=SCHEMA), 10)
    assert all(completion.failure for completion in result)
    assert probes(server) == 2  # Both attempts of one.


def test_a_field_refused_in_the_probe_says_nothing_of_schemas() -> None:
    def respond(request: Request) -> Act:
        return error(400, "no", param="temperature") if "temperature" in request.fields else enforcing(request)

    with FaultServer(respond) as server:
        with raises_code(ModelError, "model_unusable", "omit=['temperature']"):
            ask(server.url, Sampling(schema=SCHEMA))
        llm = OpenAI(model="m", url=server.url, omit=("temperature",))
        (result,) = llm.complete([(Message("user", "q"),)], Sampling(schema=SCHEMA))
    assert result.structured


def test_no_server_is_said_soon_where_a_schema_is_wanted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with raises_code(ModelError, "model_unusable", "3 attempts", "no connection"):
        ask(f"http://127.0.0.1:{port}/v1", Sampling(schema=SCHEMA), 3)


def test_a_fault_of_the_whole_in_the_probe_is_raised() -> None:
    with FaultServer(lambda _: error(401, "no")) as server, raises_code(ModelError, "model_unusable", 401):
        ask(server.url, Sampling(schema=SCHEMA))


def test_refused_log_probabilities_are_done_without() -> None:
    refusal = error(400, "no", param="top_logprobs")
    with FaultServer(lambda request: refusal if "logprobs" in request.fields else answer("4")) as server:
        result = ask(server.url, Sampling(logprobs=5)) + ask(server.url, Sampling(logprobs=5))
    assert [(completion.text, completion.tokens) for completion in result] == [("4", None)] * 2
    assert len(server.requests) == 3


def _old(request: Request) -> Act:
    if "max_completion_tokens" in request.fields:
        return error(400, "'max_completion_tokens' is unknown")
    return answer("4", logprobs={"content": [ENTRY]})


def _new(request: Request) -> Act:
    texts = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    if "max_tokens" in request.fields:
        return error(400, texts, param="max_tokens", code="unsupported_parameter")
    return answer("4", logprobs={"content": [ENTRY]})


@pytest.mark.parametrize(("respond", "requests"), [(_old, 12), (_new, 13)])
def test_the_name_of_max_tokens_is_found_out(
    respond: Callable[[Request], Act], requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRIST_LLM_CONCURRENCY", "1")
    with FaultServer(respond) as server:
        result = ask(server.url, Sampling(logprobs=1), 12)
    assert all(completion.text == "4" and completion.tokens for completion in result)
    assert len(server.requests) == requests


def test_a_name_of_max_tokens_that_is_set_is_kept_to() -> None:
    with FaultServer(_new) as server:
        configured = OpenAI(model="m", url=server.url, max_tokens_field="max_tokens")
        with raises_code(ModelError, "model_unusable", "max_tokens_field=…"):
            configured.complete([(Message("user", "hello"),)], Sampling())
    assert len(server.requests) == 1


def test_a_refusal_after_answers_is_one_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_CONCURRENCY", "1")
    refusal = error(400, "no", param="temperature")
    with FaultServer(lambda request: refusal if request.prompt == "question 1" else answer("4")) as server:
        result = ask(server.url, Sampling(), 3)
    assert [completion.failure for completion in result] == [None, "the server answered 400: no", None]


def test_a_probe_counts_in_the_usage_of_the_answer_and_not_in_the_cache() -> None:
    with FaultServer(enforcing) as server:
        llm = OpenAI(model="m", url=server.url)
        first, second = gateway.complete(llm, say("a", "b"), Sampling(schema=SCHEMA))
        (later,) = gateway.complete(llm, say("c"), Sampling(schema=SCHEMA))
    usages = [first.usage, second.usage, later.usage]
    assert sum(usage.calls for usage in usages) == sum(usage.attempts for usage in usages) == len(server.requests) == 4
    assert sum(usage.prompt_tokens or 0 for usage in usages) == 4 * 12
    assert later.usage.calls == 1
    assert {entry.completion.usage.prompt_tokens for entry in open_cache().entries()} == {12}


def test_requests_that_were_sent_again_without_a_field_count_as_attempts() -> None:
    def respond(request: Request) -> Act:
        return error(400, "no", param="max_tokens") if "max_tokens" in request.fields else answer("hello")

    with FaultServer(respond) as server:
        (result,) = ask(server.url, Sampling())
    assert result.usage.attempts == len(server.requests) == 2


PRICES = "[[price]]\nmodel = 'm'\ninput = 10_000\noutput = 10_000\n"


def priced(tmp_path: Path, max_cost: float) -> Runtime:
    (tmp_path / "prices.toml").write_text(PRICES)
    return Runtime(prices=tmp_path / "prices.toml", max_cost=max_cost, run_id=uuid.uuid4().hex)


def test_the_budget_covers_the_probe(tmp_path: Path) -> None:
    """One question may cost 10 cents a token; with the probe it may cost more, which the limit must know before."""
    sampling = Sampling(schema=SCHEMA, max_tokens=10)
    llm = OpenAI(model="m", url="http://127.0.0.1:9/v1")
    question, probe = (
        pricing.max_cost(request, Price(model="m", input=1e4, output=1e4))
        for request in (
            *build_requests(llm, say("a"), sampling),
            *build_requests(llm, [openai.PROBE], openai.probe_sampling()),
        )
    )
    with FaultServer(enforcing) as server:
        llm = OpenAI(model="m", url=server.url)
        with raises_code(ModelError, "budget"):
            gateway.complete(llm, say("a"), sampling, runtime=priced(tmp_path, question + probe - 0.01))
        assert server.requests == []
        runtime = priced(tmp_path, question + probe)
        (result,) = gateway.complete(llm, say("a"), sampling, runtime=runtime)
        state = Budget(open_cache(runtime), 1.0, runtime.run_id).state()
    assert len(server.requests) == 2
    assert result.usage.cost == pytest.approx(2 * 0.15)
    assert (state.paid, state.reserved) == (pytest.approx(2 * 0.15), pytest.approx(0, abs=1e-9))


def test_what_was_reserved_for_a_probe_that_is_not_needed_is_given_back(tmp_path: Path) -> None:
    runtime = priced(tmp_path, 100.0)
    with FaultServer(enforcing) as server:
        llm = OpenAI(model="m", url=server.url)
        llm.server_state().schema = True
        gateway.complete(llm, say("a"), Sampling(schema=SCHEMA, max_tokens=10), runtime=runtime)
    state = Budget(open_cache(runtime), 1.0, runtime.run_id).state()
    assert len(server.requests) == 1
    assert state.reserved == pytest.approx(0, abs=1e-9)


def test_the_upper_bound_of_a_dry_run_covers_the_probe(tmp_path: Path) -> None:
    sampling = Sampling(schema=SCHEMA, max_tokens=10)
    with FaultServer(enforcing) as server:
        llm = OpenAI(model="m", url=server.url)
        with estimate_calls() as estimate:
            gateway.complete(llm, say("a", "b"), sampling, runtime=priced(tmp_path, 0))
        (counted,) = estimate.by_llm.values()
        assert server.requests == []
        gateway.complete(llm, say("a", "b"), sampling, runtime=priced(tmp_path, counted.most_cost or 0))
    assert len(server.requests) == 3


def test_a_judged_record_reports_every_request() -> None:
    def respond(request: Request) -> Act:
        return enforcing(request) if request.prompt == openai.PROBE[0].text else answer('{"reason": "r", "grade": 4}')

    with FaultServer(respond) as server:
        record = {"item": "1", "output": "an output", "instruction": "do it"}
        spec = f"judge(llm=openai(model='m', url='{server.url}'))"
        (usage,) = metrist.score([record], spec).scores[spec].usages.values()
    assert usage["calls"] == usage["attempts"] == len(server.requests) == 2
    assert usage["prompt_tokens"] == 2 * 12
