"""Figures on how metrics agree with people: bars of agreement, scatter plots, ε curves, and levels per task and
language. Plain numbers in, a drawing out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metrist.errors import format_count
from metrist.report.figures import PlotPanel, PlotValue, draw_axis, draw_legend, draw_levels_axis, lay_out_panels, widen
from metrist.report.svg import (
    HEAT,
    PAGE,
    SERIES,
    Circle,
    Drawing,
    Label,
    Line,
    Polyline,
    Rect,
    Style,
    choose_ticks,
    cut_text,
    text_length,
)
from metrist.report.tables import format_number

_MAX_POINTS = 400
_CELLS = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementBar:
    """One metric's agreement with people, and what guessing and calling every pair a tie would reach."""

    agreement: PlotValue
    chance: float = math.nan
    all_ties: float = math.nan


def draw_agreement(
    bars: Mapping[str, Mapping[str, AgreementBar]],
    ceilings: Mapping[str, PlotValue],
    *,
    measure: str,
    style: Style = PAGE,
) -> Drawing:
    """A bar with its interval per metric, in a panel per aspect, with marks at chance and all ties, and a line where
    one rater stands against the others. `bars` are by aspect, then by metric."""
    metrics = list(dict.fromkeys(metric for own in bars.values() for metric in own))
    known = [bar for own in bars.values() for bar in own.values()]
    drawing = Drawing(
        f"Agreement with people: {measure}",
        style,
        f"{format_count(len(metrics), 'metric')} on {', '.join(bars)}. The numbers are in the table.",
    )
    entries = [("metric", "h4")]
    entries += [("chance", "ink")] if any(not math.isnan(bar.chance) for bar in known) else []
    entries += [("all ties", "c1")] if any(not math.isnan(bar.all_ties) for bar in known) else []
    ceilings = {aspect: line for aspect, line in ceilings.items() if not math.isnan(line.value)}
    entries += [("one rater against the others", "c2")] if ceilings else []
    top = draw_legend(drawing, [name for name, _ in entries], [role for _, role in entries], 0.0)
    ends = [x for bar in known for x in (bar.agreement.value, bar.agreement.low, bar.agreement.high, bar.chance)]
    ends += [line.value for line in ceilings.values()]
    finite = [x for x in ends if math.isfinite(x)]
    domain = _extend_to_tick(min([0.0, *finite]), 1.02 * max([0.1, *finite]))
    row, font = 1.7 * style.font, style.font
    panels = lay_out_panels(drawing, list(bars), metrics, row_height=row, top=top)
    for (aspect, by_metric), panel in zip(bars.items(), panels, strict=True):
        panel.across = domain
        draw_axis(drawing, panel)
        zero = panel.x(0.0)
        for position, metric in enumerate(metrics):
            bar = by_metric.get(metric)
            if bar is None or math.isnan(bar.agreement.value):
                continue
            y, x = panel.top + position * row, panel.x(bar.agreement.value)
            tip = f"{metric}, {aspect}: {bar.agreement}"
            for name, value in (("chance", bar.chance), ("all ties", bar.all_ties)):
                tip += "" if math.isnan(value) else f"; {name} {format_number(value, 3)}"
            drawing.add(Rect(min(zero, x), y + 0.2 * row, abs(x - zero), 0.6 * row, "h4", tip))
            if not math.isnan(bar.agreement.low):
                low, high, middle = panel.x(bar.agreement.low), panel.x(bar.agreement.high), y + row / 2
                drawing.add(Line(low, middle, high, middle, "ink", 0.11 * font, tip=tip))
            for value, role in ((bar.chance, "ink"), (bar.all_ties, "c1")):
                if not math.isnan(value):
                    mark = panel.x(value)
                    drawing.add(Line(mark, y + 0.08 * row, mark, y + 0.92 * row, role, 0.15 * font))
        if aspect in ceilings:
            x = panel.x(ceilings[aspect].value)
            tip = f"one rater against the others, {aspect}: {ceilings[aspect]}"
            drawing.add(Line(x, panel.top, x, panel.bottom, "c2", 0.15 * font, dash=True, tip=tip))
    return drawing


