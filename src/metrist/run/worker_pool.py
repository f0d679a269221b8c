"""Worker processes, for scoring and for the trainings of a study.

Each worker is a loky executor with one process, so a worker that dies is replaced without disturbing the others. loky
is the process pool of joblib and scikit-learn, with the interface of concurrent.futures. concurrent.futures itself
(Python 3.11, spawn) breaks as a whole when one worker dies, runs a script without a main guard again in every worker,
cannot set a worker's environment before numpy is imported, and leaves the workers of a killed run alive. Pipes of our
own took 0.3 ms for a task of 200 kB, loky takes 0.8 ms.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from metrist.errors import RunError

T = TypeVar("T")

VISIBLE_CARDS = "CUDA_VISIBLE_DEVICES"
#: Numerical libraries use all cores unless these limit their threads.
_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
#: loky restarts a worker whose memory grows by 300 MB, which loading a model does.
_NO_MEMORY_LIMIT = {"LOKY_MAX_MEMORY_LEAK_SIZE": "1e18"}
#: Seconds that a worker may take to stop after SIGTERM, such as for a checkpoint.
_STOP_TIMEOUT = 120.0
#: Seconds between looks for events of a call.
_EVENT_INTERVAL = 0.1


class WorkerDied(RunError):
    """A worker process ended during a call; the message says how."""

    code = "worker_died"


@dataclass(kw_only=True)
class WorkerPool:
    """Workers that are started on demand, at most `places` at a time. Each calling thread borrows one.

    A worker begins with the call `prepare`. It may use `threads` threads and sees one of the `cards`, where any are
    named. With `logs`, a folder, what it prints goes to a file there. Workers end with this process, and when the pool
    is stopped: at once or, with `interrupt`, when they have done what they do on SIGTERM.
    """

    places: int
    threads: int
    prepare: Callable[[], None] | None = None
    cards: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    logs: Path | None = None
    interrupt: bool = False

    def __post_init__(self) -> None:
        self._free = threading.Semaphore(self.places)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._workers: list[_Worker] = []
        self.stopped = False

    def call(
        self, function: Callable[..., T], *args: Any, attempts: int = 2, on_event: Callable[[Any], None] | None = None
    ) -> T:
        """Call a function in a worker; again in another one, up to so many `attempts`, if a worker dies. `on_event`
        receives what the function sends by `send_event`."""
        with self._free:
            for remaining in reversed(range(attempts)):
                worker = self._borrow()
                try:
                    result = worker.call(function, args, on_event)
                except WorkerDied:
                    with self._lock:
                        self._workers.remove(worker)
                    worker.kill()
                    if self.stopped or not remaining:
                        raise
                else:
                    with self._lock:
                        self._idle.append(worker)
                    return result
        raise AssertionError("a call needs an attempt")

    def add_place(self) -> None:
        self.places += 1
        self._free.release()

    def stop(self) -> None:
        """End all workers, also those with a call. To be called once no thread waits for a worker to begin one."""
        with self._lock:
            self.stopped = True
            workers = list(self._workers)
        for worker in workers:
            worker.connection.close()  # Tells it to stop.
        for worker in workers:
            worker.kill()

    def _borrow(self) -> _Worker:
        with self._lock:
            if self.stopped:
                raise RunError("the run was stopped")
            if self._idle:
                return self._idle.pop()
            # The card with the fewest workers comes next: one that has lost its worker gets the next.
            used = [worker.card for worker in self._workers]
            card = min(self.cards, key=used.count, default=None)
            limits = {name: str(self.threads) for name in _THREAD_LIMITS if name not in os.environ}
            environment = {**_NO_MEMORY_LIMIT, **limits, **self.environment}
            if card is not None:
                environment[VISIBLE_CARDS] = card
            log = self.logs / f"worker-{len(self._workers)}.log" if self.logs else None
            worker = _Worker(card, environment, log, self.interrupt, self.prepare)
            self._workers.append(worker)
            return worker


class _Worker:
    """One worker process. The connection carries events from it, and its end tells it to stop."""

    def __init__(
        self,
        card: str | None,
        environment: dict[str, str],
        log: Path | None,
        interrupt: bool,
        prepare: Callable[[], None] | None,
    ) -> None:
        from loky.backend import get_context
        from loky.process_executor import ProcessPoolExecutor

        self.card = card
        self.connection, other_end = multiprocessing.Pipe()
        self._interrupt = interrupt
        self._lock = threading.Lock()
        self._future: Future[Any] | None = None
        self._executor = ProcessPoolExecutor(
            1,
            context=get_context("loky"),
            initializer=_prepare_worker,
            initargs=(other_end, log, interrupt, prepare),
            env=environment,
        )

    def call(self, function: Callable[..., T], args: tuple[Any, ...], on_event: Callable[[Any], None] | None) -> T:
        from loky.process_executor import ShutdownExecutorError

        try:
            future = self._future = self._executor.submit(_run_call, function, args)
            if on_event is not None:
                while not future.done():
                    if self.connection.poll(_EVENT_INTERVAL):
                        on_event(self.connection.recv())
                while self.connection.poll():
                    on_event(self.connection.recv())
            result: T = future.result()
            return result
        except (BrokenProcessPool, ShutdownExecutorError, EOFError) as error:
            codes = [int(code) for code in re.findall(r"[A-Z]+\((-?\d+)\)", str(error))]
            if codes and codes[0] > 0:
                raise WorkerDied(f"it ended with exit code {codes[0]}") from None
            how = f"killed by signal {-codes[0]}" if codes else "it ended"
            raise WorkerDied(f"{how}; if memory ran out, use fewer workers or a smaller shard_size") from None
        except OSError as error:
            raise RunError(f"cannot start a worker process ({error.strerror}): use executor='serial'") from error

    def kill(self) -> None:
        """End the worker. One that is to do something on SIGTERM gets some time for it."""
        with self._lock:  # loky's shutdown() must not run in two threads at once.
            if self._interrupt and self._future is not None:
                wait([self._future], _STOP_TIMEOUT)
            self._executor.shutdown(wait=True, kill_workers=True)
            self.connection.close()


# ---- In a worker ----

#: The connection to the process that started this worker.
_connections: list[Connection] = []
#: Set when that process has gone or wants this one to stop.
_ended = threading.Event()


def _run_call(function: Callable[..., T], args: tuple[Any, ...]) -> T:
    try:
        return function(*args)
    finally:
        if _ended.is_set():
            os._exit(0)  # Nobody waits for the result.


def send_event(event: Any) -> None:
    """Send an event of the running call to the process that waits for it."""
    _connections[-1].send(event)


def _prepare_worker(
    connection: Connection, log: Path | None, interrupt: bool, prepare: Callable[[], None] | None
) -> None:
    _connections.append(connection)
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C is for the run, which ends its workers itself.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if log is not None:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
    os.dup2(2, 1)
    threading.Thread(target=_wait_for_end, args=(connection, interrupt), daemon=True).start()
    if prepare is not None:
        prepare()


def _wait_for_end(connection: Connection, interrupt: bool) -> None:
    with suppress(EOFError, OSError):
        connection.recv()
    _ended.set()
    if interrupt:
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        os._exit(0)
