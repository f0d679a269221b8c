"""Executors: where tasks are performed. Results never depend on the choice."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, islice, takewhile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from metrist.errors import MetristError, RunError, did_you_mean
from metrist.metrics.base import Metric, calls_llm, is_resident
from metrist.run.ray import Ray, Resources
from metrist.run.tasks import Executor, Outcome, Serial, Task, TaskResult, attempt, perform
from metrist.runtime import VARIABLES, Runtime, count_cores

__all__ = [
    "Adaptive",
    "Executor",
    "Outcome",
    "Processes",
    "Ray",
    "Resources",
    "Serial",
    "Task",
    "TaskResult",
    "choose_executor",
    "find_executor",
    "resolve_executor",
]

_T = TypeVar("_T")
#: The timeout of `nvidia-smi`, in seconds; a driver that hangs counts as no card.
CARDS_TIMEOUT = 20
#: Seconds of scoring in this process after which worker processes are considered.
TRIAL_SECONDS = 1.0
#: Seconds per record from which worker processes win: sending a record to a worker and its scores back takes about
#: 6 µs, so ROUGE-L at 2 µs a record runs three times faster in this process than in any number of workers.
MIN_SECONDS_PER_RECORD = 50e-6
#: Seconds of work that must be left: about four times what it takes to start the workers.
MIN_SECONDS_LEFT = 2.0
#: Workers that a run starts with. Fast metrics keep no more than these busy, since one process reads for all of them;
#: each takes about 50 MB.
FIRST_WORKERS = 4
#: Seconds that a run waits for its workers before it adds another one. Long enough for the first ones to start.
GROW_AFTER = 0.5
_VISIBLE_CARDS = "CUDA_VISIBLE_DEVICES"
#: Numerical libraries use all cores unless these limit their threads.
_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
#: loky restarts a worker whose memory grows by 300 MB, which loading a model does.
_NO_MEMORY_LIMIT = {"LOKY_MAX_MEMORY_LEAK_SIZE": "1e18"}
#: Seconds that a worker may take to stop after SIGTERM, such as for a checkpoint.
_STOP_TIMEOUT = 120.0
#: Seconds between looks for events of a call.
_EVENT_INTERVAL = 0.1


@dataclass(frozen=True, slots=True)
class Processes:
    """Performs tasks in up to `workers` processes; None: one per core that this process may use.

    Workers are started as they are needed. Each sees one of the `cards`, assigned in turn, where any are named.
    """

    workers: int | None = None
    cards: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise RunError(f"a run needs at least one worker, got {self.workers}", code="invalid_value")

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
        # Workers with a model all start at once: the card limits them, not the reader.
        places = size if resident else min(size, FIRST_WORKERS)
        threads = max(1, count_cores() // size) if resident else 1
        limits = {VARIABLES[name]: getattr(runtime, name, None) for name in ("concurrency", "rpm", "tpm")}
        environment = {name: str(limit) for name, limit in limits.items() if limit is not None}
        pool = WorkerPool(
            places=places,
            threads=threads,
            # The metrics are pickled apart: a worker that cannot import their modules says so.
            prepare=partial(hold_metrics, pickle.dumps(tuple(metrics))),
            cards=self.cards,
            environment=environment,
        )
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
            pending.append(threads.submit(_perform_in_worker, pool, task))
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
                    # Earlier waits, such as those for a file that was slow to open, no longer count.
                    began, waited = now, 0.0
            yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.stop()
        threads.shutdown(wait=True, cancel_futures=True)


def _perform_in_worker(pool: WorkerPool, task: Task) -> TaskResult:
    """Have a worker perform the task. A worker that dies, perhaps out of memory, is replaced once."""
    try:
        message = pickle.dumps(task, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise RunError(
            f"{task} cannot be sent to a worker process ({type(error).__name__}: {error}): use executor='serial'",
            code="unsupported",
        ) from None
    try:
        answer: TaskResult | MetristError = pickle.loads(pool.call(reply, message))
    except WorkerDied as death:
        raise RunError(f"a worker process died twice on {task}: {death}", code="worker_died") from None
    if isinstance(answer, MetristError):
        raise answer
    return answer


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Starts in this process and moves to worker processes where measured scoring is slow enough to gain from them.

    The compiled kernels of lexical metrics score a record in less time than it takes to send it to another process, so
    serial is fastest for them; metrics written in Python gain from every core. Nobody has to declare which is which.
    """

    def map(self, metrics: Sequence[Metric], tasks: Iterable[Task]) -> Iterator[TaskResult]:
        """The results in the order of the tasks."""
        by_text = {metric.text: metric for metric in metrics}
        remaining = iter(tasks)
        seconds, records, count = 0.0, 0, 0
        for task in remaining:
            result = perform(by_text, task)
            seconds += sum(outcome.seconds for outcome in result.outcomes.values())
            records += len(task.units)
            count += 1
            yield result
            if seconds > TRIAL_SECONDS and seconds > records * MIN_SECONDS_PER_RECORD:
                break
        else:
            return
        needed = math.ceil(MIN_SECONDS_LEFT * count / seconds)
        ahead = list(islice(remaining, needed))
        executor = Processes() if len(ahead) == needed else Serial()
        yield from executor.map(metrics, chain(ahead, remaining))


