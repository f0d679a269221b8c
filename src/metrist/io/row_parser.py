"""Parse a row into records and the judgments of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from metrist.errors import format_count
from metrist.io.fields import (
    FAMILIES,
    FIELDS,
    JUDGMENTS,
    SAMPLING_WEIGHT,
    ColumnMap,
    as_mapping,
    as_name,
    as_number,
    as_optional_text,
    as_source,
    as_text,
    as_texts,
    guess_column,
    is_number,
    list_wide_patterns,
    name_field,
)
from metrist.io.row_model import (
    Location,
    ParsedRow,
    PlainRow,
    RowError,
    StoredChoice,
    StoredError,
    StoredScore,
    format_value,
)
from metrist.io.table_rows import Cells, parse_cells
from metrist.ratings import Choice, Error, Preference, Rating, Side
from metrist.records import CONTEXT_FIELDS, OPTIONAL_FIELDS, Record

_NUMBERED_REFERENCE = re.compile(r"reference_(\d{1,9})")
_SHOWN_FIELDS = 8
#: Columns in a suggestion of outputs.
_SHOWN_OUTPUTS = 4
_NUMBER = re.compile(r"\s*[-+]?[\d.,]*(e[-+]?\d+)?\s*", re.IGNORECASE)
_DEEPEST = 100
_CONTEXT = (*CONTEXT_FIELDS, "references", "reference")
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
    columns: ColumnMap
    items_are_named: bool | None = None

    def parse(self, row: dict[str, Any] | Record, position: int) -> RowParts:
        """Split the row into records and unparsed judgments. Consumes the row."""
        if isinstance(row, Record):
            return RowParts(((row.item, row.system),), (_check_record(row),), {})
        if self.columns.fields:
            self.columns.rename(row)
        is_null = row.get("output", "") is None
        if type(row) is Cells:
            row = parse_cells(row)
        item = _join_key(row, self.item_key) if self.item_key else self._name_item(row.pop("item", None), position)
        judged = take_judgments(row)
        compares = "outputs" in row or ("systems" in row and "output" not in row)
        return self._pair(item, row, judged) if compares else self._single(item, row, judged, is_null)

    def complete(self, row: PlainRow, position: int) -> None:
        """Fill in what the row leaves out, as `parse` does."""
        if not (self.items_are_named and row.item and type(row.item) is str):
            row.item = self._name_item(row.item, position)
        if not row.system:
            row.system = self.system if row.system is None else as_name("system", row.system)
        if row.reference is not None:
            row.references = (*(row.references or ()), row.reference)
        elif row.references is None:
            row.references = ()

    def _single(self, item: str, row: dict[str, Any], judged: dict[str, Any], is_null: bool) -> RowParts:
        system = row.pop("system", None)
        if type(system) is not str or not system:
            system = self.system if system is None else as_name("system", system)
        output = row.pop("output", None)
        if output is None:
            if not has_judgment(judged) or guess_column("output", row):
                if not is_null:
                    raise RowError(_no_output(self.columns.samples or {**row, **judged}, self.columns.fields))
                column = self.columns.fields.get("output") or "output"
                name = "'output'" if column == "output" else f"{column!r} (output)"
                raise RowError(
                    f'{name} is null: expected a text, "" for an empty one (`skip_bad=True` skips such rows)'
                )
            return RowParts(((item, system),), (), judged, {k: v for k, v in row.items() if k not in _CONTEXT})
        if type(output) is not str:
            output = as_text("output", output)
        record = Record(item=item, system=system, output=output, **_context_fields(row))
        return RowParts(((item, system),), (record,), judged)

    def _pair(self, item: str, row: dict[str, Any], judged: dict[str, Any]) -> RowParts:
        if "comparator" in row and "choice" in row:  # As `metrist prefer` writes them.
            stored = as_mapping("scores", judged.get("scores") or {})
            judged = {**judged, "scores": {**stored, as_name("comparator", row["comparator"]): row["choice"]}}
        # Files that `metrist prefer` wrote have no texts: the outputs are in other rows or files.
        without_texts = "outputs" not in row and has_judgment(judged)
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

    def _name_item(self, item: Any, position: int) -> str:
        if self.items_are_named is None:
            self.items_are_named = item is not None
        if not self.items_are_named:
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
    for field in OPTIONAL_FIELDS:
        value = row.pop(field, None)
        if value is not None:
            if type(value) is not str:
                value = as_source(value) if field == "source" else as_optional_text(field, value)
            context[field] = value
    references = row.pop("references", None)
    if references is not None:
        context["references"] = as_texts("references", references)
    if row:
        # `reference`, then `reference_1`, `reference_2` and so on in order; null values are skipped.
        numbered = [(int(match[1]), name) for name in row if (match := _NUMBERED_REFERENCE.fullmatch(name))]
        for name in [*(["reference"] if "reference" in row else []), *(name for _, name in sorted(numbered))]:
            value = row.pop(name)
            if value is not None:
                texts = as_texts(name, value) if isinstance(value, (list, tuple)) else (as_text(name, value),)
                context["references"] = context.get("references", ()) + texts
        if row:
            _check_depth(row)
            context["extra"] = row
    return context


def _check_depth(row: dict[str, Any]) -> None:
    """Raise an error for a value that is nested too deeply to be hashed and sent to other processes."""
    for name, value in row.items():
        level = [value] if type(value) in (dict, list) else []
        depth = 0
        while level:
            depth += 1
            if depth > _DEEPEST:
                raise RowError(
                    f"{format_value(name)} is nested more than {_DEEPEST} levels deep; drop it with "
                    f"{name_field(name, '')}"
                )
            parts = chain.from_iterable(part.values() if type(part) is dict else part for part in level)
            level = [part for part in parts if type(part) in (dict, list)]


def _no_output(row: dict[str, Any], fields: Mapping[str, str]) -> str:
    missing = f"no {fields['output']!r}, the column mapped to 'output'" if fields.get("output") else "no 'output'"
    names = [name for name in row if name not in ("item", "system")]
    listed = ", ".join(format_value(name) for name in names[:_SHOWN_FIELDS])
    listed += ", …" if len(names) > _SHOWN_FIELDS else ""
    column = guess_column("output", row)
    inner = row[column] if column else None
    if isinstance(inner, dict):
        column = next((f"{column}.{key}" for key, text in inner.items() if isinstance(text, str)), column)
    patterns = list_wide_patterns(row)
    if patterns:
        return (
            f"{missing}; the columns are {listed}: use `outputs={patterns[0]!r}` if each such column has a system's "
            "outputs"
        )
    if column:
        return f"{missing}, but {column!r}: use {name_field('output', column)} to read that; the columns are {listed}"
    # A column per system: texts that are no field.
    used = {part for column in fields.values() for part in (column, *column.split(","))}
    free = [name for name in row if name not in FIELDS and not name.startswith(FAMILIES) and name not in used]
    texts = [name for name in free if isinstance(row[name], str) and not _NUMBER.fullmatch(row[name])]
    wide = f"`outputs={texts[:_SHOWN_OUTPUTS]!r}`" + (" …" if len(texts) > _SHOWN_OUTPUTS else "")
    # A table of ratings without texts: columns of numbers.
    item = fields.get("item") or guess_column("item", row)
    numbers = [name for name, value in row.items() if name not in (item, "item", "system") and is_number(value)]
    mapped = {f"rating:{name}": name for name in numbers[:_SHOWN_FIELDS]}
    if item and item != "item":
        mapped["item"] = item
    ratings = f", or, if it holds ratings of outputs in a run: `fields={mapped!r}`" if numbers else ""
    return (
        f"{missing}; the fields are {listed or 'none'}: use `fields={{'output': 'COLUMN'}}` to name the one that has "
        "the text"
        + (f" or, with a column per system, {wide}" if len(texts) > 1 else "")
        + " (`metrist convert` reads other layouts)"
        + ratings
    )


def _check_record(record: Record) -> Record:
    """Check the types of a record's fields, which Python does not do."""
    for field in ("item", "system", "output"):
        if not isinstance(getattr(record, field), str):
            raise RowError(f"{field!r} of a Record must be a text, got {format_value(getattr(record, field))}")
    for field in OPTIONAL_FIELDS:
        if not isinstance(getattr(record, field), (str, type(None))):
            raise RowError(f"{field!r} of a Record must be a text or None, got {format_value(getattr(record, field))}")
    references = record.references
    if not isinstance(references, tuple) or not all(isinstance(text, str) for text in references):
        raise RowError(f"'references' of a Record must be a tuple of strings, got {format_value(references)}")
    return record


