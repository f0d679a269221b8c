"""The runtime of a run reaches its metrics, here and in worker processes, and belongs to that run alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from error_codes import raises_code
from metrist import Metric, Record, complete
from metrist.errors import ModelError, RunError
from metrist.run import score
from metrist.runtime import Runtime
from scripted_llm import Scripted

METRIC = """
from metrist.runtime import Runtime
@dataclass(frozen=True)
class ShowRuntime(Metric):
    def score(self, shard):
        runtime = shard.runtime
        assert Runtime.current() == runtime
        text = f"{runtime.device} {runtime.batch_tokens} {runtime.cache}"
        return Scores.of(Score(value=1.0, explanation=text) for _ in shard.records)
"""
ROWS = [{"item": str(number), "system": "a", "output": f"text {number}"} for number in range(8)]


def test_a_runtime_is_current_inside_its_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_DEVICE", "cuda:1")
    with Runtime(device="cpu").activate():
        with Runtime.current().override(batch_tokens=64).activate():
            assert (Runtime.current().device, Runtime.current().batch_tokens) == ("cpu", 64)
        assert (Runtime.current().device, Runtime.current().batch_tokens) == ("cpu", None)
    assert Runtime.current().device == "cuda:1"


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_metrics_get_the_runtime_here_and_in_workers(
    rows: list[dict[str, Any]],
    module: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    executor: str,
) -> None:
    metric = module(METRIC).ShowRuntime()
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    options: Any = {"device": "cpu", "batch_tokens": 9, "cache": "kept"}
    results = score(rows, [metric], executor=executor, shard_size=16, **options)
    assert set(results.scores[metric.text].explanations.values()) == {f"cpu 9 {tmp_path / 'kept'}"}
    assert dict(os.environ) == before


def test_two_threads_score_with_different_runtimes_at_once() -> None:
    both = threading.Barrier(2, timeout=30)
    seen: dict[str, set[tuple[str, int | None]]] = {}

    class ShowRuntime(Metric):
        def score_record(self, record: Record) -> float:
            both.wait()
            runtime = Runtime.current()
            seen.setdefault(threading.current_thread().name, set()).add((runtime.device, runtime.batch_tokens))
            return float(len(record.output))

    def run(device: str, batch_tokens: int) -> str:
        score(ROWS, ShowRuntime(), executor="serial", device=device, batch_tokens=batch_tokens)
        return threading.current_thread().name

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(run, "cpu", 1), pool.submit(run, "cuda:7", 2)
        names = first.result(), second.result()
    assert [seen[name] for name in names] == [{("cpu", 1)}, {("cuda:7", 2)}]


def test_the_budget_of_a_run_holds_for_a_metric_that_calls_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prices.toml").write_text("[[price]]\nmodel = '*'\ninput = 1_000_000\noutput = 1_000_000\n")
    monkeypatch.setenv("METRIST_PRICES", str(tmp_path / "prices.toml"))
    (tmp_path / "log").touch()
    llm = Scripted(log=str(tmp_path / "log"), tokens=(20, 10))

    class Ask(Metric):
        def score_record(self, record: Record) -> float:
            return float(len(complete(llm, [record.output], max_tokens=5)[0].text))

    with raises_code(ModelError, "budget", "$0"):
        score(ROWS, Ask(), executor="serial", max_cost=0.0)
    assert (tmp_path / "log").read_text() == ""
    assert len(score(ROWS, Ask(), executor="serial")) == len(ROWS)


def test_the_runtime_is_not_part_of_a_result_s_identity(
    rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = score(rows, "chrf", out=tmp_path / "run")
    monkeypatch.setattr("metrist.run.tasks.score_shard", None)
    again = score(rows, "chrf", out=tmp_path / "run", device="cpu", batch_tokens=4, cache=tmp_path / "c")
    assert again.signatures == first.signatures


@pytest.mark.parametrize(("name", "value"), [("batch_tokens", 0), ("cache", __file__)])
def test_impossible_options_are_refused_before_the_run(name: str, value: Any) -> None:
    options: Any = {name: value}
    with raises_code(RunError, "invalid_value", name, value):
        score([{"item": "1", "output": "a"}], "length", **options)
