"""Open sources of records: which files and systems there are, how their columns are read, and what users are told."""

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
from typing import Any

import numpy as np

from metrist.errors import InputError, agree, did_you_mean
from metrist.io.batches import BATCH_RECORDS, Batch, Block, Judgments, Observations, Skipped, SourceRows
from metrist.io.compression import FileFormat, display_name
from metrist.io.dedup import (
    ItemCheck,
    Numbers,
    RecordKeys,
    SourceCheck,
    read_distinct_records,
    split_place,
)
from metrist.io.fields import ColumnCheck, ColumnMap, check_fields
from metrist.io.json_rows import Wish
from metrist.io.row_model import ParsedRow, RowError, format_value
from metrist.io.row_parser import RowParser
from metrist.io.rows import MissingFile, RowSource, default_system, resolve_sources
from metrist.io.table_rows import Cells
from metrist.records import CONTEXT_FIELDS, TAG_FIELDS, Record, RecordColumns
from metrist.settings import check_types

#: Rows between two reports of progress.
_REPORTED = 1 << 12
#: Systems listed of files that have the same name, and columns that hold no field.
_SHOWN_SYSTEMS, _SHOWN_UNUSED = 6, 8
#: Called with the rows read so far, and about how many there are, None if that is unknown.
RowProgress = Callable[[int, int | None], None]
#: Rows that are compared with earlier ones at once where they are yielded one by one.
_ROWS_AT_ONCE = 512


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
    check_types(read_records, locals())
    if isinstance(source, Reader):
        return source
    if fields:
        check_fields(fields)
    if isinstance(item_key, str):
        item_key = item_key.split("+")
        if not all(item_key):
            raise InputError(
                f"item_key must name fields, such as 'doc+segment', got {'+'.join(item_key)!r}", code="invalid_value"
            )
    form = FileFormat(delimiter, encoding, sheet)
    if delimiter or encoding:
        form.check()
    try:
        sources = resolve_sources(source, form)
    except MissingFile as error:
        if outputs:
            error.args = (f"{error}; to name another column, repeat `outputs`",)
        raise
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Findings:
    """What reading a slice of the input found besides its records.

    `has_layout` says whether rows were converted, and `readings` what was recognised, as it became known. `items`,
    `systems` and `sources` are hashes for checks of the whole input, the same in every process; 0 for no source.
    """

    has_layout: bool
    readings: tuple[tuple[str, tuple[str, ...]], ...]
    fields_by_column: dict[str, str]
    items_are_named: bool | None
    rows: int
    observed: Observations
    items: Numbers = field(default_factory=lambda: np.empty(0, np.uint64))
    systems: Numbers = field(default_factory=lambda: np.empty(0, np.uint64))
    sources: Numbers = field(default_factory=lambda: np.empty(0, np.uint64))

    @property
    def shared_state(self) -> tuple[Any, ...]:
        """What reading the whole file would have found once for all of its rows."""
        return (
            [reading for reading, _ in self.readings[-1:]],
            self.fields_by_column,
            self.items_are_named,
            self.observed.item_check.is_needed,
        )


