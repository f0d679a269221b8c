"""The outputs of an item as they are read, with their rows, and the rows of the best ones as they are written."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from metrist.errors import InputError, RunError
from metrist.io.compression import uncompressed_name
from metrist.io.fields import ColumnMap
from metrist.io.json_rows import Row
from metrist.io.reader import Reader
from metrist.io.rows import RowSource
from metrist.io.writer import atomic_write, json_line
from metrist.records import TEXT_FIELDS, Record

#: The column that is added to each row.
COLUMN = "rerank"
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_LINES = (".jsonl", ".ndjson")


@dataclass(slots=True)
class Item:
    """The outputs of one item, in the order of the input, and their rows where these are kept."""

    records: list[Record] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


class ItemReader:
    """Yields items with their outputs, an item as soon as its last output was read.

    A file is read once before to count the outputs of each item, so that only items that are not complete are in
    memory: a few where the rows of an item are together.
    """

    def __init__(self, reader: Reader, *, keep_rows: bool) -> None:
        self._rows: dict[int, list[Row]] | None = {} if keep_rows else None
        sources = tuple(_split_lists(source, reader) for source in reader.sources)
        self._counting = replace(reader, keep_repeats=True, announce=None, sources=sources)
        if self._rows is not None:
            sources = tuple(_watch_rows(source, self._rows) for source in sources)
        self._reader = replace(reader, keep_repeats=True, sources=sources)
        self._has_choice = False

    @property
    def notes(self) -> list[str]:
        """Notes for the user, when all items were read."""
        reader = self._reader
        notes = [*reader.remarks, *reader.skipped.describe()]
        if not (self._has_choice or reader.needs_item_check):
            notes.append(
                "every item has one output, so that there was nothing to choose from: name the column that the outputs "
                "of an item share, `fields={'item': 'COLUMN'}`, or give `item_key='source'`"
            )
        return notes

    def __iter__(self) -> Iterator[Item]:
        left: Counter[str] | None = None
        if self._reader.names and self._reader.is_repeatable:
            left = Counter[str]()
            for batch in self._counting.batches(judgments=False):
                left.update(batch.records.items)
        items: dict[str, Item] = {}
        for batch in self._reader.batches(judgments=False):
            for record, line in zip(batch.records, batch.lines, strict=True):
                item = items.setdefault(record.item, Item())
                item.records.append(record)
                self._has_choice |= len(item.records) > 1
                if self._rows is not None:
                    rows = [] if self._reader.is_converted else self._rows.get(line, [])
                    row = rows.pop(0) if len(rows) > 1 else next(iter(rows), None)
                    item.rows.append(row or make_row(record))
                if left is not None:
                    left[record.item] -= 1
                    if not left[record.item]:
                        yield items.pop(record.item)
            if self._rows is not None:
                self._rows.clear()
        yield from items.values()


def _split_lists(source: RowSource, reader: Reader) -> RowSource:
    """The source with a row for each output where a row has a list of them, as the first of a file shows."""
    name = reader.fields.get("output") or "output"

    def find_list(row: Any) -> str | None:
        """The column of a list of outputs: that of the outputs, or `outputs` of no named systems."""
        if not isinstance(row, dict) or "systems" in row:
            return None
        column = name if name in row else "outputs"
        texts = row.get(column)
        is_list = isinstance(texts, list) and bool(texts) and all(isinstance(text, str) for text in texts)
        return column if is_list else None

    def read() -> Iterator[tuple[int, Any]]:
        columns = ColumnMap(reader.fields, reader.item_key)
        for number, (line, row) in enumerate(source.read(), 1):
            column = find_list(row)
            if column is None or not isinstance(row, dict):
                yield line, row
                continue
            texts = row.pop(column)
            if not columns.samples:
                columns.learn({**row, name: texts[0]})
            # The outputs of a row are an item, which needs a name.
            added = {"item": str(number)} if columns.numbers_items else {}
            yield from ((line, {**added, **row, name: text}) for text in texts)

    if source.is_repeatable:
        try:
            first = next(iter(source.read()), None)
        except InputError:  # The actual reading reports the error.
            return source
        if first is None or find_list(first[1]) is None:
            return source
    return replace(source, read=read)


def _watch_rows(source: RowSource, rows: dict[int, list[Row]]) -> RowSource:
    """The source, which puts a copy of each row that is read into `rows`, by its line."""

    def read() -> Iterator[tuple[int, Any]]:
        rows.clear()
        for line, row in source.read():
            if isinstance(row, dict):
                rows.setdefault(line, []).append(dict(row))
            yield line, row

    return replace(source, read=read)


def make_row(record: Record) -> Row:
    """The record as a row in metrist's own names."""
    texts = {name: value for name in TEXT_FIELDS if (value := getattr(record, name)) is not None}
    references = {"references": list(record.references)} if record.references else {}
    return {**texts, **references, **record.extra}


@contextmanager
def open_writer(path: Path) -> Iterator[Callable[[Row], None]]:
    """A function that writes a row to a JSONL, CSV or TSV file, which appears when the block ends."""
    suffix = PurePath(uncompressed_name(path)).suffix.lower()
    if suffix not in (*_LINES, *_DELIMITERS):
        expected = ", ".join((*_LINES, *_DELIMITERS))
        raise RunError(f"{path}: rows are written to {expected} files, also compressed", code="cannot_write")
    with atomic_write(path) as file:
        if suffix in _LINES:
            yield lambda row: print(json_line(row), file=file)
            return
        table: Any = None

        def write(row: Row) -> None:
            nonlocal table
            if table is None:
                table = csv.DictWriter(file, list(row), delimiter=_DELIMITERS[suffix])
                table.writeheader()
            if new := row.keys() - set(table.fieldnames):
                raise RunError(
                    f"{path}: a row has a column that the first has not, {min(new)!r}: name the file .jsonl",
                    code="cannot_write",
                )
            table.writerow({name: _format_cell(value) for name, value in row.items()})

        yield write


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
