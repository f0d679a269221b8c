"""What the papers print: one TOML file per table in the folder `published_tables` beside this module.

A table has `title`, `caption`, `notes`, `decimals`, `scale` (what our figures are multiplied by) and `blocks`. A block
is a metric computed in one way, on one or more data sets:

    label       the metric as the paper calls it
    metric      the metric's text, or `stored`, the name of a score that came with the data
    part        the part of the score that is judged (`recall`); by default its value
    references  what the output is compared with: all references, the first, or the source
    lines       `sentences` puts each sentence of a text on its own line; by default texts stay whole
    group       within what outputs are compared: none (all of them) or item
    measures    the measures that the printed numbers are of
    exclude     systems that are left out
    note        why the numbers may differ
    printed     data set -> aspect -> the printed number, or one per measure; nan where the paper has none.
                The aspect `mean` is the mean of the figures of all aspects.

`references`, `group`, `measures` may also stand at the top, for all blocks.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, Literal

from metrist.errors import RunError, did_you_mean

References = Literal["all", "first", "source"]
Lines = Literal["whole", "sentences"]
Group = Literal["none", "item"]

_SHARED = frozenset({"references", "group", "measures"})
#: The aspect that stands for all aspects of a data set.
MEAN = "mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A metric computed in one way, and what a paper prints of it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedTable:
    """A paper's table, as far as it can be computed without a neural model."""

    name: str
    title: str
    caption: str
    decimals: int
    scale: float
    notes: tuple[str, ...]
    blocks: tuple[Block, ...]


def names() -> list[str]:
    """The tables that there are."""
    return sorted(path.name.removesuffix(".toml") for path in _folder().iterdir() if path.name.endswith(".toml"))


def chosen(wanted: Sequence[str]) -> list[str]:
    """The tables asked for, all if none was; an unknown name is refused with the nearest ones."""
    known = names()
    for name in wanted:
        if name not in known:
            raise RunError(f"no table {name!r}; known are {', '.join(known)}{did_you_mean(name, known)}")
    return list(dict.fromkeys(wanted)) or known


def facts(name: str) -> dict[str, Any]:
    """A table's file as plain data."""
    return tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8"))


def printed_table(name: str) -> PrintedTable:
    """The table of that name."""
    found = facts(name)
    shared = {key: value for key, value in found.items() if key in _SHARED}
    return PrintedTable(
        name=name,
        title=found["title"],
        caption=found["caption"],
        decimals=found["decimals"],
        scale=found.get("scale", 1.0),
        notes=tuple(found.get("notes", ())),
        blocks=tuple(_block({**shared, **block}) for block in found["blocks"]),
    )


def _block(block: dict[str, Any]) -> Block:
    printed = {
        data: {aspect: value if isinstance(value, list) else [value] for aspect, value in aspects.items()}
        for data, aspects in block.pop("printed").items()
    }
    known = {field.name for field in fields(Block)}
    settings: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in block.items()}
    if unknown := settings.keys() - known:
        raise ValueError(f"a block of a printed table has no field {min(unknown)!r}")
    return Block(printed=printed, **settings)


def _folder() -> Any:
    return resources.files(__package__) / "published_tables"


ABSENT = "data not at hand"
