"""`metrist serve` under load, ended by SIGTERM and by kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import command, end_service, get_readiness, serve, wait_for

from torture_table import TortureRow

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="several workers need Linux")
Rows = Callable[[str], TortureRow]


def workers_of(parent: int) -> list[int]:
    """The processes of a service that answer requests."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


class Client:
    """One request after another on one connection, each for an output of another length. Counts what came back.

    `broken` is a request on a connection that ended before the answer; with `retries` it is sent again, on another one,
    until there is an answer or nobody listens any more.
    """

    def __init__(self, port: int, number: int, outcomes: Counter[str], *, retries: bool) -> None:
        self.port, self.number, self.outcomes, self.retries = port, number, outcomes, retries
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.requests = 0
        self.is_open = True

    async def run(self, stop: asyncio.Event) -> None:
        rng = random.Random(self.number)
        while self.is_open and not stop.is_set():
            length = rng.randint(1, 4000)
            while self.is_open and not await self.send(length):
                pass
            if rng.random() < 0.02:  # A client that leaves its connection idle for a while.
                await asyncio.sleep(rng.uniform(0, 0.3))
        if self.streams is not None:
            self.streams[1].close()

    async def send(self, length: int) -> bool:
        """Send a request; False if it has to be sent again."""
        fresh = self.streams is None
        try:
            if self.streams is None:
                self.streams = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", self.port), 60)
            status, headers, content = await asyncio.wait_for(self.exchange(*self.streams, length), 60)
        except (OSError, EOFError) as error:
            if isinstance(error, ConnectionRefusedError):
                self.is_open = self.retries and not self.outcomes["gone"]
                self.outcomes["refused"] += 1
                await asyncio.sleep(0.02)
                return False
            self.outcomes[f"broken on a {'fresh' if fresh else 'kept'} connection"] += 1
            self.outcomes["broken"] += 1
            if self.streams is not None:
                self.streams[1].close()
                self.streams = None
            return not self.retries
        self.requests += 1
        right = status == 200 and content["results"][0]["scores"]["length"]["value"] == float(length)
        self.outcomes["right" if right else "wrong"] += 1
        if headers.get(b"connection") == b"close":
            self.streams[1].close()
            self.streams = None
        return True

    async def exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int
    ) -> tuple[int, dict[bytes, bytes], dict[str, list[dict[str, dict[str, dict[str, float]]]]]]:
        body = json.dumps({"metrics": ["length"], "records": [{"output": "x " * length}]}).encode()
        head = "POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in lines[1:] if line)
        content = await reader.readexactly(int(headers[b"content-length"]))
        return int(lines[0].split()[1]), headers, json.loads(content)


async def load(
    port: int, clients: int, act: Callable[[Counter[str]], None], *, seconds: float, retries: bool
) -> Counter[str]:
    """Clients send requests all the time. After a second, `act` is called; clients without retries end when nobody
    listens any more, those with retries some seconds later."""
    outcomes: Counter[str] = Counter()
    stop = asyncio.Event()
    running = [asyncio.create_task(Client(port, n, outcomes, retries=retries).run(stop)) for n in range(clients)]
    await asyncio.sleep(1)
    await asyncio.get_running_loop().run_in_executor(None, act, outcomes)
    if retries:
        await asyncio.sleep(seconds)
        stop.set()
    await asyncio.wait_for(asyncio.gather(*running), 120)
    return outcomes


def test_sigterm_drops_no_accepted_request(torture_row: Rows) -> None:
    """Every request that was sent gets its right answer; then nobody listens any more."""
    row = torture_row("SIGTERM: serve under load")
    total: Counter[str] = Counter()
    for _ in range(int(os.environ.get("METRIST_TEST_ROUNDS", "8"))):
        with serve() as (process, port), row.attempt():

            def end(_: Counter[str], process: subprocess.Popen[str] = process) -> None:
                process.send_signal(signal.SIGTERM)

            outcomes = asyncio.run(load(port, 48, end, seconds=0, retries=False))
            assert process.wait(60) == 0
            assert outcomes["right"] > 48
            total += outcomes
    print(dict(total))
    row.lost += total["broken"] + total["wrong"]


def test_a_killed_worker_is_replaced_and_retries_are_clean(torture_row: Rows) -> None:
    """Requests on the connections of a killed worker break; sent again, each gets its right answer."""
    row = torture_row("kill -9: a worker of serve under load")
    with serve() as (process, port):

        def kill(outcomes: Counter[str]) -> None:  # noqa: ARG001
            for _ in range(4):
                with row.attempt():
                    victim = random.Random(7).choice(workers_of(process.pid))
                    os.kill(victim, signal.SIGKILL)
                    wait_for(lambda: victim not in workers_of(process.pid) and len(workers_of(process.pid)) == 2)  # noqa: B023
                    time.sleep(8)  # Five ends within 30 s end the service.

        outcomes = asyncio.run(load(port, 24, kill, seconds=1, retries=True))
        print(dict(outcomes))
        assert process.poll() is None
        assert outcomes["right"] > 1000
        row.lost += outcomes["wrong"]
        end_service(process)


def test_a_killed_service_leaves_the_port_and_retries_are_clean(torture_row: Rows) -> None:
    """kill -9 of the parent: its workers end what they have, and a new service on the same port answers the rest."""
    row = torture_row("kill -9: serve under load")
    processes: list[subprocess.Popen[str]] = []
    with serve() as (process, port):
        processes.append(process)

        def replace(outcomes: Counter[str]) -> None:  # noqa: ARG001
            for _ in range(4):
                with row.attempt():
                    old = workers_of(processes[-1].pid)
                    processes[-1].send_signal(signal.SIGKILL)
                    processes[-1].wait()
                    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in old))  # noqa: B023
                    arguments = ("serve", "-m", "length", "--port", port, "--log", "off", "--workers", "2")
                    processes.append(subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, text=True))
                    wait_for(lambda: get_readiness(port) == 200)
                    time.sleep(0.5)

        try:
            outcomes = asyncio.run(load(port, 24, replace, seconds=1, retries=True))
            print(dict(outcomes))
            row.lost += outcomes["wrong"]
            assert outcomes["right"] > 1000
            end_service(processes[-1])
        finally:
            for other in processes[1:]:
                other.kill()
                other.wait()
                if other.stdout is not None:
                    other.stdout.close()
