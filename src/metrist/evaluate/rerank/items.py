"""Items with all of their outputs: read, scored task by task, and written.

A log of the scores of finished tasks is where a stopped call goes on.
"""

from __future__ import annotations

import csv
import hashlib
import json
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, Self, TypeVar

import numpy as np

from metrist.errors import InputError, RunError
from metrist.io.compression import uncompressed_name
from metrist.io.fields import ColumnMap
from metrist.io.hashes import hash_records
from metrist.io.json_rows import Row
from metrist.io.reader import Reader
from metrist.io.rows import RowSource
from metrist.io.writer import atomic_write, json_line
from metrist.metrics.base import Metric, is_resident
from metrist.records import TEXT_FIELDS, Record, RecordColumns
from metrist.run.executors import choose_executor
from metrist.run.tasks import SHARD_SIZE, SHARD_SIZE_WITH_MODEL, Executor, NeedsCheck, Task
from metrist.runtime import Runtime
from metrist.scores import Failure, Scores

_T = TypeVar("_T")
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


# ---- Scores


class ScoreLog:
    """The scores of finished tasks in a file beside the output, a line for each, until the output is complete. A task
    is known by its records and by the signatures of the metrics. A line begins with its checksum: one that was cut off
    or damaged is not read."""

    def __init__(self, out: Path, metrics: Sequence[Metric]) -> None:
        self._path = out.with_name(f".{out.name}.scores")
        self._signatures = "\n".join(metric.signature for metric in metrics).encode("utf-8", "surrogatepass")
        self._known: dict[str, Mapping[str, Any]] = {}
        try:
            lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        except OSError as error:
            raise RunError(f"cannot read {self._path}: {error.strerror}", code="unreadable") from error
        for line in lines:
            checksum, _, data = line.partition(b" ")
            if data and checksum == _checksum(data):
                entry = json.loads(data)
                self._known[entry["task"]] = entry

    def find(self, records: RecordColumns) -> list[Scores] | None:
        """The scores by each metric; None if the task is not done."""
        entry = self._known.pop(self._digest(records), None)
        if entry is None:
            return None
        return [
            Scores(
                values=np.array(values, np.float64),
                failures={int(position): Failure(*failure) for position, failure in failures.items()},
            )
            for values, failures in zip(entry["values"], entry["failures"], strict=True)
        ]

    def add(self, records: RecordColumns, scores: Sequence[Scores]) -> None:
        """Add a finished task, unless some of its scores may succeed later."""
        if any(block.incomplete or any(f.kind.is_retryable for f in block.failures.values()) for block in scores):
            return
        failures = [{str(n): [failure.kind, str(failure)] for n, failure in block.failures.items()} for block in scores]
        values = [block.values.tolist() for block in scores]
        line = json_line({"task": self._digest(records), "values": values, "failures": failures})
        data = line.encode("utf-8", "backslashreplace")
        try:
            with self._path.open("ab") as file:
                file.write(b"\n" + _checksum(data) + b" " + data)  # The last line may have no end.
        except OSError as error:
            raise RunError(f"cannot write {self._path}: {error.strerror}", code="cannot_write") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._path.unlink(missing_ok=True)

    def _digest(self, records: RecordColumns) -> str:
        return hashlib.sha256(self._signatures + hash_records(records).tobytes()).hexdigest()


def _checksum(data: bytes) -> bytes:
    return b"%08x" % zlib.crc32(data)


def score_items(
    items: Iterable[Item],
    metrics: Sequence[Metric],
    executor: str | Executor | None,
    runtime: Runtime,
    log: ScoreLog | None = None,
) -> Iterator[tuple[Item, list[Scores]]]:
    """Yield each item with the scores of its outputs by each metric. The outputs of an item are in one task."""
    size = SHARD_SIZE_WITH_MODEL if any(map(is_resident, metrics)) else SHARD_SIZE
    needs = NeedsCheck(metrics)
    blocks = gather(items, lambda item: len(item.records), size)
    for block in blocks if log else ():
        records = _join_records(block)
        known = log.find(records) if log else None
        if known is None:
            blocks = chain([block], blocks)
            break
        needs.add(records)
        yield from _share_scores(block, known)
    waiting: deque[tuple[list[Item], RecordColumns]] = deque()

    def tasks() -> Iterator[Task]:
        start = 0
        for block in blocks:
            records = _join_records(block)
            needs.add(records)
            waiting.append((block, records))
            yield Task(start=start, units=records, metrics=tuple(metric.text for metric in metrics), runtime=runtime)
            start += len(records)
        needs.finish()

    chosen, _ = choose_executor(executor, metrics, runtime)
    for result in chosen.map(metrics, tasks()):
        block, records = waiting.popleft()
        scores: Any = [result.outcomes[metric.text].block for metric in metrics]
        if log:
            log.add(records, scores)
        yield from _share_scores(block, scores)


def gather(entries: Iterable[_T], measure: Callable[[_T], int], enough: int) -> Iterator[list[_T]]:
    """Yield entries together until their sizes add up to enough."""
    block, size = list[_T](), 0
    for entry in entries:
        block.append(entry)
        size += measure(entry)
        if size >= enough:
            yield block
            block, size = [], 0
    if block:
        yield block


def _join_records(block: Sequence[Item]) -> RecordColumns:
    return RecordColumns.of([record for item in block for record in item.records])


def _share_scores(block: Sequence[Item], scores: Sequence[Scores]) -> Iterator[tuple[Item, list[Scores]]]:
    start = 0
    for item in block:
        stop = start + len(item.records)
        yield item, [column.block(start, stop) for column in scores]
        start = stop
