"""Analyses of systems and rating levels: bias, mean levels, agreement at each level, scores of wrong answers.

The last three are those of Doostmohammadi et al. (2024): how many of the humans' 1s the judge rates 1 (section 4.2),
the mean rating per system from both with the average gap (Table 2), and the score of a wrong answer if right and wrong
answers share words (Task 1615).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from metrist.errors import MetristError, RunError
from metrist.evaluate.meta.dataset import (
    MetricScores,
    make_slices,
    resolve_column,
    system_means,
)
from metrist.evaluate.meta.results import MetaEvaluation
from metrist.metrics.base import Metric
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.report.tables import Change, Count, Estimate, Number, Share, Table, name_columns
from metrist.run import score
from metrist.stats import Codes, Floats
from metrist.stats.gold import majorities, mean_by_code, sum_by_code
from metrist.stats.measures import divide, mean_of_known
from metrist.stats.resampling import bootstrap_scores, interval, pooled_interval
from metrist.stats.significance import ranks

# ---- Systems


def bias_table(evaluation: MetaEvaluation, aspect: str) -> Table:
    """Each system's rank by humans minus its rank by each metric; then the same averaged over the values of the sliced
    columns where each system has a single value (say, extractive or abstractive)."""
    dataset, gold, outputs = evaluation.dataset, evaluation.golds[aspect], evaluation.outputs[aspect]
    metrics, systems = evaluation.metrics(), dataset.systems
    human = ranks(system_means(dataset, gold, outputs))
    columns = []
    for scores in (dataset.scores[name] for name in metrics):
        values, corpus = scores.signed(), scores.signed_corpus()
        both = outputs[np.isfinite(gold[outputs]) & np.isfinite(values[outputs])]
        by_metric = system_means(dataset, values, both)
        if corpus and evaluation.plan.system_score == "corpus":
            sums = np.zeros((len(systems.names), corpus.rows.shape[1]))
            np.add.at(sums, systems.codes[both], corpus.rows[both])
            by_metric = np.where(np.isnan(by_metric), np.nan, corpus.scores(sums))
        columns.append(ranks(system_means(dataset, gold, both)) - ranks(by_metric))
    differences = np.stack(columns, axis=1)

    def row(name: str, rank: float, changes: Floats) -> list[Any]:
        return [name, Number(rank, 1), *(Change(change, decimals=1) for change in changes)]

    order = [code for code in np.argsort(human, kind="stable") if not np.isnan(human[code])]
    rows = [row(systems.names[code], human[code], differences[code]) for code in order]
    for column in evaluation.plan.slices:
        labels = resolve_column(dataset, column, outputs)
        pairs = np.unique(np.stack([systems.codes[outputs], labels.codes[outputs]]), axis=1)
        if len(np.unique(pairs[0])) < pairs.shape[1] or (pairs[1] < 0).any():
            continue  # A system has outputs under two values.
        for value in np.unique(pairs[1]):
            known = [code for code in pairs[0, pairs[1] == value] if not np.isnan(human[code])]
            if known:
                name = f"{column}={labels.names[value]}"
                rows.append(row(name, human[known].mean(), np.nanmean(differences[known], axis=0)))
    return Table(
        title=f"bias by {aspect}: rank by humans minus rank by the metric",
        columns=name_columns("system", right=("rank by humans", *metrics)),
        rows=rows,
        notes=["Above 0: the metric ranks the system higher than humans do. Rank 1 is the best system score."],
    )


def mean_level_table(evaluation: MetaEvaluation, aspect: str) -> Table:
    """Each system's mean rating and mean score on a scale of 0 to 100, for metrics that use the raters' scale, with the
    average gap between the two (Doostmohammadi et al. 2024, Table 2)."""
    dataset, gold, outputs = evaluation.dataset, evaluation.golds[aspect], evaluation.outputs[aspect]
    values = dataset.ratings[aspect].value
    scale = (float(values.min()), float(values.max()))
    metrics = metrics_on_scale(evaluation, outputs, scale)
    if not metrics or scale[0] == scale[1]:
        raise RunError(f"no metric gives scores on the raters' scale of {aspect!r}, {scale[0]:g} to {scale[1]:g}")
    codes = dataset.systems.codes[outputs]
    levels = [system_levels(gold[outputs], dataset.scores[m].signed()[outputs], codes, scale) for m in metrics]
    human = levels[0].human
    order = [code for code in np.argsort(-human, kind="stable") if not np.isnan(human[code])]
    rows: list[list[Any]] = [
        [
            dataset.systems.names[code],
            Count(int(np.count_nonzero((codes == code) & np.isfinite(gold[outputs])))),
            Number(human[code], 1),
            *(Number(level.judge[code], 1) for level in levels),
        ]
        for code in order
    ]
    rows.append(["average gap", "", "", *(Number(level.gap, 1) for level in levels)])
    rows.append(["metric above humans by", "", "", *(Change(level.bias, decimals=1) for level in levels)])
    return Table(
        title=f"mean {aspect} per system, {scale[0]:g} to {scale[1]:g} rescaled to 0 to 100",
        columns=name_columns("system", right=("n", "humans", *metrics)),
        rows=rows,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SystemLevels:
    """Mean levels per system on a scale of 0 to 100 (NaN for a system without outputs). `gap` is the mean distance of
    the two over systems, `bias` by how much the judge's are higher."""

    human: Floats
    judge: Floats
    gap: float
    bias: float


