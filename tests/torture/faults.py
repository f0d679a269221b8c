"""What the torture tests share: commands in processes, and small disks, judges and records to run them on."""

from __future__ import annotations

import gc
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import metrist
import tiny_models
from fault_server import Act, Mixed, Request, answer
from metrist.errors import MetristError
from metrist.run.removal import plan_removal
from metrist.web.viewed_run import open_view
from torture_table import TortureRow
from web_server import RunningServer

MODEL = """
import os, time
import metrist

FATAL = None

class Model(metrist.Metric):
    resident = True
    def score_record(self, record):
        time.sleep(0.002)
        if record.item == FATAL:
            os.kill(os.getpid(), 9)
        return float(len(record.output))
"""


def command(*arguments: object) -> list[str]:
    """The command line of `metrist …`."""
    return [sys.executable, "-m", "metrist", *map(str, arguments)]


def run(*arguments: object, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """`metrist …` in a process of its own."""
    return subprocess.run(
        command(*arguments),
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        **{"timeout": 600, **options},
    )


def start(*arguments: object, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """The same, under way."""
    environment = {**os.environ, **(env or {})}
    return subprocess.Popen(
        command(*arguments), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def check_clear(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """The command failed with one message of its own, which has these words, and without a traceback."""
    assert done.returncode in (1, 2), (done.returncode, done.stderr[-2000:])
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    assert "Usage:" not in done.stderr, done.stderr[-2000:]
    assert done.stderr.strip(), "no message"
    for word in words:
        assert word.lower() in done.stderr.lower(), done.stderr[-2000:]


def kill_after(process: subprocess.Popen[Any], seconds: float) -> int:
    """Let a process run for some seconds, then end it by kill -9; returns its exit code."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    return process.wait()


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def write_records(path: Path, items: int, systems: int = 2, words: int = 12) -> Path:
    """Records with references, the same for the same numbers."""
    rng = random.Random(7)
    vocabulary = [f"w{n}" for n in range(2000)]
    with path.open("w") as file:
        for item in range(items):
            reference = " ".join(rng.choices(vocabulary, k=words))
            for system in range(systems):
                output = " ".join([*reference.split()[: words // 2], *rng.choices(vocabulary, k=words // 2)])
                row = {"item": f"i{item}", "system": f"s{system}", "source": reference, "output": output}
                file.write(json.dumps({**row, "references": [reference]}) + "\n")
    return path


def write_scored(path: Path, start: int, stop: int) -> Path:
    """Records of three systems with scores, for a leaderboard."""
    rows = (
        {"item": f"i{item}", "system": system, "output": "x", "scores": {"m": (item * (place + 2)) % 7 + place}}
        for item in range(start, stop)
        for place, system in enumerate("abc")
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metric `models.Model`, whose results are logged; it ends its process at the item `FATAL`."""
    (folder / "models.py").write_text(MODEL)
    monkeypatch.syspath_prepend(folder)


def make_training(folder: Path, *, pairs: int = 24, epochs: int = 2) -> list[object]:
    """`train …` for a short training with checkpoints, up to its last option, the folder."""
    rng = random.Random(3)
    texts = [{"first": " ".join(rng.choices(tiny_models.WORDS, k=8)), "second": f"cat {n % 7}"} for n in range(pairs)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in texts))
    options = ["--epochs", epochs, "--lr", "0.01", "--batch", 4, "--checkpoint-every", 2, "--out"]
    base = tiny_models.save("bart", folder / "base")
    return ["train", "likelihood", "--data", folder / "pairs.jsonl", "--base", base, *options]


@contextmanager
def serve(*options: str, workers: int = 2, token: str = "") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`metrist serve` in processes of its own, once it is ready, with its port. What is left of it ends with the
    block."""
    arguments = ("serve", "-m", "length", "--port", "0", "--log", "off", "--workers", workers, *options)
    environment = {**os.environ, "METRIST_SERVE_TOKENS": token}
    with subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().strip().rpartition(":")[2])
            wait_for(lambda: get_readiness(port) == 200)
            yield process, port
        finally:
            process.kill()


def get_readiness(port: int) -> int:
    """The status of a service's readiness; 0 where nobody listens."""
    with suppress(OSError):
        return RunningServer(port).ask("/readyz").status
    return 0


def end_service(process: subprocess.Popen[str]) -> None:
    """End a service by SIGTERM."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


# ---- Readers of a run

Scored = dict[tuple[str, str, str], float]


def _list_by_load(folder: Path) -> Scored:
    rows = metrist.load(folder).rows()
    return {(row["item"], row["system"], row["metric"]): row["value"] for row in rows if row["value"] is not None}


def _list_by_view(folder: Path) -> Scored:
    with closing(open_view(folder)) as view:
        metrics = [metric.label for metric in view.results.metrics]
        keys = [view.key(row) for row in range(len(view))]
        columns = {metric: view.numbers[metric].tolist() for metric in metrics}
    found = {(*key, metric): columns[metric][n] for metric in metrics for n, key in enumerate(keys)}
    return {key: value for key, value in found.items() if value == value}


def _list_by_query(folder: Path) -> Scored:
    query = "SELECT item, system, metric, value FROM scores WHERE value IS NOT NULL AND item IS NOT NULL"
    return {
        (*row[:3],): row[3] for row in zip(*metrist.open_run(folder).query(query).to_pydict().values(), strict=True)
    }


def list_scores(folder: Path) -> Scored:
    """The scores of a whole run, also by the parts of metrics."""
    return {**_list_by_query(folder), **_list_by_load(folder)}


def _plan_removal(folder: Path) -> Scored:
    plan_removal(folder, unused=True)
    return {}


def check_readers(row: TortureRow, expected: Scored, folder: Path) -> int:
    """Whoever reads a killed or damaged run sees right scores or has an error of metrist's own; returns how many had
    one."""
    refused = 0
    for read in (_list_by_load, _list_by_view, _list_by_query, _plan_removal):
        try:
            found = read(folder)
        except MetristError:
            refused += 1
        else:
            row.compare({key: expected.get(key) for key in found}, found)
    gc.collect()  # A run that is open keeps parts from being deleted.
    return refused


# ---- Judges


class JudgeServer(Mixed):
    """Grades by the prompt's length, and chooses A, over the faults of `Mixed`; counts the whole answers by prompt."""

    def __init__(self, seed: int, *, faulty: bool = True, pause: float = 0.02) -> None:
        super().__init__(seed)
        self.answered: Counter[str] = Counter()
        self.faulty, self.pause = faulty, pause

    def __call__(self, request: Request) -> Act:
        marks = re.findall(r'"id": "(\w+)"', request.prompt)
        if not marks:  # The client's first question, which no metric asks.
            return answer("yes")
        grade = 1 + len(request.prompt) % 3
        grades = {"naturalness": grade, "relatedness": 3, "correctness": grade, "better": "A"}
        good = answer(json.dumps({"reasons": "Because.", **grades, "id": marks[-1]}))
        act = self._choose(good) if self.faulty else good
        if act.name == "answered":
            self.answered[request.prompt] += 1
        return Act(act.data, max(act.after, self.pause), act.closes, act.name)


# ---- Disks and users


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """A file system of this size at a folder; needs root."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def resize_disk(folder: Path, kilobytes: int) -> None:
    """Give a small disk another size."""
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", folder], check=True)


def fill(folder: Path, *, leave: int = 0) -> Path:
    """Fill the disk of a folder but for some bytes; removing the file that is returned frees it again."""
    path = folder / ".ballast"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    size = path.stat().st_size
    os.truncate(path, max(0, size - leave))
    return path
