"""Whatever a server does, each conversation ends answered or failed with a reason; a fault of the whole is raised."""

from __future__ import annotations

import _thread
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from error_codes import raises_code
from fault_server import CLOSED, SILENT, Act, FaultServer, Mixed, Request, answer, cut_off, error, status
from metrist.errors import ModelError
from metrist.llm import gateway, http, openai, rate_limit
from metrist.llm.base import Call
from metrist.llm.messages import Completion, Message, Sampling
from metrist.llm.openai import OpenAI
from metrist.scores import FailureKind
from scripted_llm import DeliverTo


def ask(url: str, *texts: str, arrived: Callable[[int, Completion], None] | None = None) -> list[Completion]:
    conversations = [(Message("user", text),) for text in texts or ["hello"]]
    return OpenAI(model="m", url=url).complete_batch(
        conversations, Sampling(), DeliverTo(arrived) if arrived else Call()
    )


def in_turn(*acts: Act) -> Callable[[Request], Act]:
    """Does one after the other, then the last for ever."""
    waiting = list(acts)
    return lambda _: waiting.pop(0) if len(waiting) > 1 else waiting[0]


def test_six_hundred_calls_at_64_in_flight_lose_nothing_and_ask_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_CONCURRENCY", "64")
    # Few attempts, so that some conversations do fail.
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "4")
    mixed = Mixed(seed=5)
    texts = [f"question {number}" for number in range(600)]
    arrived: dict[int, Completion] = {}
    caller = threading.get_ident()

    def take(number: int, completion: Completion) -> None:
        assert threading.get_ident() == caller
        assert number not in arrived
        arrived[number] = completion

    with FaultServer(mixed) as server:
        result = ask(server.url, *texts, arrived=take)
    assert [arrived[number] for number in range(600)] == result
    for text, completion in zip(texts, result, strict=True):
        *before, last = mixed.acts[text]
        assert "answered" not in before
        if last == "answered":
            assert (completion.text, completion.failure) == (f"answer to {text}", None)
            assert completion.usage.attempts == len(before) + 1
        else:
            assert re.match(r".*\d+ attempts in \d+ second", completion.failure or "")
    failed = sum(completion.failure is not None for completion in result)
    assert 0 < failed < 60
    assert min(mixed.dealt[kind] for kind in ("429", "500", "cut off", "closed", "wrong")) > 15


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (status(408, b""), "408"),
        (status(409, {"detail": "in conflict"}), "the server answered 409: in conflict"),
        (error(429, "slow down"), "the server answered 429: slow down"),
        (status(500, b"<html>\n oh no</html>"), "the server answered 500: <html> oh no</html>"),
        (status(503, {"error": "loading the model"}), "the server answered 503: loading the model"),
        (status(529, [{"error": {"message": "overloaded"}}]), "the server answered 529: overloaded"),
        (cut_off(answer("hello")), "broke off"),
        (CLOSED, "broke off"),
        (status(200, b'{"choices": ['), "JSON (13 bytes"),
        (status(200, b"[" * 100_000), "JSON (100,000 bytes"),
        (status(200, b"\xff\xfe{"), "JSON"),
        (status(200, b""), "JSON (0 bytes"),
        (status(200, {"choices": []}), "no choices"),
        (status(200, [1]), "no choices"),
        (status(200, {"error": {"message": "oops"}}), "the server answered 200 with an error: oops"),
        (status(200, {"error": {"message": "later", "code": 429}}), "the server answered 200 with an error: later"),
        (status(200, {"error": None}), "no choices"),
        (status(200, {"choices": [{"text": "hello"}]}), "no message"),
        (status(200, {"choices": [{"message": {"content": 3}}]}), "is neither text nor parts but int"),
        (status(200, b"not zipped", headers={"Content-Encoding": "gzip"}), "broke off"),
        (Act(b"GARBAGE\r\n\r\n", closes=True), "broke off"),
    ],
)
def test_what_may_pass_is_asked_again(act: Act, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultServer(in_turn(act, act, answer("hello"))) as server:
        (result,) = ask(server.url)
    assert (result.text, result.failure, result.usage.attempts) == ("hello", None, 3)
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "2")
    monkeypatch.setenv("METRIST_LLM_PATIENCE", "2")
    with FaultServer(lambda _: act) as server:
        (result,) = ask(server.url)
    assert reason in str(result.failure)
    assert result.failure is not None
    assert result.failure.kind == FailureKind.transient
    assert result.usage.attempts >= 2
    assert result.usage.seconds > 0


