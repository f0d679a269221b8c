"""A process that dies between any two steps of writing a run folder: at every open, rename and deletion."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metrist import Metric, Record
from metrist.errors import RunError
from metrist.run import load, score, stored_pipeline
from metrist.run.manifest import LOG
from metrist.run.prefer import prefer
from metrist.run.store import Store
from run_contents import contents

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes that die")

#: What Python tells an audit hook of the steps at which a process can be killed.
STEPS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
KILLED = 9


class Odd(Metric):
    """Costs something, and fails for a reason that stays."""

    def score_record(self, record: Record) -> float | None:
        return None if record.item == "1" else float(len(record.output))


def write_rows(path: Path, count: int, **columns: Any) -> None:
    rows = [{"item": str(n), "output": "x" * (n + 1), "ratings": {"good": n}, **columns} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def add_first(folder: Path) -> None:
    score(folder / "a.jsonl", [Odd()], out=folder / "run", executor="serial", shard_size=2)


def add_second(folder: Path) -> None:
    """Another input, and a metric for it alone."""
    score(folder / "b.jsonl", [Odd(), "length(unit='characters')"], out=folder / "run", executor="serial", shard_size=2)


def change(folder: Path) -> None:
    """Other texts in a file that was scored."""
    write_rows(folder / "a.jsonl", 2, output="other")
    add_first(folder)


def add_rows(folder: Path, rating: int = 1) -> None:
    rows = [{"item": str(n), "system": "m", "output": "x", "ratings": {"good": rating}} for n in range(2)]
    score(rows, ["length"], out=folder / "run", executor="serial")


def rate_again(folder: Path) -> None:
    """The same rows in memory with other ratings."""
    add_rows(folder, 2)


def choose(folder: Path) -> None:
    pairs = [{"item": str(n), "system": s, "output": s * (n + 1)} for n in range(2) for s in ("a", "bb")]
    prefer(pairs, ["by_score(metric=length, better='higher')"], out=folder / "run", executor="serial")


#: What is done before, and what a process dies of.
CASES: dict[str, tuple[list[Callable[[Path], None]], Callable[[Path], None]]] = {
    "new": ([], add_first),
    "added": ([add_first], add_second),
    "changed": ([add_first, add_second], change),
    "rated": ([add_first, add_rows], rate_again),
    "pairs": ([add_first], choose),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files to be scored. All results are logged at once, go into parts at once, and small parts are merged."""
    monkeypatch.setattr(stored_pipeline, "_COSTLY_SECONDS", 0.0)
    monkeypatch.setattr(stored_pipeline, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(stored_pipeline, "_LOGGED_SECONDS", 0.0)
    monkeypatch.setattr(stored_pipeline, "_FEW_PARTS", 1)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # A process dies here, not the machine.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    write_rows(tmp_path / "base" / "a.jsonl", 3)
    write_rows(tmp_path / "base" / "b.jsonl", 2)
    return tmp_path


def die_at(step: int, work: Callable[[], None], folder: Path) -> int:
    """Do the work in a process that dies at the n-th step in this folder; returns its exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    left = step

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event in STEPS and str(arguments[0]).startswith(str(folder)):
            if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
                return
            left -= 1
            if left < 0:
                os._exit(KILLED)

    sys.addaudithook(watch)
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def check_files(run: Path) -> None:
    """Nothing is left that the manifest does not list."""
    manifest = Store(run).read_manifest()
    assert manifest is not None
    found = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    exported = {name for name in found if name.startswith("exports/") and name.endswith(".jsonl")}
    assert found - exported == {*manifest.list_parts(), "manifest.json", ".lock", ".writers"}


def read_values(run: Path) -> dict[tuple[str, str, str], float]:
    """All scores that can be read; none where the folder says that it is not finished."""
    try:
        results = load(run)
    except RunError as error:
        if not re.search("holds no finished metric|there is no run|has no manifest", str(error)):
            raise
        return {}
    names = list(zip(results.items, results.systems, strict=True))
    columns = results.scores.items()
    return {
        (text, *name): value
        for text, scores in columns
        for n, (name, value) in enumerate(zip(names, scores.values.tolist(), strict=True))
        if n not in scores.failures
    }


@pytest.mark.parametrize("case", CASES)
def test_whatever_the_step_the_same_command_ends_with_the_same(folder: Path, case: str) -> None:
    before, work = CASES[case]
    for earlier in before:
        earlier(folder / "base")
    work_folder, run = folder / "work", folder / "work" / "run"

    def begin() -> None:
        shutil.rmtree(work_folder, ignore_errors=True)
        shutil.copytree(folder / "base", work_folder)

    begin()
    work(work_folder)
    expected, values = contents(run), read_values(run)
    check_files(run)
    earlier_values = read_values(folder / "base" / "run") if before else {}
    for step in range(0, 1000, 7):  # tests/torture kills before every one.
        begin()
        code = die_at(step, lambda: work(work_folder), run)
        assert code in (0, KILLED), step
        found = read_values(run)
        if case != "changed":
            assert found.items() >= earlier_values.items(), step
        assert found.items() <= values.items() | earlier_values.items(), step
        work(work_folder)
        assert contents(run) == expected, step
        check_files(run)
        if code == 0:
            break
    assert step > 10


def test_a_log_that_ends_anywhere_gives_its_whole_results(folder: Path) -> None:
    base = folder / "base"
    names = iter(range(1000))

    def work() -> None:
        add_first(base)

    while die_at(step := next(names), work, base / "run") == KILLED:
        logs = list((base / "run" / LOG).glob("*.log")) if (base / "run").exists() else []
        if logs and logs[0].stat().st_size:
            break
        shutil.rmtree(base / "run", ignore_errors=True)
    (log,) = logs
    data = log.read_bytes()
    shutil.copytree(base, folder / "calm")
    add_first(folder / "calm")
    expected = contents(folder / "calm" / "run")
    for size in [*range(0, len(data), len(data) // 5), len(data)]:
        for damaged in (data[:size], data[:size] + bytes(40), data[:size] + data[size + 1 :], data[:size] * 2):
            shutil.copytree(base, folder / "copy")
            (folder / "copy" / "run" / LOG / log.name).write_bytes(damaged)
            add_first(folder / "copy")
            assert contents(folder / "copy" / "run") == expected, (step, size)
            check_files(folder / "copy" / "run")
            shutil.rmtree(folder / "copy")
