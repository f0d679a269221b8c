"""Metrics for the tasks of lm-evaluation-harness, by name in a task's YAML:

    metric_list:
      - metric: !function metrist.compat.lm_eval.rougeL
        stem: true
        aggregation: !function metrist.compat.lm_eval.pool
        higher_is_better: true

Further keys, such as `stem`, are settings of the metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from metrist.compat.outputs import score_output
from metrist.metrics import registry
from metrist.metrics.base import Metric
from metrist.spec import Spec


class DocumentScore(float):
    """The score of one document, with the statistics that pool to the score of all; NaN where there is none."""

    metric: str
    stats: tuple[float, ...]


def score_document(metric: str, output: str, references: Any, source: str | None = None) -> DocumentScore:
    """The score of one answer, for tasks whose own `process_results` calls it."""
    built = _build(metric)
    result = score_output(built, output, references=references, source=source)
    score = DocumentScore(result.value)
    score.metric, score.stats = metric, result.stats
    return score


def pool(scores: Sequence[DocumentScore]) -> float:
    """The score of all documents, as `metrist score` prints it: the mean, or what the metric's counts add up to, as for
    BLEU. Documents without a score are left out."""
    known = [score for score in scores if not math.isnan(score)]
    if not known:
        return math.nan
    return float(_build(known[0].metric).pool(np.array([score.stats for score in known]).sum(axis=0)))


def __getattr__(name: str) -> Callable[..., DocumentScore]:
    """A metric function, as the harness calls it for each document."""
    if registry.entry_point(name) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def score(*, references: Sequence[Any], predictions: Sequence[str], **settings: Any) -> DocumentScore:
        return score_document(str(Spec(name, settings)), predictions[0], references[0])

    score.__name__ = name  # Under which the harness shows it.
    return score


@cache
def _build(text: str) -> Metric:
    return registry.build(text)
