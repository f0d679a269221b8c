"""Runs on a local Ray cluster of two nodes: the same scores as of a serial run, whatever dies."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from ray_nodes import Nodes, find_strays, kill_worker, list_parts, start, start_nodes, wait_for_scores, write_records

import metrist
from metrist.llm.replay import FakeLLM
from metrist.metrics.base import Metric
from metrist.metrics.llm_metric import LLMMetric
from metrist.metrics.registry import build
from metrist.run import score
from metrist.run.cluster import ClusterPipeline
from metrist.run.executors import Ray
from metrist.run.ingest import Ingest
from metrist.scores import Score
from run_contents import contents

pytest.importorskip("ray", reason="Ray is not installed: pip install 'metrist[ray]'")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes through /proc"),
    # Ray's own code leaves files and sockets to the garbage collector.
    pytest.mark.filterwarnings("default"),
]

METRICS = "rougeL,chrf"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with start_nodes(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ray") / "in.jsonl"
    write_records(path, 4000)
    return path


@pytest.fixture(scope="module")
def expected(records: Path) -> dict[str, Any]:
    out = records.parent / "serial"
    score(records, METRICS.split(","), out=out, shard_size=100, executor="serial")
    return contents(out)


def test_a_run_folder_holds_what_a_serial_run_does(nodes: Nodes, records: Path, expected: dict[str, Any]) -> None:
    done = list[int]()
    out = records.parent / "whole"
    score(
        records,
        METRICS.split(","),
        out=out,
        shard_size=100,
        executor=Ray(address=nodes.address),
        progress=lambda count, _total: done.append(count),
    )
    assert contents(out) == expected
    assert not find_strays(out)
    assert done == sorted(done)
    assert done[-1] == 4000


def test_workers_read_parquet_and_files_that_cannot_be_cut(
    nodes: Nodes, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metrist.run.cluster.SLICE_BYTES", (1 << 14, 1 << 14))
    lines = records.read_bytes().splitlines(keepends=True)
    sources = [tmp_path / "a.parquet", tmp_path / "b.jsonl.gz", tmp_path / "c.jsonl"]
    table = pa.Table.from_pylist(list(map(json.loads, lines[:2000])))
    parquet.write_table(table, sources[0], row_group_size=300)
    sources[1].write_bytes(gzip.compress(b"".join(lines[2000:3000])))
    sources[2].write_bytes(b"".join(lines[3000:]))
    added = list[bool]()
    read_in_workers = ClusterPipeline._read_in_workers

    def note_reading(pipeline: ClusterPipeline, ingest: Ingest) -> bool:
        added.append(read_in_workers(pipeline, ingest))
        return added[-1]

    monkeypatch.setattr(ClusterPipeline, "_read_in_workers", note_reading)
    score(sources, METRICS.split(","), out=tmp_path / "ray", executor=Ray(address=nodes.address))
    score(sources, METRICS.split(","), out=tmp_path / "serial", executor="serial")
    assert added == [True]
    assert contents(tmp_path / "ray") == contents(tmp_path / "serial")
    assert not find_strays(tmp_path / "ray")


@pytest.mark.parametrize("victim", ["worker", "node", "command"])
def test_what_is_killed_loses_nothing(victim: str, nodes: Nodes, records: Path, expected: dict[str, Any]) -> None:
    out = records.parent / victim
    process = start(records, out, METRICS, nodes.address)
    assert wait_for_scores(process, out, 800), process.communicate()
    if victim == "command":
        process.kill()
    else:
        kill_worker(nodes.address) if victim == "worker" else nodes.kill_one()
    output, errors = process.communicate(timeout=300)
    if victim == "command":
        before = sum(list_parts(out).values())
        assert 0 < before < 8000
        process = start(records, out, METRICS, nodes.address)
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert contents(out) == expected  # A score that was computed twice would be there twice.
    assert not find_strays(out)
    if victim == "worker":
        assert "died and lost nothing" in output


def test_metrics_of_this_program_and_llms_in_one_pass(nodes: Nodes) -> None:
    class Words(Metric):
        """Defined here, and sent to workers by value."""

        def score_record(self, record: Any) -> float:
            return float(len(record.output.split()))

    class Grade(LLMMetric):
        def prompt(self, record: Any) -> str:
            return f"Grade this: {record.output}"

        def parse(self, text: str) -> Score:
            return Score(value=float(text))

    llm = FakeLLM(answers="4")
    rows = [{"item": str(n), "output": "a " * n, "references": ["a a"]} for n in range(30)]
    metrics = [Words(), build("rougeL"), Grade(llm=llm)]
    results = score(iter(rows), metrics, executor=Ray(address=nodes.address), shard_size=10)
    assert list(results.scores[metrics[0].label].values) == list(range(30))
    assert len(llm.requests) == 30
    same = score(rows, ["rougeL"], executor="serial")
    assert list(results.scores["rougeL"].values) == list(same.scores["rougeL"].values)


def test_pairs_are_compared_too(nodes: Nodes, module: Callable[[str], ModuleType]) -> None:
    source = """
from metrist.metrics.comparator import Comparator, Judgment
class Longer(Comparator):
    def prefer(self, pairs):
        longer = [len(p.first.output) >= len(p.second.output) for p in pairs]
        return [Judgment(preference="first" if first else "second") for first in longer]
"""
    comparator = module(source).Longer()
    rows = [{"item": str(n), "system": s, "output": "a" * (n + len(s))} for n in range(9) for s in ("x", "yy")]
    one = metrist.prefer(rows, [comparator], executor=Ray(address=nodes.address))
    other = metrist.prefer(rows, [comparator], executor="serial")
    assert dict(one.judgments) == dict(other.judgments)
    assert one.judgments


def test_reranking_on_nodes_chooses_what_it_chooses_here(nodes: Nodes) -> None:
    rows = [{"item": str(n % 50), "system": "s", "output": f"a cat sat {n % 7} {n % 11}"} for n in range(400)]
    here = metrist.rerank(rows, mbr="chrf", k=2, executor="serial")
    there = metrist.rerank(rows, mbr="chrf", k=2, executor=Ray(address=nodes.address))
    assert [choice.to_row() for choice in there] == [choice.to_row() for choice in here]
    assert there.gains == here.gains
