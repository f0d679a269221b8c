"""Clients that a service has to survive: they do not read, do not end what they send, or send too much."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

BODY = json.dumps({"metrics": ["length"], "records": [{"output": "one two"}]}).encode()


def write_head(length: int | None, token: str = "") -> bytes:
    """The head of a request for scores; without a length, of a body in chunks."""
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = ["POST /v1/score HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", size]
    lines += [f"Authorization: Bearer {token}"] if token else []
    return "\r\n".join([*lines, "", ""]).encode()


def write_request(body: bytes = BODY, token: str = "") -> bytes:
    return write_head(len(body), token) + body


def ask(port: int, token: str = "") -> int:
    """The status of an ordinary request."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(write_request(token=token))
        return int(connection.recv(1000).split()[1])


@contextmanager
def never_read(port: int, count: int, records: int, *, stream: bool = True) -> Iterator[list[socket.socket]]:
    """Connections with small receive buffers, each with a request whose long answer it does not read."""
    name = "x" * 900
    row = {"output": "a", "item": name, "system": name}
    request = write_request(json.dumps({"metrics": ["length"], "stream": stream, "records": [row] * records}).encode())
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.socket()) for _ in range(count)]
        for connection in connections:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.settimeout(60)
            connection.connect(("127.0.0.1", port))
            connection.sendall(request)
        yield connections


@contextmanager
def never_end(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connections with requests whose bodies never end."""
    with ExitStack() as stack:
        connections = []
        for _ in range(count):
            connections.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)))
            connections[-1].sendall(write_head(1000) + b"[")
        yield connections


def send_too_much(port: int, size: int, *, chunked: bool, pieces: int = 1, pause: float = 0.0) -> list[int]:
    """The statuses of a request, of one whose body is too large and of a third one, sent one after another without
    reading. An error of the connection is raised."""
    piece = b"x" * (size // pieces)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(write_request() + write_head(None if chunked else len(piece) * pieces))
        for _ in range(pieces):
            connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            time.sleep(pause)
        connection.sendall((b"0\r\n\r\n" if chunked else b"") + write_request())
        answers = b""
        while len(statuses := re.findall(rb"HTTP/1.1 (\d+)", answers)) < 3:
            received = connection.recv(65536)
            assert received, answers
            answers += received
        return [int(status) for status in statuses]


def wait_for_status(port: int, status: int, token: str = "", seconds: float = 30) -> None:
    """Ask until there is an answer with this status."""
    deadline = time.monotonic() + seconds
    while (found := ask(port, token)) != status:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
