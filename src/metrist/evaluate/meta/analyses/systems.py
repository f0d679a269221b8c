"""Does a metric treat some systems better than humans do? Ranks and mean levels, by system and by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.judged import Codes, Floats, Judged
from metrist.evaluate.meta.result import MetaEvaluation
from metrist.evaluate.meta.slices import column_of, system_means
from metrist.report.cells import Change, Count, Number
from metrist.report.tables import Column, Table
from metrist.stats.levels import system_levels
from metrist.stats.ranking import ranks


def bias_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect: each system's rank by humans minus its rank by each metric; then the same averaged over the values of
    the columns that were sliced by, where each system has a single value there (say, extractive or abstractive)."""
    return [_bias_table(evaluation, aspect) for aspect in evaluation.golds]


def rank_differences(judged: Judged, human: Floats, metric: Floats, outputs: Codes) -> tuple[Floats, Floats]:
    """Per system the human rank (1 is best) and how much better the metric places it; means are over outputs that have
    both values."""
    both = outputs[np.isfinite(human[outputs]) & np.isfinite(metric[outputs])]
    by_humans, by_metric = (ranks(system_means(judged, values, both)) for values in (human, metric))
    return by_humans, by_humans - by_metric


def _bias_table(evaluation: MetaEvaluation, aspect: str) -> Table:
    judged, gold, outputs = evaluation.judged, evaluation.golds[aspect], evaluation.outputs[aspect]
    metrics = evaluation.metrics()
    found = [rank_differences(judged, gold, judged.scores[name].signed(), outputs) for name in metrics]
    human = ranks(system_means(judged, gold, outputs))
    differences = np.stack([difference for _, difference in found], axis=1)
    order = [code for code in np.argsort(human, kind="stable") if not np.isnan(human[code])]
    rows: list[list[Any]] = [
        [judged.systems.names[code], Number(human[code], 1), *(Change(d, decimals=1) for d in differences[code])]
        for code in order
    ]
    return Table(
        title=f"bias by {aspect}: rank by humans minus rank by the metric",
        columns=[Column("system"), Column("rank by humans", "right"), *(Column(name, "right") for name in metrics)],
        rows=rows + _group_rows(evaluation, differences, human, outputs),
        notes=["Above 0: the metric places the system better than humans do. Rank 1 is the best mean."],
    )


def _group_rows(evaluation: MetaEvaluation, differences: Floats, human: Floats, outputs: Codes) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for column in evaluation.plan.slices:
        group = _group_of_systems(evaluation.judged, column, outputs)
        for name, members in group.items():
            known = [code for code in members if not np.isnan(human[code])]
            if known:
                means = np.nanmean(differences[known], axis=0)
                rows.append(
                    [f"{column}={name}", Number(human[known].mean(), 1), *(Change(d, decimals=1) for d in means)]
                )
    return rows


def _group_of_systems(judged: Judged, column: str, outputs: Codes) -> dict[str, list[int]]:
    """The systems that belong to each value of a column; none where a system has outputs under two of them."""
    labels = column_of(judged, column, outputs).codes[outputs]
    pairs = np.unique(np.stack([judged.systems.codes[outputs], labels]), axis=1)
    systems, values = pairs
    if len(np.unique(systems)) < len(systems) or (values < 0).any():
        return {}
    names = column_of(judged, column, outputs).names
    return {names[value]: systems[values == value].tolist() for value in np.unique(values)}


def level_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect: each system's mean rating and mean score on a scale of 0 to 100, for metrics that use the raters' own
    scale, with the average gap between the two (paper 004, Table 2)."""
    return [table for aspect in evaluation.golds for table in _level_tables(evaluation, aspect)]


def _level_tables(evaluation: MetaEvaluation, aspect: str) -> list[Table]:
    judged, gold, outputs = evaluation.judged, evaluation.golds[aspect], evaluation.outputs[aspect]
    values = judged.ratings[aspect].value
    scale = (float(values.min()), float(values.max()))
    metrics = on_scale(evaluation, outputs, scale)
    if not metrics or scale[0] == scale[1]:
        raise RunError(
            f"no metric gives scores on the raters' scale of {aspect!r}, {scale[0]:g} to {scale[1]:g}: "
            "mean levels can only be set side by side on one scale"
        )
    codes, table = judged.systems.codes[outputs], {}
    for name in metrics:
        table[name] = system_levels(gold[outputs], judged.scores[name].signed()[outputs], codes, scale)
    human = next(iter(table.values())).human
    order = [code for code in np.argsort(-human, kind="stable") if not np.isnan(human[code])]
    rows: list[list[Any]] = [
        [
            judged.systems.names[code],
            Count(int(np.count_nonzero((codes == code) & np.isfinite(gold[outputs])))),
            Number(human[code], 1),
            *(Number(levels.judge[code], 1) for levels in table.values()),
        ]
        for code in order
    ]
    rows.append(["average gap", "", "", *(Number(levels.gap, 1) for levels in table.values())])
    rows.append(["metric above humans by", "", "", *(Change(levels.bias, decimals=1) for levels in table.values())])
    return [
        Table(
            title=f"mean {aspect} per system, {scale[0]:g} to {scale[1]:g} drawn out to 0 to 100",
            columns=[
                *(Column("system"), Column("n", "right"), Column("humans", "right")),
                *(Column(name, "right") for name in metrics),
            ],
            rows=rows,
        )
    ]


def on_scale(evaluation: MetaEvaluation, outputs: Codes, scale: tuple[float, float]) -> Sequence[str]:
    """The metrics whose scores lie within the raters' scale and reach at least half of it: judges who use it."""
    found = []
    for name in evaluation.metrics():
        values = evaluation.judged.scores[name].signed()[outputs]
        given = values[np.isfinite(values)]
        inside = len(given) and scale[0] <= given.min() and given.max() <= scale[1]
        if inside and given.max() - given.min() >= (scale[1] - scale[0]) / 2:
            found.append(name)
    return found
