"""Metrics beside each other: on every slice, on ever fewer systems, by their own agreement, and by the tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.figures import SOFT
from metrist.evaluate.meta.result import HUMANS, MetaEvaluation, Tests
from metrist.evaluate.meta.slices import ALL, Slice, system_means
from metrist.evaluate.meta.work import Work
from metrist.report.cells import Change, Count, Number, PValue
from metrist.report.tables import Column, Table
from metrist.stats.certainty import bootstrap_gaps
from metrist.stats.measures import measure
from metrist.stats.power import power_of, strictest_level
from metrist.stats.ranking import average_ranks, best_first


def matrix_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Metric × slice: one table per aspect and measure, with the mean rank over the slices."""
    keys = dict.fromkeys((figure.aspect, figure.measure) for figure in evaluation.figures)
    return [_matrix(evaluation, aspect, name) for aspect, name in keys]


def _matrix(evaluation: MetaEvaluation, aspect: str, name: str) -> Table:
    figures = [f for f in evaluation.figures if f.aspect == aspect and f.measure == name]
    slices = list(dict.fromkeys(figure.slice for figure in figures))
    value = {(figure.metric, figure.slice): figure.value for figure in figures}
    metrics = list(dict.fromkeys(figure.metric for figure in figures))
    judged = [metric for metric in metrics if metric != HUMANS]
    ranked = _single_slices(evaluation, slices)
    cells = np.array([[value.get((metric, one), math.nan) for metric in judged] for one in ranked])
    rank = dict(zip(judged, average_ranks(cells), strict=True))
    order = sorted(metrics, key=lambda metric: -value.get((metric, slices[0]), math.nan))
    rows = [
        [metric, *(Number(value.get((metric, one), math.nan)) for one in slices), Number(rank.get(metric, math.nan), 1)]
        for metric in order
    ]
    head = [Column("metric"), *(Column(one, "right") for one in slices), Column("mean rank", "right")]
    return Table(title=f"{name} with {aspect}, metric by slice", columns=head, rows=rows)


def _single_slices(evaluation: MetaEvaluation, slices: Sequence[str]) -> Sequence[str]:
    """The slices proper; those of all outputs and of means would count the same outputs again."""
    plan = evaluation.plan
    wholes = {ALL, *(f"{column}: {plan.average} mean" for column in plan.slices)}
    return [one for one in slices if one not in wholes] or slices[:1]


def top_k_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect and measure: each metric's figure on the outputs of the k best systems, for falling k (paper 002,
    Figure 2a). Agreement that falls with k comes from telling good systems from bad ones."""
    from metrist.evaluate.meta.evaluate import evaluate

    systems = min(_rated_systems(evaluation, aspect) for aspect in evaluation.golds) if evaluation.golds else 0
    if systems < 3:
        raise RunError(f"the best of ever fewer systems: wanted at least 3 systems with ratings, found {systems}")
    sizes = sorted({*np.linspace(systems, 2, min(6, systems - 1)).astype(int).tolist()}, reverse=True)
    plan = replace(evaluation.plan, slices=(), draws=0)
    runs = {k: evaluate(evaluation.judged, replace(plan, top_k=k)) for k in sizes}
    tables = []
    for aspect in evaluation.golds:
        for name in plan.measures:
            rows = [
                [m, *(Number(run.figure(m, aspect=aspect, measure=name).value) for run in runs.values())]
                for m in evaluation.metrics()
            ]
            head = [Column("metric"), *(Column(f"top {k}", "right") for k in sizes)]
            tables.append(Table(title=f"{name} with {aspect} on the best systems", columns=head, rows=rows))
    return tables


def _rated_systems(evaluation: MetaEvaluation, aspect: str) -> int:
    means = system_means(evaluation.judged, evaluation.golds[aspect], evaluation.outputs[aspect])
    return int(np.count_nonzero(~np.isnan(means)))


def correlation_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Spearman's correlation of each two metrics over all outputs that both scored: which ones say the same."""
    judged, names = evaluation.judged, evaluation.metrics()
    outputs = next(iter(evaluation.outputs.values()), np.arange(len(judged)))
    rank = measure("spearman")
    rows: list[list[Any]] = []
    for first in names:
        row: list[Any] = [first]
        for second in names:
            one, two = judged.scores[first].signed()[outputs], judged.scores[second].signed()[outputs]
            both = np.isfinite(one) & np.isfinite(two)
            row.append(Number(rank.value(one[both], two[both]) if both.any() else math.nan, 2))
        rows.append(row)
    head = [Column("metric"), *(Column(name, "right") for name in names)]
    return [Table(title="Spearman's correlation between metrics", columns=head, rows=rows)]


