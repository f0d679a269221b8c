"""Metrics beside each other: on every slice, on ever fewer systems, by their own agreement, and by the tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.dataset import Scored, taken
from metrist.evaluate.meta.estimates import CALIBRATED, Work
from metrist.evaluate.meta.figures import SOFT
from metrist.evaluate.meta.results import HUMANS, Figure, MetaEvaluation, Tests
from metrist.evaluate.meta.slices import ALL, Slice, group_codes, slices_of, system_means
from metrist.report.cells import Change, Count, Number, PValue
from metrist.report.tables import Column, Table
from metrist.stats import Codes, Floats
from metrist.stats.bootstrap import bootstrap_gaps
from metrist.stats.measures import measure
from metrist.stats.significance import average_ranks, best_first, power_of, strictest_level
from metrist.stats.threshold_search import tie_curve
from metrist.stats.ties import pairing, tie_share


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


# How often humans and metrics tie, and what a threshold does to the accuracy.


#: Thresholds of a curve: enough to see its shape.
_STEPS = 12


def tie_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect: the share of output pairs that humans and each metric tie (at its ε), over all outputs, or as mean
    and standard deviation over the slices (paper 004, Table 1)."""
    return [_tie_table(evaluation, aspect) for aspect in evaluation.golds]


def _tie_table(evaluation: MetaEvaluation, aspect: str) -> Table:
    work = _work(evaluation, aspect)
    slices = slices_of(evaluation.judged, evaluation.plan.slices, evaluation.outputs[aspect])
    kept = slices[1:] or slices
    humans = [_share(work.gold[one.outputs], work.parts[one.outputs], np.zeros(1 + work.parts.max())) for one in kept]
    rows: list[list[Any]] = [["(humans)", *_spread(humans), Number(0.0, 4)]]
    for metric in work.metrics:
        used = [_thresholds(work, metric, one) for one in kept]
        shares = [
            _share(metric.values[one.outputs], work.parts[one.outputs], epsilons)
            for one, epsilons in zip(kept, used, strict=True)
        ]
        every = {float(epsilon) for epsilons in used for epsilon in epsilons}
        rows.append([metric.name, *_spread(shares), Number(every.pop() if len(every) == 1 else np.nan, 4)])
    parted = work.parts.any() and CALIBRATED in evaluation.plan.measures
    return Table(
        title=f"ties among pairs of outputs, {aspect}",
        columns=[Column("metric"), *(Column(name, "right") for name in ("tie share", "± sd over slices", "ε"))],
        rows=rows,
        notes=["Only outputs that share a threshold are paired, and tie at that threshold."] if parted else [],
    )


def _work(evaluation: MetaEvaluation, aspect: str) -> Work:
    return Work(
        judged=evaluation.judged,
        plan=evaluation.plan,
        aspect=aspect,
        gold=evaluation.golds[aspect],
        outputs=evaluation.outputs[aspect],
        metrics=tuple(evaluation.judged.scores[name] for name in evaluation.metrics()),
    )


def _thresholds(work: Work, metric: Scored, one: Slice) -> Floats:
    """The threshold of each part of the data at which the metric was judged on a slice; 0 where it had none."""
    if CALIBRATED not in work.plan.measures or not work.is_calibrated(CALIBRATED):
        return np.zeros(1 + work.parts.max())
    return work.used(metric.name, work.gold, metric.signed(), one).epsilon


def _share(values: Floats, parts: Codes, epsilons: Floats) -> float:
    """The share of pairs within parts that tie, each part at its threshold; outputs of no part are left out."""
    tied, pairs = 0.0, 0.0
    for code, epsilon in enumerate(epsilons):
        inside = values[(parts == code) & ~np.isnan(values)]
        if len(inside) > 1 and not np.isnan(epsilon):
            number = len(inside) * (len(inside) - 1) / 2
            tied, pairs = tied + number * tie_share(inside, float(epsilon)), pairs + number
    return tied / pairs if pairs else np.nan


def _spread(shares: list[float]) -> list[Number]:
    known = np.array([share for share in shares if not np.isnan(share)])
    mean = float(known.mean()) if len(known) else np.nan
    return [Number(mean), Number(float(known.std(ddof=1)) if len(known) > 1 else np.nan)]