def system_levels(human: Floats, judge: Floats, system: Codes, scale: tuple[float, float]) -> SystemLevels:
    """Return each system's mean from both sides, on outputs that have both; `scale` is the lowest and highest level."""
    low, high = scale
    both = ~np.isnan(human + judge)
    size = int(system.max(initial=-1)) + 1
    outputs = np.bincount(system[both], minlength=size)
    means = [
        divide(sum_by_code((values[both] - low) * (100 / (high - low)), system[both], size), outputs)
        for values in (human, judge)
    ]
    differences = (means[1] - means[0])[outputs > 0]
    if not len(differences):
        return SystemLevels(human=means[0], judge=means[1], gap=np.nan, bias=np.nan)
    gap, bias = float(np.abs(differences).mean()), float(differences.mean())
    return SystemLevels(human=means[0], judge=means[1], gap=gap, bias=bias)


def rating_tables(evaluation: MetaEvaluation) -> list[Table]:
    """The humans' and the metrics' mean of each aspect on each slice, with intervals over items, and how often more
    than half of an output's raters agree (the lower panels of Doostmohammadi et al. 2024, Figures 1, 2, 4 and 5)."""
    aspects = list(evaluation.golds)
    rows = [[aspect, *row] for aspect in aspects for row in _rating_rows(evaluation, aspect)]
    head = name_columns("aspect", "slice", "by", right=("n", "mean", "0 to 1", "majority"))
    if len(aspects) == 1:
        head, rows = head[1:], [row[1:] for row in rows]
    notes = [
        "0 to 1: where the mean lies between the worst and the best rating (metrics: if on the raters' scale).",
        "Majority: the share of outputs, of those with two or more ratings, where more than half of the raters agree.",
    ]
    # The main table shows the notes on doubled ratings and the like; without figures there is no main table.
    notes = [*([] if evaluation.figures else evaluation.notes), *notes]
    title = f"mean {aspects[0] if len(aspects) == 1 else 'ratings'}"
    return [Table(title=title, columns=head, rows=rows, notes=notes)]


