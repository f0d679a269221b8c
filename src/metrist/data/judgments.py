"""Read judgments: ratings, preferences between two outputs, and choices among several, by aspect."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from metrist.errors import InputError, check_known, did_you_mean, format_count
from metrist.io.fields import as_name, as_texts
from metrist.io.reader import Reader, read_records
from metrist.io.row_model import RowError, describe_json_error, format_value
from metrist.io.rows import RowSource
from metrist.io.table_rows import Cells, parse_cells
from metrist.records import Record

#: The aspect of a choice among several outputs: 1 for the chosen one, 0 for the others.
CHOSEN = "chosen"

#: (item, system)
Key = tuple[str, str]
#: One rater's name, None if unknown, and value.
RaterValue = tuple[str | None, float]

_SIGNS = {"first": 1.0, "second": -1.0, "tie": 0.0}


@dataclass(slots=True)
class JudgedRecords:
    """Records with what people said about them. A preference is stored under its two systems sorted by name; its value
    is 1 for the first of these, −1 for the second, 0 for a tie. `skipped` counts rows that could not be read."""

    records: dict[Key, Record] = field(default_factory=dict)
    ratings: dict[str, dict[Key, list[RaterValue]]] = field(default_factory=dict)
    preferences: dict[str, dict[tuple[str, str, str], list[RaterValue]]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    skipped: int = 0

    @classmethod
    def read(cls, reader: Reader) -> JudgedRecords:
        """All records and judgments of a reader."""
        judged = cls()
        for row in reader.entries():
            judged.records.update({(record.item, record.system): record for record in row.new})
            for rating in row.ratings:
                ratings = judged.ratings.setdefault(rating.aspect, {})
                ratings.setdefault((rating.item, rating.system), []).append((rating.rater, rating.value))
            for one in row.preferences:
                sign = _SIGNS[one.choice] if one.first <= one.second else -_SIGNS[one.choice]
                pair = one.item, min(one.first, one.second), max(one.first, one.second)
                judged.preferences.setdefault(one.aspect, {}).setdefault(pair, []).append((one.rater, sign))
        judged.remarks, judged.skipped = tuple(reader.remarks), reader.skipped.count
        return judged

    @property
    def aspects(self) -> tuple[str, ...]:
        """All judged aspects, ratings first."""
        return tuple(dict.fromkeys([*self.ratings, *self.preferences]))

    def check_aspect(self, aspect: str) -> None:
        """Raise an error if the aspect has no judgments."""
        check_known("judgments of the aspect", aspect, self.aspects, InputError)


def read_judgments(paths: Sequence[str | os.PathLike[str]], **reading: Any) -> JudgedRecords:
    """Read the judgments in these files; texts and judgments may be in different files. The options are those of
    `metrist.read_records`."""
    reader = read_records(list(paths), **reading)
    reader.sources = tuple(map(_expand_choices, reader.sources))
    judged = JudgedRecords.read(reader)
    names = ", ".join(reader.names)
    if judged.skipped:
        names += f" ({format_count(judged.skipped, 'bad row')} skipped)"
    if not judged.records:
        raise InputError(
            f"{names}: no row has an output, and pairs need the texts; add the file that has the outputs",
            code="no_data",
        )
    if not judged.aspects:
        raise InputError(
            f"{names}: no judgments; expected 'ratings' ({{aspect: [values]}}), preferences (rows with 'systems', "
            f"'outputs' and 'ratings') or choices (rows with 'outputs' and {CHOSEN!r})",
            code="invalid_value",
        )
    return judged


def _expand_choices(source: RowSource) -> RowSource:
    """Return a source whose rows with `outputs` and `chosen` become one row for each output, rated 1 if chosen, else 0.

    `chosen` is a position counted from 1, a system's name, or a list with one of these for each rater.
    """

    def read() -> Iterator[tuple[int, Any]]:
        for line, row in source.read():
            if not isinstance(row, dict) or row.get(CHOSEN) is None or row.get("outputs") is None:
                yield line, row
                continue
            try:
                rows: list[Any] = _rows_by_output(_parse_table_row(row) if type(row) is Cells else dict(row))
            except RowError as error:
                rows = [error]
            for output_row in rows:
                yield line, output_row

    return replace(source, read=read)


def _parse_table_row(cells: Cells) -> dict[str, Any]:
    """Parse a table's row, in which `chosen` may be a position or a list of choices written as JSON."""
    row = parse_cells(cells)
    chosen = row.get(CHOSEN)
    if isinstance(chosen, str) and (chosen.isdecimal() or chosen.lstrip().startswith("[")):
        try:
            row[CHOSEN] = json.loads(chosen)
        except ValueError as error:
            raise RowError(f"{CHOSEN!r} must hold JSON: {describe_json_error(error)}") from None
    return row


def _rows_by_output(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each output."""
    outputs = as_texts("outputs", row.pop("outputs"))
    names = row.pop("systems", None)
    systems = [str(number) for number in range(1, len(outputs) + 1)]
    if names is not None:
        if not isinstance(names, list) or len(names) != len(outputs):
            raise RowError(
                f"'systems' must be a list of {len(outputs)} names, one for each output, got {format_value(names)}"
            )
        systems = [as_name("systems", name) for name in names]
        if len(set(systems)) != len(outputs):
            raise RowError(f"'systems' must name each system once, got {format_value(names)}")
    chosen = row.pop(CHOSEN)
    choices = chosen if isinstance(chosen, list) else [chosen]
    raters = row.get("raters")
    if isinstance(raters, list) and len(raters) == len(choices):
        # A rater who skipped the choice is not one of its raters.
        row["raters"] = [rater for rater, choice in zip(raters, choices, strict=True) if choice is not None]
    votes = [_parse_position(choice, systems) for choice in choices if choice is not None]
    if not votes:
        raise RowError(f"{CHOSEN!r} is an empty list: it must name the chosen output for each rater")
    if row.pop("ratings", None):
        raise RowError(f"a row of several outputs cannot have both 'ratings' and {CHOSEN!r}")
    return [
        {**row, "system": system, "output": output, "ratings": {CHOSEN: [int(vote == index) for vote in votes]}}
        for index, (system, output) in enumerate(zip(systems, outputs, strict=True))
    ]


def _parse_position(choice: Any, systems: list[str]) -> int:
    if isinstance(choice, str):
        if choice not in systems:
            raise RowError(
                f"{CHOSEN!r} names no system of the row: {format_value(choice)}{did_you_mean(choice, systems)}"
            )
        return systems.index(choice)
    if type(choice) is not int or not 1 <= choice <= len(systems):
        raise RowError(
            f"{CHOSEN!r} must be a system's name or a position from 1 to {len(systems)}, got {format_value(choice)}"
        )
    return choice - 1
