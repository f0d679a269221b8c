"""A key is in no message, log, traceback, text or answer, whatever goes wrong."""

from __future__ import annotations

import base64
import json
import logging
import re
import socket
import traceback
from collections.abc import Callable
from functools import partial
from urllib.parse import quote, unquote

import pytest

from fault_server import CLOSED, SILENT, Act, FaultServer, Request, answer, cut_off, error, status
from metrist.errors import ModelError
from metrist.llm import openai
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


def encodings(text: str) -> str:
    """A text in the forms in which servers and proxies repeat it, alone and as part of more."""
    encoded = [base64.b64encode(prefix + text.encode() + b"\xff\xfe") for prefix in (b"", b"me:", b"Bearer ")]
    return " ".join([text, quote(text, safe=""), *(code.decode() for code in encoded)])


def decoded(text: str) -> str:
    """All that can be decoded from a text: each run of characters in base64, at each of its first four characters, and
    in percent signs."""
    found = [text, unquote(text)]
    for run in re.findall(r"[A-Za-z0-9+/]{16,}", text):
        found += [base64.b64decode(run[start:][: (len(run) - start) // 4 * 4]).decode("latin-1") for start in range(4)]
    return " ".join(found)


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
    caplog.set_level(logging.DEBUG)


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


@pytest.mark.parametrize("key", [KEY, "k/+~?>=:;plum-1234567890"])
def test_a_key_is_seen_nowhere_in_another_form(
    key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PLANTED_KEY", key)
    assert key in decoded(encodings(key))  # The forms can be decoded where they are not masked.
    for act in (
        answer(encodings(key)),
        error(400, encodings(key)),
        status(200, json.dumps({"error": key}).replace("/", "\\/").encode()),
        status(302, b"", headers={"Location": f"https://there.example/?key={quote(key, safe='')}"}),
        status(302, b"", headers={"Location": f"https://there.example/{key}"}),
        status(200, b"", headers={"Content-Encoding": key}),
    ):
        with FaultServer(partial(lambda act, _: act, act)) as server:
            texts = everything_said(server.url)
        assert "***" in texts
        assert key not in decoded(texts + caplog.text)


def test_tokens_of_an_answer_that_repeats_a_key_are_dropped() -> None:
    tokens = [{"token": KEY[i : i + 4], "logprob": -1.0, "top_logprobs": []} for i in range(0, len(KEY), 4)]
    for text, count in ((f"the key is {KEY}", None), ("the key is none", len(tokens))):
        repeated = answer(text, logprobs={"content": tokens})
        with FaultServer(partial(lambda act, _: act, repeated)) as server:
            llm = OpenAI(model="m", url=server.url, key="PLANTED_KEY")
            (result,) = llm.complete([(Message("user", "hello"),)], Sampling(logprobs=1))
        assert (None if result.tokens is None else len(result.tokens)) == count


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
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(f"unexpected, with {KEY}")

    monkeypatch.setattr(openai, "build_body", broken)
    texts = everything_said("http://127.0.0.1:9/v1")
    assert "(RuntimeError: unexpected, with ***)" in texts
    assert not seen(texts)


def test_credentials_show_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    secret = Credentials()
    assert repr(secret) == "Credentials(none)"
    secret.add("Authorization", "PLANTED_KEY", "a test", "Bearer ")
    secret.add("X-Gate", "GATE_KEY", "a test")
    assert repr(secret) == "Credentials(authorization, x-gate)"
    assert secret.mask(f"{KEY} {GATE!r}") == "*** '***'"


def test_a_stand_in_for_a_key_does_not_spoil_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_KEY", "EMPTY")
    with FaultServer(lambda _: answer("an EMPTY answer")) as server:
        llm = OpenAI(model="m", url=server.url, key="PLANTED_KEY")
        (result,) = llm.complete([(Message("user", "hello"),)], Sampling())
    assert result.text == "an EMPTY answer"