def test_a_silent_server_is_given_up_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_TIMEOUT", "3")
    with FaultServer(in_turn(SILENT, answer("hello"))) as server:
        (result,) = ask(server.url)
    assert (result.text, result.usage.attempts) == ("hello", 2)
    assert 3 < result.usage.seconds < 60


HEAD = b"HTTP/1.1 200 OK\r\n"
#: What a server sends at once, and what it then repeats.
DRIPS = {
    "status line": (b"HTTP/1.1 200 ", b"O"),
    "headers": (HEAD + b"X-Long: ", b"a"),
    "many headers": (HEAD, b"X-Many: a\r\n"),
    "1xx": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": (HEAD + b"Content-Length: 1000000\r\n\r\n", b" "),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    # A TLS record of 16 KiB that never ends.
    "TLS": (b"\x16\x03\x03\x40\x00", b"\x02"),
}


@pytest.mark.parametrize("part", DRIPS)
def test_a_server_that_drips_is_given_up_after_the_timeout(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_TIMEOUT", "1")
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "1")
    with serve_raw(*DRIPS[part], pause=0.05) as address:
        scheme = "https" if part == "TLS" else "http"
        if part == "TLS":
            with raises_code(ModelError, "model_unusable", "handshake"):
                ask(f"{scheme}://{address}/v1")
            return
        (result,) = ask(f"{scheme}://{address}/v1")
    assert re.search("1 attempt; .* 1 second$", result.failure or "")
    assert result.usage.seconds < 10


def test_a_proxy_that_drips_is_given_up_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_TIMEOUT", "1")
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "1")
    with serve_raw(*DRIPS["status line"], pause=0.05) as address:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{address}")
        (result,) = ask("https://judge.example/v1")
    assert re.search("1 attempt; .* 1 second$", result.failure or "")
    assert result.usage.seconds < 10


@pytest.mark.parametrize("part", ["headers", "many headers", "1xx", "body", "chunks"])
def test_a_server_that_sends_without_end_is_given_up_after_some_bytes(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_MAX_BYTES", 20_000)
    # Responses that say only that more will come are forgotten one by one: the deadline ends them.
    monkeypatch.setenv("METRIST_LLM_TIMEOUT", "2" if part == "1xx" else "60")
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "1")
    first, more = DRIPS[part]
    with serve_raw(first, more * 1000, pause=0) as address:
        (result,) = ask(f"http://{address}/v1")
    assert re.search("1 attempt; .*(not complete after 20,000 bytes|broke off|within 2 seconds)", result.failure or "")


def test_a_server_that_does_not_read_is_given_up_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_TIMEOUT", "1")
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "1")
    with serve_raw(b"", b"", pause=0.05) as address:
        (result,) = ask(f"http://{address}/v1", "long " * 4_000_000)
    assert re.search("1 attempt; .* 1 second$", result.failure or "")


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
def test_an_encoding_that_could_become_any_size_is_not_decoded(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "1")
    with FaultServer(lambda _: status(200, b"x", headers={"Content-Encoding": encoding})) as server:
        (result,) = ask(server.url)
    assert f"encoded as '{encoding}'" in (result.failure or "")


