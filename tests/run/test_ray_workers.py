"""Scheduling on a Ray of threads, whose workers die when a test says so."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, ClassVar, cast

import pytest
from fake_ray import FakeRay

import metrist
from error_codes import raises_code
from metrist.errors import MissingExtra, RunError
from metrist.llm.replay import FakeLLM
from metrist.metrics.base import Metric
from metrist.metrics.judge.judge import Judge
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.run import ray as ray_module
from metrist.run import score
from metrist.run.executors import Processes, Ray, Resources, choose_executor, find_executor, resolve_executor
from metrist.run.ray import Node, find_resources, open_workers
from metrist.run.tasks import Serial, Task
from metrist.scores import Scores


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeRay]:
    """`start(cpus=…)` gives metrist this Ray."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", ""))

    def make(**options: Any) -> FakeRay:
        fake = FakeRay(**options)
        monkeypatch.setitem(sys.modules, "ray", fake)
        return fake

    return make


def tasks(metrics: Sequence[Metric], count: int = 20) -> Iterator[Task]:
    for n in range(count):
        record = Record(item=str(n), system="s", output="word " * n, references=("word word",))
        yield Task(start=n, units=(record,), metrics=tuple(metric.text for metric in metrics))


def values(executor: Any, metrics: Sequence[Metric]) -> list[tuple[int, list[str], list[float]]]:
    return [
        (
            result.start,
            list(result.outcomes),
            [float(value) for outcome in result.outcomes.values() for value in cast(Scores, outcome.block).values],
        )
        for result in executor.map(metrics, tasks(metrics))
    ]


LEXICAL = [build("rougeL"), build("chrf")]
EXPECTED = values(Serial(), LEXICAL)


def list_starts(jobs: Sequence[Any]) -> list[int]:
    return sorted(job.start for job in jobs)


def test_results_come_in_order_from_all_nodes(start: Callable[..., FakeRay]) -> None:
    fake = start()
    assert values(Ray(), LEXICAL) == EXPECTED
    assert len(fake.workers) == 2
    assert list_starts(fake.done) == list(range(20))
    assert all(worker.is_dead for worker in fake.workers)


