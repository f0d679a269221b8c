"""A run with a slow model that is killed by kill -9 at any moment goes on from there: what it has computed is on disk
within seconds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from metrist.run import load
from run_contents import count_scores, list_scored
from torture_table import TortureRow

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")

SLOW = "__main__.Slow"
#: A metric with a model that takes its time, and notes each record with the time when it is done. If a last item is
#: named, it never comes beyond that.
PROGRAM = """
import sys, time
from dataclasses import dataclass
import metrist

rows, pause, last = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]

class Slow(metrist.Metric):
    resident = True
    def score_record(self, record):
        time.sleep(pause)
        with open("log", "a") as file:
            file.write(f"{record.item} {time.time()}\\n")
        if record.item == last:
            time.sleep(600)
        return float(record.item)

records = [{"item": str(n), "system": "s", "output": f"text {n}"} for n in range(rows)]
metrist.score(records, [Slow(), "length"], out="run", executor="serial")
"""


def start(folder: Path, rows: int, pause: float, last: int | None = None) -> subprocess.Popen[bytes]:
    (folder / "program.py").write_text(PROGRAM)
    return subprocess.Popen([sys.executable, "program.py", str(rows), str(pause), str(last)], cwd=folder)


def computed(folder: Path) -> dict[str, float]:
    """The items that the metric has scored, with the time of each."""
    log = folder / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return {item: float(moment) for item, moment in map(str.split, lines)}


def wait_for(run: subprocess.Popen[bytes], folder: Path, count: int) -> None:
    """Wait until the run has scored so many records."""
    while len(computed(folder)) < count:
        assert run.poll() is None
        time.sleep(0.01)


def check_loss(folder: Path, killed: float, seconds: float) -> None:
    """Whatever was computed more than some seconds before is there."""
    stored = list_scored(folder / "run", SLOW)
    lost = {item: moment for item, moment in computed(folder).items() if item not in stored}
    assert all(killed - moment < seconds for moment in lost.values()), lost


def test_a_killed_run_with_a_model_loses_seconds_and_resumes(tmp_path: Path) -> None:
    # 0.15 s a record: a task holds about 13 of them, of 60 in one file. The limit is loose, since machines are busy.
    run = start(tmp_path, rows=60, pause=0.15, last=45)
    wait_for(run, tmp_path, 40)
    run.kill()
    run.wait()
    killed = time.time()
    assert list_scored(tmp_path / "run", "length") == {str(n) for n in range(60)}
    assert list(load(tmp_path / "run").scores) == ["length"]
    durable = list_scored(tmp_path / "run", SLOW)
    assert len(durable) >= 10
    check_loss(tmp_path, killed, 30.0)
    (tmp_path / "log").unlink()
    assert start(tmp_path, rows=60, pause=0.0).wait(timeout=100) == 0
    assert set(computed(tmp_path)).isdisjoint(durable)
    assert set(computed(tmp_path)) | durable == {str(n) for n in range(60)}
    assert count_scores(tmp_path / "run", SLOW) == 60
    (tmp_path / "log").unlink()
    assert start(tmp_path, rows=60, pause=0.0).wait(timeout=100) == 0
    assert computed(tmp_path) == {}


def test_an_interrupted_run_stores_everything_that_it_has_computed(tmp_path: Path) -> None:
    run = start(tmp_path, rows=60, pause=0.02, last=20)
    wait_for(run, tmp_path, 10)
    run.send_signal(signal.SIGINT)
    run.wait()
    done = set(computed(tmp_path))
    # The task under way is lost, at most four times as many as all before it.
    assert count_scores(tmp_path / "run", SLOW) >= len(done) // 5


@pytest.mark.torture
def test_ten_kills_at_random_moments_lose_five_seconds_each_at_most(
    tmp_path: Path, torture_row: Callable[[str], TortureRow]
) -> None:
    row = torture_row("kill -9: score, slow model")
    # 120 s of scoring: ten runs of at most 12 s each do not come to the end.
    rng = random.Random(os.getpid())
    for _ in range(10):
        (tmp_path / "log").unlink(missing_ok=True)
        run = start(tmp_path, rows=6000, pause=0.02)
        with row.attempt():
            time.sleep(rng.uniform(2, 12))
            assert run.poll() is None
            run.kill()
            run.wait()
            check_loss(tmp_path, time.time(), 5.0)
    assert start(tmp_path, rows=6000, pause=0.0).wait(timeout=100) == 0
    assert count_scores(tmp_path / "run", SLOW) == 6000
    row.compare(dict.fromkeys(map(str, range(6000))), dict.fromkeys(list_scored(tmp_path / "run", SLOW)))
