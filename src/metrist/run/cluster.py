"""Scheduling of tasks on a cluster: which worker gets which task, and what happens when workers die.

The program that runs the command reads the records, sends tasks to workers and writes all files, so that a run folder
has one writer and the same bytes as on one machine. Nothing here knows Ray: `metrist.run.ray_cluster` has the `Cluster`
that does, and tests use one of threads.
"""

from __future__ import annotations

import math
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from metrist._version import __version__
from metrist.errors import MetristError, RunError, did_you_mean, format_count
from metrist.metrics.base import Metric, calls_llm, is_resident, iterate_nested
from metrist.run.tasks import Task, TaskResult, perform
from metrist.run.worker_pool import describe_range

#: Tasks that a worker has at a time: it performs one while the next is on its way.
TASKS_PER_WORKER = 2
#: Tasks per worker that are read and whose results have not been stored yet. More than a worker has, since results are
#: stored in order: a slow task must not stop the workers that finish theirs.
WINDOW_PER_WORKER = 4
#: Workers that may die on one task before the run ends: the fault is then most likely in its records.
MAX_DEATHS_PER_TASK = 4
#: Workers that may die, or fail to start, while no task is finished.
MAX_DEATHS_IN_A_ROW = 8
#: Seconds between two looks at the cluster for nodes that have joined.
RESIZE_SECONDS = 5.0
#: CPUs of a worker that holds a model and has no GPU.
MODEL_CPUS = 4.0
#: Extras of metrics whose models run in torch, which can use a GPU.
_TORCH_EXTRAS = ("neural", "analyst", "train")


@dataclass(frozen=True, slots=True)
class Resources:
    """CPUs and GPUs that a worker needs or a node has."""

    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.cpus < float("inf") and 0 <= self.gpus < float("inf") and self.cpus + self.gpus > 0):
            raise RunError(f"a worker needs CPUs or GPUs, numbers of at least 0, got {self.cpus} and {self.gpus}")

    def __str__(self) -> str:
        parts = [f"{amount:g} {unit}" for amount, unit in ((self.cpus, "CPU"), (self.gpus, "GPU")) if amount]
        return " and ".join(parts)

    def count_on(self, node: Node) -> int:
        """How many such workers fit on a node."""
        # Ten times a tenth of a GPU is a whole one, whatever the rounding says.
        fits = [node.cpus / self.cpus + 1e-9] if self.cpus else []
        fits += [node.gpus / self.gpus + 1e-9] if self.gpus else []
        return math.floor(min(fits))


@dataclass(frozen=True, slots=True)
class Node:
    """The CPUs and GPUs of a machine of the cluster."""

    cpus: float
    gpus: float = 0.0


def _place(needs: Resources, nodes: list[Node], most: float = math.inf) -> int:
    """Take the resources of as many workers as fit, at most `most`, from the nodes; returns how many."""
    placed = 0
    for position, node in enumerate(nodes):
        count = int(min(needs.count_on(node), most - placed))
        nodes[position] = Node(node.cpus - count * needs.cpus, node.gpus - count * needs.gpus)
        placed += count
    return placed


class WorkerDied(Exception):
    """A worker, or its node, died while it was needed; the message says how."""


class Cluster(Protocol):
    """Starts workers and carries messages to them. A worker and a call are whatever the cluster likes; calls can be
    compared and hashed."""

    def list_nodes(self) -> Sequence[Node]:
        """The nodes that are alive."""
        ...

    def start_worker(self, metrics: Sequence[Metric], resources: Resources) -> tuple[Any, Hashable]:
        """Ask for a worker that holds these metrics. The call is finished when it has started; its value is the
        worker's version of metrist."""
        ...

    def submit(self, worker: Any, message: bytes) -> Hashable:
        """Have a worker perform a pickled task. Workers perform their tasks in the order of their calls."""
        ...

    def wait(self, calls: Sequence[Hashable], timeout: float) -> Sequence[Hashable]:
        """The calls that are finished. Where there are none yet, wait for one."""
        ...

    def fetch(self, call: Hashable) -> Any:
        """What a finished call returned; `WorkerDied` if it returned nothing."""
        ...

    def stop_worker(self, worker: Any) -> None:
        """End a worker at once, if there still is one."""
        ...


def _check_names(resources: Mapping[str, Resources], metrics: Sequence[Metric]) -> None:
    known = {name for metric in metrics for name in (metric.text, metric.label)}
    for name in resources:
        if name not in known:
            raise RunError(f"resources: there is no metric {name!r} in this run{did_you_mean(name, known)}")


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
    return Resources(max(cpus) if cpus else model_cpus if is_resident(metric) else 1.0, gpu)


@dataclass(eq=False, slots=True)
class _Job:
    """A task, or what one pool of workers does of it, as a message. `reply` is the worker's answer."""

    task: Task
    message: bytes
    reply: bytes | None = None
    deaths: int = 0


