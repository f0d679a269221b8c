"""Texts of the outputs of results, people's ratings of them and the errors that people marked, by position.

A run with texts is read where it is: the texts of single outputs, and ratings as arrays. Rows of files, and those that
a run without texts reads again, are first put into the same tables, in memory.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrist.io import ParsedRow, Reader
from metrist.io.reader import RowProgress
from metrist.io.writer import encodable
from metrist.names import NameColumn, find_outputs, list_distinct
from metrist.ratings import Error
from metrist.records import HASH_BYTES, TEXT_FIELDS, Record, RecordColumns
from metrist.run.inputs import StoredReader, read_inputs
from metrist.run.manifest import Input, Manifest, Part
from metrist.run.query import open_database, quote_text, read_rows, scan_table
from metrist.run.store import Store
from metrist.run.stored_run import StoredRun, read_names
from metrist.run.stored_scores import StoredScores
from metrist.run.tables import QUOTING_COLUMNS, RECORDS, judged_tables, read_numbers, read_records_table, records_table
from metrist.scores import Scores

if TYPE_CHECKING:
    import duckdb

    from metrist.run.results import Results

_RECORD = pa.schema([field for field in RECORDS if field.name not in ("record", "source_digest", "input", "row")])
_ERROR_FIELDS = tuple(Error.__dataclass_fields__)
#: Outputs up to which it takes less time to read all scores than single ones.
_MANY = 20_000
#: Rows of files that become a part at once.
_BATCH = 8192


class RatedRows(NamedTuple):
    """People's ratings of one aspect, in the order in which they were read, with the positions of their outputs."""

    rows: NDArray[np.intp]
    values: NDArray[np.float64]

    def mean(self, size: int) -> NDArray[np.float64]:
        """The mean rating of each of `size` outputs; NaN where there is none."""
        means = np.full(size, np.nan)
        if (np.diff(self.rows) > 0).all():
            means[self.rows] = self.values
            return means
        order = np.argsort(self.rows, kind="stable")
        rated, starts, counts = np.unique(self.rows[order], return_index=True, return_counts=True)
        for count in np.unique(counts).tolist():
            # Row by row, so that sums are those of each output's own ratings.
            own = counts == count
            means[rated[own]] = self.values[order][starts[own, None] + np.arange(count)].mean(axis=1)
        return means


@dataclass(slots=True)
class OutputFacts:
    """What inputs say about one output."""

    record: Record | None = None
    ratings: dict[str, list[float]] = field(default_factory=dict)
    errors: list[Error] = field(default_factory=list)


@dataclass(eq=False)
class OutputTexts:
    """What a run says about the outputs with these items and systems. `remarks` are about the files that were read."""

    run: StoredRun
    items: Sequence[str]
    systems: Sequence[str]
    remarks: list[str] = field(default_factory=list)

    @classmethod
    def open(
        cls, results: Results, texts: Any = None, *, progress: RowProgress | None = None, **reading: Any
    ) -> OutputTexts:
        """The texts of results: those that were scored, or `texts`, in any form that `read_records` takes."""
        names = [texts] if isinstance(texts, str | os.PathLike) else texts
        are_files = isinstance(names, list | tuple) and all(isinstance(name, str | os.PathLike) for name in names)
        inputs = results.inputs
        if inputs is not None and not isinstance(inputs, Reader) and (texts is None or are_files):
            reader = read_inputs(inputs, names or (), **reading)
        else:
            reader = results.read_inputs(texts, **reading)
        run = reader.run if isinstance(reader, StoredReader) else hold_rows(reader, progress)
        return cls(run, results.items, results.systems, [*reader.remarks, *reader.skipped.describe()])

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def rows(self) -> NDArray[np.intp]:
        """The row of each output's record in the parts of the run; -1 where there is no record."""
        known = self.run.view
        if self.items is known.items and self.systems is known.systems:
            found = np.arange(len(known))
        else:
            found = find_outputs(self.items, self.systems, known.items, known.systems)
        return found if known.rows is None else np.where(found >= 0, known.rows[found], -1)

    @property
    def has_text(self) -> NDArray[np.bool_]:
        return self.rows >= 0

    @property
    def stores_texts(self) -> bool:
        """Whether texts of outputs are there at all."""
        return self.run.has_texts

    def read(
        self, positions: Sequence[int], connection: duckdb.DuckDBPyConnection | None = None
    ) -> dict[int, OutputFacts]:
        """All that is known about some outputs."""
        facts = {position: OutputFacts() for position in positions}
        known = [position for position in facts if self.rows[position] >= 0] if self.run.has_texts else []
        by_name = {(encodable(self.items[n]), encodable(self.systems[n])): facts[n] for n in facts}
        with nullcontext(connection) if connection else closing(open_database(self.run)) as database:
            if known:
                parts = [part for _, part in self.run.list_parts("records")]
                table = read_rows(database, self.run, "records", parts, self.rows[known], _RECORD)
                for position, record in zip(known, read_records_table(table), strict=True):
                    facts[position].record = record
            items = ", ".join(quote_text(item) for item in dict.fromkeys(item for item, _ in by_name))
            for row in self._select(database, "ratings", ("item", "system", "aspect", "value"), items):
                if own := by_name.get((row["item"], row["system"])):
                    own.ratings.setdefault(row["aspect"], []).append(row["value"])
            fields = [name for name in _ERROR_FIELDS if self.run.has_texts or name not in QUOTING_COLUMNS]
            for row in self._select(database, "errors", ("item", "system", *fields), items):
                if own := by_name.get((row.pop("item"), row.pop("system"))):
                    own.errors.append(Error(**row))
        return facts

    def read_texts(
        self, positions: Sequence[int], fields: Sequence[str], connection: duckdb.DuckDBPyConnection
    ) -> dict[int, dict[str, str | None]]:
        """Some fields of some outputs; nothing where there is no record."""
        known = [position for position in positions if self.rows[position] >= 0]
        parts = [part for _, part in self.run.list_parts("records")]
        schema = pa.schema([RECORDS.field(name) for name in (*fields, "original")])
        table = read_rows(connection, self.run, "records", parts, self.rows[known], schema)
        texts: dict[int, dict[str, str | None]] = {position: {} for position in positions}
        for position, row in zip(known, table.to_pylist(), strict=True):
            original = row.pop("original")
            own = dict(zip(TEXT_FIELDS, json.loads(original), strict=False)) if original else row
            texts[position] = {name: own[name] for name in fields}
        return texts

    def _select(
        self, database: duckdb.DuckDBPyConnection, table: str, columns: Sequence[str], items: str
    ) -> list[dict[str, Any]]:
        """The rows of a table about some items, in their order."""
        source = scan_table(self.run, table)
        if source is None or not items:
            return []
        names = ", ".join(f'"{name}"' for name in columns)
        rows: list[dict[str, Any]]
        rows = database.sql(f"SELECT {names} FROM {source} WHERE item IN ({items})").to_arrow_table().to_pylist()
        return rows

    # ---- All outputs

    @cached_property
    def ratings(self) -> dict[str, RatedRows]:
        table = self._read_table("ratings", ("item", "system", "aspect", "value"), ("item", "system", "aspect"))
        if table is None:
            return {}
        rows = self.find_outputs(table)
        aspects, values = read_names(table["aspect"].chunks), read_numbers(table["value"])
        rated = {}
        for number, aspect in enumerate(aspects.names):
            own = np.flatnonzero((aspects.codes == number) & (rows >= 0))
            if len(own):
                rated[aspect] = RatedRows(rows[own], values[own])
        return rated

    @cached_property
    def errors(self) -> dict[int, list[Error]]:
        """The errors that people marked, by the position of the output."""
        table = self._read_table("errors", ("item", "system", *_ERROR_FIELDS), ("item", "system"))
        if table is None:
            return {}
        rows = self.find_outputs(table).tolist()
        errors: dict[int, list[Error]] = {}
        for row, error in zip(rows, table.drop_columns(["item", "system"]).to_pylist(), strict=True):
            if row >= 0:
                errors.setdefault(row, []).append(Error(**error))
        return errors

    def find_outputs(self, table: pa.Table) -> NDArray[np.intp]:
        """The positions of the outputs that rows of a table are about; -1 for others. Its names are encoded."""
        items, systems = (read_names(table[name].chunks) for name in ("item", "system"))
        return find_outputs(
            _restore_names(items, self.items), _restore_names(systems, self.systems), self.items, self.systems
        )

    def _read_table(self, name: str, columns: Sequence[str], encoded: Sequence[str]) -> pa.Table | None:
        parts = [table.replace_schema_metadata() for _, table in self.run.iterate_parts(name, columns, encoded)]
        return pa.concat_tables(parts) if parts else None


