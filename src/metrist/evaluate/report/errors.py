"""The section of a report on errors: by aspect, severity and system, and the outputs that lose most by them."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from metrist.errors import format_count
from metrist.evaluate.explain.worst import list_decimals, show_outputs
from metrist.evaluate.report.data import ReportData
from metrist.ratings import Error
from metrist.report.errors import SEVERITIES, rank_severity
from metrist.report.figures import draw_bars
from metrist.report.page import Block, FigureBlock, Fold, OutputsBlock, Prose, Section, TableBlock
from metrist.report.svg import PAGE, Drawing, Style
from metrist.report.tables import Count, Number, Table, name_columns
from metrist.report.worst import PEOPLE, WorstEntry, WorstOutputs

#: Outputs with errors that are shown.
_SHOWN = 8


def list_errors(data: ReportData) -> dict[str, list[tuple[int, Error]]]:
    """The errors by who found them, each with the row of its output."""
    found: dict[str, list[tuple[int, Error]]] = {}
    for metric in data.results.metrics:
        block = data.results.scores[metric.label].errors
        own = [(row, error) for row in sorted(block) for error in block[row]]
        if own:
            found[metric.label] = own
    marked = data.texts.errors
    if marked:
        found[PEOPLE] = [(row, error) for row in sorted(marked) for error in marked[row]]
    return found


def _severity(error: Error) -> str:
    return SEVERITIES[rank_severity(error)]


def errors_figure(data: ReportData, style: Style = PAGE) -> Drawing | None:
    """Errors by aspect, stacked by severity, for everyone who found some."""
    found = list_errors(data)
    counts: dict[str, Counter[str]] = {}
    for name, errors in found.items():
        for _, error in errors:
            label = error.aspect if len(found) == 1 else f"{name}: {error.aspect}"
            counts.setdefault(label, Counter())[_severity(error)] += 1
    if not counts:
        return None
    ordered = dict(sorted(counts.items(), key=lambda entry: -sum(entry[1].values()))[:30])
    used = [severity for severity in SEVERITIES if any(entry[severity] for entry in ordered.values())]
    return draw_bars(
        ordered,
        used,
        used,
        title="Errors by aspect and severity",
        description="; ".join(f"{label}: {sum(entry.values())}" for label, entry in ordered.items()),
        style=style,
    )


def errors_section(data: ReportData) -> Section | None:
    """Errors by aspect and severity, per system, and the outputs that lose most by them."""
    found = list_errors(data)
    drawing = errors_figure(data)
    if drawing is None:
        return None
    blocks: list[Block] = [FigureBlock(drawing=drawing, name="errors"), TableBlock(table=_error_table(found))]
    blocks.append(TableBlock(table=_system_error_table(data, found)))
    legend = Prose(
        sentences=["Point at a marked passage, or reach it with the Tab key, to read why it is one."], kind="notes"
    )
    heaviest = _find_heaviest(data)
    with_errors = len({row for errors in found.values() for row, _ in errors})
    blocks.append(
        Fold(
            title=f"{heaviest.title} ({len(heaviest)} of {with_errors:,})",
            blocks=[legend, OutputsBlock(outputs=heaviest)],
            opened=True,
        )
    )
    return Section(name="errors", title="Errors", blocks=blocks)


def _find_heaviest(data: ReportData) -> WorstOutputs:
    """The outputs that lose most by their errors."""
    penalties: dict[int, tuple[float, int]] = {}
    for errors in list_errors(data).values():
        for row, error in errors:
            penalty, number = penalties.get(row, (0.0, 0))
            own = error.penalty if error.penalty is not None else (len(SEVERITIES) - rank_severity(error)) / 10
            penalties[row] = penalty + own, number + 1
    rows = sorted(penalties, key=lambda row: (-penalties[row][0], -penalties[row][1], row))[:_SHOWN]
    shown = show_outputs(data.results, data.texts.read(rows))
    entries = [
        WorstEntry(
            outputs=(output,),
            value=penalties[row][0],
            reason=f"{format_count(penalties[row][1], 'error')} with penalties of {penalties[row][0]:g} together",
        )
        for row, output in zip(rows, shown, strict=True)
    ]
    return WorstOutputs(title="Outputs with the heaviest errors", entries=entries, decimals=list_decimals(data.results))


def _error_table(found: dict[str, list[tuple[int, Error]]]) -> Table:
    rows: list[list[Any]] = []
    for name, errors in found.items():
        by_aspect: dict[str, list[tuple[int, Error]]] = {}
        for row, error in errors:
            by_aspect.setdefault(error.aspect, []).append((row, error))
        for aspect, own in sorted(by_aspect.items(), key=lambda entry: -len(entry[1])):
            severities = Counter(_severity(error) for _, error in own)
            penalties = [error.penalty for _, error in own if error.penalty is not None]
            rows.append(
                [
                    name,
                    aspect,
                    Count(len(own)),
                    *(Count(severities[severity]) for severity in SEVERITIES),
                    Count(len({row for row, _ in own})),
                    Number(float(np.mean(penalties)) if penalties else math.nan, 2),
                ]
            )
    numbers = ("errors", *SEVERITIES, "outputs", "mean penalty")
    return Table(
        title="Errors by aspect and severity",
        columns=name_columns("found by", "aspect", right=numbers),
        rows=rows,
    )


def _system_error_table(data: ReportData, found: dict[str, list[tuple[int, Error]]]) -> Table:
    rows: list[list[Any]] = []
    for name, errors in found.items():
        by_system: dict[str, list[Error]] = {}
        for row, error in errors:
            by_system.setdefault(data.results.systems[row], []).append(error)
        for system in data.systems:
            own, judged = by_system.get(system, []), _count_judged(data, name, system)
            severities = Counter(map(_severity, own))
            rate = Number(len(own) / judged if judged else math.nan, 2)
            rows.append(
                [system, name, Count(len(own)), rate, *(Count(severities[severity]) for severity in SEVERITIES)]
            )
    head = name_columns("system", "found by", right=("errors", "per output", *SEVERITIES))
    return Table(title="Errors by system", columns=head, rows=rows)


def compare_errors(data: ReportData) -> list[str]:
    """Which of two systems has more errors per output, and in which aspect they differ most: why one is better."""
    sentences = []
    for name, errors in list_errors(data).items():
        counts: dict[str, Counter[str]] = {}
        for row, error in errors:
            counts.setdefault(data.results.systems[row], Counter())[error.aspect] += 1
        for first, second in data.pairs:
            sizes = [_count_judged(data, name, system) for system in (first, second)]
            if not all(sizes):
                continue
            rates = [
                {aspect: count / size for aspect, count in counts.get(system, Counter()).items()}
                for system, size in zip((first, second), sizes, strict=True)
            ]
            own, other = (sum(rate.values()) for rate in rates)
            finds = "People find" if name == PEOPLE else f"{name} finds"
            sentence = f"{finds} {own:.2f} errors per output in {first} and {other:.2f} in {second}"
            aspects = sorted(set(rates[0]) | set(rates[1]))
            gaps = {aspect: rates[0].get(aspect, 0.0) - rates[1].get(aspect, 0.0) for aspect in aspects}
            widest = max(gaps, key=lambda aspect: abs(gaps[aspect]), default=None)
            if widest is not None and len(gaps) > 1 and gaps[widest]:
                shown = " against ".join(f"{rate.get(widest, 0.0):.2f}" for rate in rates)
                sentence += f"; they differ most in {widest}, {shown}"
            sentences.append(f"{sentence}.")
    return sentences


def _count_judged(data: ReportData, name: str, system: str) -> int:
    """The outputs of a system on which errors could be found: for a metric, those that it scored."""
    at = data.positions[system]
    if name not in data.results.scores:
        return len(at)
    return int(np.count_nonzero(~np.isnan(data.results.scores[name].values[at])))
