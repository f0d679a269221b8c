"""The executor for Ray: metrics in actors on the nodes of a cluster. Ray is imported when a run needs it."""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from metrist._version import __version__
from metrist.errors import MetristError, MissingExtra, RunError
from metrist.metrics.base import Metric, calls_llm
from metrist.run.cluster import Node, Resources, Scheduler, WorkerDied
from metrist.run.tasks import Serial, Task, TaskResult

#: Variables for a Ray that metrist starts or joins, where the user set none. By default Ray reports its usage to
#: its makers. It also hides GPUs from workers that ask for none, which `_Actor` does itself.
_VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@dataclass(frozen=True, slots=True)
class Ray:
    """Performs tasks on a Ray cluster.

    `address` is that of the cluster: `auto`, `HOST:PORT`, or `local` for a new one on this machine. None: the cluster
    in RAY_ADDRESS or the one that runs on this machine, else a new one, which ends with the run. A cluster that the
    program has joined by `ray.init` is used as it is.

    `workers` is the number of workers for metrics that share them; None: as many as fit on the nodes. `resources`
    gives the `Resources` of one worker by the metric's text or short name, in place of what the metric declares.
    `start_timeout` are the seconds that a run waits while it has work and no worker. `options` are passed to
    `ray.init`, such as `{"num_cpus": 4}` for a new cluster.
    """

    address: str | None = None
    workers: int | None = None
    resources: Mapping[str, Resources] = field(default_factory=dict)
    start_timeout: float = 300.0
    options: Mapping[str, Any] = field(default_factory=dict)
    #: What happened to workers in runs so far.
    notes: list[str] = field(default_factory=list, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise RunError(f"a run needs at least one worker, got {self.workers}")

    def map(self, metrics: Sequence[Metric], tasks: Iterable[Task]) -> Iterator[TaskResult]:
        """The results in the order of the tasks. Metrics that call LLMs stay in this process."""
        remaining = iter(tasks)
        first = next(remaining, None)
        if first is None:
            return
        work = chain([first], remaining)
        if all(map(calls_llm, metrics)):
            yield from Serial().map(metrics, work)
            return
        ray = import_ray()
        is_new = not ray.is_initialized()
        if is_new:
            self._connect(ray)
        try:
            scheduler = Scheduler(
                RayCluster(ray),
                metrics,
                workers=self.workers,
                resources=self.resources,
                device=first.runtime.device if first.runtime else "auto",
                start_timeout=self.start_timeout,
                report=self.notes.append,
            )
            yield from scheduler.map(work)
        finally:
            if is_new:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        for name, value in _VARIABLES.items():
            os.environ.setdefault(name, value)
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR, **self.options}
        try:
            ray.init(address=self.address, **options)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            where = f"the Ray cluster at {self.address}" if self.address else "a Ray cluster"
            raise RunError(f"cannot join {where}: {error}") from error


def import_ray() -> Any:
    """Import Ray, or say how to install it."""
    try:
        import ray
    except ImportError:
        raise MissingExtra("executor='ray'", "ray") from None
    return ray


class RayCluster:
    """Actors of the cluster that this process has joined. They are never restarted by Ray: the scheduler starts new
    ones, and calls to a dead actor fail at once."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._actor = ray.remote(max_restarts=0, max_task_retries=0)(_Actor)
        self._path = [entry or os.getcwd() for entry in sys.path]

    def list_nodes(self) -> list[Node]:
        alive = (node["Resources"] for node in self._call(self._ray.nodes) if node["Alive"])
        return [Node(resources.get("CPU", 0.0), resources.get("GPU", 0.0)) for resources in alive]

    def start_worker(self, metrics: Sequence[Metric], resources: Resources) -> tuple[Any, Hashable]:
        try:
            # Unlike pickle, cloudpickle can send what the main program or a notebook defines.
            data = self._ray.cloudpickle.dumps({metric.text: metric for metric in metrics})
        except Exception as error:
            texts = ", ".join(metric.text for metric in metrics)
            raise RunError(f"{texts} cannot be sent to workers ({type(error).__name__}: {error})") from None
        options = {"num_cpus": resources.cpus, "num_gpus": resources.gpus}
        worker = self._actor.options(**options).remote(data, os.getcwd(), self._path, resources.gpus > 0)
        return worker, worker.start.remote()

    def submit(self, worker: Any, message: bytes) -> Hashable:
        call: Hashable = worker.perform.remote(message)
        return call

    def wait(self, calls: Sequence[Hashable], timeout: float) -> Sequence[Hashable]:
        finished, waiting = self._call(self._ray.wait, list(calls), timeout=timeout)
        if waiting and finished:
            # There may be more than the one that was waited for.
            finished, _ = self._call(self._ray.wait, list(calls), num_returns=len(calls), timeout=0)
        return list(finished)

    def fetch(self, call: Hashable) -> Any:
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(call)
        except exceptions.RaySystemError as error:
            raise RunError(f"the Ray cluster is gone: {error}") from error
        except exceptions.RayTaskError as error:
            raise WorkerDied(f"it failed: {error.cause!r}") from None
        except exceptions.RayError as error:
            raise WorkerDied(_describe(error)) from None

    def stop_worker(self, worker: Any) -> None:
        # Where the worker, its node or the whole cluster is gone, there is nothing left to stop.
        with suppress(Exception):
            self._ray.kill(worker, no_restart=True)

    def _call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise RunError(
                f"the Ray cluster is gone ({error}): the same command goes on from what the run folder holds"
            ) from error


class _Actor:
    """A worker: it holds metrics and performs tasks one by one. A model is loaded by the first task and stays."""

    def __init__(self, metrics: bytes, folder: str, path: list[str], has_gpu: bool) -> None:
        if not has_gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        # Paths of the program that runs the command count where this node has them.
        sys.path += [entry for entry in path if entry not in sys.path and os.path.exists(entry)]
        if os.path.isdir(folder):
            os.chdir(folder)
        self._data = metrics
        self._metrics: dict[str, Metric] = {}

    def start(self) -> str | MetristError:
        """Read the metrics; the version of metrist, or what is wrong."""
        try:
            self._metrics = pickle.loads(self._data)
        except Exception as error:
            return RunError(
                f"the metrics cannot be read by a worker ({type(error).__name__}: {error}): install their packages on "
                "all nodes, or use executor='serial'"
            )
        return __version__

    def perform(self, message: bytes) -> bytes:
        from metrist.run.worker import reply

        return reply(self._metrics, message)


def _describe(error: Exception) -> str:
    """One short line on how a worker died."""
    name = type(error).__name__
    if name == "OutOfMemoryError":
        return "out of memory"
    known = {
        "NodeDiedError": "its node was lost",
        "ActorUnavailableError": "it cannot be reached",
        "ObjectLostError": "its result was lost",
    }
    text = str(error)
    if "node" in text.lower() and ("died" in text or "dead" in text.lower()) and "worker process" not in text.lower():
        return "its node was lost"
    return known.get(name, "its process died")
