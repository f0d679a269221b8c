"""Messages between a run and its workers: the length in eight bytes, then a pickle."""

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
from dataclasses import dataclass
from itertools import chain, islice
from typing import IO, Any

from metrist.errors import MetristError, RunError
from metrist.llm import rate_limit
from metrist.metrics.base import Metric
from metrist.run.tasks import Done, Serial, Task, named

_LENGTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What a worker must know before its first task. The metrics are pickled apart, as reading them needs the path."""

    path: list[str]
    python_path: str | None
    folder: str
    metrics: bytes


def send(pipe: IO[bytes], data: bytes) -> None:
    """Write one message."""
    pipe.write(len(data).to_bytes(_LENGTH, "big"))
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes:
    """Read one message, or raise EOFError when the other side has gone, be it in the middle of one."""
    return _exactly(pipe, int.from_bytes(_exactly(pipe, _LENGTH), "big"))


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError("the other side has gone")
    return data


# Several shards at once, each in a worker process of our own.
#
# Workers are started as `python -m metrist.run.worker` and not by multiprocessing: nothing is forked under
# running threads, and the user's main program is not imported again.


VISIBLE = "CUDA_VISIBLE_DEVICES"
# Numerical libraries take all cores unless they are told how many threads they may start.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

#: The dependency group that metrics which ask LLMs have in common.
_ASKING = "llm"
#: Workers that a run begins with. Fast metrics keep no more than these busy, since one process reads for all of them;
#: each takes some 50 MB.
FIRST_WORKERS = 4
#: Seconds that a run waits for its workers before it takes on another. Long enough for the first ones to start.
_PATIENCE = 0.5


@dataclass(frozen=True, slots=True)
class Processes:
    """Scores in up to `workers` processes (None: one per core that this process may use), as many as are of use. Each
    sees one of the `cards`, given out in turn, where any are named."""

    workers: int | None = None
    cards: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise RunError(f"a run needs at least one worker, got {self.workers}")

    def map(self, metrics: Sequence[Metric], tasks: Iterable[Task]) -> Iterator[Done]:
        """What was done, in the order of the tasks. Workers are started only when there is a second task."""
        coming = iter(tasks)
        size = self._size(metrics)
        # What LLMs may be asked is divided among the workers that there will be, so their tasks are counted first.
        first = list(islice(coming, size if _ask(metrics) else 2))
        size = min(size, len(first)) if _ask(metrics) else size
        if len(first) < 2 or size == 1:
            yield from Serial().map(metrics, chain(first, coming))
        else:
            # A worker with a model is worth its start: what it waits for is its card, not the reader.
            at_once = size if any(metric.resident for metric in metrics) else min(size, FIRST_WORKERS)
            share = _Share(self.cards, _threads(metrics, size), rate_limit.shares(size) if _ask(metrics) else {})
            crew = _Crew(metrics, at_once, share)
            yield from _in_order(crew, chain(first, coming), size)

    def _size(self, metrics: Sequence[Metric]) -> int:
        """Workers at most. A limit on requests that is lower than their number leaves some of them nothing to ask."""
        wanted = self.workers or cores()
        return min(wanted, rate_limit.most_sharers()) if _ask(metrics) else wanted


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _ask(metrics: Sequence[Metric]) -> bool:
    """Whether any of them asks an LLM."""
    return any(metric.extra == _ASKING for metric in metrics)


def _threads(metrics: Sequence[Metric], workers: int) -> int:
    """Threads for each worker. Lexical metrics have no use for a second one; models share the cores among them."""
    return max(1, cores() // workers) if any(metric.resident for metric in metrics) else 1


@dataclass(frozen=True, slots=True)
class _Share:
    """What workers get: the cards to be given out, how many threads each of them may start, and each one's part of what
    LLMs may be asked, as environment variables."""

    cards: tuple[str, ...]
    threads: int
    limits: Mapping[str, str]


def _in_order(crew: _Crew, tasks: Iterable[Task], size: int) -> Iterator[Done]:
    """Two tasks per worker are under way, so that none waits for the reader and memory stays bounded. There are more
    workers, up to `size`, only where reading goes faster than scoring."""
    pool = ThreadPoolExecutor(size, thread_name_prefix="metrist")
    under_way: deque[Future[Done]] = deque()
    patience = _Patience()
    try:
        for task in tasks:
            under_way.append(pool.submit(crew.perform, task))
            if len(under_way) >= 2 * crew.places:
                if patience.wait_for(under_way[0]) or crew.places == size:
                    yield under_way.popleft().result()
                else:
                    crew.admit_another()
                    patience = _Patience()
        while under_way:
            yield under_way.popleft().result()
    finally:
        # Whether all is done, a metric failed or the user pressed Ctrl-C: no worker stays behind.
        crew.dismiss()
        pool.shutdown(wait=True, cancel_futures=True)


class _Patience:
    """Waits for workers, and runs out when more than half of the last seconds went into waiting: scoring is what takes
    long then, and another worker would be of use."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._waited = 0.0

    def wait_for(self, task: Future[Done]) -> bool:
        """True when the task is done, False when patience ran out before or with it."""
        began = time.monotonic()
        wait([task], timeout=_PATIENCE)
        now = time.monotonic()
        self._waited += now - began
        spent, elapsed = self._waited, now - self._began
        if elapsed > 4 * _PATIENCE:
            # What was long ago, such as a file that was slow to open, says nothing of what takes long now.
            self._began, self._waited = now, 0.0
        return spent < max(_PATIENCE, elapsed / 2)


