"""Commands under a limit of memory: they work, or end with an error; nothing that was stored is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import command, get_readiness, wait_for, write_records

from run_contents import contents
from torture_table import TortureRow, read_contents
from web_server import RunningServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits memory by RLIMIT_AS")
Rows = Callable[[str], TortureRow]
MB = 1 << 20


def run_limited(megabytes: int, *arguments: object) -> int:
    """A command whose address space is limited; returns its exit code. It works, says that memory is missing, or is
    ended by one of the libraries that cannot do without."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        limited(megabytes, *arguments), env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    is_clear = done.returncode in (0, 1, 2) and (done.returncode == 0 or "memory" in done.stderr.lower())
    assert is_clear or done.returncode in (-signal.SIGABRT, -signal.SIGSEGV), (megabytes, done.stderr[-1500:])
    return done.returncode


def limited(megabytes: int, *arguments: object) -> list[str]:
    """The command line of `metrist …` with a limited address space."""
    return ["sh", "-c", f'ulimit -v {megabytes * 1024}; ulimit -c 0; exec "$@"', "sh", *command(*arguments)]


def test_commands_on_a_run(tmp_path: Path, torture_row: Rows) -> None:
    """From far too little memory to enough. A process may die anywhere; what it leaves is whole, and the command
    without a limit ends with the contents of a calm run."""
    row = torture_row("memory limit: score, compare, export, query")
    source = write_records(tmp_path / "in.jsonl", 4000)
    score = ["score", source, "-m", "rougeL", "-m", "bleu", "-o"]
    assert run_limited(100_000, *score, tmp_path / "calm") == 0
    calm = contents(tmp_path / "calm")
    for limit in (130, 180, 230, 280, 330, 400, 500):
        with row.attempt():
            run_limited(limit, *score, tmp_path / "run")
    assert run_limited(100_000, *score, tmp_path / "run") == 0
    row.compare(calm, contents(tmp_path / "run"))
    before = read_contents(tmp_path / "run")
    query = ["query", tmp_path / "run", "SELECT metric, avg(value) FROM scores GROUP BY metric"]
    run = tmp_path / "run"
    for arguments in (["compare", run], ["export", run, "-o", tmp_path / "out.jsonl"], ["worst", run], query):
        for limit in (180, 330, 500):
            with row.attempt():
                run_limited(limit, *arguments)
    row.compare(before, read_contents(tmp_path / "run"))


def test_a_service_refuses_what_does_not_fit(torture_row: Rows) -> None:
    row = torture_row("memory limit: serve, train")
    arguments = ("serve", "-m", "length", "--port", "0", "--log", "off", "--workers", "1")
    process = subprocess.Popen(limited(1500, *arguments), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        server = RunningServer(int(process.stdout.readline().strip().rpartition(":")[2]))
        wait_for(lambda: get_readiness(server.port) == 200)
        body = json.dumps({"metrics": ["length"], "records": [{"output": "a b c"}]}).encode()
        headers = {"Content-Type": "application/json"}
        for size in (5, 20, 60, 200):
            with row.attempt():
                large = json.dumps({"metrics": ["length"], "records": [{"output": "x" * size * MB}]}).encode()
                try:
                    status = server.ask("/v1/score", method="POST", body=large, headers=headers).status
                except OSError:
                    status = 413  # Refused before all of it was sent.
                assert status in (200, 413, 422, 503), status
            answer = server.ask("/v1/score", method="POST", body=body, headers=headers)
            row.lost += answer.json()["results"][0]["scores"]["length"]["value"] != 3.0
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