def _rating_rows(evaluation: MetaEvaluation, aspect: str) -> Iterator[list[Any]]:
    dataset, gold, outputs = evaluation.dataset, evaluation.golds[aspect], evaluation.outputs[aspect]
    ratings = dataset.ratings[aspect]
    low, high = float(ratings.value.min()), float(ratings.value.max())
    agreed = majorities(ratings)
    judges = metrics_on_scale(evaluation, outputs, (low, high)) if low < high else ()
    # Ratings of an aspect where lower is better are stored negated.
    sign = -1.0 if aspect in dataset.reversed_aspects else 1.0
    rescaled = evaluation.plan.gold != "z" and low < high
    for part in make_slices(dataset, evaluation.plan.slices, outputs):
        rated = part.outputs[np.isfinite(gold[part.outputs])]
        mean, *limits = _mean_over_items(evaluation, gold, rated)
        lower, upper = sorted(limit * sign for limit in limits)
        estimate = Estimate(mean * sign, lower, upper)
        level = Number((mean - low) / (high - low) if rescaled else math.nan, 3)
        yield [part.name, "humans", Count(len(rated)), estimate, level, Share(float(mean_of_known(agreed[rated])))]
        for name in evaluation.metrics():
            scores = dataset.scores[name]
            scored = rated[np.isfinite(scores.values[rated])]
            mean, lower, upper = _mean_over_items(evaluation, scores.values, scored)
            on_scale = mean * (-1 if scores.higher_is_better is False else 1)
            level = Number((on_scale - low) / (high - low) if name in judges and rescaled else math.nan, 3)
            yield [part.name, name, Count(len(scored)), Estimate(mean, lower, upper), level, ""]


def _mean_over_items(evaluation: MetaEvaluation, values: Floats, outputs: Codes) -> tuple[float, float, float]:
    """Return the mean of these outputs with its interval, if items are resampled with all their outputs."""
    if not len(outputs):
        return math.nan, math.nan, math.nan
    plan = evaluation.plan
    items, item = np.unique(evaluation.dataset.items.codes[outputs], return_inverse=True)
    rows = np.zeros((len(items), 2))
    np.add.at(rows, item.reshape(-1), np.stack([values[outputs], np.ones(len(outputs))], axis=1))
    mean = float(mean_by_code(values[outputs], np.zeros(len(outputs), np.intp), 1)[0])
    if not plan.draws or not np.isfinite(rows).all():
        return mean, math.nan, math.nan
    low, high = pooled_interval(rows, lambda sums: sums[..., 0] / sums[..., 1], plan.draws, plan.rng(), plan.confidence)
    return mean, low, high


def metrics_on_scale(evaluation: MetaEvaluation, outputs: Codes, scale: tuple[float, float]) -> Sequence[str]:
    """Return the metrics whose scores lie within the raters' scale and span at least half of it."""
    names = []
    low, high = scale
    for name in evaluation.metrics():
        values = evaluation.dataset.scores[name].signed()[outputs]
        values = values[np.isfinite(values)]
        inside = len(values) and low <= values.min() and values.max() <= high
        if inside and values.max() - values.min() >= (high - low) / 2:
            names.append(name)
    return names


# ---- Levels


#: With more distinct values, agreement at each level says nothing.
_MAX_LEVELS = 20


class Confusion(NamedTuple):
    """Counts (human levels, judge levels); `agreement` is the share of each human level that the judge puts at that
    level, with its bootstrap interval."""

    human: Floats
    judge: Floats
    counts: Codes
    agreement: Floats
    low: Floats
    high: Floats


