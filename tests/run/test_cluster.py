"""Scheduling on a cluster of threads, whose workers die when a test says so."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, cast

import pytest

from metrist._version import __version__
from metrist.errors import MissingExtra, RunError
from metrist.llm.replay import FakeLLM
from metrist.metrics.base import Metric
from metrist.metrics.judge.judge import Judge
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.run import cluster as cluster_module
from metrist.run import score
from metrist.run.cluster import Node, Resources, Scheduler, WorkerDied, find_resources
from metrist.run.executors import Processes, Ray, choose_executor, find_executor, resolve_executor
from metrist.run.tasks import Serial, Task
from metrist.run.worker import reply
from metrist.scores import Scores


@dataclass(eq=False)
class ThreadWorker:
    metrics: dict[str, Metric]
    resources: Resources
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    is_dead: bool = False


@dataclass(eq=False)
class ThreadCluster:
    """`dies(worker number, task number)` says whether a worker dies on a task. `version` is that of its nodes."""

    nodes: list[Node] = field(default_factory=lambda: [Node(1.0), Node(1.0)])
    dies: Callable[[int, int], bool] = lambda _worker, _task: False
    version: str = __version__
    started: list[ThreadWorker] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def list_nodes(self) -> list[Node]:
        return self.nodes

    def start_worker(self, metrics: Sequence[Metric], resources: Resources) -> tuple[Any, Hashable]:
        worker = ThreadWorker({metric.text: metric for metric in metrics}, resources)
        self.started.append(worker)
        return worker, worker.threads.submit(lambda: self.version)

    def submit(self, worker: ThreadWorker, message: bytes) -> Hashable:
        with self.lock:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        return worker.threads.submit(self._perform, worker, message)

    def _perform(self, worker: ThreadWorker, message: bytes) -> bytes:
        with self.lock:
            self.under_way -= 1
        start = pickle.loads(message).start
        if worker.is_dead or self.dies(self.started.index(worker), start):
            worker.is_dead = True
            raise WorkerDied("a test ended it")
        with self.lock:
            self.tasks.append(start)
        return reply(worker.metrics, message)

    def wait(self, calls: Sequence[Any], timeout: float) -> list[Hashable]:
        return list(wait(calls, timeout, FIRST_COMPLETED).done)

    def fetch(self, call: Any) -> Any:
        result: Future[Any] = call
        return result.result()

    def stop_worker(self, worker: ThreadWorker) -> None:
        worker.is_dead = True
        worker.threads.shutdown(wait=False, cancel_futures=True)


def tasks(metrics: Sequence[Metric], count: int = 20) -> Iterator[Task]:
    for n in range(count):
        record = Record(item=str(n), system="s", output="word " * n, references=("word word",))
        yield Task(start=n, units=(record,), headers={metric.text: None for metric in metrics})


def values(scheduler: Any, metrics: Sequence[Metric]) -> list[tuple[int, list[str], list[float]]]:
    return [
        (
            result.start,
            list(result.outcomes),
            [float(value) for outcome in result.outcomes.values() for value in cast(Scores, outcome.block).values],
        )
        for result in (scheduler.map(tasks(metrics)) if isinstance(scheduler, Scheduler) else scheduler)
    ]


LEXICAL = [build("rougeL"), build("chrf")]
EXPECTED = values(Serial().map(LEXICAL, tasks(LEXICAL)), LEXICAL)


def test_results_come_in_order_from_all_nodes_and_few_tasks_are_under_way() -> None:
    cluster = ThreadCluster()
    assert values(Scheduler(cluster, LEXICAL), LEXICAL) == EXPECTED
    assert len(cluster.started) == 2
    assert sorted(cluster.tasks) == list(range(20))
    assert cluster.most_under_way <= 2 * cluster_module.TASKS_PER_WORKER


def test_no_more_tasks_are_read_than_the_window_holds() -> None:
    read = 0

    def count_reads() -> Iterator[Task]:
        nonlocal read
        for task in tasks(LEXICAL):
            read += 1
            yield task

    results = Scheduler(ThreadCluster(), LEXICAL).map(count_reads())
    next(results)
    assert read <= 1 + 2 * cluster_module.WINDOW_PER_WORKER
    results.close()  # type: ignore[attr-defined]


def test_tasks_of_a_dead_worker_go_to_others_and_none_is_done_twice() -> None:
    deaths, notes = {5}, list[str]()

    def dies(_worker: int, task: int) -> bool:
        is_first = task in deaths
        deaths.discard(task)
        return is_first

    cluster = ThreadCluster(dies=dies)
    assert values(Scheduler(cluster, LEXICAL, report=notes.append), LEXICAL) == EXPECTED
    assert sorted(cluster.tasks) == list(range(20))
    assert len(cluster.started) == 3
    assert len(notes) == 1
    assert "1 worker" in notes[0]


def test_a_task_that_kills_its_workers_ends_the_run() -> None:
    cluster = ThreadCluster(dies=lambda _worker, task: task == 7)
    with pytest.raises(RunError, match=r"4 workers of the cluster died on records 8 to 8"):
        values(Scheduler(cluster, LEXICAL), LEXICAL)
    assert all(worker.is_dead for worker in cluster.started)


def test_workers_that_all_die_end_the_run() -> None:
    cluster = ThreadCluster(nodes=[Node(8.0)], dies=lambda *_: True)
    with pytest.raises(RunError, match="workers of the cluster died"):
        values(Scheduler(cluster, LEXICAL), LEXICAL)


def test_a_node_that_joins_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "RESIZE_SECONDS", 0.0)
    cluster = ThreadCluster(nodes=[Node(1.0)])
    results = Scheduler(cluster, LEXICAL).map(tasks(LEXICAL))
    next(results)
    assert len(cluster.started) == 1
    cluster.nodes.append(Node(2.0))
    list(results)
    assert len(cluster.started) == 3


def test_another_version_on_a_node_is_refused() -> None:
    with pytest.raises(RunError, match=r"metrist 0\.0\.1"):
        values(Scheduler(ThreadCluster(version="0.0.1"), LEXICAL), LEXICAL)


def test_a_cluster_without_the_resources_is_refused() -> None:
    with pytest.raises(RunError, match="1 GPU"):
        values(Scheduler(ThreadCluster(), LEXICAL, resources={"chrf": Resources(gpus=1)}), LEXICAL)


def test_a_worker_that_never_starts_ends_the_run() -> None:
    class Pending(ThreadCluster):
        def start_worker(self, metrics: Sequence[Metric], resources: Resources) -> tuple[Any, Hashable]:
            worker, _ = super().start_worker(metrics, resources)
            return worker, Future()

        def wait(self, calls: Sequence[Any], timeout: float) -> list[Hashable]:
            return super().wait(calls, min(timeout, 0.01))

    with pytest.raises(RunError, match="no worker with 1 CPU has started"):
        values(Scheduler(Pending(), LEXICAL, start_timeout=0.05), LEXICAL)


class Model(Metric):
    """A metric with a model in torch."""

    resident: ClassVar[bool] = True
    extra: ClassVar[str | None] = "neural"

    def score_record(self, record: Record) -> float:
        return float(len(record.output))


class Declared(Model):
    cpus: ClassVar[float | None] = 2
    gpus: ClassVar[float | None] = 0.5


@pytest.mark.parametrize(
    ("metric", "nodes", "device", "expected"),
    [
        (build("chrf"), [Node(16.0, 4.0)], "auto", Resources(1, 0)),
        (Model(), [Node(16.0), Node(8.0, 2.0)], "auto", Resources(1, 1)),
        (Model(), [Node(16.0, 4.0)], "cpu", Resources(4, 0)),
        (Model(), [Node(2.0)], "auto", Resources(2, 0)),
        (Declared(), [Node(16.0, 4.0)], "auto", Resources(2, 0.5)),
    ],
)
def test_resources_of_metrics(metric: Metric, nodes: list[Node], device: str, expected: Resources) -> None:
    assert find_resources(metric, nodes, device) == expected


def test_metrics_with_other_resources_have_workers_of_their_own() -> None:
    metrics = [build("rougeL"), Declared()]
    cluster = ThreadCluster(nodes=[Node(8.0, 1.0)])
    expected = values(Serial().map(metrics, tasks(metrics)), metrics)
    assert values(Scheduler(cluster, metrics), metrics) == expected
    held = [(list(worker.metrics), worker.resources) for worker in cluster.started]
    # Two workers share the GPU and take four CPUs; the rest is for the other metric.
    assert held == 2 * [([metrics[1].text], Resources(2, 0.5))] + 4 * [(["rougeL"], Resources())]


@pytest.mark.parametrize(
    ("nodes", "needs", "expected"),
    [
        # Each kind of worker has room, and those that need more get the rest.
        ([Node(5.0)], Resources(2), 2 * [(["chrf"], Resources(2))] + [(["rougeL"], Resources())]),
        ([Node(1.0), Node(2.0)], Resources(2), [(["chrf"], Resources(2)), (["rougeL"], Resources())]),
        # No room for one of each: they share a worker.
        ([Node(2.0)], Resources(2), [(["chrf", "rougeL"], Resources(2))]),
        ([Node(1.0, 1.0)], Resources(0.5, 0.1), [(["chrf", "rougeL"], Resources(1, 0.1))]),
    ],
)
def test_no_kind_of_worker_waits_for_resources_that_others_hold(
    nodes: list[Node], needs: Resources, expected: list[tuple[list[str], Resources]]
) -> None:
    cluster = ThreadCluster(nodes=nodes)
    assert values(Scheduler(cluster, LEXICAL, resources={"chrf": needs}), LEXICAL) == EXPECTED
    held = [(list(worker.metrics), worker.resources) for worker in cluster.started]
    assert held == expected
    used = [sum(amount) for amount in zip(*((one.cpus, one.gpus) for _, one in held), strict=True)]
    assert used[0] <= sum(node.cpus for node in nodes)
    assert used[1] <= sum(node.gpus for node in nodes)


def test_ten_tenths_of_a_gpu_are_ten_workers() -> None:
    assert Resources(0, 0.1).count_on(Node(0.0, 1.0)) == 10


def test_resources_of_an_unknown_metric_are_refused() -> None:
    with pytest.raises(RunError, match="no metric 'chrff' in this run; did you mean 'chrf'"):
        Scheduler(ThreadCluster(), LEXICAL, resources={"chrff": Resources(2)})


def test_llm_metrics_stay_in_this_process() -> None:
    llm = FakeLLM(answers="4")
    metrics = [build("rougeL"), Judge(llm=llm)]
    cluster = ThreadCluster()
    results = list(Scheduler(cluster, metrics).map(tasks(metrics, 6)))
    assert [list(result.outcomes) for result in results] == 6 * [[metric.text for metric in metrics]]
    assert all(list(worker.metrics) == ["rougeL"] for worker in cluster.started)
    assert len(llm.requests) == 6


def test_an_error_of_a_metric_is_that_of_the_run(module: Callable[[str], ModuleType]) -> None:
    source = """
