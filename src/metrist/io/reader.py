"""Read records from any source, one at a time; errors name the bad row."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from functools import cached_property
from itertools import chain, combinations
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from metrist.errors import InputError, agree, did_you_mean
from metrist.io.compression import FileFormat, display_name
from metrist.io.dedup import (
    ItemCheck,
    Numbers,
    RecordKeys,
    SourceCheck,
    differing_field,
    place_of,
    read_distinct_records,
    split_place,
)
from metrist.io.fields import ColumnCheck, ColumnMap, check_fields
from metrist.io.hashes import hash_records
from metrist.io.json_rows import PLAIN_NAMES, Wish
from metrist.io.row_model import CompleteRows, ParsedRow, PlainRow, RatedRow, RowError, format_value
from metrist.io.row_parser import RowParser, RowParts, parse_judgments, plain_parts, simple_ratings
from metrist.io.rows import MissingFile, RowSource, default_system, resolve_sources
from metrist.io.table_rows import Cells
from metrist.records import Hashes, Record, RecordColumns

if TYPE_CHECKING:
    from metrist.io.layouts import Layout

_KEPT_MESSAGES = 20
#: Rows between two reports of progress.
_REPORTED = 1 << 12
#: Systems listed of files that have the same name.
_SHOWN_SYSTEMS = 6
#: Options of the command line, and how they are written in Python.
_ARGUMENTS = {
    "--field": "fields={'output': 'COLUMN'}",
    "--output": "outputs={'SYSTEM': 'COLUMN'} or a pattern",
    "--item-key": "item_key='FIELD+FIELD'",
}
#: Called with the rows read so far, and about how many there are, None if that is unknown.
RowProgress = Callable[[int, int | None], None]
#: Records of a batch, and about how many characters of text.
BATCH_RECORDS, BATCH_CHARACTERS = 8192, 8_000_000
#: Rows that are compared with earlier ones at once where they are yielded one by one.
_ROWS_AT_ONCE = 512
#: Judgments are not looked at; left out where they cannot be parsed; or errors there.
Judgments = Literal["ignored", "kept", "required"]


def read_records(
    source: Any,
    *,
    item_key: Sequence[str] | str = (),
    fields: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | Sequence[str] | str | None = None,
    skip_bad: bool = False,
    system: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
    announce: Callable[[str], None] | None = None,
) -> Reader:
    """Read records from a path, `-` (standard input), several paths, dicts or Records, or a pandas or polars frame.

    Paths may be patterns (`runs/*.jsonl`). Columns with common names (`id`, `model`, `prediction`, `gold`) are
    recognised; `reader.readings` says which was taken for what, and `announce` is called with that as soon as it is
    known. `fields` maps fields to columns with other names (`{"output": "verdict"}`; a column mapped to "" is dropped).
    `item_key` lists the fields that together identify an item, also as `"doc+segment"`. `outputs` names the outputs
    of several systems in one row: `{"v1": "v1_output"}`, or a pattern of columns such as `"*_output"`. `skip_bad` skips
    bad rows and counts them.
    `system` is the system of rows that name none (default: the file's name without suffixes). `delimiter`, `encoding`
    and `sheet` (of an .xlsx file) are recognised where they are not given.
    """
    if isinstance(source, Reader):
        return source
    if fields:
        check_fields(fields)
    if isinstance(item_key, str):
        item_key = item_key.split("+") if item_key else ()
        if not all(item_key):
            raise InputError(f"item_key must name fields, such as 'doc+segment', got {'+'.join(item_key)!r}")
    form = FileFormat(delimiter, encoding, sheet)
    if delimiter or encoding:
        form.check()
    try:
        sources = resolve_sources(source, form)
    except MissingFile as error:
        raise InputError(f"{error}; to name another column, repeat --output" if outputs else str(error)) from None
    return Reader(
        sources=sources,
        item_key=tuple(item_key),
        fields=dict(fields or {}),
        outputs=outputs or {},
        skip_bad=skip_bad,
        system=system,
        delimiter=delimiter,
        encoding=encoding,
        sheet=sheet,
        announce=announce,
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

    def join(self, other: Skipped) -> None:
        """Add the rows that were skipped after these."""
        self.count += other.count
        self.messages += other.messages[: _KEPT_MESSAGES - len(self.messages)]

    def describe(self) -> list[str]:
        """A note for the user; none where no row was skipped."""
        rows = agree(self.count, "1 bad row was", f"{self.count:,} bad rows were")
        return [f"{rows} skipped; the first: {self.messages[0]}"] if self.count else []


@dataclass(slots=True)
class _Walk:
    """Where the reading of one source is. `position` counts its rows."""

    file: int
    source: RowSource
    columns: ColumnMap
    parser: RowParser
    rows: Iterator[tuple[int, Any]]
    wish: Wish
    layout: Layout | None
    position: int = 0


@dataclass(slots=True)
class _Block:
    """Rows of one source: first those that were parsed, and then what of them is new, in `columns` and `entries`.

    `lines` and `row_numbers` are those of the records; `judged_rows` hold more than one record. `errors` are messages
    about bad rows.
    """

    records: list[Any] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    row_numbers: list[int] = field(default_factory=list)
    parsed: list[tuple[int, ParsedRow | RatedRow]] = field(default_factory=list)
    judged_rows: set[int] = field(default_factory=set)
    errors: list[tuple[int, str]] = field(default_factory=list)
    rows: int = 0
    good: int = 0
    is_table: bool = False
    columns: RecordColumns = field(default_factory=lambda: RecordColumns.of(()))
    entries: list[Any] = field(default_factory=list)

    def add_rows(self, line: int, rows: CompleteRows, judgments: Judgments) -> None:
        """Add rows that need no parsing; `line` is the first one's."""
        numbers = range(self.rows + 1, self.rows + 1 + len(rows))
        self.records += rows
        self.lines += range(line, line + len(rows))
        self.row_numbers += numbers
        self.rows += len(rows)
        self.good += len(rows)
        judged = [(number, row) for number, row in zip(numbers, rows, strict=True) if row.ratings]
        self.judged_rows.update(number for number, _ in judged)
        if judgments == "kept":
            first = line - numbers[0]
            self.parsed += [(n, RatedRow(first + n, row.item, row.system, row.ratings or {})) for n, row in judged]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Findings:
    """What reading a slice of the input found besides its records.

    `has_layout` says whether rows were converted, `readings` what was recognised, as it became known, and
    `needs_item_check` whether items were not named `item`. `items`, `systems` and `sources` are hashes for checks of
    the whole input, the same in every process; 0 for no source.
    """

    has_layout: bool
    readings: tuple[str, ...]
    layout_remarks: tuple[str, ...]
    fields_by_column: dict[str, str]
    items_are_named: bool | None
    needs_item_check: bool
    rows: int
    repeats: int
    empty_outputs: int
    left_out: Skipped
    skipped: Skipped
    items: Numbers = field(default_factory=lambda: np.empty(0, np.uint64))
    systems: Numbers = field(default_factory=lambda: np.empty(0, np.uint64))
    sources: Numbers = field(default_factory=lambda: np.empty(0, np.uint64))

    @property
    def shared_state(self) -> tuple[Any, ...]:
        """What reading the whole file would have found once for all of its rows."""
        return self.readings[-1:], self.fields_by_column, self.items_are_named, self.needs_item_check


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Consecutive rows of one source, as columns: the records that did not occur before, and what rows say besides
    (`judged`: parsed rows, without their records, that hold a rating, a preference, an error, a stored score or choice,
    a weight, or columns without an output). `lines` are the lines of the records."""

    source: int
    records: RecordColumns
    lines: Sequence[int]
    judged: Sequence[ParsedRow | RatedRow] = ()

    @cached_property
    def hashes(self) -> Hashes:
        return hash_records(self.records)


@dataclass(eq=False, kw_only=True)
class Reader:
    """Iterating yields the records, each (item, system) once, and `batches()` yields many at a time; `entries()` yields
    all that each row holds.

    Each iteration reads the source again; `skipped` describes the latest one.
    """

    sources: tuple[RowSource, ...]
    item_key: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] | Sequence[str] | str = field(default_factory=dict)
    skip_bad: bool = False
    system: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    sheet: str | None = None
    announce: Callable[[str], None] | None = None
    skipped: Skipped = field(default_factory=Skipped, init=False)
    #: The number of the source that the latest record came from.
    source_number: int = field(default=0, init=False)
    _fields_by_column: dict[str, str] = field(default_factory=dict, init=False)
    #: What columns and formats were recognised, by file; empty where all is in metrist's own names.
    _readings: dict[str, str] = field(default_factory=dict, init=False)
    #: All readings so far, in order.
    _announced: dict[str, None] = field(default_factory=dict, init=False)
    _layout_remarks: list[str] = field(default_factory=list, init=False)
    #: Of tables, where a cell may be empty by mistake.
    _empty_outputs: int = field(default=0, init=False)
    #: Rows that hold nothing but what an earlier row holds.
    _repeats: int = field(default=0, init=False)
    #: Rows whose judgments cannot be read, where that is no error.
    _left_out: Skipped = field(default_factory=Skipped, init=False)
    _source_check: SourceCheck = field(default_factory=SourceCheck, init=False)
    _item_check: ItemCheck = field(default_factory=ItemCheck, init=False)
    _last_walk: _Walk | None = field(default=None, init=False)

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
        default, skipped = Reader(sources=()), ("sources", "announce")
        options = {f.name: getattr(self, f.name) for f in dataclass_fields(self) if f.init and f.name not in skipped}
        return {
            name: dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
            for name, value in options.items()
            if value != getattr(default, name)
        }

    def source_options(self, number: int) -> dict[str, Any]:
        """The options that read one of the sources alone as it is read here."""
        options = self.options
        if self.default_systems[number] != self.sources[number].system:
            options["system"] = self.default_systems[number]
        return options

    @cached_property
    def default_systems(self) -> tuple[str, ...]:
        """The system of rows that name none, by source. Files of one name in several folders are several systems, named
        with their folders, unless they hold the same outputs or only one of them holds any."""
        systems = [source.system for source in self.sources]
        groups: dict[str, list[int]] = {}
        for number, source in enumerate(self.sources):
            if source.path is not None and not (self.system or self.outputs):
                groups.setdefault(source.system, []).append(number)
        for system, numbers in groups.items():
            if len({os.path.realpath(str(self.sources[n].path)) for n in numbers}) < 2:
                continue
            outputs = {n: texts for n in numbers if (texts := self._list_outputs(n, system))}
            # Pairs of files that have outputs of the same items, all of them equal, are one system.
            shared = [(one, other, one.keys() & other.keys()) for one, other in combinations(outputs.values(), 2)]
            if all(items and all(one[i] == other[i] for i in items) for one, other, items in shared):
                continue
            for n, name in zip(outputs, _distinct_names([str(self.sources[n].path) for n in outputs]), strict=True):
                systems[n] = name
        return tuple(systems)

    def _list_outputs(self, number: int, system: str) -> dict[str, int]:
        """Hashes of the outputs, by item, of rows that name no system."""
        alone = replace(self, sources=(self.sources[number],), announce=None, skip_bad=True)
        try:
            return {record.item: hash(record.output) for record in alone if record.system == system}
        except InputError:  # Reading it in earnest says why.
            return {}

    def _describe_systems(self) -> list[str]:
        """Which systems files of one name were taken for, where that needs telling."""
        pairs = zip(self.default_systems, self.sources, strict=True)
        named = [name for name, source in pairs if name != source.system]
        shown = [*named[:_SHOWN_SYSTEMS], *(["…"] if len(named) > _SHOWN_SYSTEMS else [])]
        return [f"systems = {', '.join(shown)} (files of one name)"] if named else []

    @property
    def readings(self) -> list[str]:
        """What was recognised, such as `reading data.csv: item = id, output = prediction`; a line for each way in which
        files were read."""
        names: dict[str, list[str]] = {}
        for name, reading in self._readings.items():
            names.setdefault(reading, []).append(name)
        return [
            f"reading {files[0]}{f' and {len(files) - 1:,} more' if len(files) > 1 else ''}: {reading}"
            for reading, files in names.items()
        ]

    @property
    def fields_by_column(self) -> dict[str, str]:
        """The field that each column with another name was read as, such as `system` for `model`."""
        return self._fields_by_column

    @property
    def remarks(self) -> list[str]:
        """Notes for the user on the rows of the latest iteration; without `announce` the readings are among them."""
        remarks = [*([] if self.announce else self.readings), *self._layout_remarks]
        if self._empty_outputs:
            remarks.append(
                agree(self._empty_outputs, "1 output is empty", f"{self._empty_outputs:,} outputs are empty")
            )
        if self._repeats:
            repeats = agree(
                self._repeats,
                "1 row repeats an earlier one and counts",
                f"{self._repeats:,} rows repeat an earlier one and count",
            )
            remarks.append(f"{repeats} once")
        if self._left_out.count:
            rows = agree(self._left_out.count, "1 row is", f"{self._left_out.count:,} rows are")
            remarks.append(f"the judgments of {rows} left out; the first: {self._left_out.messages[0]}")
        remarks += self.source_remarks
        if self._item_check.disjoint:
            remarks.append(
                "no item has outputs of two systems, so systems cannot be compared item by item: name the column that "
                "their rows share (--field item=COLUMN), or --item-key source if the same source is the same item (in "
                "Python fields={'item': COLUMN}, item_key='source')"
            )
        return remarks

    @property
    def source_remarks(self) -> list[str]:
        """Those of the remarks that are about items with several sources."""
        return self._source_check.describe()

    @property
    def share_read(self) -> float | None:
        """The share of the files' bytes read so far; None if unknown."""
        sizes = [source.size for source in self.sources]
        total = sum(size for size in sizes if size is not None)
        read = sum(source.meter.read for source in self.sources)
        return read / total if total and read and None not in sizes else None

    def __iter__(self) -> Iterator[Record]:
        if self._read_records() is not None:
            return iter(self.sources[0].rows or ())
        return chain.from_iterable(block.columns for block in self._read(_ROWS_AT_ONCE, "ignored"))

    def _read_records(self) -> RecordColumns | None:
        """The columns of rows in memory that are distinct Records; None where rows have to be parsed."""
        rows = self.sources[0].rows if len(self.sources) == 1 else None
        columns = read_distinct_records(rows) if rows else None
        if columns is not None:
            self.skipped, self._source_check, self.source_number, self._repeats = Skipped(), SourceCheck(), 0, 0
        return columns

    def batches(self, size: int = BATCH_RECORDS, *, judgments: bool = True) -> Iterator[Batch]:
        """Yield the same records by the thousand, as columns, with what the rows say about them. Judgments that cannot
        be read are left out and counted in a remark, unless `judgments` is False: then none is looked at."""
        columns = self._read_records()
        if columns is not None:
            for start in range(0, len(columns), size):
                records = columns[start : start + size]
                yield Batch(source=0, records=records, lines=range(start + 1, start + 1 + len(records)))
            return
        for block in self._read(size, "kept" if judgments else "ignored"):
            yield Batch(
                source=self.source_number,
                records=block.columns,
                lines=block.lines,
                judged=[row for row in block.entries if type(row) is RatedRow or _has_judgment(row)],
            )

    def entries(self, progress: RowProgress | None = None) -> Iterator[ParsedRow]:
        """Yield what each row holds. Judgments by named raters and stored scores that repeat an earlier row exactly are
        dropped; ratings by unnamed raters are all kept, because two people may agree. `progress` is called now and
        then."""
        entries = chain.from_iterable(block.entries for block in self._read(_ROWS_AT_ONCE, "required"))
        for number, row in enumerate(entries):
            if progress and not number % _REPORTED:
                share = self.share_read
                progress(number, round(number / share) if share else None)
            yield row

    def has_layout(self, number: int) -> bool:
        """Whether the rows of a source are converted, which the first one shows, or nothing can be read."""
        try:
            return replace(self, sources=(self.sources[number],), announce=None)._open(0, "kept", []).layout is not None
        except (InputError, RowError):
            return True

    @property
    def needs_item_check(self) -> bool:
        """Whether the latest iteration has come to items that were not named `item`."""
        return self._item_check.is_needed

    @property
    def findings(self) -> Findings:
        """What the latest iteration over a slice of the input found besides its records."""
        walk = self._last_walk
        assert walk is not None
        return Findings(
            has_layout=walk.layout is not None,
            readings=tuple(self._announced),
            layout_remarks=tuple(self._layout_remarks),
            fields_by_column=self._fields_by_column,
            items_are_named=walk.parser.items_are_named,
            needs_item_check=self.needs_item_check,
            rows=walk.position - walk.source.first_row,
            repeats=self._repeats,
            empty_outputs=self._empty_outputs,
            left_out=self._left_out,
            skipped=self.skipped,
        )

    def adopt(self, findings: Sequence[Sequence[Findings]]) -> bool:
        """Take over what was found in the slices of each source, as if they had been read here; False where this might
        have found something else."""
        if any(one.shared_state != slices[0].shared_state for slices in findings for one in slices):
            return False
        self._begin()
        for source, slices in zip(self.sources, findings, strict=True):
            self._fields_by_column |= slices[0].fields_by_column
            systems = self._describe_systems()
            for reading in slices[0].readings or ([""] if systems else []):
                self._announce(source, ", ".join(filter(None, (reading, *systems))))
            for one in slices:
                self._layout_remarks += one.layout_remarks
                self._repeats += one.repeats
                self._empty_outputs += one.empty_outputs
                self._left_out.join(one.left_out)
                self.skipped.join(one.skipped)
                self._item_check.is_needed |= one.needs_item_check
                if self._item_check.is_needed:
                    self._item_check.add_hashes(one.items, one.systems)
                if len(self.sources) > 1:
                    self._source_check.add_hashes(one.items[one.sources != 0], one.sources[one.sources != 0])
        return True

    def _begin(self) -> None:
        self.skipped, self._source_check, self._item_check = Skipped(), SourceCheck(), ItemCheck()
        self._layout_remarks, self._empty_outputs, self._repeats, self._left_out = [], 0, 0, Skipped()

    def _read(self, size: int, judgments: Judgments) -> Iterator[_Block]:
        """Yield the rows of all sources in blocks."""
        self._begin()
        keys, seen = RecordKeys(), set[int]()
        any_record = False
        checks: list[ColumnCheck] = []
        for file, source in enumerate(self.sources):
            self.source_number = file
            name = source.name or "the input"
            walk = self._open(file, judgments, checks)
            good = 0
            is_open = True
            while is_open:
                block, failure = _Block(), None
                try:
                    is_open = self._fill(block, walk, size, judgments)
                except InputError as error:  # What comes before it is read first.
                    failure = error
                failure = self._compare(block, walk, keys, seen) or failure
                good += block.good
                any_record = any_record or bool(block.columns)
                if block.columns or block.entries:
                    yield block
                if failure is not None:
                    raise failure
            if source.format.notes and walk.columns.samples:
                self._learn_columns({}, walk)  # what was recognised after the first rows
            if walk.layout is not None:
                self._layout_remarks += walk.layout.remarks
            self._last_walk = walk
            if walk.position == source.first_row:
                raise InputError(f"{name}: no rows")
            if not good:
                count = agree(walk.position, "its only row is", f"all {walk.position:,} rows are")
                raise InputError(f"{name}: {count} bad; the first error: {self.skipped.messages[0]}")
        for field_name in checks[0].missing if checks else ():
            if all(field_name in check.missing for check in checks):
                raise InputError(f"{', '.join(self.names) or 'the input'}: {checks[0].describe(field_name)}")
        if not any_record and judgments != "required":
            raise InputError(f"{', '.join(self.names) or 'the input'}: no row has an output")

    def _open(self, file: int, judgments: Judgments, checks: list[ColumnCheck]) -> _Walk:
        """Begin to read a source: its first row decides on the layout of all."""
        source = self.sources[file]
        columns = ColumnMap(self.fields, self.item_key, self.system is not None)
        system = self.system or self.default_systems[file]
        parser = RowParser(system=system, item_key=self.item_key, columns=columns)
        wish = Wish()
        is_strict = judgments == "required"
        rows = self._check_columns(source, checks, is_strict) if self.fields else source.read_as(wish)
        layout = None
        first = next(rows, None)
        if first is not None:
            rows = chain([first], rows)
            if type(first[1]) is not Record and not (
                isinstance(first[1], dict) and first[1].keys() <= columns.known and not self.outputs
            ):
                from metrist.io.layouts import convert_rows

                leave_out = None if is_strict else self._left_out.add
                rows, layout = convert_rows(rows, self.outputs, columns, leave_out=leave_out)
        return _Walk(file, source, columns, parser, rows, wish, layout, source.first_row)

    def _fill(self, block: _Block, walk: _Walk, size: int, judgments: Judgments) -> bool:
        """Parse rows until the block is full; return whether there may be more."""
        source, parser, columns, layout, wish = walk.source, walk.parser, walk.columns, walk.layout, walk.wish
        can_be_plain = layout is None and not self.item_key and judgments != "required"
        records: Any
        parts: RowParts | None
        room = BATCH_CHARACTERS
        for line, row in walk.rows:
            if type(row) is CompleteRows:
                walk.position += len(row)
                block.add_rows(line, row, judgments)
                room -= row.size
                if len(block.records) >= size or room < 0:
                    return True
                continue
            walk.position = walk.position + 1 if layout is None else layout.position
            block.rows += 1
            try:
                if type(row) is PlainRow:
                    wish.complete = parser.items_are_named is True
                    parser.complete(row, walk.position)
                    parts, records, is_judged = None, (row,), bool(row.ratings or row.rater)
                else:
                    wish.plain = wish.complete = False
                    if type(row) is dict or type(row) is Cells:
                        # All rows of a table have the same columns.
                        if not columns.samples or (type(row) is dict and not row.keys() <= columns.known):
                            self._learn_columns(row, walk)
                    elif isinstance(row, RowError):
                        raise row
                    block.is_table = type(row) is Cells
                    plain = can_be_plain and not columns.fields and type(row) is dict and row.keys() <= PLAIN_NAMES
                    parts = parser.parse(row, walk.position)
                    wish.plain, wish.complete = plain, plain and parser.items_are_named is True
                    records, is_judged = parts.records, any(parts.judged.values())
                    if judgments == "required":
                        block.parsed.append((block.rows, parse_judgments(parts, source.location(line), records)))
            except RowError as error:
                message = _locate(source, line, error)
                if not self.skip_bad:
                    raise InputError(message) from None
                block.errors.append((block.rows, message))
                if block.rows >= 2 * size:
                    return True
                continue
            block.good += 1
            if is_judged or len(records) != 1:
                block.judged_rows.add(block.rows)
            if is_judged and judgments == "kept":
                try:
                    if parts is None:
                        ratings = row.simple_ratings
                    else:
                        ratings = simple_ratings(parts.judged) if len(records) == 1 else None
                    if ratings is not None:
                        block.parsed.append((block.rows, RatedRow(line, records[0].item, records[0].system, ratings)))
                    else:
                        entry = parse_judgments(parts or plain_parts(row), source.location(line))
                        block.parsed.append((block.rows, entry))
                except RowError as error:
                    self._left_out.add(_locate(source, line, error))
            for record in records:
                block.records.append(record)
                block.lines.append(line)
                block.row_numbers.append(block.rows)
                room -= len(record.output) + len(record.source or "") + sum(map(len, record.references))
            if len(block.records) >= size or room < 0 or block.rows >= 2 * size:
                return True
        return False

    def _compare(self, block: _Block, walk: _Walk, keys: RecordKeys, seen: set[int]) -> InputError | None:
        """Compare a block with all that was read before, and keep what is new. Return the error of a record that
        contradicts an earlier one, where the reading ends with it."""
        columns = RecordColumns.of(block.records)
        new, repeated, conflicts = keys.admit(columns, block.row_numbers, place_of(walk.file, block.lines))
        failure = None
        errors = block.errors
        for count, (n, place) in enumerate(conflicts, self.skipped.count):
            message = ""
            if count < _KEPT_MESSAGES:
                reason = self._describe_conflict(block, walk, n, place, new, is_first=not count)
                message = _locate(walk.source, block.lines[n], reason)
            if not self.skip_bad:
                # What comes after it does not count.
                last = block.row_numbers[n]
                new, repeated = ([i for i in kept if block.row_numbers[i] < last] for kept in (new, repeated))
                block.parsed = [(row, entry) for row, entry in block.parsed if row < last]
                failure = InputError(message)
                break
            errors.append((block.row_numbers[n], message))
            block.good -= 1
        for _, message in sorted(errors):
            self.skipped.add(message)
        if conflicts and self.skip_bad:
            bad = {block.row_numbers[n] for n, _ in conflicts}
            block.parsed = [(row, entry) for row, entry in block.parsed if row not in bad]
        if len(new) != len(columns):
            self._repeats += sum(block.row_numbers[n] not in block.judged_rows for n in repeated)
            fresh = {(block.row_numbers[n], columns.systems[n]) for n in new}
            for at, (row, entry) in enumerate(block.parsed):
                if isinstance(entry, RatedRow):
                    continue
                texts = tuple(record for record in entry.records if (row, record.system) in fresh)
                if len(texts) != len(entry.records):
                    block.parsed[at] = row, replace(entry, new=texts)
            columns, block.lines = columns.take(new), [block.lines[n] for n in new]
        block.columns = columns
        block.entries = [e if isinstance(e, RatedRow) else drop_repeated(e, seen) for _, e in block.parsed]
        if block.is_table:
            self._empty_outputs += sum(not output for output in columns.outputs)
        if len(self.sources) > 1:
            sources = [" ".join(source.split()) if source else "" for source in columns.sources]
            self._source_check.add(columns.items, sources)
        if self._item_check.is_needed:
            self._item_check.add(columns)
        return failure

    def _check_columns(
        self, source: RowSource, checks: list[ColumnCheck], judgments: bool
    ) -> Iterator[tuple[int, Any]]:
        """Yield the rows of a file; raise InputError if none has a column that was mapped to a field. Where the file
        can be read twice, that is known before the first row is used.

        Judgments may be in another file than the texts: such a file may lack a column that another one has, unless it
        has the field under its own name, which would be read instead.
        """
        check = ColumnCheck(self.fields)

        def finish() -> None:
            if not check.columns:  # Records, or no row that can be read.
                return
            for field_name in check.missing:
                if not judgments or len(self.sources) == 1 or field_name in check.columns:
                    raise InputError(f"{source.name or 'the input'}: {check.describe(field_name)}")
            checks.append(check)

        def look(row: Any) -> None:
            if check.missing and isinstance(row, dict):
                check.add(row)

        if source.is_repeatable:
            for _, row in source.read():
                look(row)
                # All rows of a table have the same columns.
                if not check.missing or type(row) is Cells:
                    break
            finish()
            yield from source.read()
            return
        for line, row in source.read():
            look(row)
            yield line, row
        finish()

    def _learn_columns(self, row: Mapping[str, Any], walk: _Walk) -> None:
        """Look at a row that is the first one or has new columns, and announce what is recognised."""
        source, layout, columns = walk.source, walk.layout, walk.columns
        if not columns.samples and not self.item_key and "item" not in row:
            self._item_check.is_needed = True
        if row.keys() <= columns.known:
            columns.samples.update(row)
        else:
            columns.learn(row)
        self._fields_by_column |= {column: name for name, column in columns.fields.items() if column and column != name}
        reading = ", ".join(
            [
                *source.format.notes,
                *(layout.notes if layout else ()),
                *(columns.describe() if columns.recognised or columns.unread else ()),
                *self._describe_systems(),
            ]
        )
        if reading:
            self._announce(source, reading)

    def _announce(self, source: RowSource, reading: str) -> None:
        name = source.name or "the rows"
        self._readings[name] = reading
        is_new = reading not in self._announced
        self._announced[reading] = None
        if self.announce and is_new:
            others = " and files like it" if len(self.sources) > 1 else ""
            self.announce(f"reading {name}{others}: {reading}")

    def _describe_conflict(
        self, block: _Block, walk: _Walk, number: int, place: int, new: Iterable[int], *, is_first: bool
    ) -> str:
        """Say where a record occurred before with another text, and in which field: that is known for the first error
        and for records of the same block."""
        record, earlier, columns = block.records[number], None, walk.columns
        file, line = split_place(place)
        first = self.sources[file].location(line)
        known: Iterable[Record] = [block.records[n] for n in new if n < number and block.lines[n] == line]
        if is_first and self.sources[file].is_repeatable:
            source = replace(self.sources[file], system=self.default_systems[file])
            again = replace(self, sources=(source,), announce=None, skip_bad=True)
            known = chain(known if file == walk.file else (), again)
        with suppress(InputError):
            earlier = next((r for r in known if (r.item, r.system) == (record.item, record.system)), None)
        others = ", ".join(["task", "language", *map(format_value, record.extra)])
        if earlier is None:
            other = "other texts"
        elif name := differing_field(record, earlier):
            other = f"a different text in {format_value(name)}"
        else:
            other = f"different values in one of {others}"
        more = ""
        if "system" in columns.recognised and len(self.sources) > 1:
            more = ", or --field system= if the files are the systems"
        elif "item" in columns.recognised:
            more = ", or --field item= to number the rows instead"
        return (
            f"item {format_value(record.item)} of system {format_value(record.system)} already occurs at {first} with "
            f"{other}; use --item-key to build the item from several fields, --field system=COLUMN to name the "
            "systems' column, or --field COLUMN= to drop a column"
            f"{more}"
        )


def _locate(source: RowSource, line: int, reason: object) -> str:
    """A message about a row; about one in memory, with the arguments of Python for the options that it names."""
    message = f"{source.location(line)}: {reason}"
    named = [f"{option} is {argument}" for option, argument in _ARGUMENTS.items() if option in message]
    if source.name is not None or "in Python" in message or not named:
        return message
    return f"{message} (in Python: {', '.join(named)})"


def _distinct_names(paths: Sequence[str]) -> list[str]:
    """Name files of one name by as many of their folders as tell them apart; by their suffixes if nothing else does."""
    files = [PurePath(os.path.abspath(path)) for path in paths]
    for suffixes in (False, True):
        names = [file if suffixes else file.with_name(default_system(file)) for file in files]
        for depth in range(1, max(len(name.parts) for name in names)):
            shown = [PurePath(*name.parts[-depth:]).as_posix() for name in names]
            if len(set(shown)) == len({os.path.realpath(path) for path in paths}):
                return list(map(display_name, shown))
    return [display_name(file.as_posix()) for file in files]


def _has_judgment(entry: ParsedRow) -> bool:
    e = entry
    return bool(e.ratings or e.scores or e.errors or e.preferences or e.choices or e.raters or e.columns or e.weight)


def drop_repeated(entry: ParsedRow, seen: set[int]) -> ParsedRow:
    """Return the row without judgments that repeat an earlier row exactly."""
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
    return replace(entry, **emptied) if emptied else entry


def _was_seen(seen: set[int], *parts: tuple[Any, ...]) -> bool:
    known = len(seen)
    seen.add(hash(repr(parts)))  # of the text, not the values: hash(-1) == hash(-2)
    return len(seen) == known


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
