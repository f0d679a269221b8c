"""Commands under a limit of memory: they work, or end with an error; nothing that was stored is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import command, wait_for, write_records
from test_serve_signals import is_ready

from run_contents import contents
from torture_table import TortureRow
from web_server import RunningServer

pytestmark = [pytest.mark.torture, pytest.mark.skipif(sys.platform != "linux", reason="limits memory by RLIMIT_AS")]
Rows = Callable[[str], TortureRow]
MB = 1 << 20


def run_limited(megabytes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A command whose address space is limited."""

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        limited(megabytes, *arguments), env=environment, capture_output=True, text=True, check=False, timeout=600
    )


def limited(megabytes: int, *arguments: object) -> list[str]:
    """The command line of `metrist …` with a limited address space."""
    return ["sh", "-c", f'ulimit -v {megabytes * 1024}; exec "$@"', "sh", *command(*arguments)]


def find_need(*arguments: object) -> int:
    """Megabytes of address space within which a command works, to 64 MB."""
    low, high = 64, 2048
    while high - low > 64:
        middle = (low + high) // 2
        low, high = (low, middle) if run_limited(middle, *arguments).returncode == 0 else (middle, high)
    return high


def test_scoring_comparing_and_exporting(tmp_path: Path, torture_row: Rows) -> None:
    """From far too little memory to almost enough. A process may die anywhere; what it leaves is whole, and the command
    without a limit ends with the contents of a calm run."""
    row = torture_row("memory limit: score, compare, export")
    source = write_records(tmp_path / "in.jsonl", 4000)
    arguments = ["score", source, "-m", "rougeL", "-m", "bleu", "-o"]
    assert run_limited(100_000, *arguments, tmp_path / "calm").returncode == 0
    calm = contents(tmp_path / "calm")
    need = find_need("--version")
    for more in (16, 48, 96, 160, 256):
        with row.attempt():
            done = run_limited(need + more, *arguments, tmp_path / "run")
            assert done.returncode >= 0, (need, more, done.returncode, done.stderr[-500:])
            assert done.returncode == 0 or done.stderr.strip()
            assert done.returncode == 0 or "memory" in done.stderr.lower(), (need, more, done.stderr[-1500:])
    assert run_limited(100_000, *arguments, tmp_path / "run").returncode == 0
    row.compare(calm, contents(tmp_path / "run"))
    for verb in (["compare"], ["export", "-o", tmp_path / "out.jsonl"], ["worst"]):
        for more in (16, 96):
            with row.attempt():
                done = run_limited(need + more, *verb, tmp_path / "run")
                assert done.returncode >= 0, (verb, need, more, done.returncode, done.stderr[-500:])
                assert done.returncode == 0 or "memory" in done.stderr.lower(), (verb, more, done.stderr[-1500:])
    row.compare(calm, contents(tmp_path / "run"))


def test_one_enormous_line(tmp_path: Path, torture_row: Rows) -> None:
    """A line of 300 MB under a limit of 600 MB: read, or refused with a word; a server refuses a large body."""
    row = torture_row("memory limit: serve, train")
    path = tmp_path / "long.jsonl"
    with path.open("w") as file:
        file.write('{"item": "1", "system": "s", "output": "')
        for _ in range(300):
            file.write("word " * (MB // 5))
        file.write('", "references": ["word"]}\n')
    need = find_need("--version")
    for more in (100, 400):
        with row.attempt():
            done = run_limited(need + more, "score", path, "-m", "length", "-o", tmp_path / f"run-{more}")
            assert done.returncode in (0, 1, 2), (done.returncode, done.stderr[-1000:])
            assert done.returncode == 0 or "memory" in done.stderr.lower(), done.stderr[-1000:]
    path.unlink()


def test_a_service_refuses_what_does_not_fit(torture_row: Rows) -> None:
    row = torture_row("memory limit: serve, train")
    arguments = ("serve", "-m", "length", "--port", "0", "--log", "off", "--workers", "1")
    process = subprocess.Popen(limited(1500, *arguments), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        server = RunningServer(int(process.stdout.readline().strip().rpartition(":")[2]))
        wait_for(lambda: is_ready(server.port))
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
