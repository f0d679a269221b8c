"""The executor for Ray: workers on the nodes of a cluster. Ray is imported when a run needs it.

Workers are actors, each of which performs one job at a time: slices of a run folder that they read and write
themselves (`metrist.run.cluster`), or tasks whose records and results are sent. The command calls them and waits for
the calls by `ray.wait`. What Ray has beyond that was tried with Ray 2.60 on two nodes, and does not do:

- Restarts and retries of actors, when a node was killed and none took its place: with `max_task_retries=3` the call of
  its actor used up the retries within 6 s, before Ray took the node for dead, and failed; with -1 it waited for room
  without end. The other node was idle meanwhile. Here the job of a dead worker goes to any other.
- `ray.util.ActorPool` gives jobs to actors that are dead, and to those that no node has room for; the jobs fail or
  wait. Here a worker gets a job once it has started.
- Plain tasks keep no model: one with a GPU gets a new process each time, and with `max_calls=0` a process that was
  given card 0 for one task was given card 1 for the next, where its model is not.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol

from metrist._version import __version__
from metrist.errors import MetristError, MissingExtra, RunError, did_you_mean, format_count
from metrist.metrics.base import Metric, calls_llm, is_resident, iterate_nested
from metrist.run.tasks import Serial, Task, TaskResult, attempt, perform

#: Jobs per worker that are under way or finished and not yet yielded. More than one, since results may have to come in
#: order: a slow job must not stop the workers that finish theirs.
WINDOW_PER_WORKER = 3
#: Workers that may die on one job before the run ends: the fault is then most likely in its records.
MAX_DEATHS_PER_JOB = 4
#: Workers that may die, or fail to start, while no job is finished.
MAX_DEATHS_IN_A_ROW = 8
#: Seconds between two looks at the cluster for nodes that have joined.
RESIZE_SECONDS = 5.0
#: Seconds that a caller of `RayWorkers.perform` waits at most until it can do something else.
WAIT_SECONDS = 0.5
#: CPUs of a worker that holds a model and has no GPU.
MODEL_CPUS = 4.0
#: Extras of metrics whose models run in torch, which can use a GPU.
_TORCH_EXTRAS = ("neural", "analyst", "train")
#: Variables for a Ray that metrist starts or joins, where the user set none. By default Ray reports its usage to
#: its makers. It also hides GPUs from workers that ask for none, which `_Actor` does itself.
_VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class SharedFolder(Protocol):
    """A run folder that workers may see; as a text, its address."""

    def is_visible(self) -> bool: ...


class Node(NamedTuple):
    """The CPUs and GPUs of a machine of the cluster."""

    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Resources:
    """CPUs and GPUs that a worker needs."""

    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.cpus < float("inf") and 0 <= self.gpus < float("inf") and self.cpus + self.gpus > 0):
            raise RunError(
                f"a worker needs CPUs or GPUs, numbers of at least 0, got {self.cpus} and {self.gpus}",
                code="invalid_value",
            )

    def __str__(self) -> str:
        parts = [f"{amount:g} {unit}" for amount, unit in ((self.cpus, "CPU"), (self.gpus, "GPU")) if amount]
        return " and ".join(parts)

    def count_on(self, node: Node) -> int:
        """How many such workers fit on a node."""
        # Ten times a tenth of a GPU is a whole one, whatever the rounding says.
        fits = [node.cpus / self.cpus + 1e-9] if self.cpus else []
        fits += [node.gpus / self.gpus + 1e-9] if self.gpus else []
        return math.floor(min(fits))


def find_resources(metric: Metric, nodes: Sequence[Node], device: str = "auto") -> Resources:
    """What a worker needs for a metric: what the metric and those within it declare. A model in torch gets a GPU where
    the cluster has any and `device` does not forbid it; a model on a CPU gets several CPUs, as far as nodes have them.
    """
    nested = [part for part in iterate_nested(metric) if isinstance(part, Metric)]
    cpus = [part.cpus for part in nested if part.cpus is not None]
    gpus = [part.gpus for part in nested if part.gpus is not None]
    has_gpus = any(node.gpus for node in nodes) and (device in ("auto", "map") or device.startswith("cuda"))
    wants_gpu = any(part.resident and part.extra in _TORCH_EXTRAS for part in nested)
    gpu = max(gpus) if gpus else float(wants_gpu and has_gpus)
    model_cpus = 1.0 if gpu else min(MODEL_CPUS, max((node.cpus for node in nodes), default=1.0))
    if cpus:
        return Resources(max(cpus), gpu)
    return Resources(model_cpus if is_resident(metric) else 1.0, gpu)


@dataclass(frozen=True, slots=True)
class Ray:
    """Performs tasks on a Ray cluster.

    `address` is that of the cluster: `auto`, `HOST:PORT`, or `local` for a new one on this machine. None: the cluster
    in RAY_ADDRESS or the one that runs on this machine, else a new one, which ends with the run. A cluster that the
    program has joined by `ray.init` is used as it is.

    `workers` is the number of workers; None: as many as fit on the nodes. `resources` gives the `Resources` of one
    worker by the metric's text or short name, in place of what the metric declares. `start_timeout` are the seconds
    that a run waits while it has work and no worker. `options` are passed to `ray.init`, such as `{"num_cpus": 4}` for
    a new cluster.
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
            raise RunError(f"a run needs at least one worker, got {self.workers}", code="invalid_value")

    def map(self, metrics: Sequence[Metric], tasks: Iterable[Task]) -> Iterator[TaskResult]:
        """The results in the order of the tasks. Metrics that call LLMs stay in this process."""
        with open_workers(self, metrics) as workers:
            yield from workers.map(metrics, tasks)


