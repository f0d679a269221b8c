"""Reading records: from anywhere, one at a time, with every bad row named."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from metrist.errors import InputError, did_you_mean
from metrist.io.dedup import Conflict, Inputs, Keys, Numbering, are_distinct_records
from metrist.io.fields import check_fields
from metrist.io.row_model import Entry, Fault, shown
from metrist.io.row_parser import RowParser
from metrist.io.rows import RowSource, sources_of
from metrist.records import Record

_KEPT_MESSAGES = 20
_T = TypeVar("_T")


def read_records(
    source: Any,
    *,
    item_key: Sequence[str] = (),
    fields: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    system: str | None = None,
) -> Reader:
    """Records from a path, `-` (standard input), several paths, dicts or Records, or a pandas or polars frame.

    `item_key` names the fields that together make an item's name; `fields` tells which column holds a field where it
    has another name (`{"output": "prediction"}`; a column mapped to "" is left out); `skip_bad` leaves bad rows out
    and counts them; `system` is the system of rows that name none (else it is the file's name without suffixes).
    """
    if isinstance(source, Reader):
        return source
    mapping = dict(fields or {})
    check_fields(mapping)
    if isinstance(item_key, str):
        raise InputError(f"item_key must be a list of fields, got the text {shown(item_key)}")
    return Reader(sources_of(source), item_key=tuple(item_key), fields=mapping, skip_bad=skip_bad, system=system)


@dataclass(slots=True)
class Skipped:
    """The bad rows that were left out: how many, and what was wrong with the first of them."""

    count: int = 0
    messages: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return self.count

    def add(self, message: str) -> None:
        self.count += 1
        if len(self.messages) < _KEPT_MESSAGES:
            self.messages.append(message)


class Reader:
    """Iterating gives the records, each (item, system) once; `entries()` gives all that each row says.

    Each time the source is read anew; `skipped` tells of the latest time.
    """

    def __init__(
        self,
        sources: tuple[RowSource, ...],
        *,
        item_key: tuple[str, ...],
        fields: Mapping[str, str],
        skip_bad: bool,
        system: str | None,
    ) -> None:
        self.skipped = Skipped()
        self._inputs = Inputs()
        self._sources = sources
        self._item_key = item_key
        self._fields = fields
        self._skip_bad = skip_bad
        self._system = system

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the files that are read; none for rows in memory."""
        return tuple(source.name for source in self._sources if source.name is not None)

    @property
    def remarks(self) -> list[str]:
        """What the user should know of the rows read this time."""
        mixed = self._inputs.mixed
        if not mixed:
            return []
        return [
            f"{mixed:,} records have another source than an earlier record of the same item: if the files number "
            "different inputs alike, --item-key (such as language+item) keeps them apart"
        ]

    @property
    def share_read(self) -> float | None:
        """How much of the files, by their bytes, has been read this time; None where that cannot be known."""
        sizes = [source.size for source in self._sources]
        total = sum(size for size in sizes if size is not None)
        taken = sum(source.meter.taken for source in self._sources)
        return taken / total if total and taken and None not in sizes else None

    def __iter__(self) -> Iterator[Record]:
        rows = self._sources[0].rows if len(self._sources) == 1 else None
        if rows and are_distinct_records(rows):
            self.skipped, self._inputs = Skipped(), Inputs()
            return iter(rows)
        return self._parse_records()

    def _parse_records(self) -> Iterator[Record]:
        keys = Keys()

        def new_records(parser: RowParser, row: Any, position: int, file: int, line: int) -> tuple[Record, ...]:
            return self._new(keys, parser.records(row, position), file, line)

        for records in self._each_row(new_records):
            yield from records
        if not len(keys):
            raise InputError(f"{self._all_names()}: none of the rows has an output")

    def entries(self) -> Iterator[Entry]:
        """What each row says. Judgments by named raters, and stored scores, that repeat an earlier row's word for word
        are left out; ratings by unknown raters are all kept, because two people may agree."""
        keys, seen = Keys(), Numbering()

        def entry(parser: RowParser, row: Any, position: int, file: int, line: int) -> Entry:
            found = parser.entry(row, position, self._sources[file].place(line))
            return replace(found, new=self._new(keys, found.records, file, line), **_repeated(found, seen))

        return self._each_row(entry)

    def _each_row(self, parse: Callable[[RowParser, Any, int, int, int], _T]) -> Iterator[_T]:
        self.skipped, self._inputs = Skipped(), Inputs()
        for file, source in enumerate(self._sources):
            parser = RowParser(system=self._system or source.system, item_key=self._item_key, fields=self._fields)
            position = good = 0
            for line, row in source.read():
                position += 1
                try:
                    if isinstance(row, Fault):
                        raise row
                    parsed = parse(parser, row, position, file, line)
                except Fault as fault:
                    self._bad(source, line, fault)
                else:
                    good += 1
                    yield parsed
            self._check_some(source, position, good)

    def _new(self, keys: Keys, records: tuple[Record, ...], file: int, line: int) -> tuple[Record, ...]:
        try:
            new = keys.admit(records, file, line)
        except Conflict as conflict:
            raise Fault(self._conflict_message(conflict)) from None
        if len(self._sources) > 1:
            for record in new:
                self._inputs.see(record)
        return new

    def _conflict_message(self, conflict: Conflict) -> str:
        record = conflict.record
        first = self._sources[conflict.file].place(conflict.line)
        columns = ", ".join(["task", "language", *map(shown, record.extra)])
        other = f"other text in {shown(conflict.field)}" if conflict.field else f"other values in one of {columns}"
        return (
            f"item {shown(record.item)} of system {shown(record.system)} already stands at {first} with {other}; "
            "--item-key builds the item from several fields, --field system=COLUMN names the systems' column, "
            "--field COLUMN= leaves a column out"
        )

    def _bad(self, source: RowSource, line: int, fault: Fault) -> None:
        message = f"{source.place(line)}: {fault}"
        if not self._skip_bad:
            raise InputError(message) from None
        self.skipped.add(message)

    def _check_some(self, source: RowSource, rows: int, good: int) -> None:
        name = source.name or "the input"
        if not rows:
            raise InputError(f"{name}: has no rows")
        if not good:
            raise InputError(f"{name}: all {rows} rows are bad; the first that was skipped: {self.skipped.messages[0]}")

    def _all_names(self) -> str:
        return ", ".join(self.names) or "the input"


def _repeated(entry: Entry, seen: Numbering) -> dict[str, Any]:
    """Empty fields for what an earlier row already said word for word."""
    emptied: dict[str, Any] = {}
    raters = [
        *(rating.rater for rating in entry.ratings),
        *(preference.rater for preference in entry.preferences),
        *(found.error.rater for found in entry.errors),
    ]
    if raters and None not in raters and _was_seen(seen, entry.ratings, entry.preferences, entry.errors):
        emptied = {"ratings": (), "preferences": (), "errors": ()}
    if (entry.scores or entry.choices) and _was_seen(seen, entry.scores, entry.choices):
        emptied |= {"scores": (), "choices": ()}
    return emptied


def _was_seen(seen: Numbering, *parts: tuple[Any, ...]) -> bool:
    known = len(seen)
    # Of the text, not of the values: Python's hash takes -1 for -2.
    said = repr(parts)
    return seen.number(hash(said), hash(f"\0{said}")) < known


def check_keywords(function: Callable[..., Any], reading: Mapping[str, Any]) -> None:
    """Raise TypeError, in the name of `function`, for a keyword that neither it nor `read_records` accepts."""
    own, passed_on = _keyword_parameters(function), _keyword_parameters(read_records)
    for name in reading:
        if name not in passed_on:
            raise TypeError(
                f"{function.__name__}() has no parameter {name!r}{did_you_mean(name, (*own, *passed_on))}; it takes "
                f"{', '.join(own)}, and to read the records {', '.join(passed_on)}"
            )


def _keyword_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the keyword-only parameters."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY)
