"""Criteria by name, each with its instruction, and suites of criteria with published results.

criteria.find("grammaticality").instruction        a criterion for any task
criteria.find("CNG").fields                        a criterion of a suite, by its code or its name
criteria.suite("heap").accuracy["multi"]["CNG"]    the figure of the suite's paper
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import msgspec

from metrist.errors import SpecError, did_you_mean

__all__ = [
    "ChosenSettings",
    "CriteriaGroup",
    "Criterion",
    "PublishedFigure",
    "SettingsGrid",
    "Suite",
    "find",
    "general",
    "known",
    "names",
    "suite",
    "suites",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """What a text is judged by. `fields` are the labels of what is shown, in order, the judged text (`answer`) last.

    `higher` names what the good answer of a pair has more of. `opposite` means that people would prefer the bad answer:
    under a criterion of offensiveness, the more offensive reply is the good one.
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
        """The first of its clusters."""
        return self.clusters[0] if self.clusters else None

    @property
    def instruction(self) -> str:
        """The first wording."""
        return self.instructions[0]


class PublishedFigure(NamedTuple):
    """A mean over seeds, in per cent, and its standard deviation."""

    mean: float
    sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSettings:
    """The settings that the paper chose on the validation set; None if it does not say. `truncate_right` keeps the
    right end of a text that is too long, as in the authors' code."""

    gradient_accumulation: int
    learning_rate: float
    epochs: int
    truncate_right: bool | None = None
    labelled: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsGrid:
    """The settings that the paper tried; `epochs` are the fewest and the most. A batch is `device_batch` pairs for each
    accumulated gradient."""

    learning_rates: tuple[float, ...]
    device_batch: int
    gradient_accumulation: tuple[int, ...]
    epochs: tuple[int, int]
    truncate_right: tuple[bool, ...]
    labelled: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CriteriaGroup:
    """Criteria that are trained together with one of them left out: a cluster, or a group from one data set.

    The averages are the paper's, over these criteria: trained on the whole suite without the target, and on the group
    without the target. `accuracy` has the latter for each criterion that the paper prints. `printed` has a group's two
    averages in the order of the paper's sentence, "from" and "to".
    """

    name: str
    codes: tuple[str, ...]
    average_cross_task: float
    average_cross_cluster: float
    number: int | None = None
    accuracy: Mapping[str, PublishedFigure] = field(default_factory=dict)
    printed: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Criteria that were studied together, with the figures and settings of the paper. `accuracy` and `spearman` are by
    setup, then by code; so is `chosen`, with one entry "all" for multi-task."""

    name: str
    title: str
    model: str
    seeds: int
    criteria: tuple[Criterion, ...]
    clusters: tuple[CriteriaGroup, ...]
    groups: tuple[CriteriaGroup, ...]
    accuracy: Mapping[str, Mapping[str, PublishedFigure]]
    spearman: Mapping[str, Mapping[str, float]]
    averages: Mapping[str, float]
    size_correlations: Mapping[str, float]
    grid: SettingsGrid
    chosen: Mapping[str, Mapping[str, ChosenSettings]]

    @property
    def codes(self) -> tuple[str, ...]:
        """The criteria's codes, in the paper's order."""
        return tuple(criterion.code for criterion in self.criteria)

    def criterion(self, code: str) -> Criterion:
        """Return the criterion of this code or name."""
        for criterion in self.criteria:
            if code.lower() in (criterion.code.lower(), criterion.name.lower()):
                return criterion
        raise SpecError(
            f"no criterion {code!r} in the suite {self.name!r}{did_you_mean(code, self.codes)}", code="unknown_name"
        )

    def find_codes(self, name: str) -> tuple[str, ...]:
        """Return the codes of the criteria of a data set, or the code of the criterion of this code or name."""
        codes = [entry.code for entry in self.criteria if name.lower() == (entry.data_set or "").lower()]
        return tuple(codes) or (self.criterion(name).code,)

    def cluster(self, number: int) -> CriteriaGroup:
        clusters = {cluster.number: cluster for cluster in self.clusters}
        if number in clusters:
            return clusters[number]
        numbers = ", ".join(map(str, clusters))
        raise SpecError(f"no cluster {number} in the suite {self.name!r}, which has the clusters {numbers}")

    def group(self, name: str) -> CriteriaGroup:
        groups = {group.name: group for group in self.groups}
        if name in groups:
            return groups[name]
        raise SpecError(
            f"no group {name!r} in the suite {self.name!r}{did_you_mean(name, groups)}", code="unknown_name"
        )


# The tables are TOML files of this folder, read on first use.

_GENERAL = "general"


def suites() -> tuple[str, ...]:
    """Return the names of the suites."""
    files = {file.name for file in resources.files("metrist.criteria").iterdir() if file.name.endswith(".toml")}
    return tuple(sorted(name.removesuffix(".toml") for name in files - {f"{_GENERAL}.toml"}))


@cache
def suite(name: str) -> Suite:
    """Return the suite of this name."""
    if name not in suites():
        raise SpecError(
            f"no suite named {name!r}{did_you_mean(name, suites()) or f'; there is {suites()[0]!r}'}",
            code="unknown_name",
        )
    table = _read_table(name)
    for row in table["criteria"]:
        row["clusters"] = [cluster["number"] for cluster in table["clusters"] if row["code"] in cluster["codes"]]
    return msgspec.convert(table, Suite)


@cache
def general() -> tuple[Criterion, ...]:
    """Return the criteria that fit any task."""
    rows = _read_table(_GENERAL)["criteria"]
    return tuple(msgspec.convert({"code": row["name"], **row}, Criterion) for row in rows)


def names() -> tuple[str, ...]:
    """Return the names that `find` accepts: the general criteria's names, then the suites' codes."""
    codes = (criterion.code for name in suites() for criterion in suite(name).criteria)
    return (*(criterion.name for criterion in general()), *codes)


def known(name: str) -> Criterion | None:
    """Return the criterion of this name or code, ignoring case, general criteria first; None if there is none."""
    return _criteria_by_name().get(name.strip().lower())


def find(name: str) -> Criterion:
    """Return the criterion of this name or code, as `known` does; raise an error if there is none."""
    criterion = known(name)
    if criterion is None:
        spellings = [text for entry in _criteria_by_name().values() for text in (entry.name, entry.code)]
        hint = did_you_mean(name, dict.fromkeys(spellings)) or f"; there are {', '.join(names())}"
        raise SpecError(f"no criterion named {name!r}{hint}", code="unknown_name")
    return criterion


@cache
def _criteria_by_name() -> dict[str, Criterion]:
    by_name: dict[str, Criterion] = {}
    for criterion in [*general(), *(criterion for name in suites() for criterion in suite(name).criteria)]:
        by_name.setdefault(criterion.code.lower(), criterion)
        by_name.setdefault(criterion.name.lower(), criterion)
    return by_name


def _read_table(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files("metrist.criteria") / f"{name}.toml").read_text(encoding="utf-8"))
