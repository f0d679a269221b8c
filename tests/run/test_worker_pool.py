"""Worker processes: results do not depend on their number, no loss when one dies, none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from loky.backend.resource_tracker import ensure_running

from error_codes import raises_code
from metrist.errors import ErrorCode, RunError
from metrist.metrics.base import Metric
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.run import executors
from metrist.run.executors import Adaptive, Executor, Processes, Serial, Task, choose_executor
from metrist.runtime import count_cores
from metrist.scores import Scores

Module = Callable[[str], ModuleType]

METRIC = """
@dataclass(frozen=True)
class Mine(Metric):
    folder: str = ""
    def score(self, shard):
        {body}
        return Scores.of(float(len(r.output)) for r in shard.records)
"""


def tasks(count: int, metric: Metric, size: int = 3) -> Iterator[Task]:
    for n in range(count):
        records = tuple(
            Record(item=f"{n}-{k}\ud800", system="s", output="o" * (n + k), references=("o",)) for k in range(size)
        )
        yield Task(start=n * size, units=records, metrics=(metric.text,))


def outcome(executor: Executor, metric: Metric, count: int) -> list[tuple[int, list[float]]]:
    done = executor.map([metric], tasks(count, metric))
    return [(d.start, cast(Scores, o.block).values.tolist()) for d in done for o in d.outcomes.values()]


def has_ended(pid: int) -> bool:
    """Whether a process has ended, given some time to do so."""
    for _ in range(1200):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def test_results_do_not_depend_on_the_number_of_workers(module: Module) -> None:
    metric = module(METRIC.format(body="time.sleep(0.01 * (len(shard.records[0].output) % 3))")).Mine()
    expected = outcome(Serial(), metric, 9)
    assert [start for start, *_ in expected] == list(range(0, 27, 3))
    assert outcome(Processes(workers=2), metric, 9) == expected
    assert outcome(Processes(workers=3), metric, 9) == expected


def test_a_single_task_starts_no_worker(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "WorkerPool", None)
    metric = module(METRIC.format(body="")).Mine()
    assert len(outcome(Processes(workers=4), metric, 1)) == 1
    assert outcome(Processes(workers=4), metric, 0) == []
    assert len(outcome(Processes(workers=1), metric, 3)) == 3


def test_few_tasks_are_read_ahead(module: Module) -> None:
    metric = module(METRIC.format(body="")).Mine()
    consumed = []

    def counted() -> Iterator[Task]:
        for task in tasks(50, metric):
            consumed.append(task)
            yield task

    done = Processes(workers=2).map([metric], counted())
    assert isinstance(done, Generator)
    next(done)
    assert len(consumed) <= 5
    done.close()


#: Each task waits until as many workers as that have begun one.
BUSY = """
        open(f'{{self.folder}}/{{os.getpid()}}.pid', 'w').close()
        until = time.monotonic() + 2  # A busy machine may add the next worker after a later task only.
        while len([name for name in os.listdir(self.folder) if name.endswith('.pid')]) < {workers}:
            if time.monotonic() > until: break
            time.sleep(0.01)
"""


def test_another_worker_is_started_only_while_the_run_waits(
    module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metrist.run.executors.GROW_AFTER", 0.02)
    monkeypatch.setattr("metrist.run.executors.FIRST_WORKERS", 1)
    metric = module(METRIC.format(body=BUSY.format(workers=3))).Mine(str(tmp_path))
    assert len(outcome(Processes(workers=3), metric, 12)) == 12
    assert len(list(tmp_path.glob("*.pid"))) == 3


def test_a_run_that_need_not_wait_keeps_to_its_first_workers(
    module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metrist.run.executors.GROW_AFTER", 600.0)
    monkeypatch.setattr("metrist.run.executors.FIRST_WORKERS", 2)
    metric = module(METRIC.format(body=BUSY.format(workers=2))).Mine(str(tmp_path))
    assert len(outcome(Processes(workers=9), metric, 12)) == 12
    assert len(list(tmp_path.glob("*.pid"))) == 2


def test_a_worker_that_dies_is_replaced_once(module: Module, tmp_path: Path) -> None:
    body = (
        "mark = self.folder + '/died'\n        if shard.records[0].item.startswith('2') and not os.path.exists(mark):\n"
    )
    body += "            open(mark, 'w').close(); os.kill(os.getpid(), signal.SIGKILL)"
    metric = module(METRIC.format(body=body)).Mine(folder=str(tmp_path))
    outcomes = outcome(Processes(workers=2), metric, 6)
    assert (tmp_path / "died").exists()
    assert outcomes == outcome(Serial(), metric, 6)


def test_records_on_which_workers_keep_dying_are_named(module: Module) -> None:
    body = "if shard.records[0].item.startswith('1'): os.kill(os.getpid(), signal.SIGKILL)"
    metric = module(METRIC.format(body=body)).Mine()
    with raises_code(RunError, "worker_died", "records 4 to 6", "item '1-0", "item '1-2", "signal 9"):
        outcome(Processes(workers=2), metric, 4)


def test_a_worker_that_exits_is_distinguished_from_a_killed_one(module: Module) -> None:
    metric = module(METRIC.format(body="os._exit(3)")).Mine()
    with raises_code(RunError, "worker_died", "1", "3"):
        outcome(Processes(workers=2), metric, 4)


def test_an_exception_of_a_metric_is_raised_with_its_traceback(module: Module) -> None:
    metric = module(METRIC.format(body="if shard.records[0].item.startswith('2'): {}['oh']")).Mine()
    with raises_code(RunError, "metric_failed", "own_metrics.Mine", "3") as caught:
        outcome(Processes(workers=2), metric, 6)
    assert "own_metrics.py" in caught.value.__notes__[0]


def test_exceptions_with_any_constructor_are_raised(module: Module) -> None:
    source = """
