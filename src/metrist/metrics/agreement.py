"""How far the metrics that ship agreed with people on data sets of several tasks, from `agreement.json` beside this
module, which `make tables` writes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from typing import NamedTuple

from metrist.metrics.card_format import Agreement

#: The column of the lexical metric that agrees best on the data set itself.
BEST_LEXICAL = "best lexical"


class AgreementFigure(NamedTuple):
    """A figure with the limits of its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetAgreement:
    """The figures of metrics and baselines on one data set, on the same `n` outputs or pairs; higher is better.

    `measure` is a correlation, or `accuracy` or `acc_eq`; `given_length` has the partial correlations or coefficients
    given the output's length. `judged` sets decided nothing about a metric. `whole` is False for one of several
    aspects. `trained` are the metrics that learned from data of this family, `lexical` is the best lexical metric.
    """

    data: str
    name: str
    task: str
    judged: bool
    aspect: str
    measure: str
    n: int
    figures: Mapping[str, AgreementFigure]
    given_length: Mapping[str, AgreementFigure] = field(default_factory=dict)
    lexical: str = ""
    trained: Sequence[str] = ()
    whole: bool = True

    @property
    def chance(self) -> float | None:
        """The figure of a metric that knows nothing; None if it depends on the ties."""
        if self.measure.startswith("acc_eq"):
            return None
        return 0.5 if self.measure == "accuracy" else 0.0

    def contradicts(self, metric: str) -> bool:
        """Whether people prefer what the metric scores lower, by the whole interval."""
        figure = self.figures.get(metric)
        return figure is not None and self.chance is not None and figure.high < self.chance

    def supports(self, metric: str) -> bool:
        """Whether people prefer what the metric scores higher, by the whole interval."""
        figure = self.figures.get(metric)
        return figure is not None and self.chance is not None and figure.low > self.chance


class TaskAgreement(NamedTuple):
    """What the data sets of a task say about a metric, in words and as rows."""

    task: str
    verdict: str
    rows: Sequence[DatasetAgreement]


@cache
def load_agreements() -> tuple[DatasetAgreement, ...]:
    """All rows of the table, in its order."""
    return parse_agreements((resources.files("metrist.metrics") / "agreement.json").read_text(encoding="utf-8"))


def parse_agreements(text: str) -> tuple[DatasetAgreement, ...]:
    """The rows of a file that `dump_agreements` wrote."""
    rows = json.loads(text)
    for row in rows:
        row["trained"] = tuple(row["trained"])
        for key in ("figures", "given_length"):
            row[key] = {
                name: AgreementFigure(*(math.nan if number is None else number for number in numbers))
                for name, numbers in row[key].items()
            }
    return tuple(DatasetAgreement(**row) for row in rows)


def list_agreements(metric: str) -> list[DatasetAgreement]:
    """The rows in which the metric has a figure that says something about data that it has not seen."""
    return [row for row in load_agreements() if metric in row.figures and metric not in row.trained]


def summarize_tasks(metric: str) -> list[TaskAgreement]:
    """What is known of the metric, task by task."""
    tasks: dict[str, list[DatasetAgreement]] = {}
    for row in list_agreements(metric):
        tasks.setdefault(row.task, []).append(row)
    return [TaskAgreement(task, _judge_rows(rows, metric), rows) for task, rows in tasks.items()]


def _judge_rows(rows: Sequence[DatasetAgreement], metric: str) -> str:
    rows = [row for row in rows if row.whole]
    supporting = [row for row in rows if row.supports(metric)]
    contradicting = [row for row in rows if row.contradicts(metric)]
    beyond = [row for row in rows if metric in row.given_length and row.given_length[metric].low > 0]
    if contradicting:
        places = ", ".join(row.name for row in contradicting)
        if supporting:
            return f"data sets contradict each other: it runs against people on {places}"
        return f"it runs against people on {places}"
    if beyond:
        return "it agrees with people, also beyond length" if len(beyond) == len(rows) else "it agrees on some data"
    return "it agrees with people no more than length does" if supporting else "it says little or nothing"


def describe_direction(metric: str) -> str:
    """Where data sets contradict the direction of the metric; empty if none does."""
    against = [row for row in list_agreements(metric) if row.whole and row.contradicts(metric)]
    return ", ".join(f"{row.name} ({row.task.replace('_', ' ')})" for row in against)


def export_agreement(metric: str, row: DatasetAgreement) -> Agreement:
    """A row of the table as a card has it, with length and the best lexical metric."""
    value, low, high = row.figures[metric]
    names = {"length": "length", BEST_LEXICAL: row.lexical}
    given = row.given_length.get(metric)
    return Agreement(
        data=row.name,
        task=row.task,
        aspect=row.aspect,
        measure=row.measure,
        n=row.n,
        value=value,
        low=None if math.isnan(low) else low,
        high=None if math.isnan(high) else high,
        baselines={name: row.figures[key].value for key, name in names.items() if key in row.figures},
        given_length=given and given.value,
        source="docs/research/tables.md",
    )


def format_agreement(row: Agreement) -> str:
    """A row in one line, with its baselines."""
    interval = "" if row.low is None or row.high is None else f" [{_shorten(row.low)}, {_shorten(row.high)}]"
    others = [f"{name} {_shorten(value)}" for name, value in row.baselines.items()]
    if row.given_length is not None:
        others.append(f"given length {_shorten(row.given_length)}")
    aspect = f", {row.aspect}" if row.aspect else ""
    figure = f"{row.data}{aspect}: {_shorten(row.value)}{interval} {row.measure}"
    return f"{figure} ({', '.join(others)})" if others else figure


def _shorten(number: float) -> str:
    """A figure with two decimals, without the zero in front: -.07."""
    text = f"{abs(number):.2f}"
    return f"{'-' if number < 0 and float(text) else ''}{text.removeprefix('0')}"


def dump_agreements(rows: Iterable[DatasetAgreement]) -> str:
    """The content of the file: a row of the table per line."""
    lines = []
    for row in rows:
        content = asdict(row)
        for key in ("figures", "given_length"):
            content[key] = {
                name: [round(number, 4) if math.isfinite(number) else None for number in figure]
                for name, figure in content[key].items()
            }
        lines.append(json.dumps(content, ensure_ascii=False, allow_nan=False))
    return "[\n" + ",\n".join(lines) + "\n]\n"