def test_reranking_is_that_of_one_process(start: Callable[..., FakeRay], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrist.evaluate.rerank.items.SHARD_SIZE", 4)
    records = [
        Record(item=str(n), system=str(m), output="word " * (n * m % 5) + "end", references=("word end",))
        for n in range(6)
        for m in range(3)
    ]
    expected = [choice.to_row() for choice in metrist.rerank(records, "rougeL", mbr="chrf", executor="serial")]
    fake = start()
    assert [choice.to_row() for choice in metrist.rerank(records, "rougeL", mbr="chrf", executor=Ray())] == expected
    assert list_starts(fake.done) == [0, 6, 12]


def test_no_more_tasks_are_read_than_the_window_holds(start: Callable[..., FakeRay]) -> None:
    start()
    read = 0

    def count_reads() -> Iterator[Task]:
        nonlocal read
        for task in tasks(LEXICAL):
            read += 1
            yield task

    results = Ray().map(LEXICAL, count_reads())
    next(results)
    assert read <= 2 + 2 * ray_module.WINDOW_PER_WORKER
    results.close()  # type: ignore[attr-defined]


def test_the_task_of_a_dead_worker_goes_to_another_and_none_is_done_twice(start: Callable[..., FakeRay]) -> None:
    deaths = {5}

    def dies(_worker: Any, job: Any) -> bool:
        is_first = job.start in deaths
        deaths.discard(job.start)
        return is_first

    fake, executor = start(dies=dies), Ray()
    assert values(executor, LEXICAL) == EXPECTED
    assert list_starts(fake.done) == list(range(20))
    assert len(fake.workers) == 3
    assert len(executor.notes) == 1
    assert "1 worker of the cluster died and lost nothing" in executor.notes[0]


def test_a_lost_node_is_done_without(start: Callable[..., FakeRay]) -> None:
    """Nobody waits for a node that does not come back."""

    def dies(worker: Any, _job: Any) -> bool:
        if worker is fake.workers[0] and len(worker.jobs) > 2:
            fake.cpus, fake.gpus = (1.0,), (0.0,)
            return True
        return False

    fake = start(dies=dies)
    assert values(Ray(), LEXICAL) == EXPECTED
    assert len(fake.workers) == 2


def test_a_task_that_kills_its_workers_ends_the_run(start: Callable[..., FakeRay]) -> None:
    fake = start(dies=lambda _worker, job: job.start == 7)
    with raises_code(RunError, "worker_died", "4", "8"):
        values(Ray(), LEXICAL)
    assert all(worker.is_dead for worker in fake.workers)


def test_workers_that_all_die_end_the_run(start: Callable[..., FakeRay]) -> None:
    start(cpus=(8.0,), gpus=(0.0,), dies=lambda *_: True)
    with raises_code(RunError, "worker_died", "workers"):
        values(Ray(), LEXICAL)


def test_a_node_that_joins_is_used(start: Callable[..., FakeRay], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_module, "RESIZE_SECONDS", 0.01)
    fake = start(cpus=(1.0,), gpus=(0.0,))
    results = Ray().map(LEXICAL, tasks(LEXICAL))
    next(results)
    assert len(fake.workers) == 1
    fake.cpus, fake.gpus = (1.0, 2.0), (0.0, 0.0)
    list(results)
    assert len(fake.workers) == 3


def test_another_version_on_a_node_is_refused(start: Callable[..., FakeRay]) -> None:
    start(version="0.0.1")
    with raises_code(RunError, "conflict", "0.0.1"):
        values(Ray(), LEXICAL)


def test_a_cluster_without_the_resources_is_refused(start: Callable[..., FakeRay]) -> None:
    start()
    with raises_code(RunError, "run_failed", "1", "2"):
        values(Ray(resources={"chrf": Resources(gpus=1)}), LEXICAL)


def test_a_worker_that_never_starts_ends_the_run(start: Callable[..., FakeRay]) -> None:
    start().never_starts.set()
    with raises_code(RunError, "run_failed", "1"):
        values(Ray(start_timeout=0.05), LEXICAL)


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


def test_metrics_with_other_resources_are_grouped(start: Callable[..., FakeRay]) -> None:
    start(cpus=(8.0,), gpus=(1.0,))
    metrics = [*LEXICAL, Declared()]
    with open_workers(Ray(resources={"chrf": Resources(3)}), metrics) as workers:
        assert workers.group_metrics(metrics) == [
            (Resources(2, 0.5), [metrics[2]]),
            (Resources(3), [metrics[1]]),
            (Resources(), [metrics[0]]),
        ]


def test_workers_that_are_sent_tasks_hold_all_metrics(start: Callable[..., FakeRay]) -> None:
    fake = start(cpus=(8.0,), gpus=(1.0,))
    metrics = [build("rougeL"), Declared()]
    assert values(Ray(), metrics) == values(Serial(), metrics)
    assert [worker.resources for worker in fake.workers] == [(2, 0.5), (2, 0.5)]


def test_other_resources_are_other_workers(start: Callable[..., FakeRay]) -> None:
    fake = start(cpus=(2.0,), gpus=(0.0,))
    with open_workers(Ray(), LEXICAL) as workers:
        assert len(list(workers.map(LEXICAL, tasks(LEXICAL)))) == 20
        assert [worker.resources for worker in fake.workers] == [(1, 0), (1, 0)]
        assert len(list(workers.map([Declared()], tasks([Declared()], 0)))) == 0
        assert [worker.is_dead for worker in fake.workers] == [False, False]
        list(workers.map([Model()], tasks([Model()])))
        assert [(worker.resources, worker.is_dead) for worker in fake.workers[2:]] == [((2, 0), False)]
        assert [worker.is_dead for worker in fake.workers[:2]] == [True, True]


def test_ten_tenths_of_a_gpu_are_ten_workers() -> None:
    assert Resources(0, 0.1).count_on(Node(0.0, 1.0)) == 10


def test_resources_of_an_unknown_metric_are_refused() -> None:
    with raises_code(RunError, "unknown_name", "'chrff'", "'chrf'"):
        values(Ray(resources={"chrff": Resources(2)}), LEXICAL)


def test_llm_metrics_stay_in_this_process(start: Callable[..., FakeRay]) -> None:
    fake, llm = start(), FakeLLM(answers="4")
    metrics = [build("rougeL"), Judge(llm=llm)]
    results = list(Ray().map(metrics, tasks(metrics, 6)))
    assert [list(result.outcomes) for result in results] == 6 * [[metric.text for metric in metrics]]
    assert all(job.metrics == ("rougeL",) for job in fake.done)
    assert len(llm.requests) == 6


def test_an_error_of_a_metric_is_that_of_the_run(
    start: Callable[..., FakeRay], module: Callable[[str], ModuleType]
) -> None:
    start()
    source = """
class Broken(Metric):
    def score(self, shard):
        raise ValueError("nothing works")
"""
    metric: Metric = module(source).Broken()
    with raises_code(RunError, "metric_failed", "nothing works"):
        list(Ray().map([metric], tasks([metric])))


def test_executors_have_names() -> None:
    assert find_executor("ray") == Ray()
    assert find_executor("ray:10.0.0.1:6379", workers=3) == Ray(address="10.0.0.1:6379", workers=3)
    assert choose_executor("ray:auto", LEXICAL) == (Ray(address="auto"), [])
    with raises_code(RunError, "unknown_name", "'rya'", "'ray'?"):
        find_executor("rya")
    with raises_code(RunError, "invalid_value", 0):
        Ray(workers=0)


def test_a_number_of_workers_belongs_to_an_executor_that_has_them() -> None:
    assert resolve_executor(None, None) is None
    assert resolve_executor(None, 1) == Serial()
    assert resolve_executor(None, 3) == resolve_executor("processes", 3) == Processes(3)
    assert resolve_executor("processes", None) == "processes"
    assert resolve_executor("serial", 1) == Serial()
    assert resolve_executor("ray:auto", 3) == Ray(address="auto", workers=3)
    for find in (find_executor, resolve_executor):
        with raises_code(RunError, "invalid_value", "'serial'", "4"):
            find("serial", 4)
    with raises_code(RunError, "unknown_name", "'ray'?"):
        resolve_executor("rya", None)


def test_ray_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with raises_code(MissingExtra, "missing_dependency", "metrist[ray]"):
        score([{"output": "a", "references": ["a"]}], ["chrf"], executor="ray")
