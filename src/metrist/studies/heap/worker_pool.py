"""Several trainings at once: worker processes that take orders from one list, or none and all is done here."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from metrist.errors import MetristError
from metrist.studies.heap.callbacks import OneOf, StudyWatcher
from metrist.studies.heap.jobs import Order
from metrist.studies.heap.training import run
from metrist.train.task import Evaluation, TrainingProgress

#: A worker that is told to stop writes a checkpoint first; one that takes longer is ended.
_PATIENCE = 120.0

Failures = dict[str, str]


class WorkerPool:
    """Does orders, `at_once` of them at a time; its workers stay until it is left. One at a time is done right here.

    A training that fails does not stop the others. Leaving by an exception, such as Ctrl-C, stops what is under way.
    """

    def __init__(self, folder: Path, at_once: int, watcher: StudyWatcher) -> None:
        self._at_once = at_once
        self._watcher = watcher
        self._logs = folder / "workers"
        self._telling = threading.Lock()
        self._stopping = threading.Event()
        self._workers: dict[int, subprocess.Popen[str]] = {}
        self._failures: Failures = {}

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for worker in self._workers.values():
                worker.terminate()
        for worker in self._workers.values():
            _stop_worker(worker)

    def do(self, orders: Sequence[Order]) -> Failures:
        """Do all orders that are not finished; gives the names of those that failed, with the reason. The costly ones
        come first, so that none of them is left over at the end."""
        left = [order for order in orders if order.result() is None]
        self._watcher.planned(len(orders), len(orders) - len(left))
        left.sort(key=lambda order: -len(order.job.learns))
        self._failures = {}
        if self._at_once == 1:
            self._do_here(left)
        elif left:
            self._do_beside(left)
        return self._failures

    def _do_here(self, orders: Sequence[Order]) -> None:
        for order in orders:
            self._tell({"event": "started"}, order)
            began = time.monotonic()
            try:
                run(order, OneOf(order.name, self._watcher))
            except MetristError as fault:
                self._tell({"event": "failed", "reason": str(fault)}, order)
            except Exception as fault:  # Any fault of one training is told, and the next one is begun.
                self._tell({"event": "failed", "reason": f"{type(fault).__name__}: {fault}"}, order)
            else:
                self._tell({"event": "finished", "seconds": time.monotonic() - began}, order)

    def _do_beside(self, orders: Sequence[Order]) -> None:
        waiting: queue.SimpleQueue[Order] = queue.SimpleQueue()
        for order in orders:
            waiting.put(order)
        self._logs.mkdir(parents=True, exist_ok=True)
        count = min(self._at_once, len(orders))
        threads = [threading.Thread(target=self._mind, args=(number, waiting)) for number in range(count)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)  # A join without an end would not let Ctrl-C through.
        except BaseException:
            self._stopping.set()
            raise

    def _mind(self, number: int, waiting: queue.SimpleQueue[Order]) -> None:
        """Give one worker order after order; a worker that died is replaced for the next one."""
        log = self._logs / f"worker-{number}.log"
        while not self._stopping.is_set():
            try:
                order = waiting.get_nowait()
            except queue.Empty:
                return
            worker = self._workers.get(number)
            if worker is None or worker.poll() is not None:
                worker = self._workers[number] = self._start_worker(log)
            self._fulfil(worker, order, log)

    def _start_worker(self, log: Path) -> subprocess.Popen[str]:
        cores = max(1, (os.cpu_count() or 1) // self._at_once)
        with log.open("a", encoding="utf-8") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "metrist.studies.heap.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env={"OMP_NUM_THREADS": str(cores), **os.environ},
                start_new_session=True,  # Ctrl-C is told to the study, which tells its workers once.
            )

    def _fulfil(self, worker: subprocess.Popen[str], order: Order, log: Path) -> None:
        assert worker.stdin is not None
        assert worker.stdout is not None
        self._tell({"event": "started"}, order)
        with suppress(OSError):  # It died; there is nothing to read then, and that is told below.
            worker.stdin.write(json.dumps(order.to_dict()) + "\n")
            worker.stdin.flush()
        for line in worker.stdout:
            event = json.loads(line)
            self._tell(event, order)
            if event["event"] in ("finished", "failed"):
                return
        if not self._stopping.is_set():
            reason = f"the process that trained it ended with {worker.wait()}; its last words are in {log}"
            self._tell({"event": "failed", "reason": reason}, order)

    def _tell(self, event: Mapping[str, Any], order: Order) -> None:
        with self._telling:
            facts = {key: value for key, value in event.items() if key != "event"}
            if event["event"] == "failed":
                self._failures[order.name] = facts["reason"]
            _pass_on(self._watcher, order.name, str(event["event"]), facts)


def _pass_on(watcher: StudyWatcher, name: str, event: str, facts: dict[str, Any]) -> None:
    match event:
        case "started":
            watcher.started(name)
        case "moved":
            watcher.on_progress(name, TrainingProgress(**facts))
        case "evaluated":
            watcher.on_evaluation(name, Evaluation(step=facts["step"], figure=facts["figure"]), facts["name"])
        case "message":
            watcher.on_message(f"{name}: {facts['remark']}")
        case "finished":
            watcher.finished(name, facts["seconds"])
        case "failed":
            watcher.failed(name, facts["reason"])


def _stop_worker(worker: subprocess.Popen[str]) -> None:
    """Let a worker go; one that was told to stop writes a checkpoint first."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    with suppress(OSError):
        worker.stdin.close()
    try:
        worker.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
    worker.stdout.close()
