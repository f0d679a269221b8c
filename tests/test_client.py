"""The client against the service itself, and against answers that go wrong. Expected scores: metrist.score."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

import metrist
from metrist import client as client_module
from metrist.client import AsyncClient, Client, ServiceError
from metrist.records import Record
from metrist.web.service.app import Service
from metrist.web.service.catalog import build_catalog
from metrist.web.service.settings import AccessTokens, Check, ServiceSettings
from web_server import run_server

TOKEN = "a-token-of-24-characters"
METRICS = ("rougeL", "length", "service_metrics.Marking")
RECORDS = [
    Record(item=f"i{n}", system=system, output=f"{system} {n} words" * (n % 3 + 1), references=("a few words",))
    for system in ("first", "second")
    for n in range(6)
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    settings = ServiceSettings(
        log="off", tokens=AccessTokens.parse([TOKEN], "test"), checks=(Check.parse("length>=2"),)
    )
    with run_server(Service(build_catalog(METRICS), settings)) as running:
        yield running.url


def test_all_calls(url: str) -> None:
    expected = metrist.score(RECORDS, ["rougeL"])
    with Client(url, token=TOKEN) as client:
        scored = client.score(RECORDS, "rougeL", details=True, chunk=5)
        numbered = client.score([{"output": "a"}, {"output": "b c"}, {"output": "d"}], ["length"], chunk=2)
        explained = client.explain([{"output": "a bad word"}])
        (pair,) = client.prefer([{"first": "a few words", "second": "no", "references": ["a few words"]}], ["rougeL"])
        comparison = client.compare(RECORDS, ["rougeL"], draws=100)
        reranked = client.rerank(RECORDS, "rougeL", mbr="rougeL", weights={"rougeL": 0.1})
        verdict = client.guard({"output": "word"})
        own = client.guard(RECORDS[0], {"length": {"max": 100}, "rougeL": 0.0}, budget_ms=10_000, policy="open")
        (unscored,) = client.score([{"output": "a"}], ["rougeL"])
        offered = client.metrics()
        with pytest.raises(ServiceError) as refusal:
            client.score([{"output": "a"}], ["bleu"])
    assert [(s.item, s.system) for s in scored] == [(r.item, r.system) for r in RECORDS]
    assert [s.scores["rougeL"].value for s in scored] == expected["rougeL"].values.tolist()
    assert [dict(s.scores["rougeL"].parts) for s in scored] == [dict(s.parts) for s in expected["rougeL"]]
    assert [s.item for s in numbered] == ["1", "2", "3"]
    assert explained[0].scores["service_metrics.Marking"].errors[0].text == "bad"
    assert pair.judgments["rougeL"].preference == "first"
    assert comparison.contests[0].items == 6
    assert comparison.contests[0].p.keys() == {"bootstrap", "randomisation"}
    best = metrist.rerank(RECORDS, "rougeL", mbr="rougeL", weights={"rougeL": 0.1})
    assert [RECORDS[item.choices[0].record] for item in reranked] == [choice.record for choice in best]
    assert [item.choices[0].scores for item in reranked] == [choice.scores for choice in best]
    assert not verdict
    assert verdict.checks[0].minimum == 2.0
    assert own
    failed = unscored.scores["rougeL"]
    assert math.isnan(failed.value)
    assert failed.failure is not None
    assert failed.failure.kind == "missing_input"
    assert [metric.name for metric in offered] == list(METRICS)
    assert (refusal.value.status, refusal.value.code, refusal.value.field) == (422, "unknown_metric", "metrics[0]")


def test_coroutines(url: str) -> None:
    async def ask_all() -> Any:
        async with AsyncClient(url, token=TOKEN) as client:
            return await asyncio.gather(
                client.score(RECORDS, ["rougeL"], chunk=5),
                client.explain([{"output": "bad"}]),
                client.prefer([{"first": "a b", "second": "a", "references": ["a b"]}]),
                client.compare(RECORDS, ["rougeL"], draws=50),
                client.rerank(RECORDS, mbr="rougeL", k=2),
                client.guard({"output": "two words"}),
                client.metrics(),
                client.is_ready(),
            )

    scored, explained, pairs, comparison, reranked, verdict, offered, _ = asyncio.run(ask_all())
    expected = metrist.score(RECORDS, ["rougeL"])["rougeL"].values.tolist()
    assert [s.scores["rougeL"].value for s in scored] == expected
    assert explained[0].scores["service_metrics.Marking"].explanation == "a bad word"
    assert pairs[0].judgments["rougeL"].preference == "first"
    assert len(comparison.contests) == 1
    assert [[choice.rank for choice in item.choices] for item in reranked] == [[1, 2]] * 6
    assert verdict
    assert len(offered) == 3


def test_a_wrong_token(url: str) -> None:
    with Client(url, token="wrong") as client, pytest.raises(ServiceError) as refusal:
        client.metrics()
    assert (refusal.value.status, refusal.value.code) == (401, "unauthorized")


Handler = Callable[[httpx2.Request], httpx2.Response]
NO_METRICS = {"version": "0", "metrics": [], "limits": {}, "guard": {}}


def answering(*answers: httpx2.Response | Exception) -> tuple[Handler, list[httpx2.Request]]:
    """Answers in turn, and the requests that got them."""
    requests: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        current = answers[len(requests) - 1]
        if isinstance(current, Exception):
            raise current
        return current

    return answer, requests


def test_busy_and_broken_services_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(client_module.time, "sleep", waits.append)
    busy = {"error": {"code": "queue_full", "message": "full"}}
    handler, requests = answering(
        httpx2.Response(429, headers={"Retry-After": "7"}, json=busy),
        httpx2.ConnectError("refused"),
        httpx2.Response(503, json=busy),
        httpx2.Response(200, json=NO_METRICS),
    )
    with Client("http://service", token=TOKEN, transport=httpx2.MockTransport(handler)) as client:
        assert client.metrics() == []
    assert waits[0] == 7
    assert len(waits) == 3
    assert {request.headers["authorization"] for request in requests} == {f"Bearer {TOKEN}"}


def test_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module.time, "sleep", lambda _: None)
    handler, requests = answering(*[httpx2.ConnectError("refused")] * 3)
    with Client("http://service", retries=2, transport=httpx2.MockTransport(handler)) as client:
        with pytest.raises(ServiceError, match="refused") as refusal:
            client.metrics()
        assert refusal.value.code == "unreachable"
    assert len(requests) == 3
    for status in (200, 404):
        handler, requests = answering(httpx2.Response(status, text="<html>a proxy</html>"))
        with (
            Client("http://service", transport=httpx2.MockTransport(handler)) as client,
            pytest.raises(ServiceError) as refusal,
        ):
            client.metrics()
        assert (refusal.value.code, refusal.value.status, len(requests)) == ("not_metrist", status, 1)


def test_the_token_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(client_module.TOKEN_VARIABLE, TOKEN)
    handler, requests = answering(httpx2.Response(200, json=NO_METRICS))
    with Client("http://service", transport=httpx2.MockTransport(handler)) as client:
        client.metrics()
    assert requests[0].headers["authorization"] == f"Bearer {TOKEN}"