def confusion(
    human: Floats,
    judge: Floats,
    draws: int,
    rng: np.random.Generator,
    cluster: Codes | None = None,
    confidence: float = 0.95,
) -> Confusion:
    """Compare human levels with the judge's on outputs that have both; `cluster` (items, for example) is resampled."""
    both = ~np.isnan(human + judge)
    rows, columns = np.unique(human[both]), np.unique(judge[both])
    for side, levels in (("human values", rows), ("judge's values", columns)):
        if len(levels) > _MAX_LEVELS:
            raise RunError(
                f"the {side} take {len(levels):,} different values; agreement at each level needs at most "
                f"{_MAX_LEVELS} (majority or median gold keeps the raters' levels)",
                code="invalid_value",
            )
    row, column = np.searchsorted(rows, human[both]), np.searchsorted(columns, judge[both])
    counts = np.bincount(row * len(columns) + column, minlength=len(rows) * len(columns)).reshape(len(rows), -1)
    units, unit = np.unique(np.flatnonzero(both) if cluster is None else cluster[both], return_inverse=True)
    stats = np.zeros((len(rows), len(units), 2))
    equal = (human[both] == judge[both]).astype(np.float64)
    np.add.at(stats, (row, unit.reshape(-1)), np.stack([equal, np.ones(len(row))], axis=1))

    def share(sums: Floats) -> Floats:
        return divide(sums[..., 0], sums[..., 1])

    resampled = bootstrap_scores(stats, share, draws, rng)
    shares = share(stats.sum(axis=1))
    limits = [interval(resampled[:, r], confidence, len(units), float(value)) for r, value in enumerate(shares)]
    return Confusion(rows, columns, counts, shares, *np.array(limits).reshape(-1, 2).T)


def level_agreement_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect and metric: how many outputs at each human level the metric puts at that level, and where it puts the
    rest."""
    dataset, plan = evaluation.dataset, evaluation.plan
    tables: list[Table] = []
    for aspect, outputs in evaluation.outputs.items():
        values = dataset.ratings[aspect].value
        for metric in metrics_on_scale(evaluation, outputs, (float(values.min()), float(values.max()))):
            table = confusion(
                evaluation.golds[aspect][outputs],
                dataset.scores[metric].signed()[outputs],
                plan.draws,
                plan.rng(),
                cluster=dataset.items.codes[outputs],
                confidence=plan.confidence,
            )
            rows: list[list[Any]] = []
            for i, level in enumerate(table.human):
                share = Estimate(table.agreement[i], table.low[i], table.high[i])
                counts = [Count(int(count)) for count in table.counts[i]]
                rows.append([f"{level:g}", Count(int(table.counts[i].sum())), share, *counts])
            right = ("n", "same level", *(f"{metric} {level:g}" for level in table.judge))
            note = "Same level: the share of the outputs at this human level that the metric puts there too."
            title = f"{metric} at each level of {aspect}"
            columns = name_columns("humans", right=right)
            tables.append(Table(title=title, columns=columns, rows=rows, notes=[note]))
    if not tables:
        raise RunError("agreement at each level needs a metric with scores on the raters' scale", code="invalid_value")
    return tables


def inflation_table(evaluation: MetaEvaluation, aspect: str) -> Table:
    """A metric's mean score of the outputs that humans rate lowest and highest, on each slice, and their ratio, both
    counted from the worst score of the metric's scale. If wrong answers share words with right ones, the ratio comes
    close to 1, and the metric's mean says little (Doostmohammadi et al. 2024, Task 1615)."""
    dataset, gold = evaluation.dataset, evaluation.golds[aspect]
    rows: list[list[Any]] = []
    worst = {metric: _worst_score(dataset.scores[metric]) for metric in evaluation.metrics()}
    for part in make_slices(dataset, evaluation.plan.slices, evaluation.outputs[aspect]):
        for metric in evaluation.metrics():
            both = part.outputs[~np.isnan(gold[part.outputs] + dataset.scores[metric].values[part.outputs])]
            rated, scores = gold[both], dataset.scores[metric].values[both]
            if len(np.unique(rated)) < 2:
                continue
            wrong, right = float(scores[rated == rated.min()].mean()), float(scores[rated == rated.max()].mean())
            floor = worst[metric]
            inflation = (wrong - floor) / (right - floor) if right != floor else math.nan
            levels = f"{rated.min():g} and {rated.max():g}"
            rows.append([part.name, metric, levels, Number(wrong), Number(right), Number(inflation, 2)])
    if not rows:
        raise RunError(f"humans give all outputs the same {aspect}: none is wrong", code="too_little_data")
    return Table(
        title=f"scores of the outputs that humans rate lowest by {aspect}",
        columns=name_columns("slice", "metric", right=("levels", "mean at lowest", "mean at highest", "ratio")),
        rows=rows,
        notes=[
            "ratio: the mean at the lowest level as a share of that at the highest, both counted from the worst score "
            f"({', '.join(f'{metric} {score:g}' for metric, score in worst.items())})."
        ],
    )