@contextmanager
def serve_raw(first: bytes, more: bytes, pause: float) -> Iterator[str]:
    """The address of a server that sends `first`, and then `more` again and again until the client has gone, for at
    most a quarter of a minute. It reads nothing."""

    def send() -> None:
        connection, _ = listening.accept()
        connections.append(connection)
        with connection:
            try:
                connection.sendall(first)
                until = time.monotonic() + 15
                while time.monotonic() < until and not ended.wait(pause):
                    connection.sendall(more)
            except OSError:
                return

    ended, connections = threading.Event(), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        ended.set()
        # A send whose client has closed with an empty buffer may wait for the kernel's minute.
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        sender.join()


@pytest.mark.parametrize(
    "act", [error(401, "no \x1b[2J\x1b]0;owned\x07 \u202ekey\x9b31m"), Act(b"\x1b[2J\r\n\r\n", closes=True)]
)
def test_what_a_terminal_would_obey_is_escaped_in_messages(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "1")
    with FaultServer(lambda _: act) as server:
        try:
            message = str(ask(server.url)[0].failure)
        except ModelError as fault:
            message = str(fault)
    assert "x1b[2J" in message
    assert not set(message) & set("\x1b\x07\x9b\u202e")


@pytest.mark.parametrize("count", [-1, 12.0, float("nan"), True, "12", [12]])
def test_a_token_count_that_is_none_is_unknown(count: object) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": 3}
    with FaultServer(lambda _: answer("hello", usage=usage)) as server:
        (result,) = ask(server.url)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.unusable) == (None, 3, True)
    with FaultServer(lambda _: answer("hello", usage={"completion_tokens": 3})) as server:
        (result,) = ask(server.url)
    assert not result.usage.unusable


@pytest.mark.parametrize("count", [10**400, 10**10, 1_000_000], ids=["400 digits", "11 digits", "a million"])
def test_no_more_tokens_are_counted_than_the_texts_can_hold(count: int) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": count}
    with FaultServer(lambda _: answer("hello", usage=usage)) as server:
        (result,) = ask(server.url)
    # The request and the answer have some hundred bytes each; the rest is for the chat template, and max_tokens.
    assert result.usage.prompt_tokens is not None
    assert result.usage.completion_tokens is not None
    assert 4096 < result.usage.prompt_tokens < 4096 + 1000
    assert result.usage.completion_tokens <= Sampling().max_tokens
    assert (result.usage.unusable, result.usage.estimated) == (True, True)


def test_a_long_template_and_a_long_unseen_thought_are_counted_as_the_server_does() -> None:
    for prompt, output in ((4000, 3), (12, Sampling().max_tokens), (0, 0)):
        usage = {"prompt_tokens": prompt, "completion_tokens": output}
        with FaultServer(lambda _, usage=usage: answer("hello", usage=usage)) as server:  # type: ignore[misc]
            (result,) = ask(server.url)
        assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (prompt, output)
        assert not result.usage.unusable


def test_the_server_says_when_to_come_again() -> None:
    busy = status(503, b"busy", headers={"Retry-After": "1"})
    with FaultServer(in_turn(busy, answer("hello"))) as server:
        (result,) = ask(server.url)
    assert 1 < result.usage.seconds < 60


def test_a_wait_beyond_all_patience_is_not_begun() -> None:
    with FaultServer(lambda _: status(503, b"closed today", headers={"Retry-After": "86400"})) as server:
        (result,) = ask(server.url)
    assert re.search("1 attempt; .*503: closed today", result.failure or "")


def test_being_told_to_slow_down_is_no_fault_however_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "2")
    with FaultServer(in_turn(*[error(429, "slow down")] * 6, answer("hello"))) as server:
        (result,) = ask(server.url)
    assert (result.text, result.usage.attempts) == ("hello", 7)


