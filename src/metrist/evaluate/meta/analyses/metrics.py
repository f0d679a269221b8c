"""Analyses that compare metrics: by slice, on fewer systems, with each other, by tests, by tie threshold, by cost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, combinations, pairwise, product
from typing import Any

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.dataset import (
    ALL,
    Slice,
    group_codes,
    make_slices,
    select_sample,
    system_means,
)
from metrist.evaluate.meta.estimates import CALIBRATED, AspectData
from metrist.evaluate.meta.evaluate import evaluate
from metrist.evaluate.meta.figures import soft_ties
from metrist.evaluate.meta.notes import epsilon_notes
from metrist.evaluate.meta.results import HUMANS, NO_TESTS, MetaEvaluation
from metrist.report.tables import Change, Column, Count, Number, PValue, Table, name_columns
from metrist.stats import Codes, Floats
from metrist.stats.estimation import bootstrap_gaps
from metrist.stats.measures import measure
from metrist.stats.significance import average_ranks, best_first, estimate_power, strictest_level
from metrist.stats.tie_thresholds import TieCurve, tie_curve
from metrist.stats.ties import pairing, tie_share

#: Thresholds of a curve: enough to see its shape.
_CURVE_POINTS = 12


def matrix_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Metric × slice: one table per aspect and measure, with the mean rank over the slices."""
    plan = evaluation.plan
    tables = []
    # The slice of all outputs and the means would count the same outputs again.
    aggregates = {ALL, *(f"{column}: {plan.average} mean" for column in plan.slices)}
    for aspect, name in dict.fromkeys((figure.aspect, figure.measure) for figure in evaluation.figures):
        figures = [figure for figure in evaluation.figures if figure.aspect == aspect and figure.measure == name]
        values = defaultdict(lambda: math.nan, {(figure.metric, figure.slice): figure.value for figure in figures})
        slices = list(dict.fromkeys(figure.slice for figure in figures))
        ranked = [part for part in slices if part not in aggregates] or slices[:1]
        names = list(dict.fromkeys(figure.metric for figure in figures))
        metrics = [metric for metric in names if metric != HUMANS]
        cells = np.array([[values[metric, part] for metric in metrics] for part in ranked])
        ranks = dict(zip(metrics, average_ranks(cells), strict=True))
        names.sort(key=lambda metric: -values[metric, slices[0]])
        rows = [
            [metric, *(Number(values[metric, part]) for part in slices), Number(ranks.get(metric, math.nan), 1)]
            for metric in names
        ]
        columns = name_columns("metric", right=(*slices, "mean rank"))
        tables.append(Table(title=f"{name} with {aspect}, metric by slice", columns=columns, rows=rows))
    return tables


def top_k_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect and measure: each metric's figure on the outputs of the k best systems, for falling k (BARTScore
    paper, Figure 2a). Agreement that falls with k comes from telling good systems from bad ones."""
    dataset, plan = evaluation.dataset, replace(evaluation.plan, slices=(), draws=0)
    counts = [
        int(np.count_nonzero(~np.isnan(system_means(dataset, gold, evaluation.outputs[aspect]))))
        for aspect, gold in evaluation.golds.items()
    ]
    systems = min(counts, default=0)
    if systems < 3:
        raise RunError(f"top-k needs at least 3 systems with ratings, found {systems}", code="invalid_value")
    sizes = sorted({*np.linspace(systems, 2, min(6, systems - 1)).astype(int).tolist()}, reverse=True)
    runs = [evaluate(dataset, replace(plan, top_k=k)) for k in sizes]
    columns = name_columns("metric", right=(f"top {k}" for k in sizes))
    tables = []
    for aspect, name in product(evaluation.golds, plan.measures):
        rows: list[list[Any]] = []
        for metric in evaluation.metrics():
            values = (run.figure(metric, aspect=aspect, measure=name).value for run in runs)
            rows.append([metric, *map(Number, values)])
        notes = []
        if name == CALIBRATED and plan.group != "system-level" and not plan.epsilon:
            notes = ["ε: chosen again on the outputs of each number of systems."]
        title = f"{name} with {aspect} on the best systems"
        tables.append(Table(title=title, columns=columns, rows=rows, notes=notes))
    return tables


def correlation_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Spearman's correlation of each two metrics over the outputs that both scored."""
    dataset, names = evaluation.dataset, evaluation.metrics()
    outputs = next(iter(evaluation.outputs.values()), np.arange(len(dataset)))
    columns = [dataset.scores[name].signed()[outputs] for name in names]
    spearman = measure("spearman")
    rows: list[list[Any]] = []
    for name, first in zip(names, columns, strict=True):
        row: list[Any] = [name]
        for second in columns:
            both = np.isfinite(first) & np.isfinite(second)
            row.append(Number(spearman.value(first[both], second[both]), 2))
        rows.append(row)
    return [
        Table(title="Spearman's correlation between metrics", columns=name_columns("metric", right=names), rows=rows)
    ]


# ---- Tests


