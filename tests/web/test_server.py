"""Starting and stopping: ports, the printed address, signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from metrist.errors import RunError
from metrist.web.server import PREFERRED_PORT, bind

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
    with bind("127.0.0.1", 0) as taken, pytest.raises(RunError, match=r"port .*--port"):
        bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(RunError, match="port"):
        bind("127.0.0.1", 70_000)
    with pytest.raises(RunError, match="address"):
        bind("no such host", 0)