class Broken(Metric):
    def score(self, shard):
        raise ValueError("nothing works")
"""
    metric: Metric = module(source).Broken()
    with pytest.raises(RunError, match="nothing works"):
        list(Scheduler(ThreadCluster(), [metric]).map(tasks([metric])))


def test_executors_have_names() -> None:
    assert find_executor("ray") == Ray()
    assert find_executor("ray:10.0.0.1:6379", workers=3) == Ray(address="10.0.0.1:6379", workers=3)
    assert choose_executor("ray:auto", LEXICAL) == (Ray(address="auto"), [])
    with pytest.raises(RunError, match="did you mean 'ray'"):
        find_executor("rya")
    with pytest.raises(RunError, match="at least one worker"):
        Ray(workers=0)


def test_a_number_of_workers_belongs_to_an_executor_that_has_them() -> None:
    assert resolve_executor(None, None) is None
    assert resolve_executor(None, 1) == Serial()
    assert resolve_executor(None, 3) == resolve_executor("processes", 3) == Processes(3)
    assert resolve_executor("processes", None) == "processes"
    assert resolve_executor("serial", 1) == Serial()
    assert resolve_executor("ray:auto", 3) == Ray(address="auto", workers=3)
    for find in (find_executor, resolve_executor):
        with pytest.raises(RunError, match="'serial' has one worker, got workers = 4"):
            find("serial", 4)
    with pytest.raises(RunError, match="did you mean 'ray'"):
        resolve_executor("rya", None)


def test_ray_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"metrist\[ray\]"):
        score([{"output": "a", "references": ["a"]}], ["chrf"], executor="ray")
