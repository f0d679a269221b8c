"""Clients that do not read, do not end what they send or send too much, over real sockets; tests/torture has more."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hostile_clients import BODY, ask, never_end, never_read, send_too_much, write_request
from metrist.web.server import bind
from metrist.web.service.app import Service
from metrist.web.service.catalog import build_catalog
from metrist.web.service.server import ServiceServer, configure_service
from metrist.web.service.settings import AccessTokens, ServiceSettings
from service_metrics import GATE

TOKEN = "a-token-of-24-characters"


@contextmanager
def running(*metrics: str, send_buffer: int | None = None, **settings: Any) -> Iterator[tuple[int, set[Any]]]:
    """The port of a service in a thread, and its connections."""
    chosen = ServiceSettings(**{"log": "off", "drain": 0.01, **settings})
    service = Service(build_catalog(["length", *metrics]), chosen)
    listener = bind("127.0.0.1", 0)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    port = listener.getsockname()[1]
    server = ServiceServer(configure_service(lambda: service, grace=1, workers=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    GATE.clear()
    try:
        while not server.started:
            time.sleep(0.005)
        yield port, server.server_state.connections
    finally:
        GATE.set()
        server.should_exit = server.force_exit = True
        thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_does_not_read_is_cut_off_at_the_time_limit(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metrist.web.service.app._LAST_LINE_SECONDS", 0.05)
    with (
        running(time_limit=1.0, max_queue=500, send_buffer=4096) as (port, open_connections),
        never_read(port, 1, 500, stream=stream) as connections,
    ):
        connections[0].recv(1, socket.MSG_PEEK)  # The answer has begun.
        deadline = time.monotonic() + 20
        while open_connections:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert ask(port) == 200


def test_requests_without_a_token_take_no_room() -> None:
    tokens = AccessTokens.parse([TOKEN], "tokens")
    with running(tokens=tokens, max_requests=4) as (port, _), never_end(port, 20) as connections:
        for connection in connections:
            assert connection.recv(12) == b"HTTP/1.1 401"
        assert ask(port, TOKEN) == 200


def send_headers(connection: socket.socket, count: int) -> None:
    connection.sendall(b"GET /healthz HTTP/1.1\r\n")
    for number in range(count):
        connection.sendall(b"X-%d: %b\r\n" % (number, b"y" * 20_000))
        time.sleep(0.01)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_gets_its_answer_and_so_does_the_next_request(chunked: bool) -> None:
    with running(max_body=10_000) as (port, _):
        assert send_too_much(port, 200_000, chunked=chunked) == [200, 413, 200]
        assert send_too_much(port, 30_000, chunked=chunked, pieces=10, pause=0.01) == [200, 413, 200]


def test_headers_are_limited_behind_a_request_in_progress() -> None:
    waiting = BODY.replace(b"length", b"service_metrics.Waiting")
    with (
        running("service_metrics.Waiting") as (port, _),
        socket.create_connection(("127.0.0.1", port), timeout=20) as connection,
    ):
        connection.sendall(write_request(waiting))
        with pytest.raises(OSError, match=r"reset|pipe"):
            send_headers(connection, 200)
