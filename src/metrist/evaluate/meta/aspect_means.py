"""The mean of each metric's figures over the aspects that were rated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.estimates import (
    MeasuredSample,
    average_values,
    make_scorer,
    mean_of_known,
    measure_slice,
    resample_together,
)
from metrist.evaluate.meta.figures import RatingAspect, figure_of_mean, samples_to_average, soft_ties
from metrist.evaluate.meta.results import MEAN, Figure
from metrist.stats import Codes


def average_aspects(
    aspects: Sequence[RatingAspect], measures: Sequence[str], figures: Sequence[Figure]
) -> list[Figure]:
    """Average each metric over the aspects, on each slice and on the mean over a column's slices, whose figures are
    given. Intervals come from common resamples of the outputs of all aspects. An aspect without the slice, or
    without a value there, is left out and counted."""
    if len(aspects) < 2:
        raise RunError("`mean_over='aspect'` needs two aspects: name more with `aspects`", code="too_little_data")
    data = aspects[0].data
    averages = []
    for measure in [measure for measure in measures if not soft_ties(measure)]:
        for name in dict.fromkeys(figure.slice for figure in figures if figure.measure == measure):
            for metric in data.metrics:
                samples, outputs = _collect_samples(aspects, metric.name, measure, name)
                values = iter(resample_together(data, [sample for own in samples for sample in own], outputs))
                mean = average_values([average_values([next(values) for _ in own]) for own in samples])
                baselines = [mean_of_known(np.array([sample.baselines() for sample in own]).T) for own in samples]
                same = [f for f in figures if (f.metric, f.measure, f.slice) == (metric.name, measure, name)]
                rated = sum(figure.n / figure.coverage for figure in same if figure.coverage > 0)
                averages.append(figure_of_mean(same, mean, data, outputs, rated, baselines, aspect=MEAN))
    return averages


def _collect_samples(
    aspects: Sequence[RatingAspect], metric: str, measure: str, name: str
) -> tuple[list[list[MeasuredSample]], Codes]:
    """Return each aspect's samples of a metric on a slice, or on all slices of a column, and the outputs of all."""
    samples, members = [], []
    for aspect in aspects:
        data = aspect.data
        scorer = next(make_scorer(data, own) for own in data.metrics if own.name == metric)
        by_column = [part for part in aspect.slices() if name == f"{part.column}: {data.plan.average} mean"]
        parts = by_column or [part for part in aspect.slices() if part.name == name]
        members += [part.outputs for part in parts]
        if parts:
            averaged = samples_to_average(data, scorer, parts, measure)
            samples.append(averaged if by_column else [measure_slice(data, scorer, parts[0], measure)])
    return samples, np.unique(np.concatenate(members))
