"""What a metric gives to wrong answers that come from the same small set as the right one.

Where all answers of a task share words ("B entails A", "B contradicts A"), a metric of overlap pays for any of them,
and a system that is always wrong looks good (paper 004, Task 1615). Here each answer of such a set is scored against
each other as if that were the right one. This is the one analysis that runs metrics, on a handful of short texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from metrist.errors import MetristError, RunError
from metrist.evaluate.meta.result import MetaEvaluation
from metrist.metrics.base import Metric
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.report.cells import Count, Number
from metrist.report.tables import Column, Table
from metrist.run import score
from metrist.stats.levels import LabelSpace, label_space

_NEEDS = {"references"}


def label_space_tables(evaluation: MetaEvaluation) -> list[Table]:
    """For each task whose references are a closed set, and each metric of a run that needs references alone."""
    sets = evaluation.judged.label_sets
    metrics = [metric for metric in map(_built, evaluation.metrics()) if metric is not None]
    if not sets:
        raise RunError("no task has a closed set of answers: at most 20 distinct references, each of two items or more")
    if not metrics:
        raise RunError("no metric here can be run on the answers: wanted one of metrist's that needs references alone")
    rows: list[list[Any]] = []
    for task, labels in sets.items():
        for metric in metrics:
            found = inflation(labels, metric)
            numbers = (found.right, found.wrong, found.highest_wrong)
            rows.append([task, Count(len(labels)), metric.text, *map(Number, numbers), Number(found.inflation, 2)])
    head = [Column("task"), Column("answers", "right"), Column("metric")]
    head += [Column(name, "right") for name in ("right answer", "wrong, mean", "wrong, most", "inflation")]
    notes = ["inflation: what a system earns that is always wrong, as a share of one that is always right."]
    return [Table(title="what wrong answers of a closed set earn", columns=head, rows=rows, notes=notes)]


def inflation(labels: Mapping[str, int], metric: Metric) -> LabelSpace:
    """What the metric gives to each answer where another is right; `labels` says how often each of them is."""
    answers = list(labels)
    records = [
        Record(item=str(number), system="any", output=given, references=(right,))
        for number, (given, right) in enumerate(product(answers, answers))
    ]
    values = score(records, [metric], executor="serial").scores[metric.text].values
    return label_space(values.reshape(len(answers), len(answers)), np.array(list(labels.values()), dtype=np.float64))


def _built(name: str) -> Metric | None:
    try:
        metric = build(name, allow_import=False)
    except MetristError:  # somebody else's metric, or a part of one
        return None
    asks = metric.extra == "llm"  # Nobody expects a reader of scores to ask, and to pay for it.
    return metric if set(metric.needs) <= _NEEDS and metric.higher_is_better and not asks else None