@dataclass(eq=False, kw_only=True)
class Reader:
    """Iterating yields the records, each (item, system) once, and `batches()` yields many at a time; `entries()` yields
    all that each row holds.

    Each iteration reads the source again.
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
    #: Whether a system may have several outputs of an item, as samples of one model are; `entries` then yields nothing.
    keep_repeats: bool = False
    #: The number of the source that the latest record came from.
    source_number: int = field(default=0, init=False)
    #: Whether its rows have another layout than a record each, or come from another tool.
    is_converted: bool = field(default=False, init=False)
    _fields_by_column: dict[str, str] = field(default_factory=dict, init=False)
    #: What columns and formats were recognised, by file; empty where all is in metrist's own names.
    _readings: dict[str, str] = field(default_factory=dict, init=False)
    #: All readings so far, with columns that hold no field.
    _announced: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    _observed: Observations = field(default_factory=Observations, init=False)
    #: Whether rows of the last source were converted, whether it names its items, and how many rows it has.
    _last_source: tuple[bool, bool | None, int] | None = field(default=None, init=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the files; empty for rows in memory."""
        return tuple(source.name for source in self.sources if source.name is not None)

    @property
    def skipped(self) -> Skipped:
        """The bad rows of the latest iteration."""
        return self._observed.skipped

    def count_skipped(self, source: int) -> int:
        """The bad rows of one source in the latest iteration."""
        return self._observed.skipped_by_source[source]

    @property
    def is_repeatable(self) -> bool:
        """Whether the records can be read more than once; standard input, for one, cannot."""
        return all(source.is_repeatable for source in self.sources)

    @property
    def options(self) -> dict[str, Any]:
        """The options of `read_records` that differ from their defaults, as JSON can hold them."""
        default = Reader(sources=())
        options: dict[str, Any] = {}
        for name in (f.name for f in dataclass_fields(Reader) if f.init and f.name not in ("sources", "announce")):
            value = getattr(self, name)
            if value == getattr(default, name):
                continue
            if isinstance(value, Mapping):
                value = dict(value)
            options[name] = list(value) if isinstance(value, tuple) else value
        return options

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
            # Hashes of the outputs, by item, of rows that name no system.
            outputs: dict[int, dict[str, int]] = {}
            for n in numbers:
                alone = replace(self, sources=(self.sources[n],), announce=None, skip_bad=True)
                with suppress(InputError):  # The actual reading reports the error.
                    outputs[n] = {record.item: hash(record.output) for record in alone if record.system == system}
            outputs = {n: texts for n, texts in outputs.items() if texts}
            # Pairs of files that have outputs of the same items, all of them equal, are one system.
            shared = [(one, other, one.keys() & other.keys()) for one, other in combinations(outputs.values(), 2)]
            if all(items and all(one[i] == other[i] for i in items) for one, other, items in shared):
                continue
            names = _distinct_names([str(self.sources[n].path) for n in outputs])
            for n, name in zip(outputs, names, strict=True):
                systems[n] = name
        return tuple(systems)

    def _describe_systems(self) -> list[str]:
        """A note on the systems that files of one name were taken for, if one is needed."""
        pairs = zip(self.default_systems, self.sources, strict=True)
        named = [name for name, source in pairs if name != source.system]
        shown = named[:_SHOWN_SYSTEMS]
        if len(named) > _SHOWN_SYSTEMS:
            shown.append("…")
        return [f"systems = {', '.join(shown)} (files of one name)"] if named else []

    @property
    def readings(self) -> list[str]:
        """What was recognised, such as `reading data.csv: item = id, output = prediction`; a line for each way in which
        files were read."""
        names: dict[str, list[str]] = {}
        for name, reading in self._readings.items():
            names.setdefault(reading, []).append(name)
        lines = []
        for reading, files in names.items():
            more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
            lines.append(f"reading {files[0]}{more}: {reading}")
        return lines

    @property
    def fields_by_column(self) -> dict[str, str]:
        """The field that each column with another name was read as, such as `system` for `model`."""
        return self._fields_by_column

    @property
    def remarks(self) -> list[str]:
        """Notes for the user on the rows of the latest iteration; without `announce` the readings are among them."""
        readings = [] if self.announce else self.readings
        return [*readings, *self._observed.describe()]

    @property
    def source_remarks(self) -> list[str]:
        """Those of the remarks that are about items with several sources."""
        return self._observed.source_check.describe()

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
            self._observed = Observations()
            self.source_number = 0
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
            yield Batch(source=self.source_number, records=block.columns, lines=block.lines, judged=block.judged)

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
        alone = replace(self, sources=(self.sources[number],), announce=None)
        try:
            return alone._open(0, "kept", []).is_converted
        except (InputError, RowError):
            return True

    @property
    def needs_item_check(self) -> bool:
        """Whether the latest iteration has come to items that were not named `item`."""
        return self._observed.item_check.is_needed

    @property
    def findings(self) -> Findings:
        """What the latest iteration over a slice of the input found besides its records."""
        assert self._last_source is not None
        has_layout, items_are_named, rows = self._last_source
        return Findings(
            has_layout=has_layout,
            readings=tuple(self._announced.items()),
            fields_by_column=self._fields_by_column,
            items_are_named=items_are_named,
            rows=rows,
            # Hashes of this process mean nothing in another one.
            observed=replace(self._observed, source_check=SourceCheck(), item_check=ItemCheck(self.needs_item_check)),
        )

    def adopt(self, findings: Sequence[Sequence[Findings]]) -> bool:
        """Take over what was found in the slices of each source, as if they had been read here; False where this might
        have found something else."""
        if any(one.shared_state != slices[0].shared_state for slices in findings for one in slices):
            return False
        observed = self._observed = Observations()
        for number, (source, slices) in enumerate(zip(self.sources, findings, strict=True)):
            self._fields_by_column |= slices[0].fields_by_column
            systems = self._describe_systems()
            for reading, unused in slices[0].readings or ([("", ())] if systems else []):
                self._announce(source, ", ".join(filter(None, (reading, *systems))), unused)
            for one in slices:
                observed.join(one.observed)
                observed.skipped_by_source[number] += one.observed.skipped.count
                if observed.item_check.is_needed:
                    observed.item_check.add_hashes(one.items, one.systems)
                if len(self.sources) > 1:
                    has_source = one.sources != 0
                    observed.source_check.add_hashes(one.items[has_source], one.sources[has_source])
        return True

    def _read(self, size: int, judgments: Judgments) -> Iterator[Block]:
        """Yield the rows of all sources in blocks."""
        observed = self._observed = Observations()
        keys = RecordKeys()
        seen: set[int] = set()
        any_record = False
        checks: list[ColumnCheck] = []
        for file, source in enumerate(self.sources):
            self.source_number = file
            name = source.name or "the input"
            rows = self._open(file, judgments, checks)
            self.is_converted = rows.is_converted
            good, skipped = 0, observed.skipped.count
            is_open = True
            while is_open:
                block = Block()
                failure = None
                try:
                    is_open = rows.fill(block, size, judgments)
                except InputError as error:  # What comes before it is read first.
                    failure = error
                if self.keep_repeats:
                    block.keep_all(rows)
                else:
                    failure = block.keep_new(rows, keys, seen, self._describe_conflict) or failure
                observed.add(block, compare_sources=len(self.sources) > 1)
                good += block.good
                any_record = any_record or bool(block.columns)
                if block.columns or block.entries:
                    yield block
                if failure is not None:
                    raise failure
            if source.format.notes and rows.columns.samples:
                self._learn_columns({}, rows)  # what was recognised after the first rows
            observed.skipped_by_source[file] = observed.skipped.count - skipped
            if rows.layout is not None:
                observed.layout_remarks += rows.layout.remarks
            read = rows.position - source.first_row
            self._last_source = rows.is_converted, rows.parser.items_are_named, read
            if not read:
                raise InputError(f"{name}: no rows", code="no_data")
            if not good:
                count = agree(rows.position, "its only row is", f"all {rows.position:,} rows are")
                first = observed.skipped.messages[0]
                raise InputError(f"{name}: {count} bad; the first error: {first}", code="invalid_row")
        for field_name in checks[0].missing if checks else ():
            if all(field_name in check.missing for check in checks):
                names = ", ".join(self.names) or "the input"
                raise InputError(f"{names}: {checks[0].describe(field_name)}", code="unknown_name")
        if not any_record and judgments != "required":
            raise InputError(f"{', '.join(self.names) or 'the input'}: no row has an output", code="no_data")

    def _open(self, file: int, judgments: Judgments, checks: list[ColumnCheck]) -> SourceRows:
        """Begin to read a source: its first row decides on the layout of all."""
        source = self.sources[file]
        columns = ColumnMap(self.fields, self.item_key, self.system is not None)
        system = self.system or self.default_systems[file]
        wish = Wish()
        is_strict = judgments == "required"
        rows = self._check_columns(source, checks, is_strict) if self.fields else source.read_as(wish)
        layout = None
        first = next(rows, None)
        if first is not None:
            rows = chain([first], rows)
            row = first[1]
            has_known_columns = isinstance(row, dict) and row.keys() <= columns.known and not self.outputs
            if type(row) is not Record and not has_known_columns:
                from metrist.io.layouts import convert_rows

                leave_out = None if is_strict else self._observed.left_out.add
                rows, layout = convert_rows(rows, self.outputs, columns, leave_out=leave_out)
        return SourceRows(
            file=file,
            source=source,
            columns=columns,
            parser=RowParser(system=system, item_key=self.item_key, columns=columns),
            rows=rows,
            wish=wish,
            layout=layout,
            position=source.first_row,
            observed=self._observed,
            skip_bad=self.skip_bad,
            learn=self._learn_columns,
        )

    def _check_columns(
        self, source: RowSource, checks: list[ColumnCheck], judgments: bool
    ) -> Iterator[tuple[int, Any]]:
        """Yield the rows of a file; raise InputError if none has a column that was mapped to a field. Where the file
        can be read twice, that is known before the first row is used.

        Judgments may be in another file than the texts: such a file may lack a column that another one has, unless it
        has the field under its own name, which would be read instead.
        """
        check = ColumnCheck(self.fields)
        for line, row in source.read():
            if check.missing and isinstance(row, dict):
                check.add(row)
            if not source.is_repeatable:
                yield line, row
            elif not check.missing or type(row) is Cells:  # All rows of a table have the same columns.
                break
        if check.columns:  # Not of Records, or where no row can be read.
            for field_name in check.missing:
                if not judgments or len(self.sources) == 1 or field_name in check.columns:
                    name = source.name or "the input"
                    raise InputError(f"{name}: {check.describe(field_name)}", code="unknown_name")
            checks.append(check)
        if source.is_repeatable:
            yield from source.read()

    def _learn_columns(self, row: Mapping[str, Any], rows: SourceRows) -> None:
        """Look at a row that is the first one or has new columns, and announce what is recognised."""
        columns = rows.columns
        if not columns.samples and not self.item_key and "item" not in row:
            self._observed.item_check.is_needed = True
        if row.keys() <= columns.known:
            columns.samples.update(row)
        else:
            columns.learn(row)
        self._fields_by_column |= {column: name for name, column in columns.fields.items() if column and column != name}
        reading = ", ".join(
            [
                *rows.source.format.notes,
                *(rows.layout.notes if rows.layout else ()),
                *columns.describe(),
                *self._describe_systems(),
            ]
        )
        if reading:
            self._announce(rows.source, reading, columns.unused)

    def _announce(self, source: RowSource, reading: str, unused: tuple[str, ...]) -> None:
        name = source.name or "the rows"
        is_new = reading not in self._announced
        self._announced.setdefault(reading, unused)
        if unused:
            more = ", …" if len(unused) > _SHOWN_UNUSED else ""
            reading = f"{reading}, not used = {', '.join(unused[:_SHOWN_UNUSED])}{more}"
        self._readings[name] = reading
        if self.announce and is_new:
            others = " and files like it" if len(self.sources) > 1 else ""
            self.announce(f"reading {name}{others}: {reading}")

    def _describe_conflict(
        self, block: Block, rows: SourceRows, number: int, place: int, new: Iterable[int], *, is_first: bool
    ) -> str:
        """Say where a record occurred before with another text, and in which field: that is known for the first error
        and for records of the same block."""
        record = block.records[number]
        earlier = None
        file, line = split_place(place)
        first = self.sources[file].location(line)
        known: Iterable[Record] = [block.records[n] for n in new if n < number and block.lines[n] == line]
        if is_first and self.sources[file].is_repeatable:
            source = replace(self.sources[file], system=self.default_systems[file])
            again = replace(self, sources=(source,), announce=None, skip_bad=True)
            known = chain(known if file == rows.file else (), again)
        with suppress(InputError):
            earlier = next((r for r in known if (r.item, r.system) == (record.item, record.system)), None)
        other = "other texts"
        if earlier is not None:
            names = ("output", "source", "references", *CONTEXT_FIELDS)  # References are named before an instruction.
            field_name = next((name for name in names if getattr(record, name) != getattr(earlier, name)), None)
            listed = ", ".join([*TAG_FIELDS, *map(format_value, record.extra)])
            other = (
                f"a different text in {format_value(field_name)}"
                if field_name
                else f"different values in one of {listed}"
            )
        more = ""
        if "system" in rows.columns.recognised and len(self.sources) > 1:
            more = ", or `fields={'system': ''}` if the files are the systems"
        elif "item" in rows.columns.recognised:
            more = ", or `fields={'item': ''}` to number the rows instead"
        return (
            f"item {format_value(record.item)} of system {format_value(record.system)} already occurs at {first} with "
            f"{other}; use `item_key` to build the item from several fields, `fields={{'system': 'COLUMN'}}` to name "
            "the systems' column, or `fields={'COLUMN': ''}` to drop a column"
            f"{more}"
        )


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


def _list_keywords(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def check_keywords(function: Callable[..., Any], reading: Mapping[str, Any]) -> None:
    """Raise TypeError, in the name of `function`, for a keyword that neither it nor `read_records` accepts."""
    own = _list_keywords(function)
    passed_on = _list_keywords(read_records)
    for name in reading:
        if name not in passed_on:
            raise TypeError(
                f"{function.__name__}() has no parameter {name!r}{did_you_mean(name, (*own, *passed_on))}; it takes "
                f"{', '.join(own)}, and these for reading records: {', '.join(passed_on)}"
            )