def choose_executor(
    executor: str | Executor | None, metrics: Sequence[Metric], runtime: Runtime | None = None
) -> tuple[Executor, list[str]]:
    """The executor for these metrics, and notes for the user.

    By default work starts in this process and uses all cores where that is faster; metrics with a model get one process
    per graphics card where there are several. Metrics that cannot be pickled stay in this process.
    """
    if executor is None:
        chosen: Executor = Adaptive() if count_cores() > 1 and sys.executable else Serial()
    elif isinstance(executor, str):
        chosen = find_executor(executor)
    elif hasattr(executor, "map"):
        chosen = executor
    else:
        raise RunError(
            f"an executor needs a method map(metrics, tasks), {type(executor).__name__} has none", code="invalid_value"
        )
    # Without several cards a model stays in this process: its library uses all cores by itself, and a second copy would
    # only take memory. Lexical metrics of the same run stay with it: compared with a model they take hardly any time.
    has_cards = isinstance(chosen, Processes) and chosen.cards
    if any(map(is_resident, metrics)) and isinstance(chosen, Processes | Adaptive) and not has_cards:
        cards = list_cards((runtime or Runtime.current()).device)
        if isinstance(executor, Processes):
            chosen = replace(executor, cards=cards)
        else:
            chosen = Processes(workers=len(cards), cards=cards) if len(cards) > 1 else Serial()
    if isinstance(chosen, Processes | Adaptive):
        stuck = [metric.text for metric in metrics if not _is_picklable(metric)]
        if stuck:
            return Serial(), [
                f"{', '.join(stuck)} cannot be sent to worker processes and was scored in this one: define it in a "
                "module that can be imported to use all cores"
            ]
    return chosen, []


def find_executor(name: str, workers: int | None = None) -> Executor:
    """The executor of a name: 'serial', 'processes', 'ray' or 'ray:ADDRESS'. Workers are those of the last three."""
    kind, _, address = name.partition(":")
    if kind == "ray":
        return Ray(address=address or None, workers=workers)
    if name == "processes":
        return Processes(workers)
    if name == "serial":
        if workers is not None and workers != 1:
            raise RunError(
                f"the executor 'serial' has one worker, got workers = {workers}: use 'processes' for more",
                code="invalid_value",
            )
        return Serial()
    raise RunError(
        f"no executor named {name!r}: expected 'serial', 'processes', 'ray', 'ray:ADDRESS' or an object"
        f"{did_you_mean(name, ['serial', 'processes', 'ray'])}",
        code="unknown_name",
    )


def resolve_executor(name: str | None, workers: int | None) -> Executor | str | None:
    """What to pass to a run for the options of a command line or a settings file. A name without a number of workers
    stays one: the run then finds the number that fits its metrics."""
    if workers is None:
        if name is not None:
            find_executor(name)  # Refuses names that there are not.
        return name
    if name is None:
        name = "serial" if workers == 1 else "processes"
    return find_executor(name, workers)


