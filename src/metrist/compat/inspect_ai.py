"""Metrics as scorers of inspect_ai: `Task(dataset=…, solver=generate(), scorer=metrist_scorer("rougeL"))`.

inspect_ai finds this module by its entry point, so that logs can be scored again: `inspect score log.eval --scorer
metrist/chrf`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from inspect_ai.scorer import SampleScore, Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.scorer import metric as inspect_metric
from inspect_ai.solver import TaskState

from metrist.compat.outputs import describe_facts, explain_score, score_output
from metrist.metrics import registry
from metrist.metrics.base import Metric


def metrist_scorer(metric: str) -> Scorer:
    """A scorer for a metric's text, such as `rougeL(stem=True)`; a short name (`stem=rougeL(stem=True)`) names it.

    The target is the reference, and the input the source; `references`, `source` and `instruction` in a sample's
    metadata take their places. A sample that lacks what the metric needs stays unscored."""
    built = registry.build(metric)
    return _register(built.short_name or built.name, type(built))(metric)


def _pool() -> Callable[[list[SampleScore]], float]:
    """The system's score of a metric for which it is not the mean of the outputs' scores, such as BLEU."""

    def compute(scores: list[SampleScore]) -> float:
        known = [facts for score in scores if "stats" in (facts := score.score.metadata or {})]
        if not known:
            return float("nan")
        sums = np.array([facts["stats"] for facts in known], dtype=np.float64).sum(axis=0)
        return float(registry.build(known[0]["metric"]).pool(sums))

    return compute


pooled = inspect_metric(name="pooled")(_pool)


def _register(name: str, kind: type[Metric]) -> Callable[[str], Scorer]:
    """Make a metric known to inspect_ai under a name."""
    pools = kind.pool is not Metric.pool
    statistics = [pooled()] if pools else [mean(), stderr()]

    def make(metric: str = name) -> Scorer:
        built = registry.build(metric)

        async def score(state: TaskState, target: Target) -> Score:
            metadata: dict[str, Any] = state.metadata or {}
            result = await asyncio.to_thread(
                score_output,
                built,
                state.output.completion,
                source=metadata.get("source", state.input_text),
                references=metadata.get("references", list(target)),
                instruction=metadata.get("instruction"),
            )
            facts = describe_facts(built, result)
            if pools and not result.failure:
                facts["stats"] = list(result.stats)
            # inspect_ai leaves a NaN out of its statistics.
            return Score(
                value=result.value,
                answer=state.output.completion,
                explanation=explain_score(result),
                metadata=facts,
            )

        return score

    registered: Callable[[str], Scorer] = scorer(metrics=statistics, name=name)(make)
    return registered


for _point in registry.list_entry_points():
    if _point.module.startswith("metrist."):
        _register(_point.name, _point.load())