def _extend_to_tick(low: float, high: float) -> tuple[float, float]:
    """The range with its upper end at the next tick, so that no bar ends beyond the last one; at most 1."""
    ticks = choose_ticks(low, high, 4)
    end = round(2 * ticks[-1] - ticks[-2], 12) if len(ticks) > 1 else math.inf
    return low, end if ticks[-1] < high and end <= 1.0 else high


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScatterPanel:
    """One metric's scores beside people's ratings, and the means of the systems."""

    title: str
    scores: NDArray[np.float64]
    ratings: NDArray[np.float64]
    systems: Mapping[str, tuple[float, float]]
    note: str = ""


def draw_scatter(panels: Sequence[ScatterPanel], *, aspect: str, style: Style = PAGE) -> Drawing:
    """A panel per metric: its score to the right, people's rating upwards. Many outputs are counted in squares: the
    darker, the more. Circles are the means of systems."""
    drawing = Drawing(f"Scores and people's {aspect}", style)
    font = style.font
    drawing.description = f"Panels: {', '.join(panel.title for panel in panels)}. Circles are means of systems."
    gutter = 3.2 * font
    across = max(1, min(len(panels), int((style.width - gutter) // (15 * font))))
    width = (style.width - gutter) / across
    side = min(width - 1.5 * font, 20 * font)
    height = style.line * (1 + any(panel.note for panel in panels)) + 0.8 * side + 2.6 * font
    ratings = np.concatenate([panel.ratings for panel in panels]) if panels else np.empty(0)
    vertical = widen(ratings.tolist(), 0.04)
    for number, panel in enumerate(panels):
        line, column = divmod(number, across)
        left, top = gutter + column * width, line * height
        box = PlotPanel(left, left + side, top + height - 2.6 * font - 0.8 * side, top + height - 2.6 * font)
        drawing.add(Label(box.left, top + 0.5 * style.line, cut_text(panel.title, font, side), bold=True))
        if panel.note:
            drawing.add(
                Label(box.left, top + 1.4 * style.line, cut_text(panel.note, font, side), role="soft", size=0.9)
            )
        box.across, box.up = widen(panel.scores.tolist(), 0.04), vertical
        draw_axis(drawing, box)
        draw_levels_axis(drawing, box, labelled=column == 0)
        _draw_outputs(drawing, panel, box)
        for system, (score, rating) in panel.systems.items():
            tip = f"{system}: score {format_number(score, 3)}, rating {format_number(rating, 2)}"
            drawing.add(Circle(box.x(score), box.y(rating), 0.33 * font, "c1", tip, hollow=True))
    drawing.height = math.ceil(len(panels) / across) * height
    return drawing


def _draw_outputs(drawing: Drawing, panel: ScatterPanel, box: PlotPanel) -> None:
    if len(panel.scores) <= _MAX_POINTS:
        for score, rating in zip(panel.scores.tolist(), panel.ratings.tolist(), strict=True):
            drawing.add(Circle(box.x(score), box.y(rating), 0.14 * drawing.style.font, "h5"))
        return
    counts, xs, ys = np.histogram2d(panel.scores, panel.ratings, _CELLS, [box.across, box.up])
    most = counts.max()
    for i, j in zip(*np.nonzero(counts), strict=True):
        count = int(counts[i, j])
        step = 1 + min(int((len(HEAT) - 1) * math.sqrt(count / most)), len(HEAT) - 2)
        x1, x2 = (box.x(float(x)) for x in xs[i : i + 2])
        y1, y2 = (box.y(float(y)) for y in ys[j : j + 2])
        drawing.add(Rect(x1, y2, x2 - x1 - 0.4, y1 - y2 - 0.4, f"h{step}", format_count(count, "output")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A metric's accuracy by threshold: ε, accuracy and share of tied pairs at each point."""

    epsilons: Sequence[float]
    accuracies: Sequence[float]
    tie_shares: Sequence[float]


def draw_curves(curves: Mapping[str, Curve], *, aspect: str, style: Style = PAGE) -> Drawing:
    """Pairwise accuracy as the threshold ε grows from 0 to where every pair is a tie. Thresholds of different metrics
    have different units, so that the share of pairs they tie is what runs to the right; circles are the best ε."""
    drawing = Drawing(f"Pairwise accuracy with {aspect} by threshold ε", style)
    font = style.font
    drawing.description = "; ".join(
        f"{name}: best {format_number(max(curve.accuracies), 3)}" for name, curve in curves.items()
    )
    roles = {name: f"c{number % len(SERIES)}" for number, name in enumerate(curves)}
    dashed = {name: number >= len(SERIES) for number, name in enumerate(curves)}
    top = draw_legend(drawing, list(curves), list(roles.values()), 0.0, list(dashed.values()))
    box = PlotPanel(3.4 * font, style.width - font, top + 0.5 * font, top + 0.42 * style.width)
    box.up = widen([x for curve in curves.values() for x in curve.accuracies])
    draw_axis(drawing, box, 5)
    draw_levels_axis(drawing, box, 5)
    for name, curve in curves.items():
        points = [(box.x(share), box.y(value)) for value, share in zip(curve.accuracies, curve.tie_shares, strict=True)]
        drawing.add(Polyline(points, roles[name], 0.14 * font, dash=dashed[name], tip=name))
        best = max(range(len(points)), key=lambda index: curve.accuracies[index])
        tip = (
            f"{name}: best ε {curve.epsilons[best]:.4g}, accuracy {format_number(curve.accuracies[best], 3)}, "
            f"{curve.tie_shares[best]:.0%} of the pairs tied"
        )
        drawing.add(Circle(*points[best], 0.35 * font, roles[name], tip))
    drawing.add(
        Label((box.left + box.right) / 2, box.bottom + 2.3 * font, "share of pairs that ε ties", "middle", "soft")
    )
    drawing.height = box.bottom + 3.2 * font
    return drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelColumn:
    """One task in one language: the agreement of a metric with people, and the mean level of both from 0 to 1. Columns
    with the same heading stand together below it."""

    task: str
    language: str
    agreement: PlotValue
    people: float
    metric: float
    outputs: int
    heading: str = ""
    epsilon: float = math.nan


def draw_levels(
    columns: Sequence[LevelColumn], *, metric: str, measure: str, aspect: str, style: Style = PAGE
) -> Drawing:
    """Two panels with a column per task and language: above, how the metric agrees with people; below, the mean levels
    of both (Doostmohammadi et al. 2024, Figures 1, 2, 4 and 5)."""
    drawing = Drawing(f"{metric} and people's {aspect}, per task and language", style)
    font = style.font
    shared = len({column.epsilon for column in columns}) == 1
    described = [f"ε {format_number(columns[0].epsilon, 4)}"] if shared and math.isfinite(columns[0].epsilon) else []
    for column in columns:
        epsilon = f" at ε {format_number(column.epsilon, 4)}" if not shared and math.isfinite(column.epsilon) else ""
        described.append(
            f"{column.task} {column.language}: {measure} {column.agreement}{epsilon}, "
            f"people {format_number(column.people, 2)}, {metric} {format_number(column.metric, 2)}"
        )
    drawing.description = "; ".join(described)
    languages = list(dict.fromkeys(column.language for column in columns))
    named = len({column.task for column in columns}) > 1 and len(languages) > 1
    roles = {language: f"c{number % len(SERIES)}" for number, language in enumerate(languages)} if named else {}
    entries = {"people": "ink", metric: "c1"}
    if named:
        entries = {language or "no language": role for language, role in roles.items()}
    left, right = 3.4 * font, style.width - 0.5 * font
    top = draw_legend(drawing, list(entries), list(entries.values()), left)
    height = 0.2 * style.width
    headings = list(dict.fromkeys(column.heading for column in columns))
    upper_top = top + (2 if any(headings) else 1) * style.line
    upper = PlotPanel(left, right, upper_top, upper_top + height)
    lower = PlotPanel(left, right, upper.bottom + 2 * style.line, upper.bottom + 2 * style.line + height)
    drawing.add(Label(left, top + 0.5 * style.line, f"agreement ({measure})", bold=True))
    title, dot = "mean level, 0 to 1", 0.38 * font
    drawing.add(Label(left, lower.top - 0.7 * style.line, title, bold=True))
    if named:  # The colours are those of languages.
        x, y = left + 1.1 * text_length(title, font) + 2 * font, lower.top - 0.7 * style.line
        for name, hollow in (("people", False), (metric, True)):
            drawing.add(Circle(x, y, dot, "ink", hollow=hollow))
            shown = cut_text(name, font, right - x - font)
            drawing.add(Label(x + font, y, shown))
            x += text_length(shown, font) + 3 * font
    values = [x for c in columns for x in (c.agreement.value, c.agreement.high, c.agreement.low) if math.isfinite(x)]
    upper.up = min([0.0, *values]), max([1.0, *values])
    for panel in (upper, lower):
        draw_levels_axis(drawing, panel)
    # Tasks stand apart; the languages of a task side by side.
    tasks = list(dict.fromkeys(column.task for column in columns))
    width = (right - left) / max(len(columns) + 0.6 * (len(tasks) - 1) + 1.2 * (len(headings) - 1), 1)
    x, labels = left, list[tuple[float, str]]()
    blocks: dict[str, list[float]] = {}
    for number, column in enumerate(columns):
        if number and column.task != columns[number - 1].task:
            x += 0.6 * width
        if number and column.heading != columns[number - 1].heading:
            x += 1.2 * width
        middle = x + width / 2
        blocks.setdefault(column.heading, []).append(middle)
        role = roles.get(column.language, "h5")
        where = " · ".join(filter(None, (column.task, column.language)))
        count = format_count(column.outputs, "output")
        if math.isfinite(column.agreement.value):
            y, zero = upper.y(column.agreement.value), upper.y(0.0)
            tip = f"{where}: {measure} {column.agreement}; {count}"
            bar = min(0.7 * width, 4 * font)
            drawing.add(Rect(middle - bar / 2, min(y, zero), bar, abs(zero - y), role, tip))
            if not math.isnan(column.agreement.low):
                low, high = upper.y(column.agreement.low), upper.y(column.agreement.high)
                drawing.add(Line(middle, low, middle, high, "ink", 0.11 * font))
        pair = (("people", column.people, False), (metric, column.metric, True))
        spots = [(name, value, lower.y(value), hollow) for name, value, hollow in pair if math.isfinite(value)]
        higher, *others = sorted(spot[2] for spot in spots) or [0.0]
        # A line joins the two dots; where they would overlap, they stand side by side.
        overlaps = any(y - higher < 2 * dot for y in others)
        if others and not overlaps:
            drawing.add(Line(middle, higher + dot, middle, others[0] - dot, "soft"))
        for name, value, y, hollow in spots:
            colour = role if named else ("c1" if hollow else "ink")
            tip = f"{where}: {name} {format_number(value, 3)}; {count}"
            aside = (1.2 * dot if hollow else -1.2 * dot) if overlaps else 0.0
            drawing.add(Circle(middle + aside, y, dot, colour, tip, hollow=hollow and named))
        labels.append((middle, column.language if not named and len(tasks) == 1 else column.task))
        x += width
    for heading, middles in blocks.items():
        room = middles[-1] - middles[0] + 2 * width
        drawing.add(
            Label(sum(middles) / len(middles), upper.top - 0.5 * style.line, cut_text(heading, font, room), "middle")
        )
    drawing.height = _label_columns(drawing, labels, width, lower.bottom + 0.6 * font)
    return drawing


def _label_columns(drawing: Drawing, labels: Sequence[tuple[float, str]], width: float, top: float) -> float:
    """Names below columns, equal neighbours once, turned where they do not fit; returns the height of the drawing."""
    font = drawing.style.font
    groups: list[tuple[str, list[float]]] = []
    for x, label in labels:
        if groups and groups[-1][0] == label:
            groups[-1][1].append(x)
        else:
            groups.append((label, [x]))
    turned = any(text_length(label, font) > len(xs) * width for label, xs in groups)
    room = min(max((text_length(label, font) for label, _ in groups), default=0), 10 * font)
    for label, xs in groups:
        middle = sum(xs) / len(xs)
        if turned:
            drawing.add(Label(middle, top + 0.4 * font, cut_text(label, font, room), "end", angle=-40.0))
        else:
            drawing.add(Label(middle, top + 0.6 * font, cut_text(label, font, len(xs) * width), "middle"))
    return top + (0.7 * room + font if turned else 1.6 * font)
