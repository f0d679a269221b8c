"""`metrist serve` with clients that do not read, do not end what they send, or send too much."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import end_service, get_readiness, serve, wait_for

from hostile_clients import ask, never_end, never_read, send_too_much, wait_for_status
from torture_table import TortureRow

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts sockets in /proc")
TOKEN = "a-token-of-24-characters"
ROW = "hostile clients: metrist serve"
Rows = Callable[[str], TortureRow]


def count_sockets(process: subprocess.Popen[str]) -> int:
    links = Path(f"/proc/{process.pid}/fd").iterdir()
    return sum(str(link.readlink()).startswith("socket:") for link in links if link.is_symlink())


@pytest.mark.parametrize("stream", [True, False])
def test_clients_that_do_not_read(stream: bool, torture_row: Rows) -> None:
    """They hold all room of the service until the time limit, and nothing after it."""
    row = torture_row(ROW)
    with serve("--time-limit", "20", "--queue", "12000", workers=1) as (process, port):
        before = count_sockets(process)
        with row.attempt(), never_read(port, 6, 4000, stream=stream):
            wait_for_status(port, 429, seconds=20)
            wait_for_status(port, 200, seconds=60)
            wait_for(lambda: count_sockets(process) <= before + 4)  # Those that were refused wait for more requests.
        end_service(process)


def test_requests_without_a_token(torture_row: Rows) -> None:
    row = torture_row(ROW)
    with (
        serve("--max-requests", "8", workers=1, token=f"ci:{TOKEN}") as (_, port),
        row.attempt(),
        never_end(port, 600) as connections,
    ):
        assert [ask(port, TOKEN) for _ in range(20)] == [200] * 20
        assert {connection.recv(12) for connection in connections} == {b"HTTP/1.1 401"}


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("size", "pieces", "pause"), [(200_000_000, 200, 0), (9_000_000, 90, 0.05), (20_000_000, 1, 0)]
)
def test_bodies_over_the_limit(chunked: bool, size: int, pieces: int, pause: float, torture_row: Rows) -> None:
    row = torture_row(ROW)
    with serve(workers=1) as (_, port), row.attempt():
        assert send_too_much(port, size, chunked=chunked, pieces=pieces, pause=pause) == [200, 413, 200]


def test_the_end_while_bodies_are_sent(torture_row: Rows) -> None:
    row = torture_row(ROW)
    with serve("--grace", "2", workers=1) as (process, port), row.attempt(), never_end(port, 50) as connections:
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        for connection in connections:
            answer = b"".join(iter(lambda: connection.recv(65536), b""))  # noqa: B023
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503")
            assert json.loads(body)["error"]["code"] == "shutting_down"
        assert process.wait(60) == 0


def test_readiness_follows_the_death_of_a_worker(torture_row: Rows) -> None:
    row = torture_row(ROW)
    with serve() as (process, port):
        for number in range(4):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            workers = [int(c) for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]
            victim = random.Random(number).choice(workers)
            with row.attempt():
                os.kill(victim, signal.SIGKILL)
                wait_for(lambda: has_died(victim))  # noqa: B023
                assert get_readiness(port) in (0, 503)  # A connection that the worker had is reset.
                wait_for(lambda: get_readiness(port) == 200)
            time.sleep(8)  # Five ends within 30 s end the service.
        end_service(process)


def has_died(process: int) -> bool:
    """Whether a process has ended with all its threads, noted by its parent or not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z" and len([*Path(f"/proc/{process}/task").iterdir()]) == 1
    except OSError:
        return True