class _Died(Exception):
    """A worker process ended while it was needed; the text says how."""


class _Crew:
    """Workers, started when asked for and at most as many as there are places. Each thread of the pool borrows one."""

    def __init__(self, metrics: Sequence[Metric], places: int, share: _Share) -> None:
        self.places = places
        self._share = share
        self._free = threading.Semaphore(places)
        self._greeting = pickle.dumps(_greeting(metrics))
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._dismissed = False

    def perform(self, task: Task) -> Done:
        """Have a worker do the task. One that dies (out of memory, perhaps) is replaced once."""
        with self._free:
            answer = self._answer(task)
        if isinstance(answer, MetristError):
            raise answer
        done: Done = answer
        return done

    def admit_another(self) -> None:
        """Make a place for one more worker."""
        self.places += 1
        self._free.release()

    def dismiss(self) -> None:
        """End all workers at once."""
        with self._lock:
            self._dismissed = True
            workers = list(self._all)
        for worker in workers:
            worker.end()

    def _answer(self, task: Task) -> Any:
        message = _pickled(task)
        try:
            return self._ask(message)
        except _Died:
            try:
                return self._ask(message)
            except _Died as death:
                raise RunError(f"a worker process died twice on {_range(task)}: {death}") from None

    def _ask(self, message: bytes) -> Any:
        worker = self._borrow()
        try:
            answer = worker.ask(message)
        except _Died:
            with self._lock:
                self._all.discard(worker)
            worker.end()
            raise
        with self._lock:
            self._idle.append(worker)
        return answer

    def _borrow(self) -> _Worker:
        with self._lock:
            if self._dismissed:
                raise RunError("the run was stopped")
            if self._idle:
                return self._idle.pop()
            # Started under the lock, so that no worker can slip past a dismissal. Popen returns at once.
            worker = _Worker(self._greeting, self._free_card(), self._share)
            self._all.add(worker)
            return worker

    def _free_card(self) -> str | None:
        """The card with the fewest workers: one that has lost its worker gets the next."""
        taken = [worker.card for worker in self._all]
        return min(self._share.cards, key=taken.count, default=None)


class _Worker:
    """One worker process and the pipes to it; `card` is the only one that it sees, None where it sees what we see."""

    def __init__(self, greeting: bytes, card: str | None, share: _Share) -> None:
        self.card = card
        self._greeting: bytes | None = greeting
        self._process = _started(_environment(card, share))

    def ask(self, message: bytes) -> Any:
        """The worker's answer, or `_Died`."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            if self._greeting is not None:
                send(self._process.stdin, self._greeting)
                self._greeting = None
            send(self._process.stdin, message)
            return pickle.loads(receive(self._process.stdout))
        except (EOFError, OSError, ValueError):
            raise _Died(self._how()) from None

    def end(self) -> None:
        """Kill the process and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                if pipe:
                    pipe.close()
            except OSError:
                pass  # What was still to be sent has no reader any more.

    def _how(self) -> str:
        code = self._process.wait()
        if code < 0:
            return f"killed by signal {-code}; if memory ran out, use fewer workers or a smaller shard_size"
        return f"it ended with exit code {code}"


def _started(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "metrist.run.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            # Ctrl-C is for the run, which ends its workers itself.
            start_new_session=True,
        )
    except OSError as fault:
        raise RunError(f"cannot start a worker process ({fault.strerror}): use executor='serial'") from fault


def _greeting(metrics: Sequence[Metric]) -> Greeting:
    here = os.getcwd()
    return Greeting(
        path=[entry or here for entry in sys.path],
        python_path=os.environ.get("PYTHONPATH"),
        folder=here,
        metrics=pickle.dumps(tuple(metrics)),
    )


def _environment(card: str | None, share: _Share) -> dict[str, str]:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    only = {} if card is None else {VISIBLE: card}
    return {**dict.fromkeys(_THREADS, str(share.threads)), **os.environ, "PYTHONPATH": path, **share.limits, **only}


def _pickled(task: Task) -> bytes:
    try:
        return pickle.dumps(task, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as fault:
        raise RunError(
            f"{_range(task)} cannot travel to a worker process ({type(fault).__name__}: {fault}): use executor='serial'"
        ) from None


def _range(task: Task) -> str:
    first, last = task.start + 1, task.start + len(task.records)
    return f"records {first:,} to {last:,} ({named(task.records[0])} to {named(task.records[-1])})"
