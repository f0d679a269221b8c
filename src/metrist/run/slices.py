"""Work on slices of a run: workers read a slice of an input, or score one of the stored records, and write the parts.

Only what the command must know comes back: the parts, and what one slice cannot know of the others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrist.errors import MetristError, RunError
from metrist.io.batches import Batch
from metrist.io.reader import Findings
from metrist.io.remote import is_remote
from metrist.io.row_model import ParsedRow
from metrist.io.slices import FileSlice, WholeFile
from metrist.metrics.base import Metric
from metrist.records import HASH_BYTES, Hashes, RecordColumns
from metrist.run.flat_file import encodable
from metrist.run.manifest import Part
from metrist.run.result_log import Rows
from metrist.run.score_tables import scores_table
from metrist.run.store import WRITERS, Store
from metrist.run.stores import open_store
from metrist.run.tables import Damaged, judged_tables, read_hashes, read_records_table, records_table
from metrist.run.tasks import TASK_SECONDS, Task, count_characters, cut_columns, join_blocks, perform
from metrist.runtime import Runtime
from metrist.scores import Scores

#: Rows, and characters of texts, from which on records go into a part.
PART_ROWS = 1 << 16
_PART_TEXT = 1 << 26
#: How many times larger than the last slice the next may be: the first ones say little about the rate.
_GROWTH = 4


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where workers find the store of a run. `stamp` tells a folder from another one of the same name on another
    machine; None for a URL."""

    address: str
    stamp: int | None

    @classmethod
    def of(cls, store: Store) -> StorePlace:
        """The place of a store that is being written."""
        if is_remote(str(store.path)):
            return cls(str(store.path), None)
        address = os.path.abspath(store.path)
        return cls(address, _read_stamp(address))

    def __str__(self) -> str:
        return self.address

    def is_visible(self) -> bool:
        return self.stamp is None or _read_stamp(self.address) == self.stamp

    def open(self) -> Store:
        return open_store(self.address)


def _read_stamp(folder: str) -> int:
    try:
        return int(os.stat(os.path.join(folder, WRITERS)).st_mtime)
    except OSError:
        return -1


@dataclass(eq=False, kw_only=True)
class InputTables:
    """The tables of the input with this number, as far as it was read: parts, and batches that are not in one yet."""

    number: int
    tables: dict[str, list[Part]] = field(default_factory=dict)
    records: int = 0
    references: set[int] = field(default_factory=set)
    hashes: list[Hashes] = field(default_factory=lambda: [np.empty((0, HASH_BYTES), np.uint8)])
    waiting: list[Batch] = field(default_factory=list)
    waiting_text: int = 0

    def add(self, batch: Batch) -> None:
        self.waiting.append(batch)
        self.hashes.append(batch.hashes)
        self.records += len(batch.records)
        self.references |= {count for count in map(len, batch.records.references) if count}
        self.waiting_text += count_characters(batch.records)

    @property
    def is_full(self) -> bool:
        """Whether enough batches wait for a part."""
        rows = sum(len(waiting.records) for waiting in self.waiting)
        return rows >= PART_ROWS or self.waiting_text >= _PART_TEXT

    def write(self, store: Store, texts: bool) -> None:
        """Write what waits as one part of each table that has any rows."""
        found: dict[str, list[pa.Table]] = {}
        for batch in self.waiting:
            if len(batch.records):
                table = records_table(batch.records, batch.hashes, self.number, batch.lines, texts)
                found.setdefault("records", []).append(table)
            for name, table in judged_tables(batch.judged, self.number, texts).items():
                found.setdefault(name, []).append(table)
        for name, tables in found.items():
            self.tables.setdefault(name, []).append(store.write_part(name, pa.concat_tables(tables)))
        self.waiting, self.waiting_text = [], 0


def hash_texts(texts: Iterable[str]) -> NDArray[np.uint64]:
    """A hash of each text as tables hold it, the same in every process."""
    digests = bytearray()
    for text in texts:
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:
            data = encodable(text).encode("utf-8")
        digests += hashlib.blake2b(data, digest_size=8).digest()
    return np.frombuffer(bytes(digests), np.uint64)


