"""A key is in no message, log, traceback, text or answer, whatever goes wrong."""

from __future__ import annotations

import json
import logging
import socket
import traceback
from collections.abc import Callable
from functools import partial

import pytest

from fault_server import CLOSED, SILENT, Act, FaultServer, Request, answer, cut_off, error, status
from metrist.errors import ModelError
from metrist.llm import client, http, retry
from metrist.llm.http import Credentials
from metrist.llm.messages import Completion, Message, Sampling
from metrist.llm.openai import OpenAI
from scripted_llm import DeliverTo

KEY = "sk-planted-4711-plum"
GATE = "gate-planted-0815-pear"


def echoed(request: Request) -> str:
    """All that a careless server could say about a request."""
    return f"you sent {request.headers} to {request.path}"


def refusing(code: int, request: Request) -> Act:
    return error(code, echoed(request))


def answering(code: int, request: Request) -> Act:
    return status(code, echoed(request).encode())


WAYS: dict[str, Callable[[Request], Act]] = {
    **{str(code): partial(refusing, code) for code in (400, 401, 403, 404, 418, 422)},
    **{str(code): partial(answering, code) for code in (301, 408, 429, 500, 503)},
    "an answer": lambda request: answer(echoed(request)),
    "a refused field": lambda request: error(400, echoed(request), param="temperature"),
    "closed": lambda _: CLOSED,
    "silent": lambda _: SILENT,
    "cut off": lambda request: cut_off(answer(echoed(request))),
    "no JSON": lambda request: status(200, echoed(request).encode()),
    "no choices": lambda request: status(200, {"found": echoed(request)}),
    "no HTTP": lambda request: Act(f"{echoed(request)}\r\n\r\n".encode(), closes=True),
    "wrong coding": lambda request: status(200, echoed(request).encode(), headers={"Content-Encoding": "gzip"}),
}


SLOW = ("silent", "429")


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    monkeypatch.setenv("GATE_KEY", GATE)
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "2")
    monkeypatch.setenv("METRIST_LLM_PATIENCE", "1")
    monkeypatch.setenv("METRIST_LLM_TIMEOUT", "1")
    monkeypatch.setattr(retry, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(retry, "LONGEST_WAIT", 0.1)
    caplog.set_level(logging.DEBUG)
    client.reset_server_states()


def everything_said(url: str, api_version: str | None = None) -> str:
    """What a caller can come to see: texts, completions, and the traceback with all variables of all its frames."""
    llm = OpenAI(model="m", url=url, key="PLANTED_KEY", headers=("X-Gate: $GATE_KEY",), api_version=api_version)
    texts = [repr(llm), str(llm), repr(llm.facts())]

    def arrived(_number: int, completion: Completion) -> None:
        texts.append(repr(completion))

    try:
        texts.append(repr(llm.complete_batch([(Message("user", "hello"),)] * 3, Sampling(), DeliverTo(arrived))))
    except ModelError as fault:
        texts += traceback.TracebackException.from_exception(fault, capture_locals=True).format()
        texts += ["chained"] * (fault.__cause__ is not None or fault.__context__ is not None)
    return "\n".join(texts)


def seen(text: str) -> list[str]:
    return [secret for secret in (KEY, GATE) if secret in text]


@pytest.mark.parametrize(
    ("way", "api_version"), [*((way, None) for way in WAYS), *((way, "2024-10-21") for way in WAYS if way not in SLOW)]
)
def test_a_key_is_seen_nowhere(
    way: str, api_version: str | None, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with FaultServer(WAYS[way]) as server:
        texts = everything_said(server.url, api_version)
    headers = server.requests[0].headers
    assert headers["x-gate"] == GATE
    assert KEY in (headers["api-key"] if api_version else headers["authorization"])
    assert not seen(texts + caplog.text)
    assert "chained" not in texts
    assert not seen("".join(capfd.readouterr()))
    assert "the model 'm'" in texts or "Completion" in texts


def test_a_key_is_not_seen_where_there_is_no_server(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    texts = everything_said(f"http://127.0.0.1:{port}/v1")
    assert "no connection" in texts
    assert not seen(texts + caplog.text)


@pytest.mark.parametrize("value", [f"{KEY}é", f"{KEY}\x07{KEY}"])
def test_a_key_that_no_header_can_carry_is_refused_unseen(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_KEY", value)
    texts = everything_said("http://127.0.0.1:9/v1")
    assert "the environment variable PLANTED_KEY" in texts
    assert not seen(texts)


def test_a_key_is_not_seen_when_the_client_itself_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(f"unexpected, with {KEY}")

    monkeypatch.setattr(client, "build_body", broken)
    texts = everything_said("http://127.0.0.1:9/v1")
    assert "(RuntimeError: unexpected, with ***)" in texts
    assert not seen(texts)


def test_a_key_is_not_seen_when_the_library_complains_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A line break in a header makes the library quote the header; the check that forbids it is left out here."""
    monkeypatch.setattr(http, "_check_key", lambda *_: None)
    monkeypatch.setenv("PLANTED_KEY", f"{KEY}\r\nX: {KEY}")
    with FaultServer(lambda _: answer("hello")) as server:
        texts = everything_said(server.url)
    assert "broke off: Illegal header value b'Bearer ***'" in texts
    assert not seen(texts + caplog.text)


def test_credentials_show_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    strange = "plum\"\\'plum"
    monkeypatch.setenv("PLANTED_KEY", strange)
    secret = Credentials()
    assert repr(secret) == "Credentials(none)"
    secret.add("Authorization", "PLANTED_KEY", "a test", "Bearer ")
    secret.add("X-Gate", "GATE_KEY", "a test")
    assert repr(secret) == "Credentials(authorization, x-gate)"
    quoted = [strange, json.dumps(strange), repr(strange), json.dumps(repr(strange)), GATE]
    assert secret.mask(" ".join(quoted)) == """*** "***" '***' "'***'" ***"""


def test_a_stand_in_for_a_key_does_not_spoil_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_KEY", "EMPTY")
    with FaultServer(lambda _: answer("an EMPTY answer")) as server:
        llm = OpenAI(model="m", url=server.url, key="PLANTED_KEY")
        (result,) = llm.complete([(Message("user", "hello"),)], Sampling())
    assert result.text == "an EMPTY answer"