@dataclass(eq=False, slots=True)
class _Worker:
    handle: Any
    start: Hashable
    is_ready: bool = False
    #: Calls under way with their jobs, in order.
    calls: dict[Hashable, _Job] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Pool:
    """The workers that hold the same metrics, and the jobs that wait for them."""

    metrics: Sequence[Metric]
    resources: Resources
    size: int = 0
    workers: list[_Worker] = field(default_factory=list)
    jobs: deque[_Job] = field(default_factory=deque)
    #: Since when there are jobs and no worker is ready.
    idle_since: float | None = None

    @property
    def texts(self) -> list[str]:
        return [metric.text for metric in self.metrics]


@dataclass(eq=False, slots=True)
class _Entry:
    """A task that has been read and whose result has not been yielded yet."""

    task: Task
    jobs: list[_Job]


class Scheduler:
    """Performs tasks on the workers of a cluster and yields the results in the order of the tasks.

    Metrics that need the same resources share workers, each of which holds one copy of them. Metrics that call LLMs
    stay in this process, and with them the limits on requests, the budget and the answer cache: there is one of each.
    `resources` are by the metric's text or name and come before what metrics declare. `workers` is the number of
    workers for each group of metrics; None: as many as fit on the nodes, also on those that join later.
    """

    def __init__(
        self,
        cluster: Cluster,
        metrics: Sequence[Metric],
        *,
        workers: int | None = None,
        resources: Mapping[str, Resources] | None = None,
        device: str = "auto",
        start_timeout: float = 300.0,
        report: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._clock, self._report = cluster, clock, report
        self._workers, self._start_timeout = workers, start_timeout
        self._metrics = {metric.text: metric for metric in metrics}
        self._deaths_in_a_row = 0
        self._deaths: Counter[str] = Counter()
        self._next_resize = 0.0
        nodes = cluster.list_nodes()
        _check_names(resources or {}, metrics)
        groups: dict[Resources, list[Metric]] = {}
        for metric in metrics:
            if not calls_llm(metric):
                given = (resources or {}).get(metric.text) or (resources or {}).get(metric.label)
                groups.setdefault(given or find_resources(metric, nodes, device), []).append(metric)
        # Those that need most come first: their metrics are slow, and others must not take the CPUs beside a GPU.
        self._pools = [
            _Pool(members, needs)
            for needs, members in sorted(groups.items(), key=lambda group: (-group[0].gpus, -group[0].cpus))
        ]
        if workers is None:
            self._join_pools(nodes)

    def map(self, tasks: Iterable[Task]) -> Iterator[TaskResult]:
        """The results in the order of the tasks. Workers are stopped in the end, however that comes."""
        entries: deque[_Entry] = deque()
        remaining = iter(tasks)
        try:
            while True:
                while len(entries) < self._window and (task := next(remaining, None)):
                    entries.append(self._add(task))
                if not entries:
                    return
                self._dispatch()
                if any(job.reply is None for job in entries[0].jobs):
                    self._advance()
                else:
                    yield self._finish(entries.popleft())
        finally:
            self.stop()

    @property
    def _window(self) -> int:
        """How many tasks may be under way."""
        return max(WINDOW_PER_WORKER * max((pool.size for pool in self._pools), default=0), 1)

    def stop(self) -> None:
        """Stop all workers, and tell what happened to them."""
        for pool in self._pools:
            for worker in pool.workers:
                self._cluster.stop_worker(worker.handle)
            pool.workers.clear()
        if self._deaths:
            reasons = ", ".join(
                f"{reason} ({number} times)" if number > 1 else reason for reason, number in self._deaths.items()
            )
            deaths = format_count(self._deaths.total(), "worker")
            self._report(f"{deaths} of the cluster died and lost nothing, since others did their tasks: {reasons}")
            self._deaths.clear()

    # ---- Tasks ----

    def _add(self, task: Task) -> _Entry:
        jobs = []
        for pool in self._pools:
            texts = tuple(text for text in task.metrics if text in pool.texts)
            if texts:
                part = task if len(texts) == len(task.metrics) else replace(task, metrics=texts)
                job = _Job(part, _to_message(part))
                pool.jobs.append(job)
                jobs.append(job)
        return _Entry(task, jobs)

    def _finish(self, entry: _Entry) -> TaskResult:
        """Join what the pools returned with what is done here, in the order in which the task lists its metrics."""
        outcomes: dict[str, Any] = {}
        for job in entry.jobs:
            reply = pickle.loads(job.reply or b"")
            if isinstance(reply, MetristError):
                raise reply
            outcomes |= reply.outcomes
        here = tuple(text for text in entry.task.metrics if text not in outcomes)
        if here:
            outcomes |= perform(self._metrics, replace(entry.task, metrics=here)).outcomes
        return TaskResult(start=entry.task.start, outcomes={text: outcomes[text] for text in entry.task.metrics})

    # ---- Workers ----

    def _dispatch(self) -> None:
        """Start workers where some are missing and give them the tasks that wait."""
        now = self._clock()
        if now >= self._next_resize:
            self._next_resize = now + RESIZE_SECONDS
            self._resize()
        for pool in self._pools:
            while len(pool.workers) < pool.size:
                handle, start = self._cluster.start_worker(pool.metrics, pool.resources)
                pool.workers.append(_Worker(handle, start))
            ready = [worker for worker in pool.workers if worker.is_ready]
            while pool.jobs and ready:
                worker = min(ready, key=lambda worker: len(worker.calls))
                if len(worker.calls) >= TASKS_PER_WORKER:
                    break
                job = pool.jobs.popleft()
                worker.calls[self._cluster.submit(worker.handle, job.message)] = job
            if ready or not pool.jobs:
                pool.idle_since = None
            elif pool.idle_since is None:
                pool.idle_since = now
            elif now - pool.idle_since > self._start_timeout:
                raise RunError(
                    f"no worker with {pool.resources} has started within {self._start_timeout:g} s, although the "
                    f"cluster has {_describe_nodes(self._cluster.list_nodes())}: other work may hold it, or the nodes "
                    "may be gone; what is scored so far is kept if the run has a folder"
                )

    def _join_pools(self, nodes: Sequence[Node]) -> None:
        """Join pools until the nodes have room for a worker of each: workers keep what they hold, so that one without
        room would never start."""
        while len(self._pools) > 1:
            free = list(nodes)
            if all(_place(pool.resources, free, most=1) for pool in self._pools):
                return
            *self._pools, first, second = self._pools
            needs = Resources(
                max(first.resources.cpus, second.resources.cpus), max(first.resources.gpus, second.resources.gpus)
            )
            self._pools.append(_Pool([*first.metrics, *second.metrics], needs))

    def _resize(self) -> None:
        """Set the size of each pool to what the nodes can hold: one worker for each pool, and of what is left as many
        as fit for the first, then for the next. Where nodes were lost, a pool without room still wants one."""
        if self._workers is not None:
            for pool in self._pools:
                pool.size = self._workers
            return
        free = list(self._cluster.list_nodes())
        for pool in self._pools:
            if not pool.size and not any(pool.resources.count_on(node) for node in self._cluster.list_nodes()):
                raise RunError(
                    f"{', '.join(pool.texts)}: no node of the cluster has {pool.resources}, but "
                    f"{_describe_nodes(free)}; name other resources (resources={{'METRIC': …}}), or the number of "
                    "workers if nodes will join"
                )
        sizes = [_place(pool.resources, free, most=1) for pool in self._pools]
        for pool, size in zip(self._pools, sizes, strict=True):
            pool.size = max(1, size + _place(pool.resources, free))

    def _advance(self) -> None:
        """Wait until something has happened, and note what."""
        owners: dict[Hashable, tuple[_Pool, _Worker]] = {}
        for pool in self._pools:
            for worker in pool.workers:
                owners |= dict.fromkeys(worker.calls if worker.is_ready else (worker.start,), (pool, worker))
        finished = set(self._cluster.wait(list(owners), RESIZE_SECONDS))
        # In the order of the calls: what a worker finished before it died counts.
        for call, (pool, worker) in owners.items():
            if call not in finished or worker not in pool.workers:
                continue  # Or it died with an earlier call.
            try:
                value = self._cluster.fetch(call)
            except WorkerDied as death:
                self._replace_dead(pool, worker, death)
                continue
            if worker.is_ready:
                worker.calls.pop(call).reply = value
                self._deaths_in_a_row = 0
                continue
            if isinstance(value, MetristError):
                raise value
            if value != __version__:
                raise RunError(
                    f"a node of the cluster has metrist {value}, and this machine {__version__}: install the same "
                    "version on all nodes, or scores may differ"
                )
            worker.is_ready = True

    def _replace_dead(self, pool: _Pool, worker: _Worker, death: WorkerDied) -> None:
        """Give the tasks of a dead worker to others. It died on the first; the rest had not begun."""
        pool.workers.remove(worker)
        self._cluster.stop_worker(worker.handle)
        self._deaths[str(death)] += 1
        self._deaths_in_a_row += 1
        jobs = list(worker.calls.values())
        if jobs:
            jobs[0].deaths += 1
            if jobs[0].deaths >= MAX_DEATHS_PER_TASK:
                raise RunError(
                    f"{jobs[0].deaths} workers of the cluster died on {describe_range(jobs[0].task)}: {death}; if "
                    "memory ran out, give workers more CPUs or use a smaller shard_size"
                )
        if self._deaths_in_a_row >= max(MAX_DEATHS_IN_A_ROW, 2 * pool.size):
            raise RunError(
                f"{format_count(self._deaths_in_a_row, 'worker')} of the cluster died in a row, and none finished a "
                f"task; the last: {death}"
            )
        pool.jobs.extendleft(reversed(jobs))
        self._next_resize = 0.0  # Its node may be gone.


def _to_message(task: Task) -> bytes:
    try:
        return pickle.dumps(task, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise RunError(
            f"{describe_range(task)} cannot be sent to a worker ({type(error).__name__}: {error}): use "
            "executor='serial'"
        ) from None


def _describe_nodes(nodes: Sequence[Node]) -> str:
    kinds = Counter(str(Resources(node.cpus, node.gpus)) for node in nodes if node.cpus + node.gpus > 0)
    each = ", ".join(f"{format_count(number, 'node')} with {kind}" for kind, number in kinds.items())
    return each or "no node with CPUs"
