"""Finding criteria and suites by name; the tables are TOML files of this folder, read when first asked for."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from metrist.criteria.criterion import Criterion, criterion_of
from metrist.criteria.suite import Suite, suite_of
from metrist.errors import SpecError, did_you_mean

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
