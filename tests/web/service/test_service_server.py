"""The service's processes: signals, workers, sockets. And its settings."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist.errors import MetristError, RunError, SpecError
from metrist.metrics.base import Metric
from metrist.records import Record
from metrist.web.server import bind
from metrist.web.service.app import Service
from metrist.web.service.catalog import Catalog, build_catalog
from metrist.web.service.server import ServiceServer, configure_service
from metrist.web.service.settings import TOKENS_VARIABLE, AccessTokens, Check, ServiceSettings, read_tokens
from metrist.web.service.telemetry import FOLDER_VARIABLE
from web_server import RunningServer

SLOW_METRIC = """
import time
import metrist


class Slow(metrist.Metric):
    def score_record(self, record):
        time.sleep(0.02)
        return float(len(record.output))
"""


@contextmanager
def start(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], RunningServer]]:
    """`metrist serve` in a process of its own, once it is ready."""
    (folder / "slow_metric.py").write_text(SLOW_METRIC)
    command = [sys.executable, "-m", "metrist", "serve", "-m", "slow_metric.Slow", "--port", "0", "--log", "off"]
    process = subprocess.Popen([*command, *options], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        match = re.search(r":(\d+)$", process.stdout.readline().strip())
        assert match is not None
        running = RunningServer(int(match[1]))
        wait_ready(running)
        yield process, running
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def wait_ready(running: RunningServer) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if running.ask("/readyz").status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError("the service did not get ready")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_sigterm_ends_what_was_accepted_and_a_dead_worker_is_replaced(tmp_path: Path) -> None:
    """Clients send one request after another on open connections. Each request gets its own right answer until the
    service stops to listen; then connecting fails, and nothing else does."""
    with start(tmp_path, "--workers", "2") as (process, running):
        (first, _) = workers_of(process.pid)
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while first in workers_of(process.pid) or len(workers_of(process.pid)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert running.ask("/readyz").status == 503
        wait_ready(running)
        answers: list[tuple[int, float]] = []
        faults: list[str] = []
        clients = [threading.Thread(target=send_until_gone, args=(running.port, n, answers, faults)) for n in range(8)]
        for client in clients:
            client.start()
        while len(answers) < 20:
            time.sleep(0.01)
        before = len(answers)
        process.send_signal(signal.SIGTERM)
        for client in clients:
            client.join(60)
        assert process.wait(60) == 0
    assert faults == []
    assert len(answers) > before
    assert all(value == length for length, value in answers)


def workers_of(parent: int) -> list[int]:
    """The processes that a process started, the one aside that keeps track of shared memory."""
    children = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def send_until_gone(port: int, number: int, answers: list[tuple[int, float]], faults: list[str]) -> None:
    """Send requests with outputs of different lengths until the server refuses a new connection."""
    count = 0
    try:
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", port), timeout=60)
            except ConnectionRefusedError:
                return
            with connection, connection.makefile("rb") as file:
                keep = True
                while keep:
                    count += 1
                    length = number * 1000 + count
                    body = json.dumps({"records": [{"output": "x" * length}]}).encode()
                    head = f"POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
                    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                    status = file.readline().split()
                    headers = dict(line.strip().lower().split(b": ", 1) for line in iter(file.readline, b"\r\n"))
                    content = json.loads(file.read(int(headers[b"content-length"])))
                    assert status[1] == b"200"
                    answers.append((length, content["results"][0]["scores"]["slow_metric.Slow"]["value"]))
                    keep = headers.get(b"connection") != b"close"
    except Exception as error:
        faults.append(f"client {number}, request {count}: {error!r}")


class Held(Metric):
    """The length of an output, as soon as it may be known."""

    began, may_end = threading.Event(), threading.Event()

    def score_record(self, record: Record) -> float:
        self.began.set()
        assert self.may_end.wait(60)
        return float(len(record.output))


def start_thread(server: ServiceServer) -> tuple[threading.Thread, int]:
    """Run a server on a free port."""
    listener = bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    return thread, listener.getsockname()[1]


def test_the_end_answers_what_was_accepted_and_what_waits() -> None:
    """When the server stops listening, one request is being answered, one comes on an open connection, and one on a
    connection that nobody has accepted."""
    service = Service(Catalog([Held()]), ServiceSettings(log="off", anonymous=True))

    def ask(connection: http.client.HTTPConnection) -> None:
        body = json.dumps({"records": [{"output": "four"}]})
        connection.request("POST", "/v1/score", body, {"Content-Type": "application/json"})

    class EndingServer(ServiceServer):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            ask(kept)
            ask(waiting)  # The event loop stands still meanwhile.
            asyncio.get_running_loop().call_soon(Held.may_end.set)
            await super().shutdown(sockets)

    server = EndingServer(configure_service(lambda: service, grace=60, workers=1))
    thread, port = start_thread(server)
    busy, kept, waiting = (http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(3))
    kept.request("GET", "/healthz")
    assert kept.getresponse().read() == b'{"status":"ok"}'
    assert Held.began.wait(60)  # With what loads the models.
    Held.began.clear()
    ask(busy)
    assert Held.began.wait(60)
    server.should_exit = True
    for connection in (busy, kept, waiting):
        response = connection.getresponse()
        assert (response.status, response.getheader("connection")) == (200, "close")
        (score,) = json.load(response)["results"][0]["scores"].values()
        assert score["value"] == 4.0
        connection.close()
    thread.join(60)
    assert not thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60)


def test_a_request_whose_body_is_still_coming_at_the_end_gets_a_problem() -> None:
    """Its body may come for as long as accepted requests have to end."""
    service = Service(Catalog([Held()]), ServiceSettings(log="off", anonymous=True))
    Held.may_end.set()
    server = ServiceServer(configure_service(lambda: service, grace=2, workers=1))
    thread, port = start_thread(server)
    body = json.dumps({"records": [{"output": "four"}]}).encode()
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(2)]
    for connection in connections:
        connection.putrequest("POST", "/v1/score")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body[:5])
    while service.counters.total("metrist_requests_in_progress") < 2:
        time.sleep(0.01)
    server.should_exit = True
    while not service.closing:
        time.sleep(0.01)
    finished, unfinished = connections
    finished.send(body[5:])
    answers = [connection.getresponse() for connection in (finished, unfinished)]
    assert [answer.status for answer in answers] == [200, 503]
    assert json.load(answers[0])["results"]
    problem = json.load(answers[1])["error"]
    assert problem["code"] == "shutting_down"
    assert problem["request_id"] == answers[1].getheader("x-request-id")
    for connection in connections:
        connection.close()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers share a folder with locks")
def test_a_worker_counts_no_more_once_it_has_died(tmp_path: Path) -> None:
    """Also while its parent has not noted its end: here it is a child that nobody has waited for."""
    program = (
        "import sys, time\n"
        "from metrist.web.service.telemetry import Counters\n"
        f"counters = Counters({str(tmp_path)!r})\n"
        "counters.workers_ready.inc()\n"
        "print(int(counters.total('metrist_workers_ready')), flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, FOLDER_VARIABLE: str(tmp_path)}
    command = [sys.executable, "-c", program]
    workers = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline().strip() in (b"1", b"2")
        workers[0].kill()
        os.waitid(os.P_PID, workers[0].pid, os.WEXITED | os.WNOWAIT)
        last = program.replace("counters.workers_ready.inc()\n", "").replace("time.sleep(60)\n", "")
        done = subprocess.run([*command[:2], last], env=environment, capture_output=True, check=True)
        assert done.stdout.strip() == b"1"
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def test_tokens_come_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "tokens.txt"
    # sha256 of 'a-third-token-of-the-file', by sha256sum.
    digest = "dbb1f266fe5080edf84188751be56f0560091c3423d291b0c2f8f933fab31b4d"
    file.write_text(f"# tokens\nfirst-token-0123456789\nci:second-token-0123456789\nx:sha256:{digest}\n")
    tokens = read_tokens(file, {})
    assert tokens is not None
    assert tokens.identify(b"second-token-0123456789") == "ci"
    assert tokens.identify(b"first-token-0123456789") == "token-2"
    assert tokens.identify(b"a-third-token-of-the-file") == "x"
    assert tokens.identify(b"first-token-012345678") is None
    given = read_tokens(None, {TOKENS_VARIABLE: "first-token-0123456789, ci:second-token-0123456789"})
    assert given is not None
    assert given.identify(b"second-token-0123456789") == "ci"
    assert read_tokens(None, {}) is None


@pytest.mark.parametrize("line", ["short", "two words that are no token", "x y:first-token-0123456789", "a:sha256:12"])
def test_bad_tokens_are_refused_without_being_shown(line: str) -> None:
    with pytest.raises(RunError) as refusal:
        AccessTokens.parse([line], "file")
    assert line.rpartition(":")[2] not in str(refusal.value).replace("sha256:12", "")


def test_settings_that_make_no_sense() -> None:
    with raises_code(RunError, "missing_value", TOKENS_VARIABLE):
        ServiceSettings(host="0.0.0.0")
    ServiceSettings(host="0.0.0.0", anonymous=True)
    with raises_code(RunError, "invalid_value", "max_body"):
        ServiceSettings(max_body=0)
    with raises_code(SpecError, "unreadable", "consistency"):
        Check.parse("consistency")
    assert Check.parse("chrf(word_order=2) <= -1.5e2") == Check(metric="chrf(word_order=2)", maximum=-150.0)
    for check in ("nothing>=1", "by_score(metric=chrf)>=1"):
        with pytest.raises(MetristError):
            Service(build_catalog(["chrf", "by_score(metric=chrf)"]), ServiceSettings(checks=(Check.parse(check),)))
