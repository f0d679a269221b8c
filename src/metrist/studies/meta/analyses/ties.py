"""How often humans and metrics tie, and what a threshold does to the accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np

from metrist.errors import RunError
from metrist.meta.tie_shares import tie_share
from metrist.meta.ties import pairing
from metrist.report.cells import Number
from metrist.report.tables import Column, Table
from metrist.studies.meta.grouped import group_codes
from metrist.studies.meta.judged import Codes, Floats
from metrist.studies.meta.result import MetaEvaluation
from metrist.studies.meta.samples import taken
from metrist.studies.meta.slices import Slice, slices_of

#: Thresholds of a curve: enough to see its shape.
_STEPS = 12


def tie_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect: the share of output pairs that humans and each metric tie (at its ε), over all outputs, or as mean
    and standard deviation over the slices (paper 004, Table 1)."""
    return [_tie_table(evaluation, aspect) for aspect in evaluation.golds]


def _tie_table(evaluation: MetaEvaluation, aspect: str) -> Table:
    slices = slices_of(evaluation.judged, evaluation.plan.slices, evaluation.outputs[aspect])
    parts = slices[1:] or slices
    gold = evaluation.golds[aspect]
    rows: list[list[Any]] = [["(humans)", *_spread([tie_share(gold[one.outputs]) for one in parts]), Number(0.0, 4)]]
    for metric in evaluation.metrics():
        values = evaluation.judged.scores[metric].values
        epsilons = [_epsilon(evaluation, aspect, metric, one) for one in parts]
        shares = [tie_share(values[one.outputs], epsilon) for one, epsilon in zip(parts, epsilons, strict=True)]
        rows.append([metric, *_spread(shares), Number(epsilons[0] if len(set(epsilons)) == 1 else np.nan, 4)])
    return Table(
        title=f"ties among pairs of outputs, {aspect}",
        columns=[Column("metric"), *(Column(name, "right") for name in ("tie share", "± sd over slices", "ε"))],
        rows=rows,
    )


def _epsilon(evaluation: MetaEvaluation, aspect: str, metric: str, one: Slice) -> float:
    for figure in evaluation.figures:
        same = figure.metric == metric and figure.aspect == aspect and figure.slice == one.name
        if same and not np.isnan(figure.epsilon):
            return figure.epsilon
    return 0.0


def _spread(shares: list[float]) -> list[Number]:
    known = np.array([share for share in shares if not np.isnan(share)])
    mean = float(known.mean()) if len(known) else np.nan
    return [Number(mean), Number(float(known.std(ddof=1)) if len(known) > 1 else np.nan)]


def curve_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect: accuracy and tie share of each metric as its threshold grows from 0 to the widest gap."""
    if evaluation.plan.group == "system-level":
        raise RunError("ε curves are of pairs of outputs; ask for them with --group item, none, system or a column")
    return [_curve_table(evaluation, aspect) for aspect in evaluation.golds]


def accuracy_curve(
    human: Floats, metric: Floats, groups: Codes, steps: int = _STEPS
) -> list[tuple[float, float, float]]:
    """(ε, accuracy, tie share) at thresholds from 0 up, spaced so that each step ties about as many more pairs."""
    pairs = pairing(human, metric, groups)
    gaps = np.abs(np.diff(np.sort(metric)))
    widest = float(np.ptp(metric)) if len(metric) else 0.0
    inner = np.quantile(gaps, np.linspace(0, 1, steps // 2)) if len(gaps) else np.zeros(1)
    wanted = np.unique(np.concatenate([[0.0], inner, np.linspace(0, widest, steps - len(inner))]))
    return [(float(epsilon), pairs.accuracy(epsilon), pairs.tie_share(epsilon)) for epsilon in wanted]


def _curve_table(evaluation: MetaEvaluation, aspect: str) -> Table:
    judged, gold, outputs = evaluation.judged, evaluation.golds[aspect], evaluation.outputs[aspect]
    rows: list[list[Any]] = []
    for metric in evaluation.metrics():
        part = taken(judged, gold, judged.scores[metric].signed(), outputs)
        groups = group_codes(judged, evaluation.plan.group, part)
        curve = accuracy_curve(part.sample.human, part.sample.metric, groups)
        rows += [[metric, Number(e, 4), Number(accuracy, 4), Number(share, 3)] for e, accuracy, share in curve]
    return Table(
        title=f"pairwise accuracy by threshold, {aspect}",
        columns=[Column("metric"), *(Column(name, "right") for name in ("ε", "accuracy", "tie share"))],
        rows=rows,
        notes=["The last threshold ties everything: its accuracy is the all-ties baseline."],
    )
