"""A run that is killed at any moment, by kill -9, ends with the same contents when the same command is given again."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from metrist import open_run
from metrist.run import load
from run_contents import contents
from torture_table import TortureRow

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="watches processes through /proc")

SCRIPT = """
import sys
from metrist.run import score
results = score(sys.argv[1], sys.argv[3].split(","), out=sys.argv[2], shard_size=int(sys.argv[4]))
print(len(results.table().rows))
"""

SLOW = """
@dataclass(frozen=True)
class Slow(Metric):
    factor: float = 1.0
    def score(self, shard):
        time.sleep(0.06)
        with open("scored", "a") as file:
            file.write(".")
        return Scores.of(self.factor * len(r.output) for r in shard.records)
"""


def command(source: Path, out: Path, metrics: str, shard_size: int) -> list[str]:
    return [sys.executable, "-c", SCRIPT, str(source), str(out), metrics, str(shard_size)]


def write_records(path: Path, count: int, systems: int) -> None:
    rng = random.Random(7)
    words = [f"w{n}" for n in range(3000)]

    def sentence() -> str:
        return " ".join(rng.choices(words, k=rng.randint(5, 30)))

    with path.open("w") as file:
        for n in range(count):
            row = {"item": str(n // systems), "system": f"s{n % systems}", "output": sentence()}
            file.write(json.dumps({**row, "references": [sentence()]}) + "\n")


@pytest.fixture
def folder(tmp_path: Path, module: Callable[[str], ModuleType]) -> Path:
    module(SLOW)
    write_records(tmp_path / "in.jsonl", 400, systems=4)
    return tmp_path


METRICS = "own_metrics.Slow,own_metrics.Slow(factor=2.5)"


def test_a_run_killed_at_random_moments_ends_with_the_same_contents(folder: Path) -> None:
    subprocess.run(command(folder / "in.jsonl", folder / "calm", METRICS, 16), cwd=folder, check=True)
    again = command(folder / "in.jsonl", folder / "killed", METRICS, 16)
    rng, scored = random.Random(1), folder / "scored"
    for _ in range(3):
        run = subprocess.Popen(again, cwd=folder)
        # Three times so many of the 50 shards leave some that are not scored yet.
        wanted = scored.stat().st_size + rng.randint(1, 9)
        while scored.stat().st_size < wanted:
            assert run.poll() is None
            time.sleep(0.01)
        run.kill()
        assert run.wait() == -signal.SIGKILL
    subprocess.run(again, cwd=folder, check=True)
    assert contents(folder / "killed") == contents(folder / "calm")


def test_two_runs_at_once_of_the_same_command_give_the_same_scores(folder: Path) -> None:
    subprocess.run(command(folder / "in.jsonl", folder / "calm", METRICS, 16), cwd=folder, check=True)
    both = [subprocess.Popen(command(folder / "in.jsonl", folder / "both", METRICS, 16), cwd=folder) for _ in range(2)]
    assert [run.wait() for run in both] == [0, 0]
    # Both may have scored the same records: whoever reads them sees each score once.
    assert list(load(folder / "both").rows()) == list(load(folder / "calm").rows())
    scores = [open_run(folder / name).scores().to_pylist() for name in ("both", "calm")]
    assert scores[0] == scores[1]


@pytest.mark.torture
def test_a_hundred_thousand_records_by_six_metrics_survive_ten_kills_in_bounded_memory(
    tmp_path: Path, torture_row: Callable[[str], TortureRow]
) -> None:
    row = torture_row("kill -9: score, lexical metrics")
    metrics = "rouge1,rouge2,rougeL,bleu,chrf,exact"
    write_records(tmp_path / "in.jsonl", 100_000, systems=4)
    began = time.monotonic()
    calm = subprocess.Popen(command(tmp_path / "in.jsonl", tmp_path / "calm", metrics, 1024))
    peak = max(_memory_of(calm), default=0)
    assert calm.returncode == 0
    took = time.monotonic() - began
    again = command(tmp_path / "in.jsonl", tmp_path / "killed", metrics, 1024)
    rng = random.Random(os.getpid())
    for _ in range(10):
        run = subprocess.Popen(again)
        with row.attempt():
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(timeout=rng.uniform(0.02, 0.25) * took)
            run.kill()
            assert run.wait() in (0, -signal.SIGKILL)
    subprocess.run(again, check=True)
    row.compare(contents(tmp_path / "calm"), contents(tmp_path / "killed"))
    print(f"peak memory {peak / 1e6:.0f} MB in {took:.0f} s")
    assert peak < 500e6


def _memory_of(run: subprocess.Popen[bytes]) -> Iterator[int]:
    """The resident memory of a run and its workers, again and again until it ends."""
    while run.poll() is None:
        yield sum(map(_resident, [run.pid, *_children(run.pid)]))
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        threads = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    return []


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