# --- Judgments in a row: ratings, preferences, errors and stored scores


def parse_judgments(parts: RowParts, location: Location, texts: tuple[Record, ...] = ()) -> ParsedRow:
    """Return all that a row holds, as if its records, `texts`, were new."""
    keys, records, judged, columns = parts
    record = records[0] if records else None
    item, system = keys[0]
    ratings = list(_by_rater(judged))
    scores = {name: v for name, v in as_mapping("scores", judged.get("scores") or {}).items() if v is not None}
    parsed: dict[str, Any]
    if len(keys) == 2:
        if judged.get("errors"):
            raise RowError("'errors' is only allowed in a row of one output, got a row of two")
        pair = {"item": item, "first": system, "second": keys[1][1]}
        parsed = {
            "preferences": tuple(
                Preference(**pair, aspect=aspect, rater=rater, choice=_parse_preference(aspect, value))
                for aspect, rater, value in ratings
            ),
            "choices": tuple(
                StoredChoice(
                    **pair,
                    metric=metric,
                    choice=_parse_choice(value),
                    answer=value if isinstance(value, str) else format_value(value),
                )
                for metric, value in scores.items()
            ),
        }
    else:
        errors = judged.get("errors") or ()
        if not isinstance(errors, (list, tuple)):
            raise RowError(f"'errors' must be a list of objects, got {format_value(errors)}")
        parsed = {
            "columns": columns,
            "ratings": tuple(
                Rating(
                    item=item,
                    system=system,
                    aspect=aspect,
                    rater=rater,
                    value=as_number(f"the rating {aspect!r}", value),
                )
                for aspect, rater, value in ratings or _count_errors(judged)
            ),
            "errors": tuple(
                StoredError(item=item, system=system, error=_parse_error(number, error, record))
                for number, error in enumerate(errors, 1)
            ),
            "scores": tuple(
                StoredScore(item=item, system=system, metric=metric, value=as_number(f"the score {metric!r}", value))
                for metric, value in scores.items()
            ),
        }
    raters = tuple(rater for rater in _rater_names(judged) or () if rater is not None)
    weight = judged.get(SAMPLING_WEIGHT)
    if weight is not None:
        weight = as_number(f"{SAMPLING_WEIGHT!r}", weight)
        if weight <= 0:
            raise RowError(f"{SAMPLING_WEIGHT!r} must be above 0, got {format_value(judged[SAMPLING_WEIGHT])}")
    return ParsedRow(location=location, keys=keys, records=texts, new=texts, raters=raters, weight=weight, **parsed)