@contextmanager
def open_workers(executor: Ray, metrics: Sequence[Metric], folder: SharedFolder | None = None) -> Iterator[RayWorkers]:
    """Workers for a run with these metrics. The cluster is joined when they are first needed."""
    known = {name for metric in metrics for name in (metric.text, metric.label)}
    for name in executor.resources:
        if name not in known:
            raise RunError(
                f"resources: there is no metric {name!r} in this run{did_you_mean(name, known)}", code="unknown_name"
            )
    workers = RayWorkers(executor, folder)
    try:
        yield workers
    finally:
        workers.close()


def _join_cluster(executor: Ray) -> tuple[Any, bool]:
    """Ray, and whether the cluster was joined just now."""
    try:
        import ray
    except ImportError:
        raise MissingExtra("executor='ray'", "ray") from None
    if ray.is_initialized():
        return ray, False
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR, **executor.options}
    try:
        ray.init(address=executor.address, **options)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        where = f"the Ray cluster at {executor.address}" if executor.address else "a Ray cluster"
        raise RunError(f"cannot join {where}: {error}") from error
    return ray, True


@dataclass(eq=False, slots=True)
class _PendingJob:
    """A job whose reply has not been yielded yet."""

    job: Any
    deaths: int = 0
    is_done: bool = False
    reply: Any = None


