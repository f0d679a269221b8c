"""Averages over the slices of a column. Macro: the mean of the slices' values. Micro: the groups of all slices in one
pool; without groups, or where pairs of groups are pooled (`--group-average micro`), all their pairs in one pool.
Outputs of different slices are not paired either way. Of systems' means there is no pool: micro is macro there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from metrist.evaluate.meta.human_rows import has_ceiling, human_figure, rater_scorers
from metrist.evaluate.meta.judged import Codes
from metrist.evaluate.meta.result import Figure
from metrist.evaluate.meta.slices import Slice
from metrist.evaluate.meta.trials import (
    Resampled,
    Scorer,
    Trial,
    known_mean,
    mean_of,
    pooled_trial,
    resampled,
    scorer_of,
    trial,
)
from metrist.evaluate.meta.work import Work


def mean_figures(work: Work, slices: Sequence[Slice], name: str, single: Sequence[Figure]) -> list[Figure]:
    """Per metric the average over the slices of one column, whose figures are `single`, and that of the raters."""
    outputs = np.unique(np.concatenate([one.outputs for one in slices]))
    where = f"{slices[0].column}: {work.plan.average} mean"
    rated = sum(int(np.isfinite(work.gold[one.outputs]).sum()) for one in slices)
    figures = []
    for metric in work.metrics:
        own = [figure for figure in single if figure.metric == metric.name]
        trials = _trials(work, scorer_of(work, metric), slices, name)
        made = _figure(work, mean_of(resampled(work, trials, outputs)), own, outputs)
        chance, all_ties = known_mean(np.array([one.baselines() for one in trials]).T)
        coverage = made.n / rated if rated else math.nan
        figures.append(replace(made, slice=where, chance=float(chance), all_ties=float(all_ties), coverage=coverage))
    if has_ceiling(work):
        raters = [_mean(work, scorer, slices, name, outputs) for scorer in rater_scorers(work)]
        figures.append(human_figure(work, name, where, raters, outputs))
    return figures


def _trials(work: Work, scorer: Scorer, slices: Sequence[Slice], name: str) -> list[Trial]:
    """What is averaged: each slice by itself, or the one pool of all."""
    if work.plan.average == "micro" and work.plan.group != "system-level":
        return [pooled_trial(work, scorer, slices, name)]
    return [trial(work, scorer, one, name) for one in slices]


def _mean(work: Work, scorer: Scorer, slices: Sequence[Slice], name: str, outputs: Codes) -> Resampled:
    return mean_of(resampled(work, _trials(work, scorer, slices, name), outputs))


def _figure(work: Work, found: Resampled, own: Sequence[Figure], outputs: Codes) -> Figure:
    low, high = found.interval(work, outputs)
    return replace(
        own[0],
        value=found.value,
        low=low,
        high=high,
        n=found.n,
        epsilon=own[0].epsilon if len({figure.epsilon for figure in own}) == 1 else math.nan,
        rank=0,
        mark="",
        groups=sum(not math.isnan(figure.value) for figure in own),
        undefined=sum(math.isnan(figure.value) for figure in own),
    )
