"""A key is in no message, log, traceback, text or answer, whatever goes wrong."""

from __future__ import annotations

import base64
import html
import json
import logging
import re
import socket
import traceback
from collections.abc import Callable
from functools import partial
from urllib.parse import quote, quote_plus, unquote

import pytest

from error_codes import raises_code
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


def json_forms(text: str) -> list[str]:
    """A text in JSON, as several encoders write it: .NET's escapes all but letters and digits."""
    escaped = ["".join(sign if sign.isalnum() else f"\\u{ord(sign):{x}}" for sign in text) for x in ("04x", "04X")]
    return [json.dumps(text), json.dumps(text).replace("/", "\\/"), *(f'"{form}"' for form in escaped)]


def forms(text: str) -> list[str]:
    """A text as servers, proxies and libraries repeat it, alone and as part of more."""
    data = [prefix + text.encode() + b"\xff\xfe" for prefix in (b"", b"me:", b"Bearer ", b"\xfb")]
    codes = [encode(part).decode() for part in data for encode in (base64.b64encode, base64.urlsafe_b64encode)]
    url = quote(text, safe="")
    return [
        *(text, repr(text.encode()), html.escape(text), quote(text), url, quote(url, safe=""), quote_plus(text)),
        re.sub("%..", lambda match: match[0].lower(), url),
        "".join(sign if sign.isalnum() else f"%{ord(sign):02X}" for sign in text),
        "".join(sign if sign.isalnum() else f"&#{ord(sign)};" for sign in text),
        "".join(sign if sign.isalnum() else f"&#x{ord(sign):x};" for sign in text),
        *json_forms(text),
        *codes,
        *(quote(code, safe="") for code in codes),
    ]


def decoded(text: str) -> str:
    """All that can be decoded from a text: with escapes resolved, and each run of characters in base64, at each of its
    first four characters."""
    found = [text]
    for _ in range(3):
        text = re.sub(r"\\+u00(..)", lambda match: chr(int(match[1], 16)), html.unescape(unquote(text)))
        found.append(re.sub(r"\\+", "", text))
    for run in re.findall(r"[A-Za-z0-9+/_-]{16,}", " ".join(found)):
        run = run.replace("-", "+").replace("_", "/")
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


def everything_said(url: str, api_version: str | None = None, conversations: int = 3) -> str:
    """What a caller can come to see: texts, completions, and the traceback with all variables of all its frames."""
    llm = OpenAI(model="m", url=url, key="PLANTED_KEY", headers=("X-Gate: $GATE_KEY",), api_version=api_version)
    texts = [repr(llm), str(llm), repr(llm.facts())]

    def arrived(_number: int, completion: Completion) -> None:
        texts.append(repr(completion))

    try:
        texts.append(
            repr(llm.complete_batch([(Message("user", "hello"),)] * conversations, Sampling(), DeliverTo(arrived)))
        )
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


@pytest.mark.parametrize("key", [KEY, "k/+~?>=:;'&-\"<plum-1234567890", "AAAA//++AAAA//++_.-"])
def test_a_key_is_seen_nowhere_in_another_form(
    key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PLANTED_KEY", key)
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "1")
    for form in forms(key):
        assert key in decoded(form)  # It can be decoded where it is not masked.
    text = " ".join(forms(key))
    plain = text.encode("latin-1")
    escaped = f"[{', '.join(json_forms(key))}]"
    acts = [
        answer(text),
        *(error(code, text) for code in (400, 403, 500)),
        status(400, b"<p>" + plain),
        status(400, escaped.encode()),
        status(200, f'{{"error": {escaped}}}'.encode("utf-16")),
        status(302, b"", headers={"Location": f"https://there.example/?key={text}"}),
        status(307, b"", headers={"Location": f"https://{text}:port/"}),
        status(418, b"", headers={"Retry-After": text, "X-Form": text}),
        *(status(200, b"", headers={"Content-Encoding": f"{'x' * 40}{form}"}) for form in forms(key)[:8]),
        Act(b"HTTP/1.1 401 " + plain + b"\r\nContent-Length: 0\r\n\r\n"),
        Act(b"HTTP/1.1 200 OK\r\n" + plain + b"\r\n\r\n", closes=True),
        Act(plain + b" HTTP/1.1 200 OK\r\n\r\n", closes=True),
        Act(b"HTTP/1.1 200 OK\r\nContent-Length: " + plain + b"\r\n\r\n", closes=True),
    ]
    for act in acts:
        caplog.clear()
        with FaultServer(partial(lambda act, _: act, act)) as server:
            texts = everything_said(server.url, conversations=1)
        assert key not in decoded(texts + caplog.text)
        assert GATE not in texts + caplog.text


def test_a_key_is_not_seen_without_the_word_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE_KEY", f"Bearer {GATE}")
    with FaultServer(lambda _: error(401, f"the key {GATE} is unknown")) as server:
        texts = everything_said(server.url)
    assert "the key *** is unknown" in texts
    assert GATE not in texts


def test_a_key_that_begins_as_another_is_masked_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGER_KEY", f"{KEY}-and-more")
    for variables in (("PLANTED_KEY", "LONGER_KEY"), ("LONGER_KEY", "PLANTED_KEY")):
        secrets = Credentials()
        for variable in variables:
            secrets.add(f"X-{variable}", variable, "a test")
        assert secrets.mask(f"{KEY} {KEY}-and-more") == "*** ***"


def test_a_redirect_to_a_long_address_is_reported_in_one_line() -> None:
    with FaultServer(lambda _: status(301, b"", headers={"Location": f"https://there.example/{'x' * 9999}"})) as server:
        llm = OpenAI(model="m", url=server.url)
        with raises_code(ModelError, "model_unusable", "https://there.example/xxx") as caught:
            llm.complete([(Message("user", "hello"),)], Sampling())
    assert len(str(caught.value)) < 600


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
