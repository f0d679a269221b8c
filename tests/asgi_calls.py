"""Calls of an ASGI app without a server or a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

App = Callable[..., Awaitable[None]]


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    #: The pieces of the body, as they were sent.
    pieces: Sequence[bytes]

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def json(self) -> Any:
        return json.loads(self.body)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def code(self) -> str:
        """The code of an error."""
        code: str = self.json()["error"]["code"]
        return code


async def call(
    app: App,
    path: str,
    body: Any = None,
    *,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
    pieces: Sequence[bytes] | None = None,
    reads: bool = True,
) -> Reply:
    """One request: a POST of JSON where there is a body, else a GET. `pieces` are a body without a length; after them
    the client sends nothing, and the body is complete only if the last piece is empty. A client that does not read
    gets the status and no more."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    has_body = body is not None or pieces is not None
    given = {"host": "127.0.0.1:8600", **({"content-type": "application/json"} if has_body else {}), **(headers or {})}
    if pieces is None and has_body:
        given.setdefault("content-length", str(len(content)))
    messages: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": piece, "more_body": bool(piece)} for piece in pieces or ()
    ]
    if pieces is None:
        messages = [{"type": "http.request", "body": content if has_body else b"", "more_body": False}]
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        if messages:
            return messages.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)
        if not reads and message["type"] == "http.response.body":
            await asyncio.Event().wait()

    scope = {
        "type": "http",
        "method": method or ("POST" if has_body else "GET"),
        "path": path,
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
    }
    await app(scope, receive, send)
    start = sent[0]
    names = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    assert start["type"] == "http.response.start"
    assert not sent[-1].get("more_body", False), "the response was not ended"
    return Reply(start["status"], names, [message["body"] for message in sent[1:]])
