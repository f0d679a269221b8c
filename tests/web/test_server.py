"""Starting and stopping: ports, the printed address, signals."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from error_codes import raises_code
from metrist.errors import RunError
from metrist.web.security import Access
from metrist.web.server import PREFERRED_PORT, bind, create_app
from web_server import run_server

PROGRAM = textwrap.dedent("""
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route
    from metrist.web.server import create_app, grant_access, serve

    async def home(request):
        return PlainTextResponse("here")

    access = grant_access("127.0.0.1")
    serve(create_app([Route("/", home)], access), access, port=0, announce=lambda text: print(text, flush=True))
    print("stopped")
""")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_prints_its_address_and_stops_at_a_signal(
    popen: Callable[..., subprocess.Popen[Any]], number: signal.Signals
) -> None:
    process = popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    with urllib.request.urlopen(address, timeout=10) as answer:
        assert answer.read() == b"here"
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out.strip(), err) == (0, "stopped", "")


def test_the_preferred_port_is_used_if_it_is_free() -> None:
    with bind("127.0.0.1", None) as first, bind("127.0.0.1", None) as second:
        ports = [first.getsockname()[1], second.getsockname()[1]]
        assert len(set(ports)) == 2
        assert PREFERRED_PORT not in ports[1:]


def test_a_port_or_address_that_cannot_be_used_is_an_error() -> None:
    with bind("127.0.0.1", 0) as taken, raises_code(RunError, "invalid_value", "`port`"):
        bind("127.0.0.1", taken.getsockname()[1])
    with raises_code(RunError, "invalid_value", 70_000):
        bind("127.0.0.1", 70_000)
    with raises_code(RunError, "invalid_value", "no such host"):
        bind("no such host", 0)


def test_a_client_that_never_ends_its_headers_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrist.web.server._HEADER_SECONDS", 0.1)
    with run_server(create_app([], Access())) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
            assert slow.recv(100) == b""
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as large:
            with suppress(OSError):
                large.sendall(b"GET / HTTP/1.1\r\nX-Large: " + b"x" * 1_000_000)
            with suppress(ConnectionResetError):
                assert b" 200 " not in large.recv(100)
        assert server.ask("/static/base.css").status == 200
