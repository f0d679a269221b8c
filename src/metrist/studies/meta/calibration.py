"""Where a metric's tie threshold is chosen, and on which outputs it is then used.

all        one threshold per metric, the best over all outputs that take part
slice      one per metric and slice, the best on that slice
crossfit   outputs are dealt into folds by item; each fold is judged at the threshold that is best on the others, so that
           no threshold is chosen on the data it is judged on
COLUMN     one per metric and value of the column (a language, as in paper 004)

Under the last two a metric has several thresholds. Only outputs that share one are then paired, and scores are counted
in thresholds: differences of at most 1 tie.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from metrist.meta.grouping import Average
from metrist.meta.threshold_search import best_threshold
from metrist.meta.ties import pairing
from metrist.studies.meta.grouped import group_codes
from metrist.studies.meta.judged import Codes, Floats, Judged
from metrist.studies.meta.plan import Plan
from metrist.studies.meta.samples import taken
from metrist.studies.meta.slices import column_of

FOLDS = 5
#: A threshold is itself the gap of some pair, which must stay a tie though both were divided by it.
_JUST_ABOVE_ONE = 1 + 1e-12


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

    @property
    def threshold(self) -> float:
        """What is a tie among scores counted in thresholds."""
        return _JUST_ABOVE_ONE


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
    judged: Judged, plan: Plan, human: Floats, metric: Floats, outputs: Codes, parts: Codes
) -> Thresholds:
    """The thresholds of one metric over these outputs; NaN for a part without a pair."""
    count = int(parts[outputs].max(initial=0)) + 1
    fitted = np.full(count, np.nan)
    for code in range(count):
        inside = parts[outputs] == code
        used = outputs[~inside & (parts[outputs] >= 0)] if plan.epsilon_over == "crossfit" else outputs[inside]
        fitted[code] = fit(judged, plan.group, human, metric, used, plan.group_average)
    return Thresholds(part=parts, epsilon=fitted)


def fit(judged: Judged, group: str, human: Floats, metric: Floats, outputs: Codes, average: Average) -> float:
    """The best threshold on these outputs; NaN where they form no pair."""
    part = taken(judged, human, metric, outputs)
    if group == "system-level":
        return 0.0
    groups = group_codes(judged, group, part)
    return best_threshold(pairing(part.sample.human, part.sample.metric, groups, average=average)).epsilon


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
