"""Training data from a run: the stored scores of an expensive judge, which a small metric learns to give."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from metrist.errors import RunError, SpecError, format_count
from metrist.evaluate.selection import find_metric
from metrist.metrics.base import Metric, PartMetric
from metrist.run import load, read_inputs
from metrist.train.consistency import SupportExample, SupportFiles, find_places, find_rating


def read_judged_run(
    run: str | os.PathLike[str],
    metric: str | None = None,
    *,
    texts: Sequence[str | os.PathLike[str]] = (),
    aspect: str | None = None,
) -> SupportFiles:
    """Read the outputs of a run with their sources, labelled by one of its metrics, or one of its parts.

    A score is scaled to 0 to 1 by the bounds of the metric, or by the lowest and highest score. Of a metric that
    reports errors with their places, those about facts label the sentences. Ratings of `aspect` by people, where
    records have any, are kept to compare with.
    """
    results = load(run)
    chosen = find_metric(results.metrics, metric, results.unfinished) if metric else _only_metric(results.metrics, run)
    scores = results.scores[chosen.metric.label if isinstance(chosen, PartMetric) else chosen.label]
    values = chosen.select(scores).values if isinstance(chosen, PartMetric) else scores.values
    known = values[~np.isnan(values)]
    if not len(known):
        raise RunError(f"{run}: {chosen.label} has no scores to learn from")
    # A metric of another package, or one that sums penalties, does not say how good the best output can be.
    limits = (known.min(), known.max())
    low, high = (float(bound if np.isfinite(bound) else own) for bound, own in zip(chosen.bounds, limits, strict=True))
    labels = {}
    for i, key in enumerate(zip(results.items, results.systems, strict=True)):
        if not np.isnan(values[i]):
            label = (values[i] - low) / (high - low) if high > low else 1.0
            labels[key] = i, float(1 - label if chosen.higher_is_better is False else label)
    by_sentence = bool(scores.errors) and not isinstance(chosen, PartMetric)
    reader = read_inputs(run, texts)
    examples: list[SupportExample] = []
    seen, without_source = 0, 0
    for entry in reader.entries():
        for record in entry.new:
            if (record.item, record.system) not in labels:
                continue
            number, label = labels[record.item, record.system]
            seen += 1
            if not (record.source or "").strip() or not record.output.strip():
                without_source += 1
                continue
            errors = find_places(scores.errors.get(number, ())) if by_sentence else None
            # A judge that lowers a score without marking anything says nothing about single sentences.
            examples.append(
                SupportExample(
                    source=record.source or "",
                    output=record.output,
                    label=label,
                    errors=errors if errors or label == 1 else None,
                    rating=find_rating(entry, record, aspect),
                )
            )
    if not examples:
        found = f"none of {format_count(seen, 'scored output')} has a source"
        raise RunError(
            f"{run}: {found if seen else 'no scored output is in the files that were read'}; a consistency metric "
            "learns from outputs with their sources (--texts names the records)"
        )
    notes = [f"labels: {chosen.label} from {low:g} to {high:g}, scaled to 0 to 1", *reader.remarks]
    if without_source:
        notes.append(f"{format_count(without_source, 'output')} without a source left out")
    return SupportFiles(examples, notes)


def _only_metric(metrics: Sequence[Metric], run: Any) -> Metric:
    if len(metrics) != 1:
        raise SpecError(
            f"{run} has {format_count(len(metrics), 'metric')}: name the one to learn from with --metric: "
            f"{', '.join(metric.label for metric in metrics)}"
        )
    return metrics[0]
