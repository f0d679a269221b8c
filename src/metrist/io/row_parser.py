"""A row becomes records and what was said of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from metrist.io import judgments
from metrist.io.fields import as_name, as_optional_text, as_text, as_texts, likely_column, renamed
from metrist.io.row_model import Entry, Fault, Place, shown
from metrist.io.table_rows import Cells, from_cells
from metrist.records import Record

_NUMBERED_REFERENCE = re.compile(r"reference_(\d{1,9})")
_SHOWN_FIELDS = 8
_TEXTS = ("source", "instruction", "references", "reference")
Keys = tuple[tuple[str, str], ...]


class Parsed(NamedTuple):
    """A row taken apart. `columns` are those of a row without an output; otherwise they are in its records."""

    keys: Keys
    records: tuple[Record, ...]
    judged: dict[str, Any]
    columns: Mapping[str, Any] = MappingProxyType({})


class RowParser:
    """Reads the rows of one file. It remembers one thing between rows: whether the first one named its item."""

    def __init__(self, *, system: str, item_key: tuple[str, ...], fields: Mapping[str, str]) -> None:
        self._system = system
        self._item_key = item_key
        self._fields = fields
        self._items_are_named: bool | None = None

    def records(self, row: dict[str, Any] | Record, position: int) -> tuple[Record, ...]:
        """The outputs of the row, which is used up. What others said of them is not looked at."""
        return self._parsed(row, position).records

    def entry(self, row: dict[str, Any] | Record, position: int, place: Place) -> Entry:
        """All that the row says; the row is used up."""
        keys, records, judged, columns = self._parsed(row, position)
        if len(keys) == 2:
            if judged.get("errors"):
                raise Fault("'errors' must stand in a row of one output, got a row of two")
            return Entry(
                place=place,
                keys=keys,
                records=records,
                raters=judgments.raters(judged),
                preferences=judgments.preferences(judged, *keys),
                choices=judgments.choices(judged, *keys),
            )
        key = keys[0]
        return Entry(
            place=place,
            keys=keys,
            records=records,
            columns=columns,
            raters=judgments.raters(judged),
            ratings=judgments.ratings(judged, key),
            errors=judgments.errors(judged, key, records[0] if records else None),
            scores=judgments.scores(judged, key),
        )

    def _parsed(self, row: dict[str, Any] | Record, position: int) -> Parsed:
        if isinstance(row, Record):
            return Parsed(((row.item, row.system),), (_sound(row),), {})
        if self._fields:
            renamed(row, self._fields)
        if type(row) is Cells:
            row = from_cells(row)
        item = self._item(row, position)
        judged = judgments.take_judgments(row)
        compares = "outputs" in row or ("systems" in row and "output" not in row)
        return self._pair(item, row, judged) if compares else self._single(item, row, judged)

    def _single(self, item: str, row: dict[str, Any], judged: dict[str, Any]) -> Parsed:
        system = row.pop("system", None)
        if type(system) is not str or not system:
            system = self._system if system is None else as_name("system", system)
        is_null = "output" in row
        output = row.pop("output", None)
        if output is None:
            if not judgments.says_something(judged) or likely_column("output", row):
                raise Fault(_NULL_OUTPUT if is_null else _no_output(row, judged, self._fields))
            return Parsed(((item, system),), (), judged, {k: v for k, v in row.items() if k not in _TEXTS})
        if type(output) is not str:
            output = as_text("output", output)
        record = Record(item=item, system=system, output=output, **_around(row))
        return Parsed(((item, system),), (record,), judged)

    def _pair(self, item: str, row: dict[str, Any], judged: dict[str, Any]) -> Parsed:
        judged = judgments.with_stored_choice(judged, row)
        # Without texts, the outputs stand in other rows or files, as beside what `metrist prefer` wrote.
        without_texts = "outputs" not in row and judgments.says_something(judged)
        outputs = ("", "") if without_texts else as_texts("outputs", row.pop("outputs", None))
        named = row.pop("systems", None)
        if not isinstance(named, (list, tuple)) or len(named) != 2 or len(outputs) != 2:
            raise Fault(
                f"'systems' and 'outputs' must be lists of two, got {shown(named)} and {len(outputs)} "
                f"output{'' if len(outputs) == 1 else 's'}"
            )
        first, second = (as_name("systems", name) for name in named)
        if first == second:
            raise Fault(f"'systems' must name two systems, got {shown(first)} twice")
        if without_texts:
            return Parsed(((item, first), (item, second)), (), judged)
        around = _around(row)
        records = tuple(
            Record(item=item, system=system, output=output, **around)
            for system, output in zip((first, second), outputs, strict=True)
        )
        return Parsed(((item, first), (item, second)), records, judged)

    def _item(self, row: dict[str, Any], position: int) -> str:
        if self._item_key:
            return _joined_key(row, self._item_key)
        item = row.pop("item", None)
        if self._items_are_named is None:
            self._items_are_named = item is not None
        if not self._items_are_named:
            if item is not None:
                raise Fault(f"'item' must stand in all rows or in none, got {shown(item)} after rows without")
            return str(position)
        if type(item) is str and item:
            return item
        if item is None:
            raise Fault("has no 'item', but earlier rows have one; it must stand in all rows or in none")
        return as_name("item", item)


def _joined_key(row: dict[str, Any], fields: tuple[str, ...]) -> str:
    """The values of these fields as one name. A bar parts them, so a bar within one is marked: ("a|b", "c") and
    ("a", "b|c") must not meet."""
    missing = next((field for field in fields if row.get(field) is None), None)
    if missing is not None:
        raise Fault(f"has no {missing!r}, which is part of the item key {'+'.join(fields)}")
    values = [as_name(field, row[field]) for field in fields]
    row.pop("item", None)
    if len(values) == 1:
        return values[0]
    return "|".join(value.replace("\\", "\\\\").replace("|", "\\|") for value in values)


def _around(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record beside item, system and output; whatever metrist has no word for is `extra`."""
    around: dict[str, Any] = {}
    for field in ("source", "instruction", "task", "language"):
        value = row.pop(field, None)
        if value is not None:
            around[field] = value if type(value) is str else as_optional_text(field, value)
    references = row.pop("references", None)
    if references is not None:
        around["references"] = as_texts("references", references)
    if row:
        single = _single_references(row)
        if single:
            around["references"] = around.get("references", ()) + single
        if row:
            around["extra"] = row
    return around


