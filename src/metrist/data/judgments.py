"""Rows in which people chose one of several outputs, taken apart into a row for each output."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from metrist.errors import InputError, did_you_mean
from metrist.io.fields import as_name, as_texts, check_fields
from metrist.io.json_rows import unreadable
from metrist.io.reader import Reader
from metrist.io.row_model import ParsedRow, RowError, format_value
from metrist.io.rows import RowSource, open_source
from metrist.io.table_rows import Cells, parse_cells
from metrist.ratings import Preference
from metrist.records import Record

#: The aspect under which a choice among several outputs is kept: 1 for the chosen one, 0 for the others.
CHOSEN = "chosen"


def with_choices(path: str | os.PathLike[str]) -> RowSource:
    """A file's rows; one with `outputs` and `chosen` becomes a row for each output, rated 1 where chosen, else 0.

    `chosen` is a position that counts from 1, a system's name, or a list with one of these for each rater.
    """
    source = open_source(path)

    def read() -> Iterator[tuple[int, Any]]:
        for line, row in source.read():
            for one in _rows(row):
                yield line, one

    return replace(source, read=read)


def _rows(row: Any) -> list[Any]:
    if not isinstance(row, dict) or row.get(CHOSEN) is None or row.get("outputs") is None:
        return [row]
    try:
        return _one_each(_from_table(row) if type(row) is Cells else dict(row))
    except RowError as fault:
        return [fault]


def _from_table(cells: Cells) -> dict[str, Any]:
    """A table's row as JSON would have it: a position or a list of choices is written out in its cell."""
    row = parse_cells(cells)
    chosen = row.get(CHOSEN)
    if isinstance(chosen, str) and (chosen.isdecimal() or chosen.lstrip().startswith("[")):
        try:
            row[CHOSEN] = json.loads(chosen)
        except ValueError as error:
            raise RowError(f"{CHOSEN!r} must hold JSON: {unreadable(error)}") from None
    return row


def _one_each(row: dict[str, Any]) -> list[dict[str, Any]]:
    outputs = as_texts("outputs", row.pop("outputs"))
    systems = _systems(row.pop("systems", None), len(outputs))
    chosen = row.pop(CHOSEN)
    said = chosen if isinstance(chosen, list) else [chosen]
    raters = row.get("raters")
    if isinstance(raters, list) and len(raters) == len(said):
        # Who skipped the choice is no rater of it.
        row["raters"] = [rater for rater, one in zip(raters, said, strict=True) if one is not None]
    votes = [_position(one, systems) for one in said if one is not None]
    if not votes:
        raise RowError(f"{CHOSEN!r} is an empty list: it must name the chosen output for each rater")
    rated = row.pop("ratings", None)
    if rated:
        raise RowError(f"'ratings' cannot stand beside {CHOSEN!r} in a row of several outputs")
    return [
        {**row, "system": system, "output": output, "ratings": {CHOSEN: [int(vote == at) for vote in votes]}}
        for at, (system, output) in enumerate(zip(systems, outputs, strict=True))
    ]


def _systems(named: Any, count: int) -> list[str]:
    if named is None:
        return [str(number) for number in range(1, count + 1)]
    if not isinstance(named, list) or len(named) != count:
        raise RowError(f"'systems' must be a list of {count} names, one for each output, got {format_value(named)}")
    systems = [as_name("systems", name) for name in named]
    if len(set(systems)) != count:
        raise RowError(f"'systems' must name each system once, got {format_value(named)}")
    return systems


def _position(chosen: Any, systems: list[str]) -> int:
    if isinstance(chosen, str):
        if chosen not in systems:
            raise RowError(
                f"{CHOSEN!r} names no system of the row: {format_value(chosen)}{did_you_mean(chosen, systems)}"
            )
        return systems.index(chosen)
    if type(chosen) is not int or not 1 <= chosen <= len(systems):
        wanted = f"a system's name or a position from 1 to {len(systems)}"
        raise RowError(f"{CHOSEN!r} must be {wanted}, got {format_value(chosen)}")
    return chosen - 1


# All that people said of the outputs in some files: ratings, choices and preferences by aspect.


#: (item, system)
Key = tuple[str, str]
#: One rater's value; the rater is None where unknown.
Said = tuple[str | None, float]

_SIGNS = {"first": 1.0, "second": -1.0, "tie": 0.0}


@dataclass(slots=True)
class Judgments:
    """Outputs with what people said of them. A preference stands under its two systems in the order of their names and
    is 1 for the first of these, −1 for the second, 0 for a tie. `skipped` counts rows that could not be read."""

    records: dict[Key, Record] = field(default_factory=dict)
    ratings: dict[str, dict[Key, list[Said]]] = field(default_factory=dict)
    preferences: dict[str, dict[tuple[str, str, str], list[Said]]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    skipped: int = 0

    @property
    def aspects(self) -> tuple[str, ...]:
        """All aspects that somebody judged, ratings first."""
        return tuple(dict.fromkeys([*self.ratings, *self.preferences]))

    def check_aspect(self, aspect: str) -> None:
        """Refuse an aspect that nobody judged."""
        if aspect not in self.aspects:
            known = ", ".join(map(repr, self.aspects))
            raise InputError(
                f"nobody judged the aspect {aspect!r}; judged are {known}{did_you_mean(aspect, self.aspects)}"
            )

    def add(self, entry: ParsedRow) -> None:
        """Take in what one row says."""
        self.records.update({(record.item, record.system): record for record in entry.new})
        for rating in entry.ratings:
            by_key = self.ratings.setdefault(rating.aspect, {})
            by_key.setdefault((rating.item, rating.system), []).append((rating.rater, rating.value))
        for preference in entry.preferences:
            self._prefer(preference)

    def _prefer(self, said: Preference) -> None:
        turned = said.first > said.second
        first, second = sorted((said.first, said.second))
        sign = -_SIGNS[said.choice] if turned else _SIGNS[said.choice]
        by_pair = self.preferences.setdefault(said.aspect, {})
        by_pair.setdefault((said.item, first, second), []).append((said.rater, sign))


def read_judgments(
    paths: Sequence[str | os.PathLike[str]],
    *,
    item_key: Sequence[str] = (),
    fields: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    system: str | None = None,
) -> Judgments:
    """What the rows of these files say; texts and judgments may stand in different files. The options are those of
    `metrist.read_records`."""
    mapping = dict(fields or {})
    check_fields(mapping)
    reader = Reader(
        tuple(map(with_choices, paths)), item_key=tuple(item_key), fields=mapping, skip_bad=skip_bad, system=system
    )
    found = Judgments()
    for entry in reader.entries():
        found.add(entry)
    found.remarks, found.skipped = tuple(reader.remarks), len(reader.skipped)
    _check(found, ", ".join(reader.names))
    return found


def _check(found: Judgments, names: str) -> None:
    skipped = f" ({found.skipped:,} bad rows skipped)" if found.skipped > 1 else " (1 bad row skipped)"
    names += skipped if found.skipped else ""
    if not found.records:
        raise InputError(f"{names}: no row has an output: pairs are made of texts; name the file that holds them too")
    if not found.aspects:
        raise InputError(
            f"{names}: nobody judged anything; wanted 'ratings' ({{aspect: [values]}}), preferences (rows with "
            f"'systems', 'outputs' and 'ratings') or choices (rows with 'outputs' and {CHOSEN!r})"
        )
