"""Figures on systems: scores with intervals, distributions, wins, differences and errors. Plain numbers in, a
drawing out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import format_count
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
    format_tick,
    place,
    text_length,
)
from metrist.report.tables import Estimate, Share, decimals_for, format_number

ARROWS = {True: " ↑", False: " ↓", None: ""}
#: Bins of a distribution, fewer where systems have few outputs.
_MIN_BINS, _MAX_BINS = 8, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotValue:
    """A value with its interval; NaN where there is none. `note` is said after them."""

    value: float
    low: float = math.nan
    high: float = math.nan
    note: str = ""

    def __str__(self) -> str:
        shown = str(Estimate(self.value, self.low, self.high, decimals_for(self.value, self.value)))
        return f"{shown}; {self.note}" if self.note else shown


@dataclass(slots=True)
class PlotPanel:
    """The place of one panel of a drawing, and the ranges of values that lie across and up it."""

    left: float
    right: float
    top: float
    bottom: float
    across: tuple[float, float] = (0.0, 1.0)
    up: tuple[float, float] = (0.0, 1.0)

    def x(self, value: float) -> float:
        return place(value, self.across, (self.left, self.right))

    def y(self, value: float) -> float:
        return place(value, self.up, (self.bottom, self.top))


def lay_out_panels(
    drawing: Drawing, titles: Sequence[str], rows: Sequence[str], *, row_height: float, top: float = 0.0
) -> Iterator[PlotPanel]:
    """Panels side by side, as many as fit, each with a title above and room for an axis below; the names of the rows
    stand once in each line of panels. Sets the height of the drawing."""
    style = drawing.style
    font = style.font
    gutter = measure_names(rows, font, 0.34 * style.width)
    across = max(1, min(len(titles), int((style.width - gutter) // (13 * font))))
    width = (style.width - gutter) / across
    height, axis = row_height * len(rows), 2.4 * font
    for number, title in enumerate(titles):
        line, column = divmod(number, across)
        y = top + line * (style.line + height + axis)
        left = gutter + column * width
        panel = PlotPanel(left + 0.4 * font, left + width - 0.8 * font, y + style.line, y + style.line + height)
        if column == 0:
            for position, row in enumerate(rows):
                middle = panel.top + (position + 0.5) * row_height
                drawing.add(Label(gutter - 0.6 * font, middle, cut_text(row, font, gutter - font), "end"))
        shown = cut_text(title, font, width - font)
        drawing.add(Label(panel.left, y + 0.5 * style.line, shown, bold=True))
        yield panel
    drawing.height = top + math.ceil(len(titles) / across) * (style.line + height + axis)


def measure_names(names: Iterable[str], font: float, most: float) -> float:
    """The width of a column of names beside a drawing."""
    return min(max((text_length(cut_text(name, font, math.inf), font) for name in names), default=0) + font, most)


def draw_axis(drawing: Drawing, panel: PlotPanel, count: int = 4) -> None:
    """Ticks and their numbers below a panel, with faint lines through it."""
    font = drawing.style.font
    for tick in choose_ticks(*panel.across, count):
        x = panel.x(tick)
        drawing.add(Line(x, panel.top, x, panel.bottom, "rule"))
        drawing.add(Label(x, panel.bottom + 0.9 * font, format_tick(tick), "middle", "soft", 0.85))


def draw_levels_axis(drawing: Drawing, panel: PlotPanel, count: int = 4, *, labelled: bool = True) -> None:
    """Faint lines across a panel at ticks from its bottom to its top, with their numbers on the left if `labelled`."""
    font = drawing.style.font
    for tick in choose_ticks(*panel.up, count):
        y = panel.y(tick)
        drawing.add(Line(panel.left, y, panel.right, y, "rule"))
        if labelled:
            drawing.add(Label(panel.left - 0.4 * font, y, format_tick(tick), "end", "soft", 0.85))


def widen(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    """The range of the finite values and a little more on both sides."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    margin = share * (high - low) or 0.05 * abs(high) or 0.5
    return low - margin, high + margin


