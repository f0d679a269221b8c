"""The scale that a metric counts on: how its scores are written, and whether a threshold was meant for it."""

from __future__ import annotations

import math
from typing import Literal

from metrist.metrics.base import Metric
from metrist.report.cells import decimals_for


def scale_note(metric: Metric, kind: Literal["minimum", "maximum"], threshold: float, typical: float) -> str | None:
    """A warning where a threshold lies off the metric's scale, or looks like a share where the metric counts in
    percent; None where nothing is odd. `typical` is a score that the run itself holds."""
    low, high = metric.bounds
    if not low <= threshold <= high:
        fate = "never" if (threshold > high) is (kind == "minimum") else "always"
        meant = f"; did you mean {threshold / 100:g}?" if 1 < threshold <= 100 and high == 1 else ""
        return f"{metric.text} ranges from {low:g} to {high:g}: a {kind} of {threshold:g} is {fate} met{meant}"
    if 0 < threshold <= 1 and _counts_in_percent(metric) and typical > 1:
        return (
            f"{metric.text} counts in percent (here {typical:.1f}): a {kind} of {threshold:g} means {threshold:g} %; "
            f"did you mean {100 * threshold:g}?"
        )
    return None


def decimals_of(metric: Metric, *scores: float) -> int:
    """How many decimals the metric's scores deserve: by its bounds, or by these scores where it has none."""
    bounds = metric.bounds if all(map(math.isfinite, metric.bounds)) else scores
    return decimals_for(min(bounds), max(bounds))


def _counts_in_percent(metric: Metric) -> bool:
    """Bounded by 100; or an error rate, which starts at 0 and, as outputs can be wrong without end, has no bound."""
    low, high = metric.bounds
    return low == 0 and (high == 100 or (math.isinf(high) and metric.higher_is_better is False))