def tested_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Every tested pair of metrics: difference, p-value, and p-value corrected for all pairs."""
    rows: list[list[Any]] = []
    for tests in evaluation.tests:
        for first, second in combinations(best_first(tests.values), 2):
            if np.isnan(tests.raw[first, second]):
                continue
            # The better metric is better on the outputs that both scored, whatever its figure on others.
            pair = (second, first) if tests.differences[first, second] < 0 else (first, second)
            names = [tests.aspect, tests.measure, tests.slice, *(tests.metrics[metric] for metric in pair)]
            difference = Change(float(tests.differences[pair]), decimals=4)
            rows.append([*names, difference, PValue(float(tests.raw[pair])), PValue(float(tests.adjusted[pair]))])
    if not rows:
        raise RunError("no tests between metrics: there is one metric, or `test='none'`")
    head = name_columns("aspect", "measure", "slice", "better", "worse", right=("difference", "p", "p corrected"))
    methods = dict.fromkeys(tests.how for tests in evaluation.tests if tests.how != NO_TESTS)
    return [Table(title="tests between metrics", columns=head, rows=rows, notes=[f"Test: {' or '.join(methods)}."])]


_LEVELS = {
    "holm": "the strictest of Holm's steps",
    "benjamini-hochberg": "the strictest of Benjamini and Hochberg's steps",
    "none": "the level of a single test",
}


def power_tables(evaluation: MetaEvaluation) -> list[Table]:
    """For each metric and the next best: how many more resampled units would separate the two."""
    plan = evaluation.plan
    names = evaluation.metrics()
    units = plan.resample_name
    level = strictest_level(plan.alpha, len(names) * (len(names) - 1) // 2, plan.correction)
    rows: list[list[Any]] = []
    measures = [name for name in plan.measures if soft_ties(name) is None]
    for aspect, name in product(evaluation.golds, measures):
        values = np.array([evaluation.figure(metric, aspect=aspect, measure=name).value for metric in names])
        neighbours = list(pairwise(best_first(values)))
        if not neighbours or not plan.draws:
            continue
        data = _aspect_data(evaluation, aspect)
        panel = data.panel(Slice(name=ALL, outputs=data.outputs), name)
        gaps = bootstrap_gaps(
            panel.measures,
            panel.panel,
            neighbours,
            panel.grouping,
            plan.group_average,
            over=plan.resample,
            draws=plan.draws,
            rng=plan.rng(),
        )
        for (first, second), gap in zip(neighbours, gaps, strict=True):
            power = estimate_power(gap.value, gap.standard_error, gap.units, level, over=plan.resample)
            pair = [aspect, name, names[first], names[second]]
            rows.append([*pair, Change(gap.value, decimals=4), Count(gap.units), str(power)])
    if not rows:
        raise RunError(
            f"power: how many {units} would separate two metrics needs two metrics and draws", code="too_little_data"
        )
    head = name_columns("aspect", "measure", "better", "worse", right=("difference", units))
    head.append(Column("to separate them"))
    notes = [
        "A normal approximation at power .8 that takes the observed difference as the true one: a guide, not a test. "
        f"Separated: p of at most {level:.2g}, {_LEVELS[plan.correction]}."
    ]
    return [Table(title=f"how many {units} would separate neighbours", columns=head, rows=rows, notes=notes)]


def _aspect_data(evaluation: MetaEvaluation, aspect: str) -> AspectData:
    return AspectData(
        dataset=evaluation.dataset,
        plan=evaluation.plan,
        aspect=aspect,
        gold=evaluation.golds[aspect],
        outputs=evaluation.outputs[aspect],
        metrics=tuple(evaluation.dataset.scores[name] for name in evaluation.metrics()),
    )


# ---- Ties


def tie_table(evaluation: MetaEvaluation, aspect: str) -> Table:
    """The share of output pairs that humans and each metric tie, as scores are equal and at its ε: over all outputs,
    or as mean and standard deviation over the slices (Doostmohammadi et al. 2024, Table 1)."""
    data = _aspect_data(evaluation, aspect)
    slices = make_slices(evaluation.dataset, evaluation.plan.slices, data.outputs)
    slices = slices[1:] or slices
    untied = np.zeros(1 + data.parts.max())
    humans = [_tie_share(data.gold[part.outputs], data.parts[part.outputs], untied) for part in slices]
    rows: list[list[Any]] = [["(humans)", *2 * _mean_and_deviation(humans), Number(0.0, 4)]]
    for metric in data.metrics:
        epsilons = [untied] * len(slices)
        if CALIBRATED in evaluation.plan.measures and data.is_calibrated(CALIBRATED):
            chosen = [data.thresholds(metric.name, data.gold, metric.signed(), part) for part in slices]
            epsilons = [thresholds.epsilon for thresholds in chosen]
        shares = [
            [
                _tie_share(metric.values[part.outputs], data.parts[part.outputs], own)
                for part, own in zip(slices, thresholds, strict=True)
            ]
            for thresholds in ([untied] * len(slices), epsilons)
        ]
        distinct = {float(epsilon) for own in epsilons for epsilon in own}
        epsilon = distinct.pop() if len(distinct) == 1 else np.nan
        rows.append([metric.name, *chain(*map(_mean_and_deviation, shares)), Number(epsilon, 4)])
    parted = data.parts.any() and CALIBRATED in evaluation.plan.measures
    return Table(
        title=f"ties among pairs of outputs, {aspect}",
        columns=name_columns("metric", right=("raw tie share", "± sd", "tie share at ε", "± sd at ε", "ε")),
        rows=rows,
        notes=[
            *(["± sd: over slices."] if len(slices) > 1 else []),
            *(["Only outputs that share a threshold are paired, and tie at that threshold."] if parted else []),
            *epsilon_notes(data),
        ],
    )


def _tie_share(values: Floats, parts: Codes, epsilons: Floats) -> float:
    """Return the share of tied pairs within parts, each part at its threshold; outputs of no part are left out."""
    tied, pairs = 0.0, 0.0
    for code, epsilon in enumerate(epsilons):
        inside = values[(parts == code) & ~np.isnan(values)]
        if len(inside) > 1 and not np.isnan(epsilon):
            count = len(inside) * (len(inside) - 1) / 2
            tied, pairs = tied + count * tie_share(inside, float(epsilon)), pairs + count
    return tied / pairs if pairs else np.nan


def _mean_and_deviation(shares: Sequence[float]) -> list[Number]:
    known = np.array([share for share in shares if not np.isnan(share)])
    mean = float(known.mean()) if len(known) else np.nan
    return [Number(mean), Number(float(known.std(ddof=1)) if len(known) > 1 else np.nan)]


def compute_curve(evaluation: MetaEvaluation, aspect: str, metric: str, points: int) -> TieCurve:
    """Return a metric's accuracy and tie share at thresholds from 0 to the widest gap."""
    dataset, plan = evaluation.dataset, evaluation.plan
    scores = dataset.scores[metric].signed()
    selected = select_sample(dataset, evaluation.golds[aspect], scores, evaluation.outputs[aspect])
    groups = group_codes(dataset, plan.group, selected)
    return tie_curve(pairing(selected.sample.human, selected.sample.metric, groups, average=plan.group_average), points)


