"""The section of a report on people: which metric to trust, shown and said."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import Any

import numpy as np

from metrist.errors import MetristError
from metrist.evaluate.meta import Figure, MetaEvaluation, advice
from metrist.evaluate.meta.analyses import analyse
from metrist.evaluate.meta.analyses.metrics import compute_curve
from metrist.evaluate.meta.dataset import ALL, JudgedDataset, make_slices, resolve_column, system_means
from metrist.evaluate.meta.lengths import SHORT_BELOW
from metrist.evaluate.meta.notes import group_figures
from metrist.evaluate.meta.results import HUMANS
from metrist.evaluate.report.data import ReportData
from metrist.evaluate.report.systems import ratings_table
from metrist.report.cells import join_names
from metrist.report.figures import PlotValue, draw_bars, draw_matrix
from metrist.report.meta_figures import (
    AgreementBar,
    Curve,
    LevelColumn,
    ScatterPanel,
    draw_agreement,
    draw_curves,
    draw_levels,
    draw_scatter,
)
from metrist.report.page import Block, FigureBlock, Fold, Prose, Section, TableBlock
from metrist.report.svg import PAGE, Drawing, Style
from metrist.report.tables import Table, format_number
from metrist.stats import Codes
from metrist.stats.gold import majorities
from metrist.stats.measures import measure

_CURVE_POINTS = 60
#: The scale of the colours of agreement: of shares, the same on every page.
_SCALE = (0.0, 1.0)
#: Metrics in one figure of scatter plots or curves, the best ones.
_MAX_PANELS = 12
#: Slices that have room as columns of a heat map; where there are more, they are its rows.
_MOST_COLUMNS = 12
#: Pictures of levels, of the best metrics and all aspects.
_MAX_PICTURES = 12
#: Mean words of the references of a task below which its answers are short, and items that are looked at.
_MAX_ITEMS = 200
#: Columns of tasks, which are ordered by the length of their references.
_TASKS = ("task", "task+language")


def agreement_section(data: ReportData) -> Section | None:
    """How the metrics agree with people; None without ratings."""
    evaluation = data.evaluation
    if evaluation is None:
        return None
    caption = _AGREEMENT + (_CEILING if any(f.metric == HUMANS for f in evaluation.figures) else "")
    # All outputs first, then the slices where another metric is best.
    sentences = sorted(advice(evaluation), key=lambda sentence: "On all outputs" not in sentence)[:30]
    words = [why for word, why in _WORDS.items() if any(word in sentence.lower() for sentence in sentences)]
    overall = [sentence for sentence in sentences if "On all outputs" in sentence]
    whole, by_slice = _split_slices(data.trim(evaluation.table()))
    blocks: list[Block] = [
        Prose(sentences=overall or sentences, kind="list"),
        *([Prose(sentences=[" ".join(words)], kind="notes")] if words else []),
        *FigureBlock.of(partial(agreement_figure, data), "agreement", caption),
        *([Prose(sentences=[_GROUPED], kind="notes")] if evaluation.plan.group == "item" else []),
        TableBlock(table=whole),
    ]
    if (rated := ratings_table(data)) is not None:
        blocks.append(TableBlock(table=rated))
    caption = "Agreement with people, metric by slice or aspect, coloured from 0 to 1."
    blocks += FigureBlock.of(partial(slices_figure, data), "slices", caption)
    if by_slice.rows:
        words = [sentence for sentence in sentences if overall and sentence not in overall]
        blocks.append(Fold(title="By slice", blocks=[Prose(sentences=words, kind="list"), TableBlock(table=by_slice)]))
    blocks += _level_blocks(data)
    blocks += [*_scatter_blocks(data, evaluation), *_rater_blocks(data, evaluation)]
    return Section(name="people", title="Which metric to trust", blocks=blocks)


def _split_slices(table: Table) -> tuple[Table, Table]:
    """The rows on all outputs, with the notes, and those on slices."""
    names = [column.name for column in table.columns]
    if "slice" not in names:
        return table, replace(table, rows=[])
    place = names.index("slice")
    whole = [row for row in table.rows if row[place] == ALL]
    sliced = [row for row in table.rows if row[place] != ALL]
    return replace(table, rows=whole), replace(table, rows=sliced, notes=(), remarks=())


def _scatter_blocks(data: ReportData, evaluation: MetaEvaluation) -> list[Block]:
    left_out, metrics = "", order_metrics(evaluation)
    if others := metrics[_MAX_PANELS:]:
        mean = ", on average over aspects" if len(evaluation.outputs) > 1 else ""
        left_out = (
            f" The {_MAX_PANELS} of {len(metrics)} metrics that agree best with people{mean}; left out: "
            f"{join_names(others)}."
        )
    blocks: list[Block] = []
    for aspect in evaluation.golds if not evaluation.plan.preferences else ():
        folded: list[Block] = []
        scatter = partial(scatter_figure, data, aspect=aspect)
        curves = partial(curves_figure, data, aspect=aspect)
        folded += FigureBlock.of(scatter, f"scatter-{aspect}", _SCATTER + left_out)
        folded += FigureBlock.of(curves, f"curves-{aspect}", _CURVES + left_out)
        blocks.append(Fold(title=f"{aspect}: scores beside ratings, and ε curves", blocks=folded))
    return blocks


def _rater_blocks(data: ReportData, evaluation: MetaEvaluation) -> list[Block]:
    """How people agree with each other, and what agreement costs."""
    blocks: list[Block] = [*FigureBlock.of(partial(majority_figure, data), "majority", _MAJORITY)]
    ratings = evaluation.dataset.ratings
    single = [
        aspect
        for aspect, outputs in evaluation.outputs.items()
        if not evaluation.plan.preferences and not (ratings[aspect].counts()[outputs] >= 2).any()
    ]
    if single:
        some = len(single) < len(evaluation.outputs)
        what = f"rating per output of {join_names(single)}" if some else "rating per output and aspect"
        note = (
            f"There is one {what} (which may be a mean over raters already), so that agreement among raters cannot be "
            f"computed{' for that' if some else ''}."
        )
        blocks.append(Prose(sentences=[note], kind="notes"))
    for name, title in (
        ("agreement", "Agreement among raters"),
        ("cost", "Agreement and cost"),
        ("errors", "Agreement on errors"),
    ):
        if name == "agreement" and len(single) == len(evaluation.outputs):
            continue
        try:
            tables = analyse(evaluation, name)
        except MetristError:
            continue
        if name == "agreement":  # Without the rows of these aspects that hold a reason, not a value.
            rows = [[r for r in table.rows if r[0] not in single or not isinstance(r[2], str)] for table in tables]
            tables = [replace(table, rows=own) for table, own in zip(tables, rows, strict=True) if own]
        if tables:
            blocks.append(Fold(title=title, blocks=[TableBlock(table=table) for table in tables]))
    return blocks


#: Words of the advice that are explained below it where they occur.
_WORDS = {
    "on a par": "On a par: no test finds a difference between the two metrics, and their intervals overlap.",
    "reaches .6": "No metric reaches .6: even the best orders fewer than three in five pairs of outputs as people do.",
}
_GROUPED = "Grouped by item: an output is compared only with other outputs for the same item."
_AGREEMENT = (
    "Bars: agreement with people, with 95 % intervals. Marks: what guessing (chance) reaches, and calling every pair a "
    "tie."
)
_CEILING = " Line: one rater against the others."
_SCATTER = (
    "Right: the metric's score; up: people's rating, or the mean over raters. The more a square stands out from the "
    "page, the more outputs it holds; circles are the means of systems."
)
_CURVES = (
    "Accuracy on pairs of outputs as scores that differ by at most ε count as ties; circles are the best ε of each "
    "metric."
)
_MAJORITY = "The share of outputs, of those with two or more ratings, on which more than half of the raters agree."


def trust_sentence(evaluation: MetaEvaluation) -> list[str]:
    """The metric to trust, per aspect, in a sentence each for the verdict."""
    sentences = []
    for group in group_figures(evaluation):
        best, (aspect, *place) = group.best, group.key
        if best is None or place != [evaluation.plan.measures[0], ALL]:
            continue
        value = format_number(best.value, 3)
        interval = "" if math.isnan(best.low) else f" [{format_number(best.low, 3)}, {format_number(best.high, 3)}]"
        sentence = f"{best.metric} agrees best with people's {aspect}: {best.measure} {value}{interval}"
        if equals := [figure.metric for figure in group.find_equals(evaluation.plan.alpha)]:
            sentence += f"; {f'{len(equals)} others are' if len(equals) > 1 else f'{equals[0]} is'} on a par"
        name, floor = best.baseline
        if name:
            reached = f"{name} reaches {format_number(floor, 3)}"
            if not (best.value if math.isnan(best.low) else best.low) > floor:
                sentence = (
                    f"No metric is to be trusted about {aspect}: the best, {best.metric}, has {best.measure} {value}"
                )
            sentence += f"; {reached}"
        sentences.append(f"{sentence}.")
    return sentences


def describe_measure(evaluation: MetaEvaluation) -> str:
    """What the first measure is a share of."""
    name = evaluation.plan.measures[0]
    if evaluation.plan.preferences:
        return f"{name}: the share of people's choices between two outputs in which the metric prefers the same one."
    return f"{name}: the share of pairs of outputs that a metric orders as people do, ties included."


def _on_all(evaluation: MetaEvaluation, aspect: str) -> list[Figure]:
    key = aspect, evaluation.plan.measures[0], ALL
    return [figure for figure in evaluation.figures if figure.key == key]


def order_metrics(evaluation: MetaEvaluation) -> list[str]:
    """The metrics by their mean agreement over aspects, the best first."""
    values: dict[str, list[float]] = {}
    for aspect in dict.fromkeys(figure.aspect for figure in evaluation.figures):
        for figure in _on_all(evaluation, aspect):
            if figure.metric != HUMANS and not math.isnan(figure.value):
                values.setdefault(figure.metric, []).append(figure.value)
    return sorted(values, key=lambda metric: -float(np.mean(values[metric])))


def agreement_figure(data: ReportData, style: Style = PAGE) -> Drawing | None:
    """Bars of agreement per metric and aspect."""
    evaluation = data.evaluation
    if evaluation is None:
        return None
    order = {metric: number for number, metric in enumerate(order_metrics(evaluation))}
    bars: dict[str, dict[str, AgreementBar]] = {}
    ceilings = {}
    for aspect in dict.fromkeys(figure.aspect for figure in evaluation.figures):
        own = _on_all(evaluation, aspect)
        for figure in own:
            if figure.metric == HUMANS:
                ceilings[aspect] = PlotValue(value=figure.value, low=figure.low, high=figure.high)
        metrics = sorted((f for f in own if f.metric in order), key=lambda f: order[f.metric])
        bars[aspect] = {
            f.metric: AgreementBar(
                agreement=PlotValue(value=f.value, low=f.low, high=f.high), chance=f.chance, all_ties=f.all_ties
            )
            for f in metrics
        }
    return draw_agreement(bars, ceilings, measure=evaluation.plan.measures[0], style=style)


def slices_figure(data: ReportData, style: Style = PAGE) -> Drawing | None:
    """A heat map of metric × slice, or × aspect where there are no slices; None if there is one column only."""
    evaluation = data.evaluation
    if evaluation is None:
        return None
    figures = [f for f in evaluation.figures if f.metric != HUMANS and f.measure == evaluation.plan.measures[0]]
    several = len({figure.aspect for figure in figures}) > 1
    shown = tuple(f"{column}=" for column in _single_slices(data))
    named: dict[tuple[str, str], float] = {}
    for figure in figures:
        if figure.slice == ALL or figure.slice.startswith(shown):
            column = figure.slice
            if several:
                column = figure.aspect if figure.slice == ALL else f"{figure.aspect}, {figure.slice}"
            named[figure.metric, column] = figure.value
    columns = list(dict.fromkeys(column for _, column in named))
    if len(columns) < 2:
        return None
    rows = order_metrics(evaluation)
    values = np.array([[named.get((row, column), math.nan) for column in columns] for row in rows])
    if len(columns) > max(_MOST_COLUMNS, len(rows)):  # Their names have more room beside rows.
        rows, columns, values = columns, rows, values.T
    return draw_matrix(
        rows, columns, values, title=f"{evaluation.plan.measures[0]} by slice", decimals=2, domain=_SCALE, style=style
    )


def _single_slices(data: ReportData) -> list[str]:
    """The columns of slices without combinations, such as task+language, of others that are shown."""
    return [column for column in data.slices if "+" not in column or not set(column.split("+")) <= set(data.slices)]


def scatter_figure(data: ReportData, style: Style = PAGE, *, aspect: str | None = None) -> Drawing | None:
    """Scores beside ratings, a panel per metric."""
    evaluation = data.evaluation
    if evaluation is None or not evaluation.golds:
        return None
    aspect = aspect or next(iter(evaluation.golds))
    dataset, gold, outputs = evaluation.dataset, evaluation.golds[aspect], evaluation.outputs[aspect]
    sign = -1.0 if aspect in dataset.reversed_aspects else 1.0
    spearman = measure("spearman")
    panels = []
    for metric in order_metrics(evaluation)[:_MAX_PANELS]:
        scores = dataset.scores[metric]
        both = outputs[np.isfinite(gold[outputs]) & np.isfinite(scores.values[outputs])]
        means = system_means(dataset, scores.values, both), system_means(dataset, gold, both)
        systems = {
            name: (float(means[0][code]), sign * float(means[1][code]))
            for code, name in enumerate(dataset.systems.names)
            if not math.isnan(means[0][code])
        }
        rho = spearman.value(gold[both], scores.signed()[both]) if len(both) > 2 else math.nan
        note = f"Spearman's ρ {format_number(float(rho), 2)}"
        panels.append(
            ScatterPanel(
                title=metric, scores=scores.values[both], ratings=sign * gold[both], systems=systems, note=note
            )
        )
    return draw_scatter(panels, aspect=aspect, style=style)


def curves_figure(data: ReportData, style: Style = PAGE, *, aspect: str | None = None) -> Drawing | None:
    """Pairwise accuracy by threshold, a line per metric."""
    evaluation = data.evaluation
    if evaluation is None or not evaluation.golds:
        return None
    aspect = aspect or next(iter(evaluation.golds))
    curves = {}
    for metric in order_metrics(evaluation)[:_MAX_PANELS]:
        try:
            curve = compute_curve(evaluation, aspect, metric, _CURVE_POINTS)
        except MetristError:
            continue
        points = np.stack([curve.epsilons, curve.accuracies, curve.tie_shares])
        points = points[:, np.isfinite(points).all(axis=0)]
        if points.shape[1] > 1:
            epsilons, accuracies, shares = points.tolist()
            curves[metric] = Curve(epsilons=epsilons, accuracies=accuracies, tie_shares=shares)
    return draw_curves(curves, aspect=aspect, style=style) if curves else None


# ---- Levels per task and language


def _level_blocks(data: ReportData) -> list[Block]:
    """The two-panel picture: of the best metric and the first aspect open, of others folded up."""
    evaluation = data.evaluation
    if evaluation is None or evaluation.plan.preferences or not data.slices:
        return []
    pictures: list[Block] = []
    for metric, aspect in islice(product(order_metrics(evaluation), evaluation.golds), _MAX_PICTURES):
        worst, best, origin = _find_scale(data, evaluation, metric)
        caption = (
            f"Above: agreement of {metric} with people's {aspect}. Below: the mean levels of both. 0 and 1 are the "
            f"lowest and the highest rating; for {metric} {worst:.3g} and {best:.3g}, {origin}."
        )
        if _level_column(data) in _TASKS:
            caption += " Tasks are ordered by the length of their references, the shortest left"
            if data.options.task_class is None:
                caption += f"; short answers have fewer than {SHORT_BELOW} words on average"
            caption += "."
        draw = partial(levels_figure, data, metric=metric, aspect=aspect)
        pictures += FigureBlock.of(draw, f"levels-{metric}-{aspect}", caption)
    title = "The same for other metrics and aspects" if len(evaluation.golds) > 1 else "The same for other metrics"
    return [*pictures[:1], *([Fold(title=title, blocks=pictures[1:])] if len(pictures) > 1 else [])]


def _level_column(data: ReportData) -> str:
    return "task+language" if "task+language" in data.slices else data.slices[0]


def _find_scale(data: ReportData, evaluation: MetaEvaluation, metric: str) -> tuple[float, float, str]:
    """The worst and the best value of a metric's scale, and where they come from: its bounds, or the raters' scale if
    its scores lie on that and span half of it, or else the range of its scores."""
    scores = evaluation.dataset.scores[metric]
    known = scores.values[np.isfinite(scores.values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    bounds = next((m.bounds for m in data.results.columns if m.label == metric), (-math.inf, math.inf))
    # Ratings of an aspect where lower is better are stored negated.
    reversed_aspects = evaluation.dataset.reversed_aspects
    ratings = np.concatenate(
        [
            evaluation.dataset.ratings[aspect].value * (-1 if aspect in reversed_aspects else 1)
            for aspect in evaluation.golds
        ]
    )
    scale = float(ratings.min()), float(ratings.max())
    limits, origin = (low, high), "the range of its scores here"
    if all(map(math.isfinite, bounds)):
        limits, origin = bounds, "its bounds"
    elif scale[0] <= low and high <= scale[1] and high - low >= (scale[1] - scale[0]) / 2:
        limits, origin = scale, "the raters' scale"
    worst, best = limits[::-1] if scores.higher_is_better is False else limits
    return worst, best, origin


def _find_class(data: ReportData, dataset: JudgedDataset, outputs: Codes) -> str:
    """The class of a task: the most frequent value of the column that was named, or by the words of its references;
    empty if unknown."""
    if data.options.task_class is not None:
        labels = resolve_column(dataset, data.options.task_class, outputs)
        codes = labels.codes[outputs][labels.codes[outputs] >= 0]
        return labels.names[int(np.bincount(codes).argmax())] if len(codes) else ""
    items = (dataset.items.names[code] for code in np.unique(dataset.items.codes[outputs])[:_MAX_ITEMS])
    texts = data.texts.read([data.item_rows[item] for item in items if item in data.item_rows])
    words = [len(text.split()) for facts in texts.values() if facts.record for text in facts.record.references]
    return "" if not words else "short answers" if np.mean(words) < SHORT_BELOW else "long answers"


def levels_figure(
    data: ReportData, style: Style = PAGE, *, metric: str | None = None, aspect: str | None = None
) -> Drawing | None:
    """Agreement above and mean levels below, per task and language; None if there is one column only."""
    evaluation = data.evaluation
    if evaluation is None or not evaluation.golds or not data.slices:
        return None
    aspect = aspect or next(iter(evaluation.golds))
    metric = metric or order_metrics(evaluation)[0]
    column = _level_column(data)
    dataset, gold, outputs = evaluation.dataset, evaluation.golds[aspect], evaluation.outputs[aspect]
    parts = make_slices(dataset, [column], outputs)[1:]
    values = dataset.ratings[aspect].value
    low, high = float(values.min()), float(values.max())
    worst, best, _ = _find_scale(data, evaluation, metric)
    scores = dataset.scores[metric].values
    found = {f.slice: f for f in evaluation.figures if f.metric == metric and f.aspect == aspect}
    lengths = dataset.lengths.get("reference_length")
    columns: list[tuple[float, LevelColumn]] = []
    by_task: dict[str, list[Codes]] = {}
    for part in parts:
        figure = found.get(part.name)
        both = part.outputs[np.isfinite(gold[part.outputs]) & np.isfinite(scores[part.outputs])]
        if figure is None or not len(both):
            continue
        task, _, language = part.value.partition(" · ") if "+" in column else (part.value, "", "")
        if column == "language":
            task, language = "", part.value
        by_task.setdefault(task, []).append(both)
        known = lengths[both][np.isfinite(lengths[both])] if lengths is not None and column in _TASKS else np.empty(0)
        columns.append(
            (
                float(known.astype(np.float64).mean()) if len(known) else 0.0,
                LevelColumn(
                    task=task,
                    language=language,
                    agreement=PlotValue(value=figure.value, low=figure.low, high=figure.high),
                    people=(float(gold[both].mean()) - low) / (high - low) if high > low else math.nan,
                    metric=(float(scores[both].mean()) - worst) / (best - worst) if best != worst else math.nan,
                    outputs=len(both),
                    epsilon=figure.epsilon,
                ),
            )
        )
    if len(columns) < 2:
        return None
    mean_length: dict[str, list[float]] = {}
    for length, entry in columns:
        mean_length.setdefault(entry.task, []).append(length)
    classes = dict.fromkeys(by_task, "")
    if column in _TASKS or data.options.task_class is not None:
        classes = {task: _find_class(data, dataset, np.concatenate(own)) for task, own in by_task.items()}
    lengths_of = {task: float(np.mean(own)) for task, own in mean_length.items()}
    places = {
        name: np.mean([lengths_of[task] for task in classes if classes[task] == name]) for name in classes.values()
    }

    def order(entry: LevelColumn) -> tuple[Any, ...]:
        name = classes[entry.task]
        return places[name], name, lengths_of[entry.task], entry.task, entry.language

    entries = sorted((entry for _, entry in columns), key=order)
    if len(places) > 1:
        entries = [replace(entry, heading=classes[entry.task]) for entry in entries]
    return draw_levels(entries, metric=metric, measure=evaluation.plan.measures[0], aspect=aspect, style=style)


def majority_figure(data: ReportData, style: Style = PAGE) -> Drawing | None:
    """The share of outputs on which most raters agree, per aspect and slice; None with one rater per output."""
    evaluation = data.evaluation
    if evaluation is None or not evaluation.golds:
        return None
    shares: dict[str, dict[str, float]] = {}
    for aspect, outputs in evaluation.outputs.items():
        agreed = majorities(evaluation.dataset.ratings[aspect])
        for part in make_slices(evaluation.dataset, _single_slices(data), outputs):
            known = agreed[part.outputs][np.isfinite(agreed[part.outputs])]
            if len(known):
                label = aspect if part.name == ALL else f"{aspect}, {part.name}"
                shares[label] = {"share": round(100 * float(known.mean()), 1)}
    if not shares:
        return None
    return draw_bars(shares, ["share"], ["h5"], title="Outputs with a majority among raters", unit=" %", style=style)