@pytest.mark.parametrize(
    ("act", "reason", "finish"),
    [
        (error(413, "prompt is too long: 9 tokens > 8 maximum"), "too long for the model's context", "length"),
        (error(400, "no", code="content_filter"), "the server answered 400: no", "filter"),
        (error(403, "flagged by moderation"), "the server answered 403: flagged by moderation", "filter"),
        (status(422, {"detail": "cannot read this"}), "the server answered 422: cannot read this", "other"),
        (
            status(200, {"error": {"message": "Provider returned error: it is moderated", "code": 403}}),
            "the server answered 200 with an error: Provider returned error: it is moderated",
            "filter",
        ),
        (
            status(200, {"error": {"message": "no", "code": "context_length_exceeded"}}),
            "too long for the model's context: the server answered 200 with an error: no",
            "length",
        ),
        (status(200, {"error": {"message": "odd", "code": 422}}), "answered 200 with an error: odd", "other"),
    ],
)
def test_what_is_wrong_with_one_record_is_its_failure_and_not_asked_again(act: Act, reason: str, finish: str) -> None:
    with FaultServer(lambda request: act if request.prompt == "bad" else answer("hello")) as server:
        result = ask(server.url, "good", "bad", "fine")
    assert [completion.text for completion in result] == ["hello", "", "hello"]
    assert reason in str(result[1].failure)
    assert result[1].finish == finish
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("act", "values"),
    [
        (error(401, "which key"), ["answered 401: which key", "key='…'"]),
        (status(200, {"error": {"message": "pay first", "code": 402}}), ["answered 200", "pay first", "balance"]),
        (error(402, "pay first"), ["answered 402: pay first", "balance"]),
        (error(403, "not for you"), ["answered 403: not for you", "key"]),
        (error(404, "no model 'm'"), ["answered 404: no model 'm'", "model=…", "url=…", "http://127.0.0.1:8000/v1"]),
        (error(405, "no"), ["answered 405: no", "url=…"]),
        (status(308, b"", headers={"Location": "/v2"}), ["answered 308", "'/v2'"]),
        (error(429, "no", code="insufficient_quota"), ["answered 429: no", "plan"]),
        (error(400, "no", param="temperature"), ["omit=['temperature']"]),
        (error(400, "'seed' is unknown"), ["omit=['seed']"]),
        (error(400, "no", param="model"), ["answered 400: no", "model=…"]),
        (error(400, "here is 'k', not 'm'"), ["answered 400: here is 'k', not 'm'", "model=…"]),
        (error(400, "no", param="max_completion_tokens"), ["max_tokens_field=…"]),
    ],
)
def test_what_is_wrong_with_all_is_raised_with_what_to_do(act: Act, values: list[str]) -> None:
    settings = {"max_tokens_field": "max_completion_tokens"} if "max_completion_tokens" in str(act) else {}
    with FaultServer(lambda _: act) as server:
        llm = OpenAI(model="m", url=server.url, **settings)
        with raises_code(ModelError, "model_unusable", f"the model 'm' at {server.url}: ", *values):
            llm.complete([(Message("user", "hello"),)] * 5, Sampling())


def test_no_server_is_said_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with raises_code(ModelError, "model_unusable", "3 attempts", "no connection", "url="):
        ask(f"http://127.0.0.1:{port}/v1", *"abc")


def test_twenty_failures_in_a_row_are_no_records_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "2")
    with FaultServer(lambda _: status(500, b"broken")) as server:
        assert all(result.failure for result in ask(server.url, *map(str, range(19))))
        with raises_code(ModelError, "model_unusable", "20"):
            ask(server.url, *map(str, range(100)))
    assert len(server.requests) < 100


def test_a_wrong_key_is_told_from_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "plum-plum-plum")
    with FaultServer(lambda _: error(401, "wrong key")) as server:
        llm = OpenAI(model="m", url=server.url, key="SOME_KEY")
        with raises_code(ModelError, "model_unusable", "401", "SOME_KEY"):
            llm.complete([(Message("user", "hello"),)], Sampling())


@pytest.mark.parametrize(("message", "finish"), [("beyond the context length", "length"), ("flagged", "filter")])
def test_records_that_are_too_long_or_filtered_end_no_run_though_nothing_else_is_asked(
    message: str, finish: str
) -> None:
    with FaultServer(lambda _: error(400, message)) as server:
        result = ask(server.url, *map(str, range(50)))
    assert [completion.finish for completion in result] == [finish] * 50
    assert len(server.requests) == 50