UNSPECIFIED = "unspecified"
_CHOICES: dict[int | str, Choice] = {
    **dict.fromkeys((1, "1", "first"), "first"),
    **dict.fromkeys((2, "2", "second"), "second"),
    **dict.fromkeys((0, "0", "tie"), "tie"),
}


def take_judgments(row: dict[str, Any]) -> dict[str, Any]:
    """Remove the judgments from a row and return them: `ratings`, `scores` and so on, including the columns `rating:…`
    and `score:…`."""
    judged = {name: row.pop(name) for name in JUDGMENTS if name in row}
    # Most rows have no such column, and searching all names at once is the cheapest test.
    if ":" not in "".join(row):
        return judged
    for name in [name for name in row if name.startswith(("rating:", "score:"))]:
        kind, _, judge = name.partition(":")
        value = row.pop(name)
        if value is not None:
            field = f"{kind}s"
            judged[field] = {**as_mapping(field, judged.get(field) or {}), judge: value}
    return judged


def has_judgment(judged: dict[str, Any]) -> bool:
    """Whether there is a rating, an error or a score, so that a row without text is worth reading."""
    return any(judged.get(name) for name in ("ratings", "errors", "scores"))


def simple_ratings(judged: dict[str, Any]) -> dict[str, float] | None:
    """The ratings of a row that holds nothing else, one number for each aspect, and names no rater; None for others."""
    ratings = judged.get("ratings")
    if len(judged) > 1 or type(ratings) is not dict or not {*map(type, ratings.values())} <= {int, float}:
        return None
    return {aspect: as_number(f"the rating {aspect!r}", value) for aspect, value in ratings.items()}


