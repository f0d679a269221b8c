"""Where a judge and humans part, level by level; and what wrong answers earn."""

from __future__ import annotations

from typing import Any

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.analyses.systems import on_scale
from metrist.evaluate.meta.result import MetaEvaluation
from metrist.evaluate.meta.slices import slices_of
from metrist.report.cells import Count, Estimate, Number
from metrist.report.tables import Column, Table
from metrist.stats.levels import confusion, wrong_answers


def level_agreement_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect and judge: how many outputs at each human level the judge puts on that very level, and where it puts
    the rest."""
    tables = []
    for aspect in evaluation.golds:
        values = evaluation.judged.ratings[aspect].value
        outputs = evaluation.outputs[aspect]
        metrics = on_scale(evaluation, outputs, (float(values.min()), float(values.max())))
        tables += [_level_table(evaluation, aspect, metric) for metric in metrics]
    if not tables:
        raise RunError(
            "agreement at each level needs a metric that gives scores on the raters' own scale; none does "
            f"(aspects: {', '.join(evaluation.golds)})"
        )
    return tables


def _level_table(evaluation: MetaEvaluation, aspect: str, metric: str) -> Table:
    judged, outputs = evaluation.judged, evaluation.outputs[aspect]
    found = confusion(
        evaluation.golds[aspect][outputs],
        judged.scores[metric].signed()[outputs],
        evaluation.plan.draws,
        np.random.default_rng(evaluation.plan.seed),
        cluster=judged.items.codes[outputs],
        confidence=evaluation.plan.confidence,
    )
    rows: list[list[Any]] = [
        [
            f"{level:g}",
            Count(int(found.counts[i].sum())),
            Estimate(found.agreement[i], found.low[i], found.high[i]),
            *(Count(int(count)) for count in found.counts[i]),
        ]
        for i, level in enumerate(found.human)
    ]
    return Table(
        title=f"{metric} at each level of {aspect}",
        columns=[
            *(Column("humans"), Column("n", "right"), Column("same level", "right")),
            *(Column(f"{metric} {level:g}", "right") for level in found.judge),
        ],
        rows=rows,
        notes=["Same level: the share of the outputs on this human level that the metric puts on it too."],
    )


def inflation_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect: a metric's mean score of the outputs that humans rate lowest and highest, on each slice. Where wrong
    answers share words with right ones the ratio comes near 1, and a mean of the metric says little (paper 004, Task
    1615)."""
    return [_inflation_table(evaluation, aspect) for aspect in evaluation.golds]


def _inflation_table(evaluation: MetaEvaluation, aspect: str) -> Table:
    judged, gold = evaluation.judged, evaluation.golds[aspect]
    rows: list[list[Any]] = []
    for one in slices_of(judged, evaluation.plan.slices, evaluation.outputs[aspect]):
        for metric in evaluation.metrics():
            try:
                found = wrong_answers(gold[one.outputs], judged.scores[metric].values[one.outputs])
            except RunError:  # one rating for all outputs of the slice, or no score
                continue
            levels = f"{found.lowest_level:g} and {found.highest_level:g}"
            rows.append(
                [one.name, metric, levels, Number(found.wrong), Number(found.right), Number(found.inflation, 2)]
            )
    if not rows:
        raise RunError(
            f"humans give all outputs the same {aspect}: there are no wrong answers to set beside right ones"
        )
    return Table(
        title=f"what the outputs that humans rate lowest by {aspect} earn",
        columns=[
            *(Column("slice"), Column("metric")),
            *(Column(name, "right") for name in ("levels", "mean at lowest", "mean at highest", "ratio")),
        ],
        rows=rows,
    )