def test_what_is_refused_from_the_first_on_ends_the_run_unless_there_were_answers_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One at a time: with several in flight, 20 refusals can arrive before the answer to the question sent first.
    monkeypatch.setenv("METRIST_LLM_CONCURRENCY", "1")

    def respond(request: Request) -> Act:
        return error(400, "cannot read this") if request.prompt.startswith("odd") else answer("hello")

    odd = [[Message("user", f"odd {number}")] for number in range(30)]
    with FaultServer(respond) as server:
        llm = OpenAI(model="m", url=server.url)
        with raises_code(ModelError, "model_unusable", "20"):
            gateway.complete(llm, odd, Sampling())
        first = gateway.complete(llm, [[Message("user", "good")], *odd], Sampling())
        # Another process knows only what the cache holds.
        openai.reset_server_states()
        count = len(server.requests)
        again = gateway.complete(llm, [[Message("user", "good")], *odd], Sampling())
    assert len(server.requests) - count == 30
    assert [answer.failure for answer in again] == [answer.failure for answer in first]
    assert [answer.text for answer in again] == ["hello", *[""] * 30]


def test_failures_in_flight_when_a_batch_ends_do_not_count_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_CONCURRENCY", "30")
    with FaultServer(lambda _: error(400, "cannot read this")) as server:
        with raises_code(ModelError, "model_unusable", "20"):
            ask(server.url, *map(str, range(30)))
        assert all(completion.failure for completion in ask(server.url, *map(str, range(19))))


def test_answers_on_their_way_are_taken_in_before_a_fault_is_raised() -> None:
    def respond(request: Request) -> Act:
        act = error(401, "no") if request.prompt == "bad" else answer("hello")
        return Act(act.data, after=0.1 if request.prompt == "bad" else 0.3)

    arrived: list[int] = []
    with FaultServer(respond) as server, raises_code(ModelError, "model_unusable", 401):
        ask(server.url, "good", "bad", *["good"] * 30, arrived=lambda number, _: arrived.append(number))
    assert 1 < len(server.requests) <= 16
    assert len(arrived) == len(server.requests) - 1


def test_an_answer_that_never_comes_does_not_hold_up_a_fault_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "GRACE", 0.1)
    started = time.monotonic()
    with FaultServer(lambda request: error(401, "no") if request.prompt == "bad" else SILENT) as server:
        with raises_code(ModelError, "model_unusable", 401):
            ask(server.url, "good", "bad")
        assert time.monotonic() - started < 25  # By default 30 seconds are given.


def test_a_fault_of_the_taker_is_raised_when_the_rest_was_offered() -> None:
    offered: list[int] = []

    def arrived(number: int, _completion: Completion) -> None:
        offered.append(number)
        raise ModelError(f"the disk is full at {len(offered)}")

    with FaultServer(lambda _: answer("hello")) as server, raises_code(ModelError, "model_unusable", "1"):
        ask(server.url, *map(str, range(100)), arrived=arrived)
    assert 1 <= len(offered) <= 16


@pytest.mark.parametrize("act", [SILENT, status(503, b"", headers={"Retry-After": "60"})])
def test_an_interrupt_stops_at_once(act: Act) -> None:
    pressed: list[float] = []

    def respond(_request: Request) -> Act:
        """Presses Ctrl-C when all that may be in flight is."""
        if len(server.requests) == 16:
            pressed.append(time.monotonic())
            _thread.interrupt_main()
        return act

    with FaultServer(respond) as server:
        with pytest.raises(KeyboardInterrupt):
            ask(server.url, *map(str, range(100)))
        assert time.monotonic() - pressed[0] < 30  # Not after the 60 seconds, nor after the timeout.
    assert len(server.requests) == 16
