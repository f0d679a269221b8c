"""Servers for tests: an app in a thread, and requests to it with any headers."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from metrist.web.server import bind, configure_server


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class RunningServer:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, path: str, *, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request, with these headers and a Host header."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body=body, headers=dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def post(self, path: str, value: Any) -> Answer:
        """A request of one of the server's own pages, with a body of JSON."""
        headers = {"Origin": self.url, "Content-Type": "application/json"}
        return self.ask(path, method="POST", body=json.dumps(value).encode(), headers=headers)


@contextmanager
def run_server(app: ASGIApp) -> Iterator[RunningServer]:
    """Serve an app on a free port of this machine while the block runs."""
    listener = bind("127.0.0.1", 0)
    server = configure_server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield RunningServer(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def wait_until(page: Any, script: str, argument: Any = None, seconds: float = 60) -> None:
    """Wait until a script is true in a page of playwright. Its own `wait_for_function` needs `eval`, which the content
    security policy forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(script, argument):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{script} with {argument!r} did not become true")
        page.wait_for_timeout(30)
