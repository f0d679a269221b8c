"""The machine's clock jumps, by seconds to years, forwards and backwards.

libfaketime gives a command another clock; a patched `time.time` jumps at every call, with or without that library. The
monotonic clock goes on, as it does when an administrator or NTP sets the time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from faults import JudgeServer, list_scores, write_records

from fault_server import FaultServer
from run_contents import contents, unfinish
from torture_table import TortureRow

Rows = Callable[[str], TortureRow]
FOLDERS = [Path("/usr/lib", machine, "faketime") for machine in ("x86_64-linux-gnu", "aarch64-linux-gnu")]
LIBRARY = os.environ.get("METRIST_TEST_FAKETIME") or next(
    (str(path) for folder in FOLDERS if (path := folder / "libfaketimeMT.so.1").exists()), None
)
#: Offsets of the commands' clocks, one after the other; numbers are seeds of clocks that jump all the time.
CLOCKS = ("-10y", 1, "+10y", 2, "-1d", 3, "+2h", 4, "-2h", 5)
JUMPS = """
import random, sys, time
seed = sys.argv.pop(1)
if seed != "calm":
    real, rng = time.time, random.Random(int(seed))
    time.time = lambda: max(1.0, real() + rng.choice([0, 0, -3600, 3600, -86400 * 365 * 5, 86400 * 365 * 5, -5, 5]))
from metrist.cli.app import main
main()
"""
PRICES = """
[[price]]
model = "m"
host = "127.0.0.1"
input = 1000
output = 1000
"""


def run(clock: str | int | None, *arguments: object, env: dict[str, str] | None = None) -> str:
    """A command under a clock; returns what it printed."""
    environment = {**os.environ, **(env or {})}
    if isinstance(clock, str) and LIBRARY:
        environment |= {"LD_PRELOAD": LIBRARY, "FAKETIME": clock, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    seed = clock if isinstance(clock, int) else "calm" if LIBRARY or clock is None else len(clock)
    command = [sys.executable, "-c", JUMPS, str(seed), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_scores_under_jumping_clocks(tmp_path: Path, torture_row: Rows) -> None:
    """One run folder, a part more under each clock: in the end, the contents are those of a calm run."""
    row = torture_row("clock jumps")
    source = write_records(tmp_path / "in.jsonl", 200)
    metrics = ("rougeL", "chrf", "bleu", "length", "ter", "token_f1", "rouge1", "rouge2", "exact", "distinct")
    for metric in metrics:
        run(None, "score", source, "-m", metric, "-o", tmp_path / "calm")
    for clock, metric in zip(CLOCKS, metrics, strict=True):
        with row.attempt():
            run(clock, "score", source, "-m", metric, "-o", tmp_path / "run")
            unfinish(tmp_path / "run", metric)
            run(clock, "score", source, "-m", metric, "-o", tmp_path / "run")
    row.compare(contents(tmp_path / "calm"), contents(tmp_path / "run"))


def test_llm_calls_under_jumping_clocks(tmp_path: Path, torture_row: Rows) -> None:
    """No answer is paid for twice, whatever the clock says: not with a limit of requests per minute, not with a budget,
    and with --fresh once for each command."""
    row = torture_row("clock jumps")
    source = write_records(tmp_path / "in.jsonl", 10)
    prices = tmp_path / "prices.toml"
    prices.write_text(PRICES)
    server = JudgeServer(1, faulty=True, pause=0.0)
    env = {"METRIST_LLM_CACHE": str(tmp_path / "cache"), "METRIST_LLM_CONCURRENCY": "4", "METRIST_LLM_RPM": "6000"}
    env |= {"METRIST_PRICES": str(prices), "METRIST_MAX_COST": "1000"}
    with FaultServer(server) as http:
        judge = f"judge=judge(llm=openai(model='m', url='{http.url}'))"
        for number, clock in enumerate(CLOCKS):
            with row.attempt():
                fresh = ["--fresh"] if number % 2 else []
                run(clock, "score", source, "-m", judge, *fresh, "-o", tmp_path / f"run-{number}", env=env)
            expected = 20 * (1 + (number + 1) // 2)
            row.lost += max(0, server.answered.total() - expected)
            assert server.answered.total() == expected
            row.lost += 80 - len(list_scores(tmp_path / f"run-{number}"))  # By the judge and its three aspects.