def _restore_names(column: NameColumn, known: Sequence[str]) -> NameColumn:
    """Names that Arrow cannot hold as the results have them."""
    if not any("\\" in name for name in column.names):
        return column
    originals = {encodable(name): name for name in list_distinct(known)}
    return NameColumn(column.codes, tuple(originals.get(name, name) for name in column.names))


def take_scores(results: Results, positions: Sequence[int]) -> dict[str, Scores]:
    """The scores of some outputs by each metric. Of many that a run stores, nothing else is read."""
    run = results.inputs if len(results) > _MANY else None
    with closing(open_database(run)) if isinstance(run, StoredRun) else nullcontext() as database:
        return {
            label: block.reader.take(positions, database)
            if isinstance(block, StoredScores) and database
            else block.take(positions)
            for label, block in results.scores.items()
        }


class MemoryStore(Store):
    """A run that is in memory only."""

    is_local = False

    def __init__(self) -> None:
        super().__init__("memory://rows")  # type: ignore[arg-type]
        self._files: dict[str, bytes] = {}

    @property
    def name(self) -> str:
        return "rows in memory"

    def write_bytes(self, name: str, data: bytes | memoryview) -> None:
        self._files[name] = bytes(data)

    def open_file(self, name: str) -> Any:
        return io.BytesIO(self._files[name])

    def check_part(self, folder: str, part: Part) -> None:
        """Memory is not checked."""


def hold_rows(reader: Reader, progress: RowProgress | None = None) -> StoredRun:
    """A run in memory with what the rows of a reader say, each output once."""
    store, parts = MemoryStore(), dict[str, list[Part]]()
    seen: set[tuple[str, str]] = set()

    def add(rows: Sequence[ParsedRow]) -> None:
        records, lines = list[Record](), list[int]()
        for row in rows:
            for record in row.records:
                if (record.item, record.system) not in seen:
                    seen.add((record.item, record.system))
                    records.append(record)
                    lines.append(row.location.line)
        found = judged_tables(rows, 0)
        if records:
            hashes = np.zeros((len(records), HASH_BYTES), np.uint8)
            found["records"] = records_table(RecordColumns.of(records), hashes, 0, lines)
        for name, table in found.items():
            parts.setdefault(name, []).append(store.write_part(name, table))

    waiting: list[ParsedRow] = []
    for row in reader.entries(progress):
        waiting.append(row)
        if len(waiting) == _BATCH:
            add(waiting)
            waiting = []
    add(waiting)
    tables = {name: tuple(own) for name, own in parts.items()}
    return StoredRun(store, Manifest(inputs=(Input(number=0, records=len(seen), tables=tables),)))
