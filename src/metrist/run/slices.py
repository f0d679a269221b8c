"""Work on slices of a run: workers read a slice of an input, or score one of the stored records, and write the parts.

Only what the command must know comes back: the parts, and what one slice cannot know of the others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrist.errors import MetristError, RunError
from metrist.io.reader import Findings
from metrist.io.remote import is_remote
from metrist.io.row_model import ParsedRow
from metrist.io.slices import FileSlice, WholeFile
from metrist.io.writer import encodable
from metrist.metrics.base import Metric
from metrist.records import Hashes
from metrist.run.manifest import Damaged, Part, Rows
from metrist.run.score_tables import scores_table
from metrist.run.store import WRITERS, Store
from metrist.run.stored_run import open_store
from metrist.run.tables import InputTables, read_hashes, read_records_table
from metrist.run.tasks import Task, cut_columns, join_blocks, perform
from metrist.runtime import Runtime
from metrist.scores import Scores


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
        store = self.store.open()
        tables = InputTables(number=self.number)
        names, judged = [hash_names([])], [hash_names([])]
        checked: list[tuple[NDArray[np.uint64], ...]] = []
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
                    # Whatever their white space; 0 for none.
                    sources = [" ".join(source.split()) if source else "" for source in records.sources]
                    has_source = np.fromiter(map(bool, sources), np.bool_, len(sources))
                    digests = hash_texts(sources) * has_source
                    checked.append((hash_texts(records.items), hash_texts(records.systems), digests))
        except MetristError:
            return None  # The command finds the same, or says what is wrong.
        findings = reader.findings
        if isinstance(self.slice, FileSlice):
            if findings.has_layout or findings.observed.skipped.count:
                return None  # Numbers of rows, and messages about bad ones, depend on the rows before.
            if not findings.items_are_named and not self.options.get("item_key") and findings.rows != self.slice.rows:
                return None  # Blank lines: the numbers of rows are not those of lines.
        tables.write(store, self.texts)
        if checked:
            items, systems, digests = map(np.concatenate, zip(*checked, strict=True))
            findings = replace(findings, items=items, systems=systems, sources=digests)
        own = np.concatenate(names)
        return SliceRead(
            tables=tables.tables,
            hashes=np.concatenate(tables.hashes),
            names=np.concatenate([own, np.setdiff1d(np.concatenate(judged), own)]),
            references=tables.references,
            findings=findings,
        )


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
        raise RunError(f"{error}: run the same `metrist score` again to redo it", code="damaged") from None