def curve_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect: accuracy and tie share of each metric as its threshold grows from 0 to the widest gap, over all
    outputs; the best threshold is one of those shown."""
    if evaluation.plan.group == "system-level":
        raise RunError("ε curves are of pairs of outputs; ask for them with --group item, none, system or a column")
    return [_curve_table(evaluation, aspect) for aspect in evaluation.golds]


def _curve_table(evaluation: MetaEvaluation, aspect: str) -> Table:
    judged, gold, outputs = evaluation.judged, evaluation.golds[aspect], evaluation.outputs[aspect]
    rows: list[list[Any]] = []
    for metric in evaluation.metrics():
        part = taken(judged, gold, judged.scores[metric].signed(), outputs)
        groups = group_codes(judged, evaluation.plan.group, part)
        average = evaluation.plan.group_average
        curve = tie_curve(pairing(part.sample.human, part.sample.metric, groups, average=average), _STEPS)
        points = zip(curve.epsilons, curve.accuracies, curve.tie_shares, strict=True)
        rows += [[metric, Number(e, 4), Number(accuracy, 4), Number(share, 3)] for e, accuracy, share in points]
    return Table(
        title=f"pairwise accuracy by threshold, {aspect}",
        columns=[Column("metric"), *(Column(name, "right") for name in ("ε", "accuracy", "tie share"))],
        rows=rows,
        notes=["The last threshold ties everything: its accuracy is the all-ties baseline."],
    )


# Agreement beside what it takes: seconds and money per output, and which metrics nobody beats in both.


def cost_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect and measure: all metrics whose run recorded what they took, the ones on the Pareto front marked."""
    if not any(math.isfinite(one.cost.seconds) for one in evaluation.judged.scores.values()):
        raise RunError(
            "no run recorded what its metrics took: give run folders (`metrist score … -o run/`), not flat files"
        )
    keys = dict.fromkeys((figure.aspect, figure.measure) for figure in evaluation.figures)
    return [_table(evaluation, aspect, name) for aspect, name in keys]


def pareto_front(points: Sequence[tuple[float, ...]]) -> list[bool]:
    """Which (value, cost, cost …) no other point beats: none is at least as good in all and better in one."""

    def beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
        costs = list(zip(one[1:], other[1:], strict=True))
        as_good = one[0] >= other[0] and all(a <= b for a, b in costs)
        return as_good and (one[0] > other[0] or any(a < b for a, b in costs))

    return [not any(map(math.isnan, point)) and not any(beats(other, point) for other in points) for point in points]


def _table(evaluation: MetaEvaluation, aspect: str, name: str) -> Table:
    here = [f for f in evaluation.figures if f.aspect == aspect and f.measure == name and f.slice == "all"]
    figures = [figure for figure in here if figure.metric != HUMANS]
    known = [f for f in figures if math.isfinite(evaluation.seconds_per_output(f.metric))]
    known.sort(key=lambda figure: evaluation.seconds_per_output(figure.metric))
    front = pareto_front(
        [(f.value, evaluation.seconds_per_output(f.metric), evaluation.money_per_output(f.metric)) for f in known]
    )
    rows = [_row(evaluation, figure, best) for figure, best in zip(known, front, strict=True)]
    head = [
        Column("metric"),
        *(Column(n, "right") for n in (name, "ms per output", "cost per output")),
        Column("front"),
    ]
    notes = ["front: no other metric is as good for less."]
    missing = len(figures) - len(known)
    if missing:
        notes.append(f"Not shown: {missing} whose time nobody recorded.")
    return Table(title=f"{name} with {aspect} beside its cost", columns=head, rows=rows, notes=notes)


def _row(evaluation: MetaEvaluation, figure: Figure, best: bool) -> list[Any]:
    return [
        figure.metric,
        Number(figure.value),
        Number(1000 * evaluation.seconds_per_output(figure.metric), 3),
        Number(evaluation.money_per_output(figure.metric), 5),
        "front" if best else "",
    ]
