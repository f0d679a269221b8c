"""The part of Ray that metrist uses, over threads: nodes are numbers, and workers die when a test says so."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from metrist._version import __version__


class RayError(Exception):
    """A worker has died."""


class RaySystemError(RayError):
    """The cluster is gone."""


class RayTaskError(RayError):
    """A job has raised an exception."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(eq=False)
class Worker:
    """A thread that has an actor."""

    cluster: FakeRay
    actor: Any
    resources: tuple[float, float]
    #: The jobs that it was given.
    jobs: list[Any] = field(default_factory=list)
    is_dead: bool = False
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    @property
    def start(self) -> Any:
        return SimpleNamespace(remote=lambda folder: self._submit(self._start, folder))

    @property
    def perform(self) -> Any:
        return SimpleNamespace(remote=lambda metrics, job: self._submit(self._perform, metrics, pickle.dumps(job)))

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self.threads.submit(function, *arguments)

    def _start(self, folder: Any) -> Any:
        if self.cluster.never_starts.is_set():
            threading.Event().wait(1)
        _, sees_folder = self.actor.start(folder)
        return self.cluster.version, sees_folder and self.cluster.shares_folder

    def _perform(self, metrics: bytes, message: bytes) -> Any:
        job = pickle.loads(message)
        self.jobs.append(job)
        self.cluster.started.append(str(job))
        if self.is_dead or self.cluster.dies(self, job):
            self.is_dead = True
            raise RayError("a test ended it")
        try:
            reply = self.actor.perform(metrics, job)
        except Exception as error:
            raise RayTaskError(error) from error
        self.cluster.done.append(job)
        return pickle.loads(pickle.dumps(reply))


@dataclass(eq=False)
class FakeRay:
    """`dies(worker, job)` says whether a worker dies on a job."""

    cpus: Sequence[float] = (1.0, 1.0)
    gpus: Sequence[float] = (0.0, 0.0)
    dies: Callable[[Worker, Any], bool] = lambda _worker, _job: False
    version: str = __version__
    shares_folder: bool = True
    never_starts: threading.Event = field(default_factory=threading.Event)
    workers: list[Worker] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    done: list[Any] = field(default_factory=list)
    exceptions: Any = field(
        default_factory=lambda: SimpleNamespace(
            RayError=RayError, RaySystemError=RaySystemError, RayTaskError=RayTaskError
        )
    )
    cloudpickle: Any = pickle

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        pairs = zip(self.cpus, self.gpus, strict=True)
        return [{"Alive": True, "Resources": {"CPU": cpus, "GPU": gpus}} for cpus, gpus in pairs]

    def remote(self, **_options: Any) -> Callable[[Any], Any]:
        def wrap(actor: Any) -> Any:
            def options(num_cpus: float, num_gpus: float) -> Any:
                def start(*arguments: Any) -> Worker:
                    self.workers.append(Worker(self, actor(*arguments), (num_cpus, num_gpus)))
                    return self.workers[-1]

                return SimpleNamespace(remote=start)

            return SimpleNamespace(options=options)

        return wrap

    def put(self, value: Any) -> Any:
        return value

    def wait(self, calls: Sequence[Future[Any]], timeout: float) -> tuple[list[Future[Any]], list[Future[Any]]]:
        done = list(wait(calls, timeout, FIRST_COMPLETED).done)[:1]
        return done, [call for call in calls if call not in done]

    def get(self, call: Future[Any]) -> Any:
        return call.result()

    def kill(self, worker: Worker, *, no_restart: bool) -> None:
        assert no_restart
        worker.is_dead = True
        worker.threads.shutdown(wait=False, cancel_futures=True)
