"""Parse a row into records and the judgments of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from metrist.io import judgments
from metrist.io.fields import as_name, as_optional_text, as_text, as_texts, guess_column, rename_columns
from metrist.io.row_model import Location, ParsedRow, RowError, format_value
from metrist.io.table_rows import Cells, parse_cells
from metrist.records import Record

_NUMBERED_REFERENCE = re.compile(r"reference_(\d{1,9})")
_SHOWN_FIELDS = 8
_TEXTS = ("source", "instruction", "references", "reference")
Keys = tuple[tuple[str, str], ...]


class RowParts(NamedTuple):
    """The parts of a row. `columns` belong to a row without an output; otherwise they are in its records."""

    keys: Keys
    records: tuple[Record, ...]
    judged: dict[str, Any]
    columns: Mapping[str, Any] = MappingProxyType({})


@dataclass(slots=True, kw_only=True)
class RowParser:
    """Parse the rows of one file. The parser remembers whether the first row named its item."""

    system: str
    item_key: tuple[str, ...]
    fields: Mapping[str, str]
    _items_are_named: bool | None = None

    def entry(self, row: dict[str, Any] | Record, position: int, location: Location) -> ParsedRow:
        """Return all that the row holds. Consumes the row."""
        keys, records, judged, columns = self.parse(row, position)
        if len(keys) == 2:
            if judged.get("errors"):
                raise RowError("'errors' is only allowed in a row of one output, got a row of two")
            return ParsedRow(
                location=location,
                keys=keys,
                records=records,
                raters=judgments.raters(judged),
                preferences=judgments.preferences(judged, *keys),
                choices=judgments.choices(judged, *keys),
            )
        key = keys[0]
        return ParsedRow(
            location=location,
            keys=keys,
            records=records,
            columns=columns,
            raters=judgments.raters(judged),
            ratings=judgments.ratings(judged, key),
            errors=judgments.errors(judged, key, records[0] if records else None),
            scores=judgments.scores(judged, key),
        )

    def parse(self, row: dict[str, Any] | Record, position: int) -> RowParts:
        """Split the row into records and unparsed judgments. Consumes the row."""
        if isinstance(row, Record):
            return RowParts(((row.item, row.system),), (_check_record(row),), {})
        if self.fields:
            rename_columns(row, self.fields)
        if type(row) is Cells:
            row = parse_cells(row)
        item = self._item(row, position)
        judged = judgments.take_judgments(row)
        compares = "outputs" in row or ("systems" in row and "output" not in row)
        return self._pair(item, row, judged) if compares else self._single(item, row, judged)

    def _single(self, item: str, row: dict[str, Any], judged: dict[str, Any]) -> RowParts:
        system = row.pop("system", None)
        if type(system) is not str or not system:
            system = self.system if system is None else as_name("system", system)
        is_null = "output" in row
        output = row.pop("output", None)
        if output is None:
            if not judgments.says_something(judged) or guess_column("output", row):
                raise RowError(_NULL_OUTPUT if is_null else _no_output(row, judged, self.fields))
            return RowParts(((item, system),), (), judged, {k: v for k, v in row.items() if k not in _TEXTS})
        if type(output) is not str:
            output = as_text("output", output)
        record = Record(item=item, system=system, output=output, **_context_fields(row))
        return RowParts(((item, system),), (record,), judged)

    def _pair(self, item: str, row: dict[str, Any], judged: dict[str, Any]) -> RowParts:
        judged = judgments.with_stored_choice(judged, row)
        # Files that `metrist prefer` wrote have no texts: the outputs are in other rows or files.
        without_texts = "outputs" not in row and judgments.says_something(judged)
        outputs = ("", "") if without_texts else as_texts("outputs", row.pop("outputs", None))
        named = row.pop("systems", None)
        if not isinstance(named, (list, tuple)) or len(named) != 2 or len(outputs) != 2:
            raise RowError(
                f"'systems' and 'outputs' must be lists of two, got {format_value(named)} and {len(outputs)} "
                f"output{'' if len(outputs) == 1 else 's'}"
            )
        first, second = (as_name("systems", name) for name in named)
        if first == second:
            raise RowError(f"'systems' must name two systems, got {format_value(first)} twice")
        if without_texts:
            return RowParts(((item, first), (item, second)), (), judged)
        context = _context_fields(row)
        records = tuple(
            Record(item=item, system=system, output=output, **context)
            for system, output in zip((first, second), outputs, strict=True)
        )
        return RowParts(((item, first), (item, second)), records, judged)

    def _item(self, row: dict[str, Any], position: int) -> str:
        if self.item_key:
            return _join_key(row, self.item_key)
        item = row.pop("item", None)
        if self._items_are_named is None:
            self._items_are_named = item is not None
        if not self._items_are_named:
            if item is not None:
                raise RowError(f"'item' must be in all rows or in none, got {format_value(item)} after rows without")
            return str(position)
        if type(item) is str and item:
            return item
        if item is None:
            raise RowError("no 'item', but earlier rows have one; it must be in all rows or in none")
        return as_name("item", item)


def _join_key(row: dict[str, Any], fields: tuple[str, ...]) -> str:
    """Join the values of the fields into one name, escaped so that ("a|b", "c") and ("a", "b|c") differ."""
    missing = next((field for field in fields if row.get(field) is None), None)
    if missing is not None:
        raise RowError(f"no {missing!r}, which is part of the item key {'+'.join(fields)}")
    values = [as_name(field, row[field]) for field in fields]
    row.pop("item", None)
    if len(values) == 1:
        return values[0]
    return "|".join(value.replace("\\", "\\\\").replace("|", "\\|") for value in values)


def _context_fields(row: dict[str, Any]) -> dict[str, Any]:
    """Return the other fields of a record besides item, system and output; unknown columns become `extra`."""
    context: dict[str, Any] = {}
    for field in ("source", "instruction", "task", "language"):
        value = row.pop(field, None)
        if value is not None:
            context[field] = value if type(value) is str else as_optional_text(field, value)
    references = row.pop("references", None)
    if references is not None:
        context["references"] = as_texts("references", references)
    if row:
        single = _single_references(row)
        if single:
            context["references"] = context.get("references", ()) + single
        if row:
            context["extra"] = row
    return context


def _single_references(row: dict[str, Any]) -> tuple[str, ...]:
    """Return `reference`, then `reference_1`, `reference_2` and so on in order; null values are skipped."""
    numbered = [(int(match[1]), name) for name in row if (match := _NUMBERED_REFERENCE.fullmatch(name))]
    names = ["reference"] * ("reference" in row) + [name for _, name in sorted(numbered)]
    texts: tuple[str, ...] = ()
    for name in names:
        value = row.pop(name)
        if value is not None:
            texts += as_texts(name, value) if isinstance(value, (list, tuple)) else (as_text(name, value),)
    return texts


_NULL_OUTPUT = "'output' is null: expected a text, \"\" for an empty one (--skip-bad skips such rows)"


def _no_output(row: dict[str, Any], judged: dict[str, Any], fields: Mapping[str, str]) -> str:
    missing = f"no {fields['output']!r}, the column mapped to 'output'" if fields.get("output") else "no 'output'"
    column = guess_column("output", row)
    if column:
        return (
            f'{missing}, but {column!r}: use --field output={column} to read that (in Python: fields={{"output": '
            f"{format_value(column)}}})"
        )
    names = [*row, *judged]
    listed = ", ".join(format_value(name) for name in names[:_SHOWN_FIELDS]) + (
        ", …" if len(names) > _SHOWN_FIELDS else ""
    )
    return f"{missing}; the fields are {listed or 'none'} (`metrist convert` reads other layouts)"


def _check_record(record: Record) -> Record:
    """Check the types of a record's fields, which Python does not do."""
    for field in ("item", "system", "output"):
        if not isinstance(getattr(record, field), str):
            raise RowError(f"{field!r} of a Record must be a text, got {format_value(getattr(record, field))}")
    for field in ("source", "instruction", "task", "language"):
        if not isinstance(getattr(record, field), (str, type(None))):
            raise RowError(f"{field!r} of a Record must be a text or None, got {format_value(getattr(record, field))}")
    references = record.references
    if not isinstance(references, tuple) or not all(isinstance(text, str) for text in references):
        raise RowError(f"'references' of a Record must be a tuple of strings, got {format_value(references)}")
    return record
