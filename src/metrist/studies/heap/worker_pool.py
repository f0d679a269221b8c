"""Run trainings in worker processes, or one by one in this process.

This is not a `concurrent.futures` pool because a training takes hours: its progress must be visible, one crash must not
lose the others, and a worker must write a checkpoint before it stops, also if the study's process was killed.

A worker is `python -m metrist.studies.heap.worker_pool`. It reads requests as lines of JSON from standard input and
writes events as lines of JSON to standard output. When standard input ends, the worker stops, after a checkpoint if a
training is running.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from metrist.errors import MetristError
from metrist.studies.heap.jobs import TrainingRequest
from metrist.studies.heap.training import train_request
from metrist.train.task import Evaluation, TrainingProgress

#: Seconds that a worker may take to write a checkpoint and stop; then it is killed.
_STOP_TIMEOUT = 120.0

#: The names of failed trainings, with the reason.
Failures = dict[str, str]


class StudyCallback(Protocol):
    """Receives the events of all trainings by name, in the process of the study, never from two threads at once."""

    def on_plan(self, count: int, finished: int) -> None:
        """`count` trainings are requested, of which `finished` were finished before."""
        ...

    def on_start(self, name: str) -> None: ...

    def on_progress(self, name: str, progress: TrainingProgress) -> None: ...

    def on_evaluation(self, name: str, evaluation: Evaluation, figure: str) -> None: ...

    def on_finish(self, name: str, seconds: float) -> None: ...

    def on_failure(self, name: str, reason: str) -> None: ...

    def on_message(self, text: str) -> None: ...


class NoStudyCallback:
    """Ignores all events."""

    def on_plan(self, count: int, finished: int) -> None:
        pass

    def on_start(self, name: str) -> None:
        pass

    def on_progress(self, name: str, progress: TrainingProgress) -> None:
        pass

    def on_evaluation(self, name: str, evaluation: Evaluation, figure: str) -> None:
        pass

    def on_finish(self, name: str, seconds: float) -> None:
        pass

    def on_failure(self, name: str, reason: str) -> None:
        pass

    def on_message(self, text: str) -> None:
        pass


class TrainingPool:
    """Runs trainings, `at_once` of them at a time; workers stay until the pool is closed. With `at_once` 1, trainings
    run in this process.

    A training that fails does not stop the others. Leaving by an exception, such as Ctrl-C, stops running trainings.
    """

    def __init__(self, folder: Path, at_once: int, callback: StudyCallback) -> None:
        self._at_once = at_once
        self._callback = callback
        self._logs = folder / "workers"
        self._callback_lock = threading.Lock()
        self._stopping = threading.Event()
        self._workers: dict[int, subprocess.Popen[str]] = {}
        self._failures: Failures = {}

    def __enter__(self) -> TrainingPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for worker in self._workers.values():
                worker.terminate()
        for worker in self._workers.values():
            _stop_worker(worker)

    def run(self, requests: Sequence[TrainingRequest]) -> Failures:
        """Run all requests that are not finished, and return those that failed. Expensive trainings come first, so that
        none of them runs alone at the end."""
        pending = [request for request in requests if request.read_result() is None]
        self._callback.on_plan(len(requests), len(requests) - len(pending))
        pending.sort(key=lambda request: -len(request.job.learns))
        self._failures = {}
        if self._at_once == 1:
            for request in pending:
                self._report(request, {"event": "start"})
                _run_request(request, partial(self._report, request))
        elif pending:
            self._run_in_workers(pending)
        return self._failures

    def _run_in_workers(self, requests: Sequence[TrainingRequest]) -> None:
        pending: queue.SimpleQueue[TrainingRequest] = queue.SimpleQueue()
        for request in requests:
            pending.put(request)
        self._logs.mkdir(parents=True, exist_ok=True)
        count = min(self._at_once, len(requests))
        threads = [threading.Thread(target=self._supervise, args=(number, pending)) for number in range(count)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)  # A join without a timeout would block Ctrl-C.
        except BaseException:
            self._stopping.set()
            raise

    def _supervise(self, number: int, pending: queue.SimpleQueue[TrainingRequest]) -> None:
        """Send requests to one worker; a worker that died is replaced for the next request."""
        log = self._logs / f"worker-{number}.log"
        while not self._stopping.is_set():
            try:
                request = pending.get_nowait()
            except queue.Empty:
                return
            worker = self._workers.get(number)
            if worker is None or worker.poll() is not None:
                worker = self._workers[number] = self._start_worker(log)
            self._run_in_worker(worker, request, log)

    def _start_worker(self, log: Path) -> subprocess.Popen[str]:
        cores = max(1, (os.cpu_count() or 1) // self._at_once)
        with log.open("a", encoding="utf-8") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "metrist.studies.heap.worker_pool"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env={"OMP_NUM_THREADS": str(cores), **os.environ},
                start_new_session=True,  # Ctrl-C reaches the study only, which stops its workers once.
            )

    def _run_in_worker(self, worker: subprocess.Popen[str], request: TrainingRequest, log: Path) -> None:
        assert worker.stdin is not None
        assert worker.stdout is not None
        self._report(request, {"event": "start"})
        with suppress(OSError):  # The worker died: there is no output either, which is reported below.
            worker.stdin.write(json.dumps(request.to_dict()) + "\n")
            worker.stdin.flush()
        for line in worker.stdout:
            event = json.loads(line)
            self._report(request, event)
            if event["event"] in _FINAL_EVENTS:
                return
        if not self._stopping.is_set():
            reason = f"its worker process ended with exit code {worker.wait()}; see {log}"
            self._report(request, {"event": "failure", "reason": reason})

    def _report(self, request: TrainingRequest, event: Mapping[str, Any]) -> None:
        name, callback = request.name, self._callback
        facts = {key: value for key, value in event.items() if key != "event"}
        with self._callback_lock:
            match event["event"]:
                case "start":
                    callback.on_start(name)
                case "progress":
                    callback.on_progress(name, TrainingProgress(**facts))
                case "evaluation":
                    evaluation = Evaluation(step=facts["step"], figure=facts["figure"])
                    callback.on_evaluation(name, evaluation, facts["name"])
                case "message":
                    callback.on_message(f"{name}: {facts['text']}")
                case "finish":
                    callback.on_finish(name, facts["seconds"])
                case "failure":
                    self._failures[name] = facts["reason"]
                    callback.on_failure(name, facts["reason"])


def _stop_worker(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    with suppress(OSError):
        worker.stdin.close()
    try:
        worker.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
    worker.stdout.close()


# What runs a request, in this process or in a worker.

Event = dict[str, Any]
_FINAL_EVENTS = ("finish", "failure")


@dataclass(frozen=True, slots=True)
class _EventSender:
    """Turns the callbacks of a training into events."""

    send: Callable[[Event], None]

    def on_progress(self, progress: TrainingProgress) -> None:
        self.send({"event": "progress", **asdict(progress)})

    def on_evaluation(self, evaluation: Evaluation, name: str) -> None:
        self.send({"event": "evaluation", "name": name, **asdict(evaluation)})

    def on_message(self, text: str) -> None:
        self.send({"event": "message", "text": text})


def _run_request(request: TrainingRequest, send: Callable[[Event], None]) -> None:
    started = time.monotonic()
    try:
        train_request(request, _EventSender(send))
    except MetristError as error:
        send({"event": "failure", "reason": str(error)})
    except Exception as error:  # Whatever the error, the next training starts.
        send({"event": "failure", "reason": f"{type(error).__name__}: {error}"})
    else:
        send({"event": "finish", "seconds": time.monotonic() - started})


def main() -> None:
    """Run requests from standard input."""
    # Libraries may print to standard output, so events get a copy of it and prints go to standard error.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: queue.Queue[str | None] = queue.Queue()
    idle = threading.Event()
    idle.set()

    def send(event: Event) -> None:
        if event["event"] in _FINAL_EVENTS:
            idle.set()  # Before the event is written: the next request may arrive at once and clears it.
        output.write(json.dumps(event) + "\n")
        output.flush()

    threading.Thread(target=_read_requests, args=(requests, idle), daemon=True).start()
    while (line := requests.get()) is not None:
        try:
            _run_request(TrainingRequest.from_dict(json.loads(line)), send)
        except KeyboardInterrupt as error:
            sys.exit(str(error))


def _read_requests(requests: queue.Queue[str | None], idle: threading.Event) -> None:
    for line in sys.stdin:
        idle.clear()
        requests.put(line)
    requests.put(None)
    if not idle.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
