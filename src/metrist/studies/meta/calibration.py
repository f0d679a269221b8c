"""Where a metric's tie threshold is chosen, and on which outputs it is then used.

all        one threshold per metric, the best over all outputs that take part; for the slices of a column, one that is
           best for the average of these slices (as paper 004 does over its tasks)
slice      one per metric and slice, the best on that slice
crossfit   items are dealt into folds; each fold is judged at the threshold that is best on the others, so that no
           threshold is chosen on the data it is judged on
COLUMN     one per metric and value of the column (a language, as in paper 004)

Under the last two a metric has several thresholds. Only outputs that share one are then paired, and scores are counted
in thresholds: differences of at most 1 tie.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from metrist.meta.threshold_search import best_threshold
from metrist.meta.ties import pairing
from metrist.studies.meta.grouped import group_codes
from metrist.studies.meta.judged import Codes, Floats, Judged
from metrist.studies.meta.plan import Plan
from metrist.studies.meta.samples import taken
from metrist.studies.meta.slices import column_of

FOLDS = 5
#: What is a tie among scores counted in thresholds: a little more than 1, for a threshold is itself the gap of some
#: pair, which must stay a tie though both were divided.
TIE = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Thresholds:
    """A part (or -1) for each output of the data, and the threshold of each part."""

    part: Codes
    epsilon: Floats

    def single(self, outputs: Codes) -> float | None:
        """The threshold that all these outputs share; None where there are several."""
        parts = np.unique(self.part[outputs])
        return float(self.epsilon[parts[0]]) if len(parts) == 1 and parts[0] >= 0 else None

    def in_thresholds(self, values: Floats) -> Floats:
        """Scores counted in their part's threshold. Where that is 0 or unknown, in something smaller than any gap."""
        unit = np.array([_unit(values[self.part == code], e) for code, e in enumerate(self.epsilon)])
        return np.where(self.part >= 0, values / np.append(unit, 1.0)[self.part], np.nan)


def parts_of(judged: Judged, plan: Plan, outputs: Codes) -> tuple[Codes, tuple[str, ...]]:
    """Which outputs share a threshold: a code for each output of the data, and the codes' names."""
    match plan.epsilon_over:
        case "all" | "slice":
            return np.zeros(len(judged), dtype=np.intp), ("all",)
        case "crossfit":
            return _folds(judged, plan, outputs), tuple(f"fold {i + 1}" for i in range(FOLDS))
    labels = column_of(judged, plan.epsilon_over, outputs)
    return labels.codes, labels.names


def thresholds(
    judged: Judged,
    plan: Plan,
    human: Floats,
    metric: Floats,
    outputs: Codes,
    parts: Codes,
    slices: Codes | None = None,
) -> Thresholds:
    """The thresholds of one metric over these outputs; NaN for a part without a pair. With slices (a code for each
    output of the data) outputs are paired within them, and it is their average that a threshold is best for."""
    count = int(parts[outputs].max(initial=0)) + 1
    fitted = np.full(count, np.nan)
    for code in range(count):
        inside = parts[outputs] == code
        used = outputs[~inside & (parts[outputs] >= 0)] if plan.epsilon_over == "crossfit" else outputs[inside]
        fitted[code] = fit(judged, plan, human, metric, used, slices)
    return Thresholds(part=parts, epsilon=fitted)


def fit(
    judged: Judged, plan: Plan, human: Floats, metric: Floats, outputs: Codes, slices: Codes | None = None
) -> float:
    """The best threshold on these outputs; NaN where they form no pair."""
    kept = outputs if slices is None else outputs[slices[outputs] >= 0]
    part = taken(judged, human, metric, kept)
    found = pairing(
        part.sample.human,
        part.sample.metric,
        group_codes(judged, plan.group, part),
        slices=None if slices is None else slices[part.outputs],
        average=plan.group_average,
        slice_average=plan.average,
    )
    return best_threshold(found).epsilon


def _folds(judged: Judged, plan: Plan, outputs: Codes) -> Codes:
    items = np.unique(judged.items.codes[outputs])
    dealt = np.random.default_rng(plan.seed).permutation(len(items)) % FOLDS
    fold = np.full(len(judged.items.names), -1, dtype=np.intp)
    fold[items] = dealt
    return fold[judged.items.codes]


def _unit(values: Floats, epsilon: float) -> float:
    if epsilon > 0 and math.isfinite(epsilon):
        return epsilon
    gaps = np.diff(np.unique(values[np.isfinite(values)]))
    return float(gaps.min()) / 2 if len(gaps) else 1.0