def list_cards(device: str = "auto") -> tuple[str, ...]:
    """The CUDA names of the graphics cards that workers can share, found without importing torch. None where `device`
    names one ('cpu', 'cuda:1') or spreads a model by itself ('map')."""
    if device not in ("auto", "cuda"):
        return ()
    visible = os.environ.get(_VISIBLE_CARDS)
    if visible is not None:
        # CUDA itself sees the cards up to the first invalid name.
        names = (name.strip() for name in visible.split(","))
        return tuple(dict.fromkeys(takewhile(lambda name: name and not name.startswith("-"), names)))
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=CARDS_TIMEOUT, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    # One line per card, 'GPU 0: …'; parts of a card are listed below it, indented.
    return tuple(str(n) for n, _ in enumerate(re.findall(rb"^GPU \d+:", listing, re.MULTILINE)))


def _is_picklable(metric: Metric) -> bool:
    # Definitions of the main program are pickled by name, and in a worker that name refers to its own main program.
    try:
        return b"__main__" not in pickle.dumps(metric)
    except Exception:
        return False


# ---- Worker processes, for scoring and for the trainings of a study ----


class WorkerDied(RunError):
    """A worker process ended during a call; the message says how."""

    code = "worker_died"


@dataclass(kw_only=True)
class WorkerPool:
    """Workers that are started on demand, at most `places` at a time. Each calling thread borrows one.

    A worker begins with the call `prepare`. It may use `threads` threads and sees one of the `cards`, where any are
    named. With `logs`, a folder, what it prints goes to a file there. Workers end with this process, and when the pool
    is stopped: at once or, with `interrupt`, when they have done what they do on SIGTERM.

    Each worker is a loky executor with one process, so a worker that dies is replaced without disturbing the others.
    loky is the process pool of joblib and scikit-learn, with the interface of concurrent.futures. concurrent.futures
    itself (Python 3.11, spawn) breaks as a whole when one worker dies, runs a script without a main guard again in
    every worker, cannot set a worker's environment before numpy is imported, and leaves the workers of a killed run
    alive. Pipes of our own took 0.3 ms for a task of 200 kB, loky takes 0.8 ms.
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
        self, function: Callable[..., _T], *args: Any, attempts: int = 2, on_event: Callable[[Any], None] | None = None
    ) -> _T:
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
                environment[_VISIBLE_CARDS] = card
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

    def call(self, function: Callable[..., _T], args: tuple[Any, ...], on_event: Callable[[Any], None] | None) -> _T:
        from loky.process_executor import ShutdownExecutorError

        try:
            future = self._future = self._executor.submit(_run_call, function, args)
            if on_event is not None:
                while not future.done():
                    if self.connection.poll(_EVENT_INTERVAL):
                        on_event(self.connection.recv())
                while self.connection.poll():
                    on_event(self.connection.recv())
            result: _T = future.result()
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


# ---- In a worker process ----

#: The connection to the process that started this worker.
_connections: list[Connection] = []
#: Set when that process has gone or wants this one to stop.
_ended = threading.Event()


def _run_call(function: Callable[..., _T], args: tuple[Any, ...]) -> _T:
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


#: The pickled metrics of the run, in a worker.
_pickled: list[bytes] = []


def hold_metrics(pickled: bytes) -> None:
    """Keep the pickled metrics of the run until the first task."""
    _pickled.append(pickled)


@cache
def _load_metrics() -> dict[str, Metric]:
    return {metric.text: metric for metric in pickle.loads(_pickled[-1])}


def reply(message: bytes) -> bytes:
    """Perform a pickled task. The result or the error is pickled, too."""
    what = "the metrics"
    try:
        known = _load_metrics()
        what = "the records"
        task: Task = pickle.loads(message)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return pickle.dumps(RunError(f"{what} cannot be read in a worker process ({reason}): use executor='serial'"))
    result = attempt(lambda: perform(known, task))
    try:
        return pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps(RunError(f"a metric's result cannot be sent from its worker process: {error}"))