from metrist.errors import MetristError
class Odd(MetristError):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")
"""
    metric = module(source + METRIC.format(body="raise Odd(1, 2)")).Mine()
    with pytest.raises(RunError, match="Odd: 1 and 2"):
        outcome(Processes(workers=2), metric, 2)


def test_a_worker_that_cannot_be_started_is_reported(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_running()  # loky's own helper process is not the one that is missing.
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    metric = module(METRIC.format(body="")).Mine()
    with raises_code(RunError, "worker_died", "255"):
        outcome(Processes(workers=2), metric, 2)


def test_a_metric_may_print_and_read_standard_input(module: Module, capfd: pytest.CaptureFixture[str]) -> None:
    metric = module(METRIC.format(body="import sys; print('hello'); os.write(1, b'raw'); assert not sys.stdin.read()"))
    assert len(outcome(Processes(workers=2), metric.Mine(), 3)) == 3
    assert "hello" in capfd.readouterr().err


def test_workers_know_path_folder_and_use_one_thread_each(
    module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("PYTHONPATH", "mine")
    body = """
        assert os.getcwd() == self.folder
        assert os.environ['OMP_NUM_THREADS'] == '1'
        assert os.environ['PYTHONPATH'] == 'mine'
"""
    metric = module(METRIC.format(body=body)).Mine(folder=os.getcwd())
    assert len(outcome(Processes(workers=2), metric, 3)) == 3


def test_workers_end_when_the_run_stops_listening(module: Module, tmp_path: Path) -> None:
    metric = module(METRIC.format(body="open(f'{self.folder}/{os.getpid()}.pid', 'w').close()")).Mine(str(tmp_path))
    before = set(threading.enumerate())  # Those of other tests may still be ending.
    done = Processes(workers=2).map([metric], tasks(20, metric))
    assert isinstance(done, Generator)
    next(done)
    done.close()
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert pids
    assert all(map(has_ended, pids))
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("metrist")]


SCRIPT = """
import own_metrics
from metrist.run.executors import Processes, Task
from metrist.records import Record
metric = own_metrics.Mine(folder={folder!r})
tasks = (Task(start=n, units=(Record(item=str(n), system="s", output=""),), metrics=(metric.text,))
         for n in range(100))
for done in Processes(workers=2).map([metric], tasks):
    pass
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_a_run_that_is_ended_from_outside(
    module: Module, tmp_path: Path, how: int, popen: Callable[..., subprocess.Popen[bytes]]
) -> None:
    module(METRIC.format(body="open(f'{self.folder}/{os.getpid()}.pid', 'w').close(); time.sleep(600)"))
    script = [sys.executable, "-c", SCRIPT.format(folder=str(tmp_path))]
    run = popen(script, cwd=tmp_path, stderr=subprocess.PIPE)
    while len(pids := [int(path.stem) for path in tmp_path.glob("*.pid")]) < 2:
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(how)
    _, errors = run.communicate(timeout=60)
    assert all(map(has_ended, pids))
    assert (b"KeyboardInterrupt" in errors) == (how == signal.SIGINT)


def test_a_metric_of_the_main_program_stays_in_its_process(tmp_path: Path) -> None:
    body = """
from dataclasses import dataclass
from metrist import Metric, Scores
from metrist.run import score
print("started")
@dataclass(frozen=True)
class Mine(Metric):
    def score(self, shard):
        return Scores.of(1.0 for _ in shard.records)
rows = [{"item": str(n), "system": "s", "output": ""} for n in range(10)]
results = score(rows, [Mine()], executor="processes", shard_size=2)
print(results.notes[0])
"""
    (tmp_path / "program.py").write_text(body)
    out = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert out.stdout.splitlines() == [
        "started",
        "__main__.Mine cannot be sent to worker processes and was scored in this one: define it in a module that can "
        "be imported to use all cores",
    ]


def test_a_metric_that_cannot_be_pickled_is_reported(module: Module) -> None:
    metric = module(METRIC.format(body="")).Mine()
    stuck = Record(item="i", system="s", output="", extra={"f": lambda: 0})
    both = [Task(start=n, units=(stuck,), metrics=(metric.text,)) for n in range(2)]
    with raises_code(RunError, "unsupported", "1", "'serial'"):
        list(Processes(workers=2).map([metric], both))


def test_a_module_that_workers_cannot_import_is_reported(module: Module, tmp_path: Path) -> None:
    metric = module(METRIC.format(body="")).Mine()
    (tmp_path / "own_metrics.py").unlink()
    with raises_code(RunError, "run_failed", "metrics"):
        outcome(Processes(workers=2), metric, 2)


def test_the_executor_is_chosen_by_word_object_or_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = build("length")
    assert choose_executor("serial", [metric]) == (Serial(), [])
    assert choose_executor("processes", [metric]) == (Processes(), [])
    assert choose_executor(Processes(workers=3), [metric]) == (Processes(workers=3), [])
    monkeypatch.setattr("metrist.run.executors.count_cores", lambda: 8)
    assert choose_executor(None, [metric])[0] == Adaptive()
    monkeypatch.setattr("metrist.run.executors.count_cores", lambda: 1)
    assert choose_executor(None, [metric])[0] == Serial()
    assert count_cores() >= 1


@pytest.mark.parametrize(
    ("executor", "code", "name"), [("proceses", "unknown_name", "'processes'?"), (3, "invalid_value", "int")]
)
def test_an_unknown_executor_is_refused(executor: Any, code: ErrorCode, name: str) -> None:
    with raises_code(RunError, code, name):
        choose_executor(executor, [build("length")])


def test_a_run_needs_a_worker() -> None:
    with raises_code(RunError, "invalid_value", "0"):
        Processes(workers=0)
