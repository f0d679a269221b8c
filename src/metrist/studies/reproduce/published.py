"""The figures that papers print: one TOML file per table in the folder `published_tables`.

A table has `title`, `caption`, `notes`, `decimals`, `scale` (the factor for our figures) and `blocks`. A block is a
metric computed in one way, on one or more data sets:

    label       the metric as the paper calls it
    metric      the metric's text, with models in braces (see `models`); or `stored`, the name of a score that came with
                the data
    part        the part of the score to use (`recall`); by default its value
    references  what the output is compared with: all references, the first, or the source; `gold`: the first reference
                of each item is the output, and the measures are `ReductionShares`
    lines       `sentences` puts each sentence of a text on its own line; by default texts stay whole
    group       outputs are compared within: none (all of them) or item
    measures    the measures of the printed numbers
    exclude     systems that are left out
    note        why the numbers may differ
    printed     data set -> aspect -> the printed number, or one per measure; nan if the paper has none.
                The aspect `mean` is the mean of the figures of all aspects.

`references`, `group` and `measures` at the top level apply to all blocks.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from metrist.errors import RunError, check_known

References = Literal["all", "first", "source", "gold"]
Lines = Literal["whole", "sentences"]
Group = Literal["none", "item"]

_SHARED_KEYS = frozenset({"references", "group", "measures"})
#: The aspect that means all aspects of a data set.
MEAN = "mean"
#: What a table shows instead of a figure if the data set is not in the folder.
NO_DATA = "data missing"
#: The study that is made from ratings of one's own.
RELIABILITY = "reliability"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBlock:
    """A metric computed in one way, and the figures that a paper prints for it."""

    label: str
    printed: Mapping[str, Mapping[str, Sequence[float]]]
    measures: tuple[str, ...]
    metric: str = ""
    stored: str = ""
    part: str = ""
    references: References = "all"
    lines: Lines = "whole"
    group: Group = "none"
    exclude: tuple[str, ...] = ()
    note: str = ""
    #: Whether a model computes the metric, and the models that are not at hand (see `models`).
    learned: bool = False
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """The part of a paper's table that can be computed from the data sets, and the models of `models`."""

    title: str
    caption: str
    notes: tuple[str, ...]
    decimals: int
    scale: float
    blocks: tuple[PublishedBlock, ...]


def list_tables() -> list[str]:
    """Return the names of all tables."""
    return sorted(path.name.removesuffix(".toml") for path in _folder().iterdir() if path.name.endswith(".toml"))


def select_tables(names: Sequence[str]) -> list[str]:
    """Return the requested names without repeats, or all if there are none. An unknown name raises an error."""
    known = list_tables()
    if RELIABILITY in names:
        raise RunError(
            f"the study {RELIABILITY} is made from your own ratings, apart from other tables: name their files, and no "
            "other table",
            code="missing_value",
        )
    for name in names:
        check_known("table", name, [*known, RELIABILITY], RunError)
    return list(dict.fromkeys(names)) or known


def read_table_file(name: str) -> dict[str, Any]:
    return tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8"))


def read_published_table(name: str) -> PublishedTable:
    content = read_table_file(name)
    shared = {key: value for key, value in content.items() if key in _SHARED_KEYS}
    blocks = []
    for block in content["blocks"]:
        settings = {**shared, **block}
        printed = {
            data: {aspect: value if isinstance(value, list) else [value] for aspect, value in aspects.items()}
            for data, aspects in settings.pop("printed").items()
        }
        settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
        blocks.append(PublishedBlock(printed=printed, **settings))
    return PublishedTable(
        title=content["title"],
        caption=content["caption"].strip(),
        notes=tuple(content.get("notes", ())),
        decimals=content["decimals"],
        scale=content.get("scale", 1.0),
        blocks=tuple(blocks),
    )


def _folder() -> Any:
    return resources.files(__package__) / "published_tables"