def _single_references(row: dict[str, Any]) -> tuple[str, ...]:
    """`reference`, then `reference_1`, `reference_2` and so on by number; those that are null are not there."""
    numbered = [(int(match[1]), name) for name in row if (match := _NUMBERED_REFERENCE.fullmatch(name))]
    names = ["reference"] * ("reference" in row) + [name for _, name in sorted(numbered)]
    texts: tuple[str, ...] = ()
    for name in names:
        value = row.pop(name)
        if value is not None:
            texts += as_texts(name, value) if isinstance(value, (list, tuple)) else (as_text(name, value),)
    return texts


_NULL_OUTPUT = "'output' is null: wanted a text, \"\" for an empty one (--skip-bad leaves such rows out)"


def _no_output(row: dict[str, Any], judged: dict[str, Any], fields: Mapping[str, str]) -> str:
    wanted = f"no {fields['output']!r}, which was to be its 'output'" if fields.get("output") else "no 'output'"
    column = likely_column("output", row)
    if column:
        return (
            f'has {wanted}; it has {column!r}: --field output={column} takes that (in Python: fields={{"output": '
            f"{shown(column)}}})"
        )
    names = [*row, *judged]
    listed = ", ".join(shown(name) for name in names[:_SHOWN_FIELDS]) + (", …" if len(names) > _SHOWN_FIELDS else "")
    return f"has {wanted}; its fields are {listed or 'none'} (metrist convert reads other shapes)"


def _sound(record: Record) -> Record:
    """The record, if its fields are what they must be: Python does not check them when one is made."""
    for field in ("item", "system", "output"):
        if not isinstance(getattr(record, field), str):
            raise Fault(f"{field!r} of a Record must be a text, got {shown(getattr(record, field))}")
    for field in ("source", "instruction", "task", "language"):
        if not isinstance(getattr(record, field), (str, type(None))):
            raise Fault(f"{field!r} of a Record must be a text or None, got {shown(getattr(record, field))}")
    references = record.references
    if not isinstance(references, tuple) or not all(isinstance(text, str) for text in references):
        raise Fault(f"'references' of a Record must be a tuple of strings, got {shown(references)}")
    return record
