"""Agreement beside what it takes: seconds and money per output, and which metrics nobody beats in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from metrist.errors import RunError
from metrist.evaluate.meta.result import HUMANS, Figure, MetaEvaluation
from metrist.report.cells import Number
from metrist.report.tables import Column, Table


def cost_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect and measure: all metrics whose run recorded what they took, the ones on the Pareto front marked."""
    if not any(math.isfinite(one.cost.seconds) for one in evaluation.judged.scores.values()):
        raise RunError(
            "no run recorded what its metrics took: give run folders (`metrist score … -o run/`), not flat files"
        )
    keys = dict.fromkeys((figure.aspect, figure.measure) for figure in evaluation.figures)
    return [_table(evaluation, aspect, name) for aspect, name in keys]


def pareto_front(points: Sequence[tuple[float, ...]]) -> list[bool]:
    """Which (value, cost, cost …) no other point beats: none is at least as good in all and better in one."""

    def beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
        costs = list(zip(one[1:], other[1:], strict=True))
        as_good = one[0] >= other[0] and all(a <= b for a, b in costs)
        return as_good and (one[0] > other[0] or any(a < b for a, b in costs))

    return [not any(map(math.isnan, point)) and not any(beats(other, point) for other in points) for point in points]


def seconds_of(evaluation: MetaEvaluation, metric: str) -> float:
    """Seconds per output; NaN where no run recorded them."""
    scored = evaluation.judged.scores.get(metric)
    return scored.cost.seconds if scored else math.nan


def money_of(evaluation: MetaEvaluation, metric: str) -> float:
    """Money per output: nothing for a metric whose run was timed and paid for nothing."""
    scored = evaluation.judged.scores.get(metric)
    if scored is None or math.isnan(scored.cost.seconds):
        return math.nan
    return 0.0 if math.isnan(scored.cost.money) else scored.cost.money


def _table(evaluation: MetaEvaluation, aspect: str, name: str) -> Table:
    here = [f for f in evaluation.figures if f.aspect == aspect and f.measure == name and f.slice == "all"]
    figures = [figure for figure in here if figure.metric != HUMANS]
    known = [f for f in figures if math.isfinite(seconds_of(evaluation, f.metric))]
    known.sort(key=lambda figure: seconds_of(evaluation, figure.metric))
    front = pareto_front([(f.value, seconds_of(evaluation, f.metric), money_of(evaluation, f.metric)) for f in known])
    rows = [_row(evaluation, figure, best) for figure, best in zip(known, front, strict=True)]
    head = [
        Column("metric"),
        *(Column(n, "right") for n in (name, "ms per output", "cost per output")),
        Column("front"),
    ]
    notes = ["front: no other metric is as good for less."]
    missing = len(figures) - len(known)
    if missing:
        notes.append(f"Not shown: {missing} whose time nobody recorded.")
    return Table(title=f"{name} with {aspect} beside its cost", columns=head, rows=rows, notes=notes)


def _row(evaluation: MetaEvaluation, figure: Figure, best: bool) -> list[Any]:
    return [
        figure.metric,
        Number(figure.value),
        Number(1000 * seconds_of(evaluation, figure.metric), 3),
        Number(money_of(evaluation, figure.metric), 5),
        "front" if best else "",
    ]
