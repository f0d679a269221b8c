"""What a run would ask of LLMs, before it asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from metrist.io import read_records
from metrist.llm.estimates import Estimate, estimating
from metrist.metrics.base import Metric
from metrist.metrics.registry import build
from metrist.metrics.shard import Shard
from metrist.run.cutting import SHARD_SIZE_WITH_MODEL, cut
from metrist.run.executors.scoring import score_one
from metrist.run.needs import served
from metrist.spec import Spec

#: The dependency group that metrics which ask LLMs have in common.
_ASKING = "llm"


def estimate(records: Any, metrics: Iterable[str | Spec | Metric], **reading: Any) -> Estimate:
    """The questions that a run of `score` with the same arguments would ask. Nothing is sent and nothing written;
    metrics without an LLM are left out."""
    built = [build(metric) for metric in metrics]
    asking = [metric for metric in built if metric.extra == _ASKING]
    with estimating() as found:
        for _, shard in cut(served(built, read_records(records, **reading)), SHARD_SIZE_WITH_MODEL):
            for metric in asking:
                score_one(metric, Shard(shard))
    return found