class RayWorkers:
    """Workers of one kind at a time: `perform` starts them, and others where it needs other resources."""

    def __init__(self, executor: Ray, folder: SharedFolder | None) -> None:
        self._executor, self._folder = executor, folder
        self._ray: Any = None
        self._is_new = False
        self._needs = Resources()
        self._size = 0
        self._next_resize = 0.0
        #: Workers without a job, and calls under way; those without an entry are the first of their workers.
        self._idle: list[Any] = []
        self._calls: dict[Any, tuple[Any, _PendingJob | None]] = {}
        self._deaths: Counter[str] = Counter()
        self._deaths_in_a_row = 0
        #: Since when no worker has a job.
        self._idle_since: float | None = None
        #: Whether all workers see the run folder; None: no worker has started.
        self._sees_folder: bool | None = None

    # ---- What runs ask for

    def start(self, needs: Resources) -> None:
        """Have workers with these resources, without waiting for them. Others are stopped: they may hold what these
        need."""
        if needs != self._needs:
            self._stop()
            self._needs, self._size = needs, 0
        self._next_resize = 0.0
        self._idle_since = None
        self._deaths_in_a_row = 0
        self._resize()

    def see_folder(self, needs: Resources | None = None) -> bool:
        """Whether workers see the run folder: it is shared, or a URL. Waits for the first one, which has the resources
        that are needed next."""
        if self._sees_folder is None:
            self.start(needs or self._needs)
        while self._sees_folder is None:
            self._resize()
            self._wait(deque())
        return self._sees_folder

    def count(self, needs: Resources | None = None) -> int:
        """How many workers with these resources there will be: as many as fit on the nodes."""
        nodes = self._list_nodes()
        return self._executor.workers or sum((needs or self._needs).count_on(node) for node in nodes)

    def group_metrics(self, metrics: Sequence[Metric], device: str = "auto") -> list[tuple[Resources, list[Metric]]]:
        """The metrics with the resources that a worker needs for them, those that need most first."""
        given, nodes = self._executor.resources, self._list_nodes()
        groups: dict[Resources, list[Metric]] = {}
        for metric in metrics:
            needs = given.get(metric.text) or given.get(metric.label)
            groups.setdefault(needs or find_resources(metric, nodes, device), []).append(metric)
        return sorted(groups.items(), key=lambda group: (-group[0].gpus, -group[0].cpus))

    def map(self, metrics: Sequence[Metric], tasks: Iterable[Task]) -> Iterator[TaskResult]:
        """The results in the order of the tasks, whose records are sent. All workers hold all metrics but those that
        call LLMs, which stay in this process: with them the limits on requests, the budget and the answer cache."""
        remaining = iter(tasks)
        first = next(remaining, None)
        if first is None:
            return
        work = chain([first], remaining)
        sent = [metric for metric in metrics if not calls_llm(metric)]
        if not sent:
            yield from Serial().map(metrics, work)
            return
        groups = self.group_metrics(sent, first.runtime.device if first.runtime else "auto")
        needs = Resources(max(needs.cpus for needs, _ in groups), max(needs.gpus for needs, _ in groups))
        here = {metric.text: metric for metric in metrics if calls_llm(metric)}
        waiting: deque[Task] = deque()

        def jobs() -> Iterator[Task]:
            for task in work:
                waiting.append(task)
                yield replace(task, metrics=tuple(text for text in task.metrics if text not in here))

        for _, result in filter(None, self.perform(jobs(), sent, needs)):
            task = waiting.popleft()
            texts = tuple(text for text in task.metrics if text in here)
            outcomes = {**result.outcomes, **(perform(here, replace(task, metrics=texts)).outcomes if texts else {})}
            yield TaskResult(start=task.start, outcomes={text: outcomes[text] for text in task.metrics})

    def perform(
        self,
        jobs: Iterable[Any],
        metrics: Sequence[Metric] = (),
        needs: Resources | None = None,
        *,
        in_order: bool = True,
    ) -> Iterator[tuple[Any, Any] | None]:
        """Jobs with their results, in order or as they come, and None at least every `WAIT_SECONDS` in between, so that
        the caller can do what is due. A job has a method `run` for the metrics, which workers hold, and as a text it
        names its records."""
        remaining = iter(jobs)
        entries: deque[_PendingJob] = deque()
        todo: deque[_PendingJob] = deque()
        held = None
        try:
            while True:
                window = max(1, WINDOW_PER_WORKER * self._size)
                new = [_PendingJob(job) for job in islice(remaining, max(0, window - len(entries)))]
                entries += new
                todo += new
                if not entries:
                    return
                if held is None:
                    self.start(needs or Resources())
                    held = self._send_metrics(metrics)
                self._resize()
                while todo and self._idle:
                    worker, entry = self._idle.pop(), todo.popleft()
                    self._calls[self._send(worker, held, entry.job)] = worker, entry
                ready = next((entry for entry in entries if entry.is_done or in_order), entries[0])
                if not ready.is_done:
                    self._wait(todo)
                    yield None
                    continue
                entries.remove(ready)
                if isinstance(ready.reply, MetristError):
                    raise ready.reply
                yield ready.job, ready.reply
        finally:
            # Where the run ends early, workers are busy with jobs that nobody waits for.
            busy = [call for call, (_, entry) in self._calls.items() if entry]
            self._kill([self._calls.pop(call)[0] for call in busy])

    def close(self) -> None:
        """Stop all workers, tell what happened to them, and leave the cluster."""
        self._stop()
        if self._deaths:
            reasons = ", ".join(
                f"{reason} ({number} times)" if number > 1 else reason for reason, number in self._deaths.items()
            )
            deaths = format_count(self._deaths.total(), "worker")
            self._executor.notes.append(
                f"{deaths} of the cluster died and lost nothing, since others did their tasks: {reasons}"
            )
        if self._ray and self._is_new:
            self._ray.shutdown()

    # ---- Workers

    def _list_nodes(self) -> list[Node]:
        if self._ray is None:
            self._ray, self._is_new = _join_cluster(self._executor)
        alive = (node["Resources"] for node in self._call(self._ray.nodes) if node["Alive"])
        return [Node(resources.get("CPU", 0.0), resources.get("GPU", 0.0)) for resources in alive]

    def _resize(self) -> None:
        """Start workers where some are missing: as many as fit on the nodes. Where nodes were lost, one is wanted
        still."""
        now = time.monotonic()
        if now >= self._next_resize:
            self._next_resize = now + RESIZE_SECONDS
            fits = self.count()
            if not (fits or self._size):
                raise RunError(
                    f"no node of the cluster has {self._needs}, but {_describe_nodes(self._list_nodes())}; name other "
                    "resources (resources={'METRIC': …}), or the number of workers if nodes will join"
                )
            self._size = max(1, fits)
        path = [entry or os.getcwd() for entry in sys.path]
        while len(self._idle) + len(self._calls) < self._size:
            actor = self._ray.remote(max_restarts=0, max_task_retries=0)(_Actor)
            actor = actor.options(num_cpus=self._needs.cpus, num_gpus=self._needs.gpus)
            worker = actor.remote(os.getcwd(), path, self._needs.gpus > 0)
            self._calls[worker.start.remote(self._folder)] = worker, None

    def _send_metrics(self, metrics: Sequence[Metric]) -> Any:
        try:
            # Unlike pickle, cloudpickle can send what the main program or a notebook defines.
            data = self._ray.cloudpickle.dumps({metric.text: metric for metric in metrics})
        except Exception as error:
            texts = ", ".join(metric.text for metric in metrics)
            raise RunError(
                f"{texts} cannot be sent to workers ({type(error).__name__}: {error})", code="unsupported"
            ) from None
        return self._call(self._ray.put, data)

    def _send(self, worker: Any, metrics: Any, job: Any) -> Any:
        try:
            return worker.perform.remote(metrics, job)
        except (TypeError, pickle.PicklingError, AttributeError) as error:
            raise RunError(
                f"{job} cannot be sent to a worker ({type(error).__name__}: {error}): use executor='serial'",
                code="unsupported",
            ) from None

    def _wait(self, todo: deque[_PendingJob]) -> None:
        """Wait for finished calls, at most `WAIT_SECONDS`, and record them. The job of a worker that died is done
        again. If no worker has a job for too long although jobs are left, the run ends."""
        errors = self._ray.exceptions
        timeout = self._executor.start_timeout
        finished, _ = self._call(self._ray.wait, list(self._calls), timeout=min(WAIT_SECONDS, timeout))
        for call in finished:
            worker, entry = self._calls.pop(call)
            try:
                reply = self._ray.get(call)
            except errors.RaySystemError as error:
                raise RunError(f"the Ray cluster is gone: {error}") from error
            except errors.RayTaskError as error:
                raise RunError(f"a worker failed{f' on {entry.job}' if entry else ''}: {error.cause!r}") from None
            except errors.RayError as error:
                self._kill([worker])  # It may still run on a node that cannot be reached.
                self._note_death(entry, _describe(error))
                if entry:
                    todo.append(entry)  # Last: others of a lost node may die on the jobs that come next.
                continue
            if entry is None:
                self._check_worker(*reply)
            else:
                entry.is_done = True
                entry.reply = reply
                self._deaths_in_a_row = 0
            self._idle.append(worker)
        now = time.monotonic()
        is_busy = bool(self._idle) or any(entry for _, entry in self._calls.values())
        self._idle_since = None if is_busy else self._idle_since or now
        if self._idle_since is not None and now - self._idle_since > timeout:
            raise RunError(
                f"no worker with {self._needs} has started within {timeout:g} s, although the cluster has "
                f"{_describe_nodes(self._list_nodes())}: other work may hold it, or the nodes may be gone; what is "
                "scored so far is kept if the run has a folder"
            )

    def _check_worker(self, version: str, sees_folder: bool) -> None:
        if version != __version__:
            raise RunError(
                f"a node of the cluster has metrist {version}, and this machine {__version__}: install the same "
                "version on all nodes, or scores may differ",
                code="conflict",
            )
        if self._sees_folder and not sees_folder:
            raise RunError(f"a node of the cluster does not see {self._folder}: share the folder, or name a URL")
        self._sees_folder = sees_folder

    def _note_death(self, entry: _PendingJob | None, reason: str) -> None:
        self._deaths[reason] += 1
        self._deaths_in_a_row += 1
        self._next_resize = 0.0  # Its node may be gone.
        if entry:
            entry.deaths += 1
            if entry.deaths >= MAX_DEATHS_PER_JOB:
                raise RunError(
                    f"{entry.deaths} workers of the cluster died on {entry.job}: {reason}; if memory ran out, give "
                    "workers more CPUs or use a smaller shard_size",
                    code="worker_died",
                )
        if self._deaths_in_a_row >= max(MAX_DEATHS_IN_A_ROW, 2 * self._size):
            raise RunError(
                f"{format_count(self._deaths_in_a_row, 'worker')} of the cluster died in a row, and none finished a "
                f"task; the last: {reason}",
                code="worker_died",
            )

    def _stop(self) -> None:
        self._kill([*self._idle, *(worker for worker, _ in self._calls.values())])
        self._idle, self._calls = [], {}

    def _kill(self, workers: Iterable[Any]) -> None:
        for worker in workers:
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
    """A worker: it holds metrics and performs jobs one by one. A model is loaded by the first job and stays."""

    def __init__(self, folder: str, path: list[str], has_gpu: bool) -> None:
        if not has_gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        # Paths of the program that runs the command count where this node has them.
        sys.path += [entry for entry in path if entry not in sys.path and os.path.exists(entry)]
        if os.path.isdir(folder):
            os.chdir(folder)
        self._data = b""
        self._metrics: dict[str, Metric] = {}

    def start(self, folder: SharedFolder | None) -> tuple[str, bool]:
        """The version of metrist, and whether this node sees the run folder."""
        return __version__, folder is not None and folder.is_visible()

    def perform(self, metrics: bytes, job: Any) -> Any:
        """The job's result, or the error that ended it."""
        if metrics != self._data:
            try:
                self._metrics = pickle.loads(metrics)
            except Exception as error:
                return RunError(
                    f"the metrics cannot be read by a worker ({type(error).__name__}: {error}): install their packages "
                    "on all nodes, or use executor='serial'"
                )
            self._data = metrics
        return attempt(lambda: job.run(self._metrics))


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


def _describe_nodes(nodes: Sequence[Node]) -> str:
    kinds = Counter(str(Resources(node.cpus, node.gpus)) for node in nodes if node.cpus + node.gpus > 0)
    each = ", ".join(f"{format_count(number, 'node')} with {kind}" for kind, number in kinds.items())
    return each or "no node with CPUs"