def curve_table(evaluation: MetaEvaluation, aspect: str) -> Table:
    """Accuracy and tie share of each metric as its threshold grows from 0 to the widest gap, over all outputs; the best
    threshold is among those shown."""
    if evaluation.plan.group == "system-level":
        raise RunError(
            "ε curves need pairs of outputs: `group` must be item, none, system or a column", code="invalid_value"
        )
    rows: list[list[Any]] = []
    for metric in evaluation.metrics():
        curve = compute_curve(evaluation, aspect, metric, _CURVE_POINTS)
        points = zip(curve.epsilons, curve.accuracies, curve.tie_shares, strict=True)
        rows += [[metric, Number(e, 4), Number(accuracy, 4), Number(share, 3)] for e, accuracy, share in points]
    return Table(
        title=f"pairwise accuracy by threshold, {aspect}",
        columns=name_columns("metric", right=("ε", "accuracy", "tie share")),
        rows=rows,
        notes=["The last threshold ties everything: its accuracy is the all-ties baseline."],
    )


# ---- Cost


def cost_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect and measure: the metrics whose run recorded their cost, with those on the Pareto front marked."""
    if not any(math.isfinite(scores.cost.seconds) for scores in evaluation.dataset.scores.values()):
        raise RunError(
            "no run recorded what its metrics cost: give run folders (`metrist score … -o run/`), not flat files"
        )
    tables = []
    for aspect, name in dict.fromkeys((figure.aspect, figure.measure) for figure in evaluation.figures):
        figures = [f for f in evaluation.figures if f.key == (aspect, name, ALL) and f.metric != HUMANS]
        points = [
            (figure.value, evaluation.seconds_per_output(figure.metric), evaluation.money_per_output(figure.metric))
            for figure in figures
        ]
        timed = [i for i in range(len(points)) if math.isfinite(points[i][1])]
        timed.sort(key=lambda number: points[number][1])
        rows = []
        for number, on_front in zip(timed, pareto_front([points[i] for i in timed]), strict=True):
            value, seconds, money = points[number]
            cells = Number(value), Number(1000 * seconds, 3), Number(money, 5)
            rows.append([figures[number].metric, *cells, "front" if on_front else ""])
        notes = ["front: no other metric is as good at a lower cost."]
        if len(timed) < len(figures):
            notes.append(f"Not shown: {len(figures) - len(timed)} without a recorded time.")
        head = [*name_columns("metric", right=(name, "ms per output", "cost per output")), Column("front")]
        tables.append(Table(title=f"{name} with {aspect} and its cost", columns=head, rows=rows, notes=notes))
    return tables


def pareto_front(points: Sequence[tuple[float, ...]]) -> list[bool]:
    """Return for each (value, cost, cost …) whether no other point is at least as good in all and better in one."""

    def dominates(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
        costs = list(zip(first[1:], second[1:], strict=True))
        as_good = first[0] >= second[0] and all(a <= b for a, b in costs)
        return as_good and (first[0] > second[0] or any(a < b for a, b in costs))

    return [
        not any(map(math.isnan, point)) and not any(dominates(other, point) for other in points) for point in points
    ]