def draw_system_scores(results: Any, metrics: Sequence[Any], draws: int, seed: int, confidence: float) -> Drawing:
    """The system scores with their intervals: a panel for each of the metrics."""
    headers = {metric.label: header for metric, header in zip(metrics, results.headers(metrics), strict=True)}
    better = {headers[metric.label]: metric.higher_is_better for metric in metrics}
    scores: dict[str, dict[str, PlotValue]] = {header: {} for header in better}
    for row in results.system_scores(draws, seed, confidence, metrics):
        note = f"{format_count(row.n, 'output')}, {Share(row.coverage)} scored"
        interval = PlotValue(value=row.value, low=row.low, high=row.high, note=note)
        scores[headers[row.metric]][row.system] = interval
    return draw_scores(scores, better, title=f"System scores, {confidence:.0%} bootstrap intervals")


def draw_scores(
    scores: Mapping[str, Mapping[str, PlotValue]],
    better: Mapping[str, bool | None],
    style: Style = PAGE,
    title: str = "System scores with 95 % intervals",
    *,
    zero: bool = False,
) -> Drawing:
    """A point with its interval per system, in a panel per metric. `scores` are by metric, then by system. For
    differences, `zero` draws a line at 0: one that is not luck has its interval on one side of it."""
    systems = list(dict.fromkeys(system for by_system in scores.values() for system in by_system))
    drawing = Drawing(title, style, f"{format_count(len(systems), 'system')} by {', '.join(scores)}; one panel each.")
    row = 1.55 * style.font
    titles = [f"{metric}{ARROWS[better.get(metric)]}" for metric in scores]
    panels = lay_out_panels(drawing, titles, systems, row_height=row)
    for (metric, own), panel in zip(scores.items(), panels, strict=True):
        low, high = widen([x for entry in own.values() for x in (entry.value, entry.low, entry.high)])
        panel.across = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
        draw_axis(drawing, panel)
        if zero:
            drawing.add(Line(panel.x(0.0), panel.top, panel.x(0.0), panel.bottom, "soft", 1.3))
        for position, system in enumerate(systems):
            entry = own.get(system)
            if entry is None or not math.isfinite(entry.value):
                continue
            y = panel.top + (position + 0.5) * row
            if math.isfinite(entry.low):
                drawing.add(Line(panel.x(entry.low), y, panel.x(entry.high), y, "accent", 0.13 * style.font))
            drawing.add(Circle(panel.x(entry.value), y, 0.3 * style.font, tip=f"{system}, {metric}: {entry}"))
    return drawing


def draw_distributions(
    values: Mapping[str, Mapping[str, NDArray[np.float64]]],
    better: Mapping[str, bool | None],
    style: Style = PAGE,
) -> Drawing:
    """How the scores of each system are spread: an area per system, with a line at its median, in a panel per metric.
    All areas of a panel have the same scale. `values` are by metric, then by system."""
    systems = list(dict.fromkeys(system for by_system in values.values() for system in by_system))
    description = f"{format_count(len(systems), 'system')} by {', '.join(values)}; lines are medians."
    drawing = Drawing("Distributions of the scores", style, description)
    row = (2.2 if len(systems) <= 8 else 1.6) * style.font
    titles = [f"{metric}{ARROWS[better.get(metric)]}" for metric in values]
    panels = lay_out_panels(drawing, titles, systems, row_height=row)
    for (metric, by_system), panel in zip(values.items(), panels, strict=True):
        own = {system: array[np.isfinite(array)] for system, array in by_system.items()}
        known = np.concatenate([*own.values(), np.empty(0)])
        if not len(known):
            continue
        # A few extreme scores would press all others into a corner; they count in the outermost bins.
        domain = float(np.quantile(known, 0.005)), float(np.quantile(known, 0.995))
        if domain[0] == domain[1]:
            domain = widen(domain)
        outputs = max(map(len, own.values()))
        bins = min(max(int(2 * math.sqrt(outputs)), _MIN_BINS), _MAX_BINS)
        edges = np.linspace(*domain, bins + 1)
        counts = {system: np.histogram(np.clip(array, *domain), edges)[0] for system, array in own.items()}
        shares = {system: counts[system] / max(len(array), 1) for system, array in own.items()}
        most = max(float(share.max()) for share in shares.values()) or 1.0
        panel.across = domain
        draw_axis(drawing, panel)
        for position, system in enumerate(systems):
            base = panel.top + (position + 0.95) * row
            drawing.add(Line(panel.left, base, panel.right, base, "rule", 0.7))
            if system not in own or not len(own[system]):
                continue
            heights = 0.88 * row * shares[system] / most
            middles = [panel.x(float(x)) for x in (edges[:-1] + edges[1:]) / 2]
            outline = [(panel.left, base), *zip(middles, base - heights, strict=True), (panel.right, base)]
            quartiles = np.quantile(own[system], (0.25, 0.5, 0.75))
            numbers = ", ".join(format_number(float(q), 3) for q in quartiles)
            tip = f"{system}, {metric}: quartiles {numbers}; {format_count(len(own[system]), 'output')}"
            drawing.add(Polyline(outline, "h3", closed=True, tip=tip))
            x = panel.x(float(np.clip(quartiles[1], *domain)))
            drawing.add(Line(x, base - 0.8 * row, x, base, "accent", 0.15 * style.font, tip=tip))
    return drawing


