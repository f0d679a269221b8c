"""Does a metric treat some systems better than humans do? Ranks and mean levels, by system and by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from metrist.errors import MetristError, RunError
from metrist.evaluate.meta.dataset import Judged
from metrist.evaluate.meta.results import MetaEvaluation
from metrist.evaluate.meta.slices import column_of, slices_of, system_means
from metrist.metrics.base import Metric
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.report.cells import Change, Count, Estimate, Number
from metrist.report.tables import Column, Table
from metrist.run import score
from metrist.stats import Codes, Floats
from metrist.stats.levels import LabelSpace, confusion, label_space, system_levels, wrong_answers
from metrist.stats.significance import ranks


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


# Where a judge and humans part, level by level; and what wrong answers earn.


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


# What a metric gives to wrong answers that come from the same small set as the right one.
#
# Where all answers of a task share words ("B entails A", "B contradicts A"), a metric of overlap pays for any of them,
# and a system that is always wrong looks good (paper 004, Task 1615). Here each answer of such a set is scored against
# each other as if that were the right one. This is the one analysis that runs metrics, on a handful of short texts.


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
