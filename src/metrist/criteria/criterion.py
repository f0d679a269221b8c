"""One thing that can be asked of a text, and the words in which it is asked."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from metrist.errors import SpecError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """`fields` are the labels of what is shown, in order, the judged text (`answer`) last.

    `higher` is what the good one of a pair has more of. `opposite` says that people would rather have the bad one:
    a more offensive reply is "good" at being offensive.
    """

    name: str
    code: str
    data_set: str | None = None
    fields: tuple[str, ...]
    instructions: tuple[str, ...]
    higher: str
    opposite: bool = False
    clusters: tuple[int, ...] = ()
    group: str | None = None
    examples: int | None = None
    comparable: bool = True

    @property
    def answer(self) -> str:
        """The label of the judged text."""
        return self.fields[-1]

    @property
    def cluster(self) -> int | None:
        """The first of its clusters, for a table that has room for one."""
        return self.clusters[0] if self.clusters else None

    @property
    def instruction(self) -> str:
        """The first wording."""
        return self.instructions[0]


def criterion_of(row: Mapping[str, Any], clusters: tuple[int, ...] = ()) -> Criterion:
    """A criterion as its TOML table tells it; one without a code goes by its name."""
    lists = {"fields": tuple(row["fields"]), "instructions": tuple(row["instructions"]), "clusters": clusters}
    return Criterion(**{"code": row["name"], **row, **lists})


# A suite: criteria that were studied together, with the figures and settings that its paper prints.


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


# Finding criteria and suites by name; the tables are TOML files of this folder, read when first asked for.


_GENERAL = "general"


def suites() -> tuple[str, ...]:
    """The names of the suites."""
    files = (file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml"))
    return tuple(sorted(name for name in files if name != _GENERAL))


@cache
def suite(name: str) -> Suite:
    """The suite of this name."""
    if name not in suites():
        raise SpecError(f"no suite named {name!r}{did_you_mean(name, suites()) or f'; there is {suites()[0]!r}'}")
    return suite_of(_table(name))


@cache
def general() -> tuple[Criterion, ...]:
    """The criteria that fit any task."""
    return tuple(criterion_of(row) for row in _table(_GENERAL)["criteria"])


def names() -> tuple[str, ...]:
    """What `find` takes: the general criteria's names, then the suites' codes."""
    coded = (one.code for name in suites() for one in suite(name).criteria)
    return (*(one.name for one in general()), *coded)


def known(name: str) -> Criterion | None:
    """The criterion of this name or code, in capitals or not, general criteria first; None where there is none."""
    return _known().get(name.strip().lower())


def find(name: str) -> Criterion:
    """The criterion of this name or code, as `known` gives it; an error where there is none."""
    found = known(name)
    if found is None:
        raise SpecError(f"no criterion named {name!r}{_nearest(name)}")
    return found


@cache
def _known() -> dict[str, Criterion]:
    by_name: dict[str, Criterion] = {}
    every = [*general(), *(one for name in suites() for one in suite(name).criteria)]
    for one in every:
        by_name.setdefault(one.code.lower(), one)
        by_name.setdefault(one.name.lower(), one)
    return by_name


def _nearest(name: str) -> str:
    spelt = [one for found in _known().values() for one in (found.name, found.code)]
    return did_you_mean(name, dict.fromkeys(spelt)) or f"; there are {', '.join(names())}"


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8"))


def _folder() -> Any:
    return resources.files("metrist.criteria")