def draw_history(
    lines: Mapping[str, Sequence[tuple[float, float]]], ends: tuple[str, str], *, title: str, style: Style = PAGE
) -> Drawing:
    """A line per system through its points: when, and which value. `ends` name the first and the last time."""
    shown = {name: points for name, points in lines.items() if points}
    drawing = Drawing(title, style, f"From {ends[0]} to {ends[1]}: {', '.join(shown)}.")
    font = style.font
    roles = {name: f"c{number % len(SERIES)}" for number, name in enumerate(shown)}
    top = draw_legend(drawing, list(shown), list(roles.values()), 0.0)
    box = PlotPanel(3.4 * font, style.width - font, top + 0.5 * font, top + 0.42 * style.width)
    times = [when for points in shown.values() for when, _ in points]
    box.across = (min(times), max(times))
    box.up = widen([value for points in shown.values() for _, value in points])
    draw_levels_axis(drawing, box, 5)
    for when, name, anchor in zip(box.across, ends, ("start", "end"), strict=True):
        drawing.add(Label(box.x(when), box.bottom + 0.9 * font, name, anchor, "soft", 0.85))
    for name, points in shown.items():
        places = [(box.x(when), box.y(value)) for when, value in points]
        drawing.add(Polyline(places, roles[name], 0.14 * font, tip=name))
        for place_of_point, (_, value) in zip(places, points, strict=True):
            drawing.add(Circle(*place_of_point, 0.25 * font, roles[name], f"{name}: {format_number(value, 2)}"))
    drawing.height = box.bottom + 2 * font
    return drawing


def draw_matrix(
    rows: Sequence[str],
    columns: Sequence[str],
    values: NDArray[np.float64],
    *,
    title: str,
    description: str = "",
    decimals: int = 2,
    domain: tuple[float, float] | None = None,
    style: Style = PAGE,
) -> Drawing:
    """A heat map with its numbers in the cells; NaN is left empty."""
    drawing = Drawing(title, style, description)
    font = style.font
    known = values[np.isfinite(values)]
    low, high = domain or ((float(known.min()), float(known.max())) if len(known) else (0.0, 1.0))
    # A column needs four letters; few columns leave more room for the names of rows.
    most = min(max(0.34 * style.width, style.width - 4 * font * len(columns)), 0.6 * style.width)
    gutter = min(max((text_length(row, font) for row in rows), default=0) + font, most)
    longest = max((len(format_number(float(value), decimals)) for value in known), default=1)
    width = min((style.width - gutter) / max(len(columns), 1), 7 * font)
    # Names are turned where they do not fit above their columns, upright where slanted ones would take too much room.
    turned = any(text_length(column, font) > width - 4 for column in columns)
    room = min(max((text_length(column, font) for column in columns), default=0), 16 * font)
    slant, top = 0.0, style.line
    if turned:
        narrower = min((style.width - gutter - 0.7 * room) / len(columns), width)
        slant, width = (-45.0, narrower) if narrower > 3 * font else (-90.0, width)
        top = (0.75 if slant > -90 else 1.0) * room + font
    # Numbers that do not fit are in the tips only, and in the table that goes with the figure.
    size = min(1.0, (width - 2) / (longest * 0.56 * font))
    height = 1.7 * font
    for number, column in enumerate(columns):
        x = gutter + (number + 0.5) * width
        if turned:
            drawing.add(Label(x, top - 0.5 * font, cut_text(column, font, room), "start", angle=slant))
        else:
            drawing.add(Label(x, top - 0.6 * font, cut_text(column, font, width), "middle"))
    for line, row in enumerate(rows):
        y = top + line * height
        drawing.add(Label(gutter - 0.6 * font, y + height / 2, cut_text(row, font, gutter - font), "end"))
        for number, column in enumerate(columns):
            value = float(values[line, number])
            if math.isnan(value):
                continue
            share = 0.5 if high == low else min(max((value - low) / (high - low), 0.0), 1.0)
            step = min(int(share * len(HEAT)), len(HEAT) - 1)
            shown = format_number(value, decimals)
            x = gutter + number * width
            tip = f"{row}, {column}: {shown}"
            drawing.add(Rect(x + 0.5, y + 0.5, width - 1, height - 1, f"h{step}", tip))
            if size >= 0.55:
                drawing.add(Label(x + width / 2, y + height / 2, shown, "middle", f"t{step}", min(size, 0.95)))
    drawing.height = top + len(rows) * height + 2
    return drawing


