"""Read records from any source, one at a time; errors name the bad row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from typing import Any, TypeVar

from metrist.errors import InputError, did_you_mean
from metrist.io.dedup import Conflict, DigestIndex, RecordKeys, SourceCheck, are_distinct_records
from metrist.io.fields import check_fields
from metrist.io.row_model import ParsedRow, RowError, format_value
from metrist.io.row_parser import RowParser
from metrist.io.rows import RowSource, resolve_sources
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
    """Read records from a path, `-` (standard input), several paths, dicts or Records, or a pandas or polars frame.

    `item_key` lists the fields that together identify an item. `fields` maps fields to columns with other names
    (`{"output": "prediction"}`; a column mapped to "" is dropped). `skip_bad` skips bad rows and counts them. `system`
    is the system of rows that name none (default: the file's name without suffixes).
    """
    if isinstance(source, Reader):
        return source
    if fields:
        check_fields(fields)
    if isinstance(item_key, str):
        raise InputError(f"item_key must be a list of fields, got the text {format_value(item_key)}")
    return Reader(
        sources=resolve_sources(source),
        item_key=tuple(item_key),
        fields=dict(fields or {}),
        skip_bad=skip_bad,
        system=system,
    )


@dataclass(slots=True)
class Skipped:
    """The number of bad rows that were skipped, and the messages of the first of them."""

    count: int = 0
    messages: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return self.count

    def add(self, message: str) -> None:
        self.count += 1
        if len(self.messages) < _KEPT_MESSAGES:
            self.messages.append(message)


@dataclass(eq=False, kw_only=True)
class Reader:
    """Iterating yields the records, each (item, system) once; `entries()` yields all that each row holds.

    Each iteration reads the source again; `skipped` describes the latest one.
    """

    sources: tuple[RowSource, ...]
    item_key: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    skip_bad: bool = False
    system: str | None = None
    skipped: Skipped = field(default_factory=Skipped, init=False)
    #: The number of the source that the latest record came from.
    source_number: int = field(default=0, init=False)
    _source_check: SourceCheck = field(default_factory=SourceCheck, init=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the files; empty for rows in memory."""
        return tuple(source.name for source in self.sources if source.name is not None)

    @property
    def is_repeatable(self) -> bool:
        """Whether the records can be read more than once; standard input, for one, cannot."""
        return all(source.is_repeatable for source in self.sources)

    @property
    def options(self) -> dict[str, Any]:
        """The options of `read_records` that differ from their defaults, as JSON can hold them."""
        default = Reader(sources=())
        options = {f.name: getattr(self, f.name) for f in dataclass_fields(self) if f.init and f.name != "sources"}
        return {
            name: dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
            for name, value in options.items()
            if value != getattr(default, name)
        }

    @property
    def remarks(self) -> list[str]:
        """Notes for the user on the rows of the latest iteration."""
        mixed = self._source_check.mixed
        if not mixed:
            return []
        return [
            f"{mixed:,} records have a different source than an earlier record of the same item: if the files use the "
            "same numbers for different inputs, use --item-key (such as language+item) to tell them apart"
        ]

    @property
    def share_read(self) -> float | None:
        """The share of the files' bytes read so far; None if unknown."""
        sizes = [source.size for source in self.sources]
        total = sum(size for size in sizes if size is not None)
        read = sum(source.meter.read for source in self.sources)
        return read / total if total and read and None not in sizes else None

    def __iter__(self) -> Iterator[Record]:
        rows = self.sources[0].rows if len(self.sources) == 1 else None
        if rows and are_distinct_records(rows):
            self.skipped, self._source_check, self.source_number = Skipped(), SourceCheck(), 0
            return iter(rows)
        return (record for row in self._parse_rows(judgments=False) for record in row)

    def entries(self) -> Iterator[ParsedRow]:
        """Yield what each row holds. Judgments by named raters and stored scores that repeat an earlier row exactly are
        dropped; ratings by unnamed raters are all kept, because two people may agree."""
        return self._parse_rows(judgments=True)

    def _parse_rows(self, *, judgments: bool) -> Iterator[Any]:
        """The new records of each row, or with `judgments` the parsed row."""
        self.skipped, self._source_check = Skipped(), SourceCheck()
        keys, seen = RecordKeys(), DigestIndex()
        any_record = False
        for file, source in enumerate(self.sources):
            self.source_number = file
            name = source.name or "the input"
            parser = RowParser(system=self.system or source.system, item_key=self.item_key, fields=self.fields)
            position = good = 0
            for line, row in source.read():
                position += 1
                try:
                    if isinstance(row, RowError):
                        raise row
                    parsed: Any
                    if judgments:
                        parsed = parser.entry(row, position, source.location(line))
                        new = keys.admit(parsed.records, file, line)
                        parsed = replace(parsed, new=new, **_drop_repeated(parsed, seen))
                    else:
                        parsed = new = keys.admit(parser.parse(row, position).records, file, line)
                except (RowError, Conflict) as error:
                    reason = self._describe_conflict(error) if isinstance(error, Conflict) else error
                    message = f"{source.location(line)}: {reason}"
                    if not self.skip_bad:
                        raise InputError(message) from None
                    self.skipped.add(message)
                    continue
                good += 1
                any_record = any_record or bool(new)
                if len(self.sources) > 1:
                    for record in new:
                        self._source_check.add(record)
                yield parsed
            if not position:
                raise InputError(f"{name}: no rows")
            if not good:
                raise InputError(f"{name}: all {position} rows are bad; the first error: {self.skipped.messages[0]}")
        if not any_record and not judgments:
            raise InputError(f"{', '.join(self.names) or 'the input'}: no row has an output")

    def _describe_conflict(self, conflict: Conflict) -> str:
        record = conflict.record
        first = self.sources[conflict.file].location(conflict.line)
        columns = ", ".join(["task", "language", *map(format_value, record.extra)])
        other = (
            f"a different text in {format_value(conflict.field)}"
            if conflict.field
            else f"different values in one of {columns}"
        )
        return (
            f"item {format_value(record.item)} of system {format_value(record.system)} already occurs at {first} with "
            f"{other}; use --item-key to build the item from several fields, --field system=COLUMN to name the "
            "systems' column, or --field COLUMN= to drop a column"
        )


def _drop_repeated(entry: ParsedRow, seen: DigestIndex) -> dict[str, Any]:
    """Return empty fields for judgments that repeat an earlier row exactly."""
    emptied: dict[str, Any] = {}
    raters = [
        *(rating.rater for rating in entry.ratings),
        *(preference.rater for preference in entry.preferences),
        *(stored.error.rater for stored in entry.errors),
    ]
    if raters and None not in raters and _was_seen(seen, entry.ratings, entry.preferences, entry.errors):
        emptied = {"ratings": (), "preferences": (), "errors": ()}
    if (entry.scores or entry.choices) and _was_seen(seen, entry.scores, entry.choices):
        emptied |= {"scores": (), "choices": ()}
    return emptied


def _was_seen(seen: DigestIndex, *parts: tuple[Any, ...]) -> bool:
    known = len(seen)
    # Hash the text, not the values: hash(-1) == hash(-2).
    text = repr(parts)
    return seen.number(hash(text), hash(f"\0{text}")) < known


def check_keywords(function: Callable[..., Any], reading: Mapping[str, Any]) -> None:
    """Raise TypeError, in the name of `function`, for a keyword that neither it nor `read_records` accepts."""
    own, passed_on = _keyword_parameters(function), _keyword_parameters(read_records)
    for name in reading:
        if name not in passed_on:
            raise TypeError(
                f"{function.__name__}() has no parameter {name!r}{did_you_mean(name, (*own, *passed_on))}; it takes "
                f"{', '.join(own)}, and these for reading records: {', '.join(passed_on)}"
            )


def _keyword_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the keyword-only parameters."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY)
