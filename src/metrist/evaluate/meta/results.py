"""How a meta-evaluation is made: every choice that its numbers depend on."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from metrist.errors import RunError, did_you_mean
from metrist.evaluate.meta.dataset import Judged
from metrist.io.writer import atomic_write
from metrist.report.cells import Count, Estimate, Number, Share, or_none
from metrist.report.tables import Column, Table
from metrist.stats import Floats

Correction = Literal["holm", "benjamini-hochberg", "none"]
Average = Literal["macro", "micro"]
Resample = Literal["items", "systems", "both"]

GROUPS = ("item", "none", "system", "system-level")
EPSILON_OVER = ("all", "slice", "crossfit")
TESTS = ("auto", "permutation", "bootstrap", "sign", "williams", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of `meta_evaluate`, checked. `group` and `epsilon_over` may also name a column."""

    aspects: tuple[str, ...] = ()
    measures: tuple[str, ...] = ("acc_eq",)
    group: str = "item"
    slices: tuple[str, ...] = ()
    gold: str = "mean"
    preferences: bool = False
    epsilon_over: str = "all"
    average: Average = "macro"
    group_average: Average = "macro"
    resample: Resample = "items"
    draws: int = 1000
    seed: int = 0
    confidence: float = 0.95
    alpha: float = 0.05
    correction: Correction = "holm"
    test: str = "auto"
    metrics: tuple[str, ...] | None = None
    systems: tuple[str, ...] | None = None
    exclude_systems: tuple[str, ...] = ()
    top_k: int | None = None
    marked: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        one_of("average", self.average, get_args(Average))
        one_of("average", self.group_average, get_args(Average))
        one_of("resampling", self.resample, get_args(Resample))
        one_of("correction", self.correction, get_args(Correction))
        one_of("test", self.test, TESTS)
        if self.draws < 0 or not 0 < self.confidence < 1 or not 0 < self.alpha < 1:
            raise RunError(
                "wanted draws of at least 0, and confidence and alpha between 0 and 1, got "
                f"{self.draws}, {self.confidence} and {self.alpha}"
            )
        if not self.measures:
            raise RunError("no measure was asked for: name at least one, such as acc_eq or kendall_b")

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain data."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def one_of(what: str, name: str, known: tuple[str, ...]) -> None:
    """Refuse a name that is none of these."""
    if name not in known:
        raise RunError(f"no {what} {name!r}; known are {', '.join(known)}{did_you_mean(name, known)}")


def names(value: str | Iterable[str]) -> tuple[str, ...]:
    """One name, or several, as several."""
    return (value,) if isinstance(value, str) else tuple(dict.fromkeys(value))


# What a meta-evaluation gives: a row of figures per metric, aspect, measure and slice.