def draw_bars(
    counts: Mapping[str, Mapping[str, float]],
    series: Sequence[str],
    roles: Sequence[str],
    *,
    title: str,
    description: str = "",
    unit: str = "",
    style: Style = PAGE,
) -> Drawing:
    """Horizontal bars, stacked from the series in their order, with the sum at the end, and a legend above. Names stand
    beside the bars, or above them where they do not fit."""
    drawing = Drawing(title, style, description)
    font = style.font
    gutter = measure_names(counts, font, math.inf)
    is_above = gutter > 0.4 * style.width
    gutter = 0.0 if is_above else gutter
    most = max((sum(entry.values()) for entry in counts.values()), default=0) or 1
    span = (gutter, style.width - 5 * font)
    top = draw_legend(drawing, series, roles, gutter) if len(series) > 1 else 0.0
    row = 1.7 * font
    step = row + is_above * style.line
    for line, name in enumerate(counts):
        y = top + line * step
        if is_above:
            drawing.add(Label(0.0, y + style.line / 2, cut_text(name, font, style.width)))
            y += style.line
        else:
            drawing.add(Label(gutter - 0.6 * font, y + row / 2, cut_text(name, font, gutter - font), "end"))
        done = 0.0
        for label, role in zip(series, roles, strict=True):
            value = counts[name].get(label, 0)
            if value:
                x1, x2 = (place(x, (0, most), span) for x in (done, done + value))
                tip = f"{name}, {label}: {value:,g}{unit}"
                drawing.add(Rect(x1, y + 0.2 * row, max(x2 - x1 - 0.5, 0.5), 0.6 * row, role, tip))
                done += value
        end = place(done, (0, most), span)
        drawing.add(Label(end + 0.4 * font, y + row / 2, f"{done:,g}{unit}", role="soft", size=0.9))
    drawing.height = top + step * len(counts) + 2
    return drawing


def draw_legend(
    drawing: Drawing, names: Sequence[str], roles: Sequence[str], left: float, dashes: Sequence[bool] | None = None
) -> float:
    """Names beside squares, or beside lines where `dashes` say which are dashed; returns the height."""
    font, line = drawing.style.font, drawing.style.line
    mark = 0.8 * font if dashes is None else 2.2 * font
    x, y = left, 0.0
    for number, (name, role) in enumerate(zip(names, roles, strict=True)):
        shown = cut_text(name, font, drawing.style.width - left - mark - 1.2 * font)
        width = text_length(shown, font) + mark + 1.6 * font
        if x + width > drawing.style.width and x > left:
            x, y = left, y + line
        if dashes is None:
            drawing.add(Rect(x, y + 0.35 * font, mark, mark, role))
        else:
            middle = y + 0.5 * line
            drawing.add(Line(x, middle, x + mark, middle, role, 0.2 * font, dash=dashes[number]))
        drawing.add(Label(x + mark + 0.3 * font, y + 0.5 * line, shown))
        x += width
    return y + line + 0.3 * font
