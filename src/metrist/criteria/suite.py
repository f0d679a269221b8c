"""A suite: criteria that were studied together, with the figures and settings that its paper prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from metrist.criteria.criterion import Criterion, criterion_of
from metrist.errors import SpecError, did_you_mean


class Figure(NamedTuple):
    """A mean over seeds, in per cent, and its standard deviation."""

    mean: float
    sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The settings that won on the validation set; None where the paper does not say. `truncate_right` keeps the right
    end of a text that is too long, as in the authors' code."""

    gradient_accumulation: int
    learning_rate: float
    epochs: int
    truncate_right: bool | None = None
    labelled: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The settings that were tried; `epochs` are the fewest and the most."""

    learning_rates: tuple[float, ...]
    gradient_accumulation: tuple[int, ...]
    epochs: tuple[int, int]
    truncate_right: tuple[bool, ...]
    labelled: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """Criteria that are trained on together with one of them left out: a cluster, or a group of one data set.

    The averages are the paper's, over these criteria: trained on the whole suite less the target, and on the circle
    less the target. `accuracy` has the latter per criterion where they are printed. `printed` holds a group's two
    averages in the order of the paper's sentence, "from" and "to".
    """

    name: str
    codes: tuple[str, ...]
    average_cross_task: float
    average_cross_cluster: float
    number: int | None = None
    accuracy: Mapping[str, Figure]
    printed: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """`accuracy` and `spearman` are by setup, then by code; `chosen` too, with one entry "all" for multi-task."""

    name: str
    title: str
    model: str
    seeds: int
    criteria: tuple[Criterion, ...]
    clusters: tuple[Circle, ...]
    groups: tuple[Circle, ...]
    accuracy: Mapping[str, Mapping[str, Figure]]
    spearman: Mapping[str, Mapping[str, float]]
    averages: Mapping[str, float]
    size_correlations: Mapping[str, float]
    grid: Grid
    chosen: Mapping[str, Mapping[str, Chosen]]

    @property
    def codes(self) -> tuple[str, ...]:
        """The criteria's codes, in the paper's order."""
        return tuple(one.code for one in self.criteria)

    def criterion(self, code: str) -> Criterion:
        """The criterion of this code or name."""
        for one in self.criteria:
            if code.lower() in (one.code.lower(), one.name.lower()):
                return one
        raise SpecError(f"no criterion {code!r} in the suite {self.name!r}{did_you_mean(code, self.codes)}")

    def cluster(self, number: int) -> Circle:
        """The cluster of this number."""
        for one in self.clusters:
            if one.number == number:
                return one
        known = ", ".join(str(one.number) for one in self.clusters)
        raise SpecError(f"no cluster {number} in the suite {self.name!r}, which has the clusters {known}")

    def group(self, name: str) -> Circle:
        """The group of this name."""
        for one in self.groups:
            if one.name == name:
                return one
        raise SpecError(
            f"no group {name!r} in the suite {self.name!r}{did_you_mean(name, [g.name for g in self.groups])}"
        )


def suite_of(table: Mapping[str, Any]) -> Suite:
    """A suite as its TOML file tells it."""
    inside = {row["number"]: row["codes"] for row in table["clusters"]}
    return Suite(
        **{key: table[key] for key in ("name", "title", "model", "seeds", "averages", "size_correlations", "spearman")},
        criteria=tuple(
            criterion_of(row, tuple(number for number, codes in inside.items() if row["code"] in codes))
            for row in table["criteria"]
        ),
        clusters=tuple(map(_circle, table["clusters"])),
        groups=tuple(map(_circle, table["groups"])),
        accuracy={setup: _figures(rows) for setup, rows in table["accuracy"].items()},
        grid=_grid(table["grid"]),
        chosen={setup: {code: Chosen(**row) for code, row in rows.items()} for setup, rows in table["chosen"].items()},
    )


def _figures(rows: Mapping[str, Any]) -> dict[str, Figure]:
    return {code: Figure(*row) for code, row in rows.items()}


def _circle(row: Mapping[str, Any]) -> Circle:
    printed = tuple(row["printed"]) if "printed" in row else None
    kept = {key: row[key] for key in ("name", "average_cross_task", "average_cross_cluster")}
    accuracy = _figures(row.get("cross_cluster", {}))
    return Circle(**kept, codes=tuple(row["codes"]), number=row.get("number"), accuracy=accuracy, printed=printed)


def _grid(row: Mapping[str, Any]) -> Grid:
    return Grid(**{key: tuple(values) for key, values in row.items()})