def tested_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Every pair of metrics that was tested: difference, p-value, and p-value corrected for all pairs."""
    rows: list[list[Any]] = []
    for tests in evaluation.tests:
        order = best_first(tests.values)
        for place, i in enumerate(order):
            rows += [_tested_row(tests, i, j) for j in order[place + 1 :] if not np.isnan(tests.raw[i, j])]
    if not rows:
        raise RunError("no tests between metrics: there is one metric, or --test none")
    head = [Column(name) for name in ("aspect", "measure", "slice", "better", "worse")]
    head += [Column(name, "right") for name in ("difference", "p", "p corrected")]
    how = dict.fromkeys(tests.how for tests in evaluation.tests if tests.how != "no tests")
    return [Table(title="tests between metrics", columns=head, rows=rows, notes=[f"Test: {' or '.join(how)}."])]


def _tested_row(tests: Tests, first: int, second: int) -> list[Any]:
    """The better of two is so on the outputs that both scored, whatever their figures on others."""
    if tests.differences[first, second] < 0:
        first, second = second, first
    return [
        *(tests.aspect, tests.measure, tests.slice, tests.metrics[first], tests.metrics[second]),
        Change(float(tests.differences[first, second]), decimals=4),
        *(PValue(float(tests.raw[first, second])), PValue(float(tests.adjusted[first, second]))),
    ]


def power_tables(evaluation: MetaEvaluation) -> list[Table]:
    """For each metric and the next best: how many more of what is resampled would separate the two."""
    plan = evaluation.plan
    units = {"items": "items", "systems": "systems", "both": "items and systems"}[plan.resample]
    rows: list[list[Any]] = []
    for aspect in evaluation.golds:
        for name in plan.measures:
            if name != SOFT:
                rows += _power_rows(evaluation, aspect, name)
    if not rows:
        raise RunError(f"how many {units} would separate two metrics: there is only one metric, or no draws")
    head = [Column(name) for name in ("aspect", "measure", "better", "worse")]
    head += [Column("difference", "right"), Column(units, "right"), Column("to separate them")]
    level = _level(evaluation)
    notes = [
        "A normal approximation at power .8 that takes the difference seen for the truth: a guide, not a test. "
        f"Separated: p of at most {level:.2g}, {_LEVELS[plan.correction]}."
    ]
    return [Table(title=f"how many {units} would separate neighbours", columns=head, rows=rows, notes=notes)]


_LEVELS = {
    "holm": "what the strictest of Holm's steps asks for",
    "benjamini-hochberg": "what the strictest of Benjamini and Hochberg's steps asks for",
    "none": "one test alone",
}


def _level(evaluation: MetaEvaluation) -> float:
    plan, metrics = evaluation.plan, len(evaluation.metrics())
    return strictest_level(plan.alpha, metrics * (metrics - 1) // 2, plan.correction)


def _power_rows(evaluation: MetaEvaluation, aspect: str, name: str) -> list[list[Any]]:
    metrics = tuple(evaluation.judged.scores[metric] for metric in evaluation.metrics())
    gold, outputs = evaluation.golds[aspect], evaluation.outputs[aspect]
    plan = evaluation.plan
    work = Work(judged=evaluation.judged, plan=plan, aspect=aspect, gold=gold, outputs=outputs, metrics=metrics)
    laid = work.laid(Slice(name=ALL, outputs=outputs), name)
    values = np.array([evaluation.figure(m.name, aspect=aspect, measure=name).value for m in metrics])
    order = best_first(values)
    neighbours = list(pairwise(order))
    if not neighbours or not plan.draws:
        return []
    gaps = bootstrap_gaps(
        laid.measures,
        laid.panel,
        neighbours,
        laid.grouping,
        plan.group_average,
        over=plan.resample,
        draws=plan.draws,
        rng=np.random.default_rng(plan.seed),
    )
    return [
        [
            *(aspect, name, metrics[first].name, metrics[second].name),
            Change(gap.value, decimals=4),
            Count(gap.units),
            str(power_of(gap.value, gap.standard_error, gap.units, _level(evaluation), over=plan.resample)),
        ]
        for (first, second), gap in zip(neighbours, gaps, strict=True)
    ]