def hash_names(names: Iterable[tuple[str, str]]) -> NDArray[np.uint64]:
    """A hash of each item and system."""
    return hash_texts(map("\0".join, names))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceRead:
    """A slice of an input that is in the store. `names` are hashes of the names of its records, in their order, and of
    others that it judges."""

    tables: dict[str, list[Part]]
    hashes: Hashes
    names: NDArray[np.uint64]
    references: set[int]
    findings: Findings


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSlice:
    """Read a slice of the input with this number into the store. Where the command has to read the whole input to know
    what it holds, there is no result. `is_alone` says whether there is no other input."""

    store: StorePlace
    slice: FileSlice | WholeFile
    options: Mapping[str, Any]
    number: int
    texts: bool
    is_alone: bool

    def __str__(self) -> str:
        return str(self.slice)

    def run(self, _metrics: Mapping[str, Metric]) -> SliceRead | None:
        store, tables = self.store.open(), InputTables(number=self.number)
        names, judged, checked = [hash_names([])], [hash_names([])], list[tuple[NDArray[np.uint64], ...]]()
        try:
            reader = self.slice.open(self.options)
            for batch in reader.batches():
                tables.add(batch)
                if tables.is_full:
                    tables.write(store, self.texts)
                records = batch.records
                names.append(hash_names(zip(records.items, records.systems, strict=True)))
                # A row of ratings alone belongs to a record of the slice.
                rows = (row for row in batch.judged if isinstance(row, ParsedRow))
                judged.append(hash_names(key for row in rows for key in row.keys))
                if reader.needs_item_check or not self.is_alone:
                    checked.append((hash_texts(records.items), hash_texts(records.systems), _hash_sources(records)))
        except MetristError:
            return None  # The command finds the same, or says what is wrong.
        findings = reader.findings
        if isinstance(self.slice, FileSlice):
            if findings.has_layout or findings.skipped.count:
                return None  # Numbers of rows, and messages about bad ones, depend on the rows before.
            if not findings.items_are_named and not self.options.get("item_key") and findings.rows != self.slice.rows:
                return None  # Blank lines: the numbers of rows are not those of lines.
        tables.write(store, self.texts)
        if checked:
            items, systems, sources = map(np.concatenate, zip(*checked, strict=True))
            findings = replace(findings, items=items, systems=systems, sources=sources)
        own = np.concatenate(names)
        return SliceRead(
            tables=tables.tables,
            hashes=np.concatenate(tables.hashes),
            names=np.concatenate([own, np.setdiff1d(np.concatenate(judged), own)]),
            references=tables.references,
            findings=findings,
        )


def _hash_sources(records: RecordColumns) -> NDArray[np.uint64]:
    """Hashes of the sources, whatever their white space; 0 for none."""
    sources = [" ".join(source.split()) if source else "" for source in records.sources]
    return hash_texts(sources) * np.fromiter(map(bool, sources), np.bool_, len(sources))


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceResult:
    """One metric's scores of a slice, in a part. `seconds` are without the loading of a model; `usages` are by the hash
    of the record."""

    rows: Rows
    seconds: float
    usages: dict[bytes, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreSlice:
    """Score rows of a records part, and write a part of each metric. `results` say which metrics; `start` is the
    position of the first row in the input."""

    start: int
    store: StorePlace
    part: Part
    rows: NDArray[np.int64] | range
    results: Sequence[Rows]
    shard_size: int
    tokens: bool
    runtime: Runtime | None

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return f"rows {self.rows[0] + 1:,} to {self.rows[-1] + 1:,} of records/{self.part.file}"

    def run(self, metrics: Mapping[str, Metric]) -> list[SliceResult]:
        table, rows = _read_records(self.store, self.part), self.rows
        chosen = table.slice(rows.start, len(rows)) if isinstance(rows, range) else table.take(pa.array(rows))
        hashes = read_hashes(chosen["record"])
        texts = tuple(result.metric.text for result in self.results)
        done = [
            perform(metrics, Task(start=0, units=units, metrics=texts, tokens=self.tokens, runtime=self.runtime))
            for units in cut_columns(read_records_table(chosen), self.shard_size)
        ]
        store, results = self.store.open(), []
        for result in self.results:
            text = result.metric.text
            outcomes = [task.outcomes[text] for task in done]
            scores = join_blocks([outcome.block for outcome in outcomes])
            assert isinstance(scores, Scores)
            seconds = sum(outcome.seconds for outcome in outcomes)
            filled = msgspec.structs.replace(
                result,
                table=scores_table(text, hashes, scores),
                facts={"seconds": round(seconds, 6), "records": len(scores)},
                tokens=self.tokens,
            )
            results.append(
                SliceResult(
                    rows=msgspec.structs.replace(result, part=store.write_rows(filled)),
                    seconds=seconds - sum(outcome.loading for outcome in outcomes),
                    usages={hashes[row].tobytes(): usage for row, usage in scores.usages.items()},
                )
            )
        return results


@lru_cache(maxsize=1)
def _read_records(store: StorePlace, part: Part) -> pa.Table:
    try:
        return store.open().read_part("records", part)
    except Damaged as error:
        raise RunError(f"{error}: run the same `metrist score` again to redo it") from None


@dataclass(eq=False, kw_only=True)
class SliceSize:
    """Decides how many rows the next slice has, so that it takes about `TASK_SECONDS`. Without a limit it stays as it
    is."""

    rows: int
    limit: int | None = None
    rates: list[float] = field(default_factory=list)

    def measure(self, rows: int, seconds: float) -> None:
        # The slower of two counts: texts differ.
        self.rates = [*self.rates[-1:], seconds / rows]
        if self.limit is not None:
            wanted = int(TASK_SECONDS / max(*self.rates, 1e-9))
            self.rows = max(1, min(self.limit, wanted, _GROWTH * self.rows))

    def cut(self, rows: NDArray[np.int64], items: NDArray[Any]) -> Iterator[NDArray[np.int64] | range]:
        """Cut rows of a part into slices. One ends with an item where that does not halve it, and leaves no small
        rest."""
        while len(rows):
            count = size = self.rows
            if len(rows) <= 1.5 * size:
                count = len(rows)
            elif len(ends := np.flatnonzero(items[rows[1 : size + 1]] != items[rows[:size]])) and 2 * ends[-1] > size:
                count = int(ends[-1]) + 1
            chosen, rows = rows[:count], rows[count:]
            first, last = int(chosen[0]), int(chosen[-1])
            yield range(first, last + 1) if last - first + 1 == count else chosen
