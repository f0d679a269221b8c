"""Run the trainings of a study in worker processes, or one by one in this process.

A training takes hours: its progress is visible, one crash does not lose the others, and a worker writes a checkpoint
before it stops, also if the study's process is killed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from metrist.errors import MetristError
from metrist.run.worker_pool import WorkerDied, WorkerPool, send_event
from metrist.studies.heap.jobs import TrainingRequest
from metrist.studies.heap.training import train_request
from metrist.train.task import Evaluation, TrainingProgress

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


#: An event of a training, as a method of `StudyCallback` and its arguments after the name.
Event = tuple[str, tuple[object, ...]]


class TrainingPool:
    """Runs trainings, `at_once` of them at a time; workers stay until the pool is closed. With `at_once` 1, trainings
    run in this process.

    A training that fails does not stop the others. Leaving by an exception, such as Ctrl-C, stops running trainings.
    """

    def __init__(self, folder: Path, at_once: int, callback: StudyCallback) -> None:
        self._at_once = at_once
        self._callback = callback
        self._callback_lock = threading.Lock()
        self._logs = folder / "workers"
        threads = max(1, (os.cpu_count() or 1) // at_once)
        self._workers = WorkerPool(places=at_once, threads=threads, logs=self._logs, interrupt=True)
        self._failures: Failures = {}

    def __enter__(self) -> TrainingPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.stop()

    def run(self, requests: Sequence[TrainingRequest]) -> Failures:
        """Run all requests that are not finished, and return those that failed. Expensive trainings come first, so that
        none of them runs alone at the end."""
        pending = [request for request in requests if request.read_result() is None]
        self._callback.on_plan(len(requests), len(requests) - len(pending))
        pending.sort(key=lambda request: -len(request.job.learns))
        self._failures = {}
        if self._at_once == 1:
            for request in pending:
                self._report(request, ("on_start", ()))
                _run_request(request, partial(self._report, request))
        elif pending:
            self._logs.mkdir(parents=True, exist_ok=True)
            threads = ThreadPoolExecutor(self._at_once)
            try:
                futures = [threads.submit(self._run_in_worker, request) for request in pending]
                while wait(futures, timeout=0.2).not_done:  # A wait without a timeout would block Ctrl-C.
                    pass
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                self._workers.stop()
                raise
            for future in futures:
                future.result()
        return self._failures

    def _run_in_worker(self, request: TrainingRequest) -> None:
        self._report(request, ("on_start", ()))
        report = partial(self._report, request)
        try:
            self._workers.call(_run_request, request, send_event, attempts=1, on_event=report)
        except WorkerDied as death:
            if not self._workers.stopped:
                report(("on_failure", (f"its worker process died: {death}; see {self._logs}",)))

    def _report(self, request: TrainingRequest, event: Event) -> None:
        method, arguments = event
        with self._callback_lock:
            if method == "on_message":
                self._callback.on_message(f"{request.name}: {arguments[0]}")
                return
            if method == "on_failure":
                self._failures[request.name] = str(arguments[0])
            getattr(self._callback, method)(request.name, *arguments)


# ---- What runs a request, in this process or in a worker ----


@dataclass(frozen=True, slots=True)
class _EventSender:
    """Turns the callbacks of a training into events."""

    send: Callable[[Event], None]

    def on_progress(self, progress: TrainingProgress) -> None:
        self.send(("on_progress", (progress,)))

    def on_evaluation(self, evaluation: Evaluation, name: str) -> None:
        self.send(("on_evaluation", (evaluation, name)))

    def on_message(self, text: str) -> None:
        self.send(("on_message", (text,)))


def _run_request(request: TrainingRequest, send: Callable[[Event], None]) -> None:
    started = time.monotonic()
    try:
        train_request(request, _EventSender(send))
    except MetristError as error:
        send(("on_failure", (str(error),)))
    except Exception as error:  # Whatever the error, the next training starts.
        send(("on_failure", (f"{type(error).__name__}: {error}",)))
    else:
        send(("on_finish", (time.monotonic() - started,)))
