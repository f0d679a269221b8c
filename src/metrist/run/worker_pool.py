"""Worker processes that perform tasks in parallel.

Workers are started as programs of their own. concurrent.futures.ProcessPoolExecutor was tried, with spawn and Python
3.11: each worker ran a script without a main guard again and ended with a RuntimeError, one dead worker broke the pool
for all tasks, and workers of a killed run stayed alive. Messages are pickles, preceded by their length in eight bytes.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import IO, Any

from metrist.errors import MetristError, RunError
from metrist.metrics.base import Metric, calls_llm, is_resident
from metrist.run.tasks import Serial, Task, TaskResult, describe_record
from metrist.runtime import VARIABLES, count_cores

VISIBLE_CARDS = "CUDA_VISIBLE_DEVICES"
#: Workers that a run starts with. Fast metrics keep no more than these busy, since one process reads for all of them;
#: each takes about 50 MB.
FIRST_WORKERS = 4
#: Seconds that a run waits for its workers before it adds another one. Long enough for the first ones to start.
GROW_AFTER = 0.5
# Numerical libraries use all cores unless these limit their threads.
_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
# The module path is set before metrist is imported. PYTHONPATH stays the user's own: a metric may start programs of
# other Python environments, which inherit it.
_COMMAND = "import sys; sys.path[:] = sys.argv[1:]; from metrist.run.worker import main; main()"
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Processes:
    """Performs tasks in up to `workers` processes; None: one per core that this process may use.

    Workers are started as they are needed. Each sees one of the `cards`, assigned in turn, where any are named.
    """

    workers: int | None = None
    cards: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise RunError(f"a run needs at least one worker, got {self.workers}")

    def map(self, metrics: Sequence[Metric], tasks: Iterable[Task]) -> Iterator[TaskResult]:
        """The results in the order of the tasks. Workers are started only when there is a second task."""
        remaining = iter(tasks)
        first = list(islice(remaining, 1))
        if not first:
            return
        size = self.workers or count_cores()
        runtime = first[0].runtime
        if runtime and any(map(calls_llm, metrics)):
            # The limits on LLM requests are divided among the workers, so their number must be known first.
            size = min(size, runtime.max_llm_processes)
            first += islice(remaining, max(size - 1, 1))
            size = min(size, len(first))
            runtime = runtime.split(size)
        else:
            first += islice(remaining, 1)
        if len(first) < 2 or size == 1:
            yield from Serial().map(metrics, chain(first, remaining))
            return
        resident = any(map(is_resident, metrics))
        # A worker with a model is worth its start: it waits for its card, not for the reader.
        places = size if resident else min(size, FIRST_WORKERS)
        threads = max(1, count_cores() // size) if resident else 1
        limits = {VARIABLES[name]: getattr(runtime, name, None) for name in ("concurrency", "rpm", "tpm")}
        environment = {name: str(limit) for name, limit in limits.items() if limit is not None}
        pool = WorkerPool(metrics, places, self.cards, threads, environment)
        work = (replace(task, runtime=runtime) for task in chain(first, remaining))
        yield from _map_in_order(pool, work, size)


def _map_in_order(pool: WorkerPool, tasks: Iterable[Task], size: int) -> Iterator[TaskResult]:
    """Keep two tasks per worker under way, so that none waits for the reader and memory stays bounded. Workers are
    added, up to `size`, only while scoring is slower than reading."""
    threads = ThreadPoolExecutor(size, thread_name_prefix="metrist")
    pending: deque[Future[TaskResult]] = deque()
    began, waited = time.monotonic(), 0.0
    try:
        for task in tasks:
            pending.append(threads.submit(pool.perform, task))
            if len(pending) < 2 * pool.places:
                continue
            if pool.places < size:
                before = time.monotonic()
                wait([pending[0]], timeout=GROW_AFTER)
                now = time.monotonic()
                waited += now - before
                elapsed = now - began
                if waited >= max(GROW_AFTER, elapsed / 2):
                    pool.add_place()
                    began, waited = now, 0.0
                    continue
                if elapsed > 4 * GROW_AFTER:
                    # Old waits, such as those for a file that was slow to open, say nothing about the present.
                    began, waited = now, 0.0
            yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        # Whether all is done, a metric failed or the user pressed Ctrl-C: no worker stays behind.
        pool.stop()
        threads.shutdown(wait=True, cancel_futures=True)


class WorkerPool:
    """Workers that are started on demand, at most `places` at a time. Each calling thread borrows one."""

    def __init__(
        self,
        metrics: Sequence[Metric],
        places: int,
        cards: tuple[str, ...],
        threads: int,
        environment: Mapping[str, str],
    ) -> None:
        self.places = places
        self._cards = cards
        self._threads = threads
        self._environment = environment
        self._free = threading.Semaphore(places)
        here = os.getcwd()
        self._path = [entry or here for entry in sys.path]
        # What a worker must know before its first task. Reading the metrics needs the path: they are pickled apart.
        self._setup = pickle.dumps((self._path, here, pickle.dumps(tuple(metrics))))
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._stopped = False

    def perform(self, task: Task) -> TaskResult:
        """Have a worker perform the task. A worker that dies, perhaps out of memory, is replaced once."""
        try:
            message = pickle.dumps(task, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise RunError(
                f"{describe_range(task)} cannot be sent to a worker process ({type(error).__name__}: {error}): "
                "use executor='serial'"
            ) from None
        with self._free:
            try:
                reply = self._request(message)
            except _WorkerDied:
                try:
                    reply = self._request(message)
                except _WorkerDied as death:
                    raise RunError(f"a worker process died twice on {describe_range(task)}: {death}") from None
        if isinstance(reply, MetristError):
            raise reply
        result: TaskResult = reply
        return result

    def add_place(self) -> None:
        self.places += 1
        self._free.release()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            workers = list(self._workers)
        for worker in workers:
            worker.kill()

    def _request(self, message: bytes) -> Any:
        worker = self._borrow()
        try:
            reply = worker.request(message)
        except _WorkerDied:
            with self._lock:
                self._workers.discard(worker)
            worker.kill()
            raise
        with self._lock:
            self._idle.append(worker)
        return reply

    def _borrow(self) -> _Worker:
        with self._lock:
            if self._stopped:
                raise RunError("the run was stopped")
            if self._idle:
                return self._idle.pop()
            # Started under the lock, so that `stop` misses no worker. Popen returns at once. The card with the fewest
            # workers comes next: one that has lost its worker gets the next.
            used = [worker.card for worker in self._workers]
            card = min(self._cards, key=used.count, default=None)
            limits = dict.fromkeys(_THREAD_LIMITS, str(self._threads))
            environment = {**limits, **os.environ, **self._environment}
            if card is not None:
                environment[VISIBLE_CARDS] = card
            worker = _Worker(self._setup, card, self._path, environment)
            self._workers.add(worker)
            return worker


class _WorkerDied(Exception):
    """A worker process ended while it was needed; the message says how."""


class _Worker:
    """One worker process and the pipes to it. `card` is the only one it sees; None: it sees what this process sees."""

    def __init__(self, setup: bytes, card: str | None, path: Sequence[str], environment: dict[str, str]) -> None:
        self.card = card
        self._setup: bytes | None = setup
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _COMMAND, *path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                # Ctrl-C is for the run, which ends its workers itself.
                start_new_session=True,
            )
        except OSError as error:
            raise RunError(f"cannot start a worker process ({error.strerror}): use executor='serial'") from error

    def request(self, message: bytes) -> Any:
        """The worker's reply; `_WorkerDied` if there is none."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            if self._setup is not None:
                send(self._process.stdin, self._setup)
                self._setup = None
            send(self._process.stdin, message)
            return pickle.loads(receive(self._process.stdout))
        except (EOFError, OSError, ValueError):
            code = self._process.wait()
            if code < 0:
                hint = "if memory ran out, use fewer workers or a smaller shard_size"
                raise _WorkerDied(f"killed by signal {-code}; {hint}") from None
            raise _WorkerDied(f"it ended with exit code {code}") from None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                if pipe:
                    pipe.close()
            except OSError:
                pass  # Unsent data has no reader any more.


def send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(_LENGTH_BYTES, "big"))
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes:
    """Read one message; EOFError if the other side has gone, be it in the middle of one."""

    def read(size: int) -> bytes:
        data = pipe.read(size)
        if len(data) < size:
            raise EOFError("the other side has gone")
        return data

    return read(int.from_bytes(read(_LENGTH_BYTES), "big"))


def describe_range(task: Task) -> str:
    """The records of a task as messages name them."""
    first, last = task.start + 1, task.start + len(task.units)
    return f"records {first:,} to {last:,} ({describe_record(task.units[0])} to {describe_record(task.units[-1])})"