def _parse_preference(aspect: str, value: Any) -> Choice:
    choice = _parse_choice(value)
    if choice is None:
        raise RowError(f"the rating {aspect!r} must be 1 (first), 2 (second) or 0 (tie), got {format_value(value)}")
    return choice


def _parse_choice(value: Any) -> Choice | None:
    if isinstance(value, str):
        return _CHOICES.get(value.strip().lower())
    return _CHOICES.get(value) if type(value) in (int, float) else None


def _by_rater(judged: dict[str, Any]) -> Iterator[tuple[str, str | None, Any]]:
    """Yield (aspect, rater, value) for all values that are not null. Unnamed raters are None."""
    named = _rater_names(judged)
    for aspect, values in as_mapping("ratings", judged.get("ratings") or {}).items():
        listed = list(values) if isinstance(values, (list, tuple)) else [values]
        if values is None or listed == []:
            continue
        names = named if named is not None else [None] * len(listed)
        if len(names) != len(listed):
            raise RowError(
                f"the rating {aspect!r} must have a value for each of {format_count(len(names), 'rater')}, "
                f"got {len(listed)}"
            )
        for rater, value in zip(names, listed, strict=True):
            if value is not None:
                yield aspect, rater, value


def _count_errors(judged: dict[str, Any]) -> Iterator[tuple[str, str | None, float]]:
    """Yield (`errors`, rater, value) for the raters that a row names, where the value is minus the number of errors
    that the rater marked: none, if there are none of theirs."""
    errors, raters = judged.get("errors"), _rater_names(judged)
    if raters is None or not isinstance(errors, (list, tuple)):
        return
    counts = Counter(error.get("rater", raters[0]) for error in errors if isinstance(error, dict))
    yield from (("errors", rater, float(-counts[rater])) for rater in raters)


def _rater_names(judged: dict[str, Any]) -> list[str | None] | None:
    raters = judged.get("raters")
    if raters is None:
        return None if judged.get("rater") is None else [as_name("rater", judged["rater"])]
    if not isinstance(raters, (list, tuple)):
        raise RowError(f"'raters' must be a list of names, got {format_value(raters)}")
    return [None if rater is None else as_name("raters", rater) for rater in raters]


def _parse_error(number: int, value: Any, record: Record | None) -> Error:
    error = as_mapping(f"errors {number}", value)

    def text(field: str) -> str | None:
        return as_optional_text(f"{field} of error {number}", error.get(field))

    side = error.get("side") or "output"
    if side not in ("output", "source"):
        raise RowError(f"'side' of error {number} must be 'output' or 'source', got {format_value(side)}")
    penalty = error.get("penalty")
    start, end = _offsets(number, error, getattr(record, side) if record else None)
    source_start, source_end = _offsets(
        number, error, record.source if record else None, ("source_start", "source_end")
    )
    return Error(
        aspect=text("category") or text("aspect") or UNSPECIFIED,
        severity=text("severity"),
        penalty=None if penalty is None else as_number(f"'penalty' of error {number}", penalty),
        explanation=text("explanation") or "",
        revision=text("revision") or text("correction") or "",
        text=text("text") or "",
        start=start,
        end=end,
        side=cast(Side, side),
        rater=None if error.get("rater") is None else as_name(f"rater of error {number}", error["rater"]),
        source_start=source_start,
        source_end=source_end,
    )


def _offsets(
    number: int, error: dict[str, Any], text: str | None, names: tuple[str, str] = ("start", "end")
) -> tuple[int | None, int | None]:
    first, last = names
    start = error.get(first)
    end = error.get(last)
    if start is None and end is None:
        return None, None
    if type(start) is not int or type(end) is not int or not 0 <= start <= end:
        raise RowError(
            f"{first!r} and {last!r} of error {number} must be offsets or null, got {format_value(start)} and "
            f"{format_value(end)}"
        )
    if text is not None and end > len(text):
        raise RowError(f"{last!r} of error {number} must lie within a text of {len(text)} characters, got {end}")
    return start, end
