"""Where a metric's tie threshold is chosen, and on which outputs it is then used.

all        one threshold per metric, the best over all outputs that take part; for the slices of a column, one that is
           best for the average of these slices (as paper 004 does over its tasks)
slice      one per metric and slice, the best on that slice
crossfit   items are dealt into folds; each fold is judged at the threshold that is best on the others, so that no
           threshold is chosen on the data it is judged on
COLUMN     one per metric and value of the column (a language, as in paper 004)

Under the last two a metric has several thresholds. Only outputs that share one are then paired.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metrist.evaluate.meta.dataset import Judged, Taken, taken
from metrist.evaluate.meta.results import Average, Plan
from metrist.evaluate.meta.slices import column_of, group_codes
from metrist.stats import Codes, Floats
from metrist.stats.bootstrap import drawn
from metrist.stats.measures import Measure, acc_eq_measures
from metrist.stats.samples import Draws, Sample
from metrist.stats.tie_optimism import Choice, optimism
from metrist.stats.ties import TIE, in_steps, pairing

FOLDS = 5
#: Resamples in which thresholds are chosen anew: their mean is wanted, for which fewer do than for an interval.
_DRAWS = 100


class Judging(NamedTuple):
    """Scores as a measure takes them (one per output of the data), the measure, and the threshold in those scores'
    units. With `parted`, only outputs of one part are to be paired."""

    values: Floats
    measure: Measure
    tie: float
    parted: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Thresholds:
    """A part (or -1) for each output of the data, the threshold of each part (NaN for a part without a pair), and what
    it was chosen on."""

    part: Codes
    epsilon: Floats
    choices: tuple[Choice, ...]

    def single(self, outputs: Codes) -> float | None:
        """The threshold that all these outputs share; None where there are several."""
        parts = np.unique(self.part[outputs])
        return float(self.epsilon[parts[0]]) if len(parts) == 1 and parts[0] >= 0 else None

    def judging(self, scores: Floats, outputs: Codes) -> Judging:
        """How these outputs' scores are judged, each part at its own threshold."""
        single = self.single(outputs)
        if single is not None:
            return Judging(scores, acc_eq_measures(_usable(single)), single, parted=False)
        values = np.full(len(scores), np.nan)
        for code in np.unique(self.part[outputs]):
            if code >= 0:
                inside = outputs[self.part[outputs] == code]
                values[inside] = in_steps(scores[inside], _usable(float(self.epsilon[code])))
        return Judging(values, acc_eq_measures(TIE), TIE, parted=True)


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
    """The thresholds of one metric over these outputs. With slices (a code for each output of the data) outputs are
    paired within them, and it is their average that a threshold is best for."""
    choices = []
    for code in range(int(parts[outputs].max(initial=0)) + 1):
        inside = parts[outputs] == code
        used = outputs[~inside & (parts[outputs] >= 0)] if plan.epsilon_over == "crossfit" else outputs[inside]
        choices.append(_choice(judged, plan, human, metric, used, slices))
    epsilon = np.array([choice.best() for choice in choices])
    return Thresholds(part=parts, epsilon=epsilon, choices=tuple(choices))


def of_slices(found: Sequence[Thresholds], slices: Sequence[Codes], size: int) -> Thresholds:
    """Thresholds that were chosen slice by slice, one each, as those of all these slices' outputs."""
    part = np.full(size, -1, dtype=np.intp)
    for code, outputs in enumerate(slices):
        part[outputs] = code
    epsilon = np.array([one.epsilon[0] for one in found])
    return Thresholds(part=part, epsilon=epsilon, choices=tuple(one.choices[0] for one in found))


def pair_average(plan: Plan) -> Average:
    """How groups are averaged. Without groups all pairs are one pool, within slices as over them."""
    return "micro" if plan.group == "none" else plan.group_average


def flattery(plan: Plan, used: Thresholds, part: Taken, groups: Codes, average: Average) -> float:
    """How much too good the accuracy of this sample is on average because its thresholds were chosen on it; 0 where
    they were chosen on other items."""
    if plan.epsilon_over == "crossfit" or not plan.draws or not len(part.sample):
        return 0.0
    parts = used.part[part.outputs]
    found, weights = [], []
    for code in np.unique(parts):
        sample, inside = part.sample.take(parts == code), groups[parts == code]
        found.append(optimism(used.choices[code], sample, inside, _draws(plan, used.choices[code]), average))
        weights.append(_pooling_weight(sample, inside, average))
    return float(np.dot(weights, found) / sum(weights)) if sum(weights) else 0.0


def _pooling_weight(sample: Sample, groups: Codes, average: Average) -> float:
    """What these outputs weigh in a pool with others: the groups that have a pair, or all pairs."""
    pairs = pairing(sample.human, sample.metric, groups).pairs
    return float(len(pairs) if average == "macro" else pairs.sum())


def _draws(plan: Plan, choice: Choice) -> Draws:
    rng = np.random.default_rng(plan.seed)
    return next(drawn(choice.sample.item, choice.sample.system, plan.resample, _DRAWS, rng, _DRAWS))


def _choice(judged: Judged, plan: Plan, human: Floats, metric: Floats, outputs: Codes, slices: Codes | None) -> Choice:
    kept = outputs if slices is None else outputs[slices[outputs] >= 0]
    part = taken(judged, human, metric, kept)
    return Choice(
        sample=part.sample,
        groups=group_codes(judged, plan.group, part),
        slices=None if slices is None else slices[part.outputs],
        average=pair_average(plan),
        slice_average=plan.average,
    )


def _folds(judged: Judged, plan: Plan, outputs: Codes) -> Codes:
    items = np.unique(judged.items.codes[outputs])
    dealt = np.random.default_rng(plan.seed).permutation(len(items)) % FOLDS
    fold = np.full(len(judged.items.names), -1, dtype=np.intp)
    fold[items] = dealt
    return fold[judged.items.codes]


def _usable(epsilon: float) -> float:
    """A threshold that a measure takes: without any pair none was found, and any will do."""
    return 0.0 if math.isnan(epsilon) else epsilon