#: The name of the row that shows how well one rater does against the others.
HUMANS = "(one rater)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """How well one metric agrees with humans. `rank` is its significance cluster, 1 for the best, 0 for none;
    `n` counts outputs (for preferences, pairs of them) that both sides judged, `coverage` is their share of those that
    humans judged. The value rests on `groups` (for a mean over slices, slices), and `undefined` ones were left out. NaN
    where a number does not exist."""

    metric: str
    aspect: str
    measure: str
    group: str
    slice: str
    value: float
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    coverage: float = math.nan
    epsilon: float = math.nan
    chance: float = math.nan
    all_ties: float = math.nan
    rank: int = 0
    mark: str = ""
    groups: int = 0
    undefined: int = 0

    def row(self) -> dict[str, Any]:
        """The figure as plain data; a number that does not exist is None."""
        numbers = ("value", "low", "high", "coverage", "epsilon", "chance", "all_ties")
        plain = {name: or_none(getattr(self, name)) for name in numbers}
        return {
            "metric": self.metric,
            "aspect": self.aspect,
            "measure": self.measure,
            "group": self.group,
            "slice": self.slice,
            "value": plain["value"],
            "low": plain["low"],
            "high": plain["high"],
            "n": self.n,
            "coverage": plain["coverage"],
            "epsilon": plain["epsilon"],
            "chance": plain["chance"],
            "all_ties": plain["all_ties"],
            "rank": self.rank or None,
            "mark": self.mark,
            "groups": self.groups,
            "undefined_groups": self.undefined,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tests:
    """p-values (m, m) of the differences between metrics of one table, two-sided: as computed, and adjusted for all
    pairs. `values` are each metric's own figures; `differences` (m, m), row less column, are those that were tested, on
    the outputs that both metrics scored. NaN where a pair was not tested."""

    aspect: str
    measure: str
    slice: str
    metrics: tuple[str, ...]
    values: Floats
    differences: Floats
    raw: Floats
    adjusted: Floats
    how: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetaEvaluation:
    """Figures of all metrics, the tests between them, and the data they were computed from."""

    judged: Judged
    plan: Plan
    figures: tuple[Figure, ...]
    tests: tuple[Tests, ...] = ()
    golds: Mapping[str, Floats] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"MetaEvaluation({len(self.figures)} figures of {len(self.judged.scores)} metrics)"

    def rows(self) -> list[dict[str, Any]]:
        """One plain row per metric, aspect, measure and slice."""
        return [figure.row() for figure in self.figures]

    def figure(self, metric: str, *, aspect: str = "", measure: str = "", on: str = "all") -> Figure:
        """The first figure that fits."""
        for one in self.figures:
            fits = one.metric == metric and one.slice == on
            if fits and aspect in ("", one.aspect) and measure in ("", one.measure):
                return one
        raise RunError(f"no figure of {metric!r} on {on!r}; metrics are {', '.join(self.metrics())}")

    def metrics(self) -> list[str]:
        """The metrics that have figures, in the order of the data."""
        return list(dict.fromkeys(one.metric for one in self.figures if one.metric != HUMANS))

    def seconds_per_output(self, metric: str) -> float:
        """The seconds that a metric took per output; NaN if no run recorded them."""
        scored = self.judged.scores.get(metric)
        return scored.cost.seconds if scored else math.nan

    def money_per_output(self, metric: str) -> float:
        """The money that a metric cost per output: 0 if its run was timed and paid for nothing."""
        scored = self.judged.scores.get(metric)
        if scored is None or math.isnan(scored.cost.seconds):
            return math.nan
        return 0.0 if math.isnan(scored.cost.money) else scored.cost.money

    def table(self) -> Table:
        """All figures, best first within each aspect, measure and slice."""
        varying = [name for name in ("aspect", "measure", "slice") if len({getattr(f, name) for f in self.figures}) > 1]
        columns = [*(Column(name) for name in varying), Column("rank", "right"), Column("metric"), *_COLUMNS]
        columns += [Column(name, "right") for name in self._optional()]
        return Table(
            title=self._title(varying),
            columns=columns,
            rows=[self._table_row(figure, varying) for figure in _best_first(self.figures)],
            notes=self.notes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "plan": self.plan.to_dict(),
            "rows": self.rows(),
            "tests": [_plain_tests(tests) for tests in self.tests],
            "notes": list(self.notes),
        }

    def to_json(self, tables: Sequence[Table] = ()) -> str:
        """The same as JSON, with the tables of some analyses."""
        return json.dumps({**self.to_dict(), "tables": [table.to_dict() for table in tables]}, indent=1)

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise RunError("to_pandas() needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.rows())

    def write(self, path: str | os.PathLike[str], tables: Sequence[Table] = ()) -> None:
        """Write `to_json()`, whole or not at all."""
        with atomic_write(Path(path)) as file:
            file.write(self.to_json(tables) + "\n")

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def _optional(self) -> list[str]:
        """Columns that only some measures fill."""
        names = ("epsilon", "chance", "all_ties")
        return [_HEADS[name] for name in names if any(not math.isnan(getattr(f, name)) for f in self.figures)]

    def _title(self, varying: Sequence[str]) -> str:
        first = self.figures[0] if self.figures else None
        if first is None:
            return "metrist meta: nothing to show"
        measure = first.measure if "measure" not in varying else "agreement"
        aspect = first.aspect if "aspect" not in varying else "ratings"
        return f"{measure} with humans' {aspect}, {_GROUPS.get(first.group, f'grouped by {first.group}')}"

    def _table_row(self, figure: Figure, varying: Sequence[str]) -> list[Any]:
        optional = {
            "ε": Number(figure.epsilon, 4),
            "chance": Number(figure.chance),
            "all ties": Number(figure.all_ties),
        }
        return [
            *(getattr(figure, name) for name in varying),
            Count(figure.rank) if figure.rank else "",
            figure.metric,
            f"{Estimate(figure.value, figure.low, figure.high, 4)}{figure.mark}",
            Count(figure.n),
            Share(figure.coverage),
            *(optional[name] for name in self._optional()),
        ]


_COLUMNS = (Column("value", "right"), Column("n", "right"), Column("coverage", "right"))
_HEADS = {"epsilon": "ε", "chance": "chance", "all_ties": "all ties"}
_GROUPS = {
    "none": "over all pairs of outputs",
    "item": "grouped by item",
    "system": "grouped by system",
    "system-level": "between systems' means",
    "pairs": "on pairs of outputs",
}


def _best_first(figures: Sequence[Figure]) -> list[Figure]:
    tables = {key: i for i, key in enumerate(dict.fromkeys((f.aspect, f.measure, f.slice) for f in figures))}

    def place(figure: Figure) -> tuple[int, float]:
        key = tables[figure.aspect, figure.measure, figure.slice]
        return key, math.inf if math.isnan(figure.value) else -figure.value

    return sorted(figures, key=place)


def _plain_tests(tests: Tests) -> dict[str, Any]:
    rows = [
        {
            "first": first,
            "second": second,
            "difference": or_none(float(tests.differences[i, j])),
            "p": or_none(float(tests.raw[i, j])),
            "p_adjusted": or_none(float(tests.adjusted[i, j])),
        }
        for i, first in enumerate(tests.metrics)
        for j, second in enumerate(tests.metrics)
        if i < j and not np.isnan(tests.raw[i, j])
    ]
    return {"aspect": tests.aspect, "measure": tests.measure, "slice": tests.slice, "how": tests.how, "pairs": rows}
