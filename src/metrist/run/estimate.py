"""What a run would take, without running it: the LLM requests that its metrics would make."""

from __future__ import annotations

from typing import Any

from metrist.io import read_records
from metrist.llm.budget import CallEstimate, estimate_calls
from metrist.metrics.base import Shard, calls_llm
from metrist.metrics.registry import MetricList, build_all
from metrist.run.sharding import SHARD_SIZE_WITH_MODEL, check_needs, cut_shards
from metrist.run.tasks import score_shard


def estimate(records: Any, metrics: MetricList, **reading: Any) -> CallEstimate:
    """The LLM requests that `score` with the same arguments would make. Nothing is sent and nothing written; metrics
    that call no LLM are left out."""
    built = build_all(metrics)
    judges = [metric for metric in built if calls_llm(metric)]
    with estimate_calls() as result:
        for _, shard in cut_shards(check_needs(built, read_records(records, **reading)), SHARD_SIZE_WITH_MODEL):
            for metric in judges:
                score_shard(metric, Shard(shard))  # type: ignore[arg-type]
    return result
