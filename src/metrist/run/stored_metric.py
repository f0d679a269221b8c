"""A metric that a file names but that cannot be built from there: its scores are at hand, its code is not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MetristError, RunError
from metrist.metrics.base import Metric
from metrist.metrics.registry import build
from metrist.scores import Scores


def metric_of(text: str, signature: str, higher_is_better: bool | None, scores: Scores) -> Metric:
    """The metric that a stored text names. Code is never imported because a file says so: in place of a metric from
    outside the catalog stands one that knows only what the file tells."""
    try:
        return build(text, allow_import=False, asks=False)
    except MetristError:
        # Direction belongs to the class, as for every metric; so each stand-in has a class of its own.
        stand_in: Any = type("StoredMetric", (StoredMetric,), {"higher_is_better": higher_is_better})
        made: Metric = stand_in(text, signature, scores)
        return made


def mean_stats(scores: Scores) -> NDArray[np.float64]:
    """The statistics that a metric has when it gives none itself."""
    return Scores(values=scores.values, failures=scores.failures).stats


class StoredMetric(Metric):
    """Stands for a metric whose code is not at hand. It pools where that needs no code: scores whose statistics are
    (value, 1) pool to their mean."""

    def __init__(self, text: str, signature: str, scores: Scores) -> None:
        self._text = text
        self._signature = signature
        self._pools_to_mean = np.array_equal(scores.stats, mean_stats(scores))

    @property
    def name(self) -> str:
        return self._text

    @property
    def text(self) -> str:
        return self._text

    @property
    def signature(self) -> str:
        return self._signature

    def pool(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        if not self._pools_to_mean:
            raise RunError(f"{self._text} pools its scores by its own code: {self._what_to_do()}")
        return super().pool(sums)

    def _what_to_do(self) -> str:
        return f"name it to have it imported (-m {self._text!r}, or load(path, metrics=[{self._text!r}]))"