def _worst_score(scores: MetricScores) -> float:
    """The worst score of the metric's scale; where the scale has no end or is not known, the worst in the data."""
    lower_is_better = scores.higher_is_better is False
    try:
        bound = build(scores.name, allow_import=False).bounds[lower_is_better]
    except MetristError:  # an unknown metric, or a part of one
        bound = math.inf
    if math.isfinite(bound):
        return float(bound)
    known = scores.values[np.isfinite(scores.values)]
    return float(known.max() if lower_is_better else known.min()) if len(known) else 0.0


# ---- Label spaces: the scores of wrong answers that come from the same small set as the right one.
#
# If all answers of a task share words ("B entails A", "B contradicts A"), an overlap metric rewards any of them, and a
# system that is always wrong looks good (Doostmohammadi et al. 2024, Task 1615). Each answer of such a set is scored
# against every other as if that were the right one. This is the only analysis that runs metrics, on a few short texts.


def label_space_tables(evaluation: MetaEvaluation) -> list[Table]:
    """For each task whose references are a closed set, and each metric that needs only references."""
    sets = evaluation.dataset.label_sets
    metrics = []
    for name in evaluation.metrics():
        text = evaluation.dataset.scores[name].text or name
        try:
            metric = build(text, allow_import=False)
        except MetristError:  # An unknown metric, or a part of one.
            continue
        # Reading scores must not send requests that cost money.
        is_free = not metric.asks_llm and metric.extra != "llm"
        if is_free and set(metric.needs) <= {"references"} and metric.higher_is_better:
            metrics.append(metric.named(name if name != text else None))
    if not sets:
        raise RunError("no task has a closed set of answers: at most 20 distinct references, each of two items or more")
    if not metrics:
        raise RunError("no metric can score the answers: expected one that needs only references", code="invalid_value")
    rows: list[list[Any]] = []
    for (task, labels), metric in product(sets.items(), metrics):
        space = score_labels(labels, metric)
        numbers = (space.right, space.wrong, space.highest_wrong)
        rows.append([task, Count(len(labels)), metric.label, *map(Number, numbers), Number(space.inflation, 2)])
    figures = ("right answer", "wrong, mean", "wrong, most", "inflation")
    head = [*name_columns("task", right=["answers"]), *name_columns("metric", right=figures)]
    notes = ["inflation: the score of a system that is always wrong, as a share of one that is always right."]
    return [Table(title="scores of wrong answers from a closed set", columns=head, rows=rows, notes=notes)]


@dataclass(frozen=True, slots=True)
class LabelSpace:
    """A metric's scores on a closed set of answers: of the `right` one, of a `wrong` one on average (the score of a
    system that is always wrong), and at most. `inflation` is wrong over right: 0 if wrong answers score nothing, 1 if
    the metric cannot distinguish them."""

    right: float
    wrong: float
    highest_wrong: float
    inflation: float


def score_labels(labels: Mapping[str, int], metric: Metric) -> LabelSpace:
    """Score each answer where another is right; `labels` counts how often each answer is right."""
    answers = list(labels)
    records = [
        Record(item=str(number), system="any", output=answer, references=(right,))
        for number, (answer, right) in enumerate(product(answers, answers))
    ]
    values = score(records, [metric], executor="serial", progress=False)[metric].values
    scores = values.reshape(len(answers), len(answers))
    share = np.array(list(labels.values()), dtype=np.float64)
    is_right = np.eye(len(answers), dtype=np.bool_)
    right = float(np.average(np.diagonal(scores), weights=share))
    wrong = float(np.average(np.where(is_right, 0.0, scores).sum(axis=0) / (len(answers) - 1), weights=share))
    return LabelSpace(right, wrong, float(scores[~is_right].max()), wrong / right if right else math.nan)
