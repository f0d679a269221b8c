"""The result of a meta-evaluation: one figure per metric, aspect, measure and slice."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metrist.errors import MetristError, RunError, format_count
from metrist.evaluate.meta.dataset import JudgedDataset
from metrist.evaluate.plans import MetaPlan
from metrist.io.writer import atomic_write
from metrist.report.tables import Column, Count, Estimate, Marked, MetricSignature, Number, Share, Table, or_none
from metrist.stats import Floats

if TYPE_CHECKING:
    from metrist.metrics.base import Metric

#: The name of the row that shows how well a single rater agrees with the others.
HUMANS = "(one rater)"
#: What stands in the place of the aspect for means over aspects.
MEAN = "(mean)"
NO_TESTS = "no tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """How well one metric agrees with humans.

    `rank` is the significance cluster, 1 for the best, 0 if unranked. `n` counts the outputs (for preferences, the
    pairs) that both sides judged, `coverage` is their share of those that humans judged, and `systems` the systems
    whose scores are compared (0: outputs are). The value rests on `groups` groups (for a mean over slices, slices);
    `undefined` counts those in which the measure is undefined, which a macro average leaves out. A number that does not
    exist is NaN; `reason` says why a value has no limits. `against` is the evidence that the metric runs against
    people, a negative agreement whose interval excludes chance.
    """

    metric: str
    aspect: str
    measure: str
    group: str
    slice: str
    value: float
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    systems: int = 0
    coverage: float = math.nan
    epsilon: float = math.nan
    chance: float = math.nan
    all_ties: float = math.nan
    rank: int = 0
    mark: str = ""
    groups: int = 0
    undefined: int = 0
    reason: str = ""
    against: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The table that the figure belongs to: aspect, measure and slice."""
        return self.aspect, self.measure, self.slice

    @property
    def marks(self) -> str:
        """What follows the value in a table; an arrow marks a metric that runs against people."""
        return f"{self.mark}↓" if self.against else self.mark

    @property
    def baseline(self) -> tuple[str, float]:
        """What reaches most without a metric, and how much; NaN if that is unknown."""
        baselines = {"guessing": self.chance, "calling every pair a tie": self.all_ties}
        known = {name: value for name, value in baselines.items() if not math.isnan(value)}
        return max(known.items(), key=lambda entry: entry[1], default=("", math.nan))

    def row(self) -> dict[str, Any]:
        """The figure as plain data; a number that does not exist is None."""
        row = {name: or_none(value) if isinstance(value, float) else value for name, value in asdict(self).items()}
        row["rank"] = self.rank or None
        row["undefined_groups"] = row.pop("undefined")
        return row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tests:
    """P-values (m, m) of the differences between the metrics of one table, raw and adjusted for all pairs. They are
    two-sided, or, if `one_sided`, those of the row's metric being better than the column's.

    `values` are the metrics' own figures. `differences` (m, m), row minus column, are measured on the outputs that both
    metrics scored. NaN for a pair that was not tested; `untested` says why, where a test is undefined. `draws` are
    those in which extreme ones were counted, 0 if p comes from a formula.
    """

    aspect: str
    measure: str
    slice: str
    metrics: tuple[str, ...]
    values: Floats
    differences: Floats
    raw: Floats
    adjusted: Floats
    how: str
    one_sided: bool = False
    draws: int = 0
    untested: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """The table that the tests belong to: aspect, measure and slice."""
        return self.aspect, self.measure, self.slice

    def compare(self, first: str, second: str) -> tuple[float, float]:
        """The difference between two metrics, first minus second, and its adjusted p-value; NaN if it was not
        tested."""
        row, column = self.metrics.index(first), self.metrics.index(second)
        difference = float(self.differences[row, column])
        # One-sided tests have a p-value for each direction.
        pair = (column, row) if difference < 0 else (row, column)
        return difference, float(self.adjusted[pair])

    def to_dict(self) -> dict[str, Any]:
        """The tested pairs as plain data."""
        pairs = [
            {
                "first": first,
                "second": second,
                "difference": or_none(float(self.differences[i, j])),
                "p": or_none(float(self.raw[i, j])),
                "p_adjusted": or_none(float(self.adjusted[i, j])),
            }
            for i, first in enumerate(self.metrics)
            for j, second in enumerate(self.metrics)
            if (i < j or (self.one_sided and i != j)) and not np.isnan(self.raw[i, j])
        ]
        facts = {"aspect": self.aspect, "measure": self.measure, "slice": self.slice, "how": self.how, "pairs": pairs}
        return {**facts, "untested": list(self.untested)} if self.untested else facts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetaEvaluation:
    """The figures of all metrics, the tests between them, and the data they were computed from."""

    dataset: JudgedDataset
    plan: MetaPlan
    figures: tuple[Figure, ...]
    tests: tuple[Tests, ...] = ()
    golds: Mapping[str, Floats] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"MetaEvaluation({format_count(len(self.figures), 'figure')} of "
            f"{format_count(len(self.dataset.scores), 'metric')})"
        )

    def rows(self) -> list[dict[str, Any]]:
        """One plain row per metric, aspect, measure and slice."""
        return [figure.row() for figure in self.figures]

    def figure(self, metric: str, *, aspect: str = "", measure: str = "", on: str = "all") -> Figure:
        """Return the first figure that matches."""
        for figure in self.figures:
            matches = figure.metric == metric and figure.slice == on
            if matches and aspect in ("", figure.aspect) and measure in ("", figure.measure):
                return figure
        raise RunError(
            f"no figure of {metric!r} on {on!r}; metrics are {', '.join(self.metrics())}", code="unknown_name"
        )

    def metrics(self) -> list[str]:
        """The metrics that have figures, in the order of the data."""
        return list(dict.fromkeys(figure.metric for figure in self.figures if figure.metric != HUMANS))

    def seconds_per_output(self, metric: str) -> float:
        """The seconds that a metric took per output; NaN if no run recorded them."""
        scores = self.dataset.scores.get(metric)
        return scores.cost.seconds if scores else math.nan

    def money_per_output(self, metric: str) -> float:
        """The money that a metric cost per output: 0 if its run was timed and paid for nothing."""
        scores = self.dataset.scores.get(metric)
        if scores is None or math.isnan(scores.cost.seconds):
            return math.nan
        return 0.0 if math.isnan(scores.cost.money) else scores.cost.money

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "plan": self.plan.to_dict(),
            "rows": self.rows(),
            "tests": [tests.to_dict() for tests in self.tests],
            "notes": list(self.notes),
        }

    def to_json(self, tables: Sequence[Table] = ()) -> str:
        """Everything as JSON, together with the tables of some analyses."""
        return json.dumps({**self.to_dict(), "tables": [table.to_dict() for table in tables]}, indent=1)

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise RunError("to_pandas() needs pandas: pip install pandas", code="missing_dependency") from None
        return pandas.DataFrame(self.rows())

    def write(self, path: str | os.PathLike[str], tables: Sequence[Table] = ()) -> None:
        """Write `to_json()` atomically."""
        with atomic_write(Path(path)) as file:
            file.write(self.to_json(tables) + "\n")

    def table(self) -> Table:
        """Return all figures, best first within each aspect, measure and slice."""
        varying = [name for name in ("aspect", "measure", "slice") if len({getattr(f, name) for f in self.figures}) > 1]
        optional = [name for name in _OPTIONAL if any(not math.isnan(getattr(f, name)) for f in self.figures)]
        # Between systems, the points are systems.
        systems = any(figure.systems for figure in self.figures)
        outputs = "outputs" if self.figures and all(figure.group == "system-level" for figure in self.figures) else "n"
        room = max((len(figure.marks) for figure in self.figures), default=0)
        ceiling = any(figure.metric == HUMANS for figure in self.figures)
        order = {key: i for i, key in enumerate(dict.fromkeys(figure.key for figure in self.figures))}
        figures = sorted(self.figures, key=lambda f: (order[f.key], math.inf if math.isnan(f.value) else -f.value))
        rows = []
        for figure in figures:
            estimate = Estimate(figure.value, figure.low, figure.high, 4)
            rows.append(
                [
                    *(getattr(figure, name) for name in varying),
                    Count(figure.rank) if figure.rank else "",
                    figure.metric,
                    Marked(estimate, figure.marks, room) if room else estimate,
                    *([Count(figure.systems) if figure.systems else ""] if systems else []),
                    Count(figure.n),
                    Share(figure.coverage),
                    *(Number(getattr(figure, name), _OPTIONAL[name][1]) for name in optional),
                ]
            )
        right = [*(["systems"] if systems else []), outputs, "coverage", *(_OPTIONAL[name][0] for name in optional)]
        columns = [*(Column(name) for name in varying), Column("rank", "right"), Column("metric")]
        columns.append(Column("value", "right", None if varying or ceiling else "higher"))
        columns += [Column(name, "right") for name in right]
        about_files = set(self.dataset.reading_notes)
        return Table(
            title=self._title(varying),
            columns=columns,
            rows=rows,
            notes=[note for note in self.notes if note not in about_files],
            remarks=[note for note in self.notes if note in about_files],
            signatures=self._sign_metrics(),
        )

    def _sign_metrics(self) -> list[MetricSignature]:
        """How the metrics of runs were computed. sacreBLEU scores single outputs by the effective order, as metrist
        does, and says so in its signature."""
        on_systems = all(figure.systems for figure in self.figures) and self.plan.system_score == "corpus"
        known = [self.dataset.scores[name] for name in self.metrics() if name in self.dataset.scores]
        return [
            MetricSignature(
                scores.name,
                scores.signature,
                scores.peer_signature if on_systems else scores.peer_signature.replace("|eff:no|", "|eff:yes|"),
            )
            for scores in known
            if scores.signature
        ]

    def format_for_paper(self, table: Table) -> Table:
        """The table with measures and metrics named as in papers, a caption that begins with a capital, and without
        columns that say the same in every row. Warnings and advice are remarks: they are for the author."""
        names = {name: title for name, title in self.display_names().items() if title not in (name, name.capitalize())}
        same = {
            number: column.name
            for number, column in enumerate(table.columns)
            if column.name in ("aspect", "measure", "slice") and len({row[number] for row in table.rows}) == 1
        }
        values = [_name_measure(str(table.rows[0][number])) for number in same]
        constant = [value for value in values if value != "all" and value not in _name_measure(table.title)]
        title = ": ".join(filter(None, [_name_measure(table.title), ", ".join(constant)]))
        for_author = [note for note in table.notes if note.startswith(_FOR_AUTHOR)]
        notes = [note.replace("`", "") for note in table.notes if note not in for_author]
        if names:
            listed = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
            pattern = rf"(?<![\w(-])({listed})(?![\w(-])"
            notes = [re.sub(pattern, lambda match: names[match[1]], note) for note in notes]
        return replace(
            table,
            title=title if title.startswith("acc_eq") else title[:1].upper() + title[1:],
            columns=[
                replace(column, in_latex=column.in_latex and number not in same)
                for number, column in enumerate(table.columns)
            ],
            rows=[
                [
                    _name_measure(c) if column.name == "measure" else c
                    for column, c in zip(table.columns, row, strict=True)
                ]
                for row in table.rows
            ],
            notes=notes,
            remarks=[*for_author, *table.remarks],
        )

    def display_names(self) -> dict[str, str]:
        """The names of metrics in papers, such as chrF++, for those that have one of their own; a short name stays."""
        from metrist.metrics.cards import display_name

        titles = {name: display_name(m) for name, m in self._build_metrics().items() if name == m.text}
        counts = Counter(titles.values())
        return {name: title for name, title in titles.items() if title != name and counts[title] == 1}

    def bibliography(self) -> str:
        """What to cite for the metrics, the measures and the tests, as BibTeX."""
        from metrist.metrics.cards import format_bibliography

        metrics = self._build_metrics()
        unknown = [name for name in self.metrics() if name not in metrics]
        methods: dict[str, str] = {}
        if any(not math.isnan(figure.low) for figure in self.figures):
            methods["efron-1979-bootstrap"] = "bootstrap intervals"
        for figure in self.figures:
            if figure.measure == "acc_eq":
                on_systems = figure.group == "system-level"
                key = "kocmi-etal-2021-ship" if on_systems else "deutsch-etal-2023-ties"
                methods[key] = "system-level pairwise accuracy" if on_systems else "pairwise accuracy with ties"
            elif figure.measure.startswith("spa"):
                methods["thompson-etal-2024-improving"] = "soft pairwise accuracy"
        tests = {table.how for table in self.tests if table.how != NO_TESTS}
        if any("Williams" in how for how in tests):
            methods["graham-baldwin-2014-testing"] = "Williams' test"
        if any("permutation" in how or "bootstrap" in how for how in tests):
            methods["deutsch-etal-2021-statistical"] = "tests between metrics"
        if tests and self.plan.correction == "holm":
            methods["holm-1979-simple"] = "Holm's correction"
        notes = [f"nothing to cite is known for {', '.join(unknown)}"] if unknown else []
        return format_bibliography(metrics.values(), methods, notes)

    def _build_metrics(self) -> dict[str, Metric]:
        """The metrics of the figures that are metrist's own, by their names in the figures."""
        from metrist.metrics.registry import build

        metrics = {}
        for name in self.metrics():
            scores = self.dataset.scores.get(name)
            with suppress(MetristError):  # A metric of another tool, or a part of one.
                if scores and scores.text:
                    metrics[name] = build(scores.text, allow_import=False, disable_risky_llms=True)
        return metrics

    def _title(self, varying: Sequence[str]) -> str:
        if not self.figures:
            return "metrist meta: no figures"
        first = self.figures[0]
        measure = "agreement" if "measure" in varying else first.measure
        aspect = "ratings" if "aspect" in varying else first.aspect
        whose = "" if aspect in self.dataset.choices and not self.plan.preferences else "humans' "
        return f"{measure} with {whose}{aspect}, {_GROUP_TITLES.get(first.group, f'grouped by {first.group}')}"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _name_measure(text: str) -> str:
    """The text with the measure that it begins with named as in papers."""
    name, *rest = re.split(r"(?=[ (])", text, maxsplit=1)
    return "".join([MEASURE_TITLES.get(name, name), *rest])


#: How the notes begin that are about the data and the settings rather than the figures.
_FOR_AUTHOR = ("Warning:", "Near ", "With ", "The name suggests", "Higher is assumed")
#: The names of measures in papers.
MEASURE_TITLES = {
    "pearson": "Pearson's r",
    "spearman": "Spearman's ρ",
    "kendall_b": "Kendall's τ_b",
    "kendall_c": "Kendall's τ_c",
    "spa": "soft pairwise accuracy",
    "f1": "F1",
}


#: Columns that only some measures fill: heading and number of decimals.
_OPTIONAL = {"epsilon": ("ε", 4), "chance": ("chance", 3), "all_ties": ("all ties", 3)}
_GROUP_TITLES = {
    "none": "over all outputs",
    "item": "grouped by item",
    "system": "grouped by system",
    "system-level": "between systems",
    "pairs": "on pairs of outputs",
}
