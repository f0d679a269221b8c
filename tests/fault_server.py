"""A local chat server for tests that sends answers, errors, truncated answers or nothing.

`respond(request)` returns an `Act` for each request. `Mixed` chooses seeded random faults and records them by request.
Run as a program, the server answers immediately until its standard input ends, and prints its port.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Request:
    """A client's request."""

    path: str
    headers: dict[str, str]
    fields: dict[str, Any]

    @property
    def prompt(self) -> str:
        """The last message, or the prompt of a text completion."""
        return str(self.fields["prompt"] if "prompt" in self.fields else self.fields["messages"][-1]["content"])


@dataclass(frozen=True)
class Act:
    """Bytes to send after some seconds, and whether to close the connection then. Neither: silence."""

    data: bytes = b""
    after: float = 0.0
    closes: bool = False
    name: str = ""


def status(code: int, body: object = None, *, headers: dict[str, str] | None = None, name: str = "") -> Act:
    """A complete response; `body` is sent as JSON, bytes unchanged."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
    head = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    return Act(f"HTTP/1.1 {code} Status\r\n{head}\r\n".encode() + data, name=name or str(code))


def answer(text: str | None, *, finish: str | None = "stop", usage: object = None, **more: object) -> Act:
    """A completion as OpenAI documents it."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish, **more}
    tokens = usage or {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    return status(200, {"object": "chat.completion", "choices": [choice], "usage": tokens}, name="answered")


def text_answer(text: object, *, finish: str | None = "stop", **more: object) -> Act:
    """A text completion as OpenAI documents it."""
    tokens = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    choice = {"index": 0, "text": text, "finish_reason": finish, **more}
    return status(200, {"object": "text_completion", "choices": [choice], "usage": tokens}, name="answered")


def error(number: int, message: str, **more: object) -> Act:
    """An error as OpenAI documents it."""
    return status(number, {"error": {"message": message, "type": "some_error", **more}})


def cut_off(act: Act) -> Act:
    """The response without its last bytes."""
    return Act(act.data[:-20], closes=True, name="cut off")


CLOSED = Act(closes=True, name="closed")
SILENT = Act(name="silent")


class FaultServer:
    """Serves in its own thread while it is open."""

    def __init__(self, respond: Callable[[Request], Act]) -> None:
        self.requests: list[Request] = []
        self._respond = respond
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(self._loop.create_server(lambda: _Speaker(self), "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        self.speakers: set[_Speaker] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def act(self, request: Request) -> Act:
        self.requests.append(request)
        return self._respond(request)

    def __enter__(self) -> FaultServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _close(self) -> None:
        """Close every connection, also those that are being accepted: one left open is reported by a ResourceWarning
        when it is collected, which fails whichever test runs then."""
        self._server.close()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        for speaker in list(self.speakers):
            speaker.transport.abort()
        while self.speakers:
            await asyncio.sleep(0)


class _Speaker(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: FaultServer) -> None:
        self._server = server
        self._read = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._server.speakers.add(self)

    def connection_lost(self, _fault: Exception | None) -> None:
        self._server.speakers.discard(self)

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, rest = self._read.partition(b"\r\n\r\n")
        if not end:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        size = int(headers.get("content-length", 0))
        if len(rest) < size:
            return
        self._read = rest[size:]
        act = self._server.act(Request(first.split()[1], headers, json.loads(rest[:size])))
        if act.after:
            asyncio.get_running_loop().call_later(act.after, self._do, act)
        else:
            self._do(act)

    def _do(self, act: Act) -> None:
        if act.data:
            self.transport.write(act.data)
        if act.closes:
            self.transport.close()


@dataclass
class Mixed:
    """Seeded random faults: 20 % 429 (a quarter of them with a retry time), 10 % 500, 10 % cut off, and slow answers,
    closed connections and wrong JSON, 3 % each."""

    seed: int
    acts: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    dealt: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def __call__(self, request: Request) -> Act:
        text = f"answer to {request.prompt}"
        act = self._choose(text_answer(text) if "prompt" in request.fields else answer(text))
        self.acts[request.prompt].append(act.name)
        self.dealt[act.name] += 1
        return act

    def _choose(self, good: Act) -> Act:
        chance, now = self._rng.random(), formatdate(usegmt=True)
        kinds: list[tuple[float, Callable[[], Act]]] = [
            (0.15, lambda: error(429, "slow down")),
            (0.16, lambda: status(429, b"busy", headers={"Retry-After": now, "Date": now})),
            (0.17, lambda: status(429, b"busy", headers={"Retry-After": "1"})),
            (0.20, lambda: status(429, b"busy", headers={"retry-after-ms": "20"})),
            (0.30, lambda: status(500, b"<html>oh no</html>")),
            (0.40, lambda: cut_off(good)),
            (0.43, lambda: Act(good.data, after=0.2, name="answered")),
            (0.46, lambda: CLOSED),
            (0.48, lambda: status(200, b'{"choices": [', name="wrong")),
            (0.49, lambda: status(200, {"choices": []}, name="wrong")),
        ]
        return next((make() for below, make in kinds if chance < below), good)


def _serve_instantly() -> None:
    good = answer('The text is fluent. {"grade": 4}')
    with FaultServer(lambda _: good) as server:
        print(server.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _serve_instantly()
