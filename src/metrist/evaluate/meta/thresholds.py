"""A metric's tie threshold ε: what it is chosen on, how scores are judged at it, and by how much it flatters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from metrist.evaluate.meta.dataset import (
    JudgedDataset,
    SelectedSample,
    group_codes,
    resolve_column,
    select_sample,
    take_outputs,
)
from metrist.evaluate.plans import MetaPlan
from metrist.stats import Codes, Floats
from metrist.stats.estimation import draw_resamples
from metrist.stats.measures import Measure, accuracy_at
from metrist.stats.samples import Average, number_groups
from metrist.stats.tie_thresholds import ThresholdChoice, optimism
from metrist.stats.ties import TIE, quantise_ties

# By `epsilon_over`:
#
# all        one threshold per metric, the best over all outputs that take part
# slice      one per metric and slice, the best on that slice
# crossfit   items are dealt into folds; each fold uses the threshold that is best on the others, so that no threshold
#            is chosen on the data it is evaluated on
# COLUMN     one per metric and value of the column (a language, as Doostmohammadi et al. (2024) do)
#
# Under the last two a metric has several thresholds. Only outputs that share a threshold are then paired. But for
# `slice`, thresholds are chosen once and serve every row: if there are slices, those that are best for the average of
# the slices of the first column (tasks, in that paper).

FOLDS = 5
#: Resamples in which thresholds are chosen again: their mean needs fewer draws than an interval.
_DRAWS = 100


class CalibratedScores(NamedTuple):
    """Scores as a measure takes them (one per output of the data), the measure, and the threshold in the units of those
    scores. If `parted`, only outputs of one part may be paired."""

    values: Floats
    measure: Measure
    tie: float
    parted: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Thresholds:
    """The part (or -1) of each output of the data, the threshold of each part (NaN for a part without a pair), and what
    makes the data that each threshold was chosen on; None if they are too large to choose it again."""

    part: Codes
    epsilon: Floats
    choices: tuple[Callable[[], ThresholdChoice] | None, ...]

    def single(self, outputs: Codes) -> float | None:
        """Return the threshold that all these outputs share, or None if there are several."""
        parts = take_outputs(self.part, outputs)
        is_shared = len(parts) and parts[0] >= 0 and (parts == parts[0]).all()
        return float(self.epsilon[parts[0]]) if is_shared else None

    def apply(self, scores: Floats, outputs: Codes) -> CalibratedScores:
        """Return these outputs' scores with a measure that uses each part's own threshold."""
        single = self.single(outputs)
        # Without any pair no threshold was chosen, and any will do.
        epsilons = np.nan_to_num(self.epsilon)
        if single is not None:
            return CalibratedScores(scores, accuracy_at(float(np.nan_to_num(single))), single, parted=False)
        values = np.full(len(scores), np.nan)
        for code in np.unique(self.part[outputs]):
            if code >= 0:
                members = outputs[self.part[outputs] == code]
                values[members] = quantise_ties(scores[members], float(epsilons[code]))
        return CalibratedScores(values, accuracy_at(TIE), TIE, parted=True)


def assign_parts(dataset: JudgedDataset, plan: MetaPlan, outputs: Codes) -> Codes:
    """Return a code for each output of the data: outputs with equal codes share a threshold."""
    match plan.epsilon_over:
        case "all" | "slice":
            return np.broadcast_to(np.intp(0), len(dataset))
        case "crossfit":
            items = np.unique(dataset.items.codes[outputs])
            fold = np.full(len(dataset.items.names), -1, dtype=np.intp)
            fold[items] = plan.rng().permutation(len(items)) % FOLDS
            return fold[dataset.items.codes]
    return resolve_column(dataset, plan.epsilon_over, outputs).codes


def choose_thresholds(
    dataset: JudgedDataset,
    plan: MetaPlan,
    human: Floats,
    metric: Floats,
    outputs: Codes,
    parts: Codes,
    slices: Codes | None = None,
) -> Thresholds:
    """Choose the thresholds of one metric over these outputs.

    With slices (a code for each output of the data), outputs are paired within slices, and a threshold is best for the
    average of the slices, unless they leave nothing to pair.
    """

    def make_choice(code: int, slices: Codes | None) -> ThresholdChoice:
        own = take_outputs(parts, outputs)
        inside = own != code if plan.epsilon_over == "crossfit" else own == code
        inside &= own >= 0
        used = outputs if inside.all() else outputs[inside]
        if slices is not None:
            used = used[take_outputs(slices, used) >= 0]
        selected = select_sample(dataset, human, metric, used)
        return ThresholdChoice(
            sample=selected.sample,
            groups=group_codes(dataset, plan.group, selected),
            slices=None if slices is None else slices[selected.outputs],
            average=pair_average(plan),
            slice_average=plan.average,
        )

    epsilon: list[float] = []
    choices: list[Callable[[], ThresholdChoice] | None] = []
    for code in range(int(take_outputs(parts, outputs).max(initial=0)) + 1):
        choice, own = make_choice(code, slices), slices
        if slices is not None and math.isnan(choice.best()):
            choice, own = make_choice(code, None), None
        epsilon.append(choice.best())
        choices.append(None if choice.is_too_large() else partial(make_choice, code, own))
    return Thresholds(part=parts, epsilon=np.array(epsilon), choices=tuple(choices))


def join_thresholds(thresholds: Sequence[Thresholds], slices: Sequence[Codes], size: int) -> Thresholds:
    """Join thresholds that were chosen slice by slice, one each, into those of all the slices' outputs."""
    part = np.full(size, -1, dtype=np.intp)
    for code, outputs in enumerate(slices):
        part[outputs] = code
    epsilon = np.array([chosen.epsilon[0] for chosen in thresholds])
    return Thresholds(part=part, epsilon=epsilon, choices=tuple(chosen.choices[0] for chosen in thresholds))


def pair_average(plan: MetaPlan) -> Average:
    """How groups are averaged. Without groups, all pairs form one pool, within and across slices."""
    return "micro" if plan.group == "none" else plan.group_average


def estimate_optimism(
    plan: MetaPlan, thresholds: Thresholds, selected: SelectedSample, groups: Codes, average: Average
) -> float:
    """Estimate by how much the accuracy of this sample is too high because its thresholds were chosen on it.

    0 if they were chosen on other items.
    """
    if plan.epsilon_over == "crossfit" or not plan.draws or not len(selected.sample):
        return 0.0
    parts = take_outputs(thresholds.part, selected.outputs)
    values, weights = [], []
    for code in np.flatnonzero(np.bincount(parts)):
        members, make_choice = np.flatnonzero(parts == code), thresholds.choices[code]
        flattery = 0.0
        if make_choice is not None:
            choice = make_choice()
            items, systems = choice.sample.item, choice.sample.system
            if choice.slices is not None:  # Outputs of no slice were not chosen on.
                on = np.isin(selected.sample.item, items) & np.isin(selected.sample.system, systems)
                members = members[on[members]]
            draws = next(draw_resamples(items, systems, plan.resample, _DRAWS, plan.rng(), _DRAWS))
            inside = take_outputs(groups, members)
            flattery = optimism(choice, selected.sample.take(members), inside, draws, average)
        values.append(flattery)
        # In a pool, a part weighs as many groups as have a pair, or all its pairs.
        sizes = np.bincount(number_groups(take_outputs(groups, members))[1])
        pairs = sizes[sizes > 1] * (sizes[sizes > 1] - 1) // 2
        weights.append(float(len(pairs) if average == "macro" else pairs.sum()))
    return float(np.dot(weights, values) / sum(weights)) if sum(weights) else 0.0
