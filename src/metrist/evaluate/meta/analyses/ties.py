"""How often humans and metrics tie, and what a threshold does to the accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.grouped import group_codes
from metrist.evaluate.meta.judged import Codes, Floats, Scored
from metrist.evaluate.meta.result import MetaEvaluation
from metrist.evaluate.meta.samples import taken
from metrist.evaluate.meta.slices import Slice, slices_of
from metrist.evaluate.meta.work import CALIBRATED, Work
from metrist.report.cells import Number
from metrist.report.tables import Column, Table
from metrist.stats.tie_curve import tie_curve
from metrist.stats.tie_shares import tie_share
from metrist.stats.ties import pairing

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
