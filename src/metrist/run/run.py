"""Read a run: `open_run` gives a `Run`, through which everything else reads records, scores and ratings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrist.errors import MetristError, RunError
from metrist.io.remote import is_pattern, is_remote
from metrist.io.writer import encodable
from metrist.names import NameColumn, take_names
from metrist.records import Hashes
from metrist.run import tables
from metrist.run.manifest import MANIFEST, StoredMetric
from metrist.run.query import name_columns, run_query
from metrist.run.stored_run import StoredRun, open_store
from metrist.run.stored_scores import ScoreReader, StoredScores
from metrist.scores import Scores
from metrist.settings import checks_types


def is_run(path: Any) -> bool:
    if isinstance(path, str) and is_remote(path):
        store = None if is_pattern(path) else open_store(path)
        try:
            return store is not None and store.read_bytes(MANIFEST) is not None
        except MetristError:  # The reader of the URL reports the error.
            return False
    return isinstance(path, str | os.PathLike) and (Path(path) / MANIFEST).is_file()


@checks_types
def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run folder, or its URL, for reading. Nothing is read before it is asked for."""
    store = open_store(path)
    if store.is_local:
        if not os.path.lexists(path):
            raise RunError(f"there is no run at {store.name}", code="missing_file")
        if os.access(path, os.R_OK) and not os.path.lexists(Path(path) / MANIFEST):
            raise RunError(f"{store.name} is not a run folder: it has no {MANIFEST}", code="invalid_value")
        store.check()
    return Run.open(store)


def query_with_notes(run: Run, sql: str) -> tuple[pa.Table, list[str]]:
    """The answer to a query, and notes on metrics that have not scored all records, if it is about scores."""
    answer = run_query(run, sql)
    if not answer.reads_scores:
        return answer.table, []
    notes: list[str] = []
    hashes = run.read_hashes() if answer.differing else None
    for metric in answer.differing:
        _, missing = run.read_scores(metric, hashes)
        notes += run.describe_missing(metric, missing)
    return answer.table, notes + run.describe_unfinished()


#: The columns of `Run.scores`.
_SCORES = pa.schema([*(tables.RECORDS.field(name) for name in ("item", "system")), *tables.SCORES])


class Run(StoredRun):
    """A run folder as tables.

    `records`, `scores`, `ratings`, `preferences`, `errors` and `wide` return `pyarrow.Table`s; `query` answers SQL over
    views of these names. `metrist.load` gives the scores as `metrist.Results`, with system scores.
    """

    def __repr__(self) -> str:
        labels = ", ".join(metric.label for metric in self.manifest.metrics)
        return f"Run({self.name}, {sum(one.records for one in self.manifest.inputs):,} records, metrics: {labels})"

    # ---- Tables

    def records(self, columns: str | Sequence[str] | None = None) -> pa.Table:
        """The records, one row each: hash, item, system, texts, and the input and row that each came from."""
        return self._table("records", tables.RECORDS, columns)

    def ratings(self) -> pa.Table:
        """What people rated: item, system, aspect, rater, value."""
        return self._table("ratings", tables.RATINGS)

    def preferences(self) -> pa.Table:
        """Which of two outputs people preferred."""
        return self._table("preferences", tables.PREFERENCES)

    def errors(self) -> pa.Table:
        """The errors that people marked in outputs."""
        return self._table("errors", tables.ERRORS)

    def scores(
        self, metrics: str | Sequence[str] | None = None, columns: str | Sequence[str] | None = None
    ) -> pa.Table:
        """Scores of finished metrics, or of these, a row for each metric and each record that it has scored."""
        finished = self.finished_metrics()
        labels = [metric.label for metric in finished]
        wanted = labels if metrics is None else _list_names(metrics)
        if unknown := [label for label in wanted if label not in labels]:
            raise RunError(
                f"{self.name} has no finished metric {unknown[0]!r}; it has {', '.join(labels)}", code="no_data"
            )
        names = _choose_columns("scores", _SCORES, columns)
        schema = pa.schema([_SCORES.field(name) for name in names])
        stored = pa.schema([field for field in tables.SCORES if field.name in (*names, "record")])
        blocks, hashes = [schema.empty_table()], self.read_hashes()
        for metric in finished:
            if metric.label not in wanted or metric.finished is None:
                continue
            parts = [stored.empty_table()]
            for part in metric.finished.parts:
                table = self.read_part(metric.place, part, stored.names).replace_schema_metadata()
                parts.append(pa.concat_tables([stored.empty_table(), table], promote_options="default"))
            table = pa.concat_tables(parts)
            positions = ScoreReader(self, metric, hashes).positions
            scored: Any = slice(None)
            if positions is not None:  # In the order of the records.
                scored = np.flatnonzero(positions >= 0)
                table = tables.take(table, positions[scored])
            cells: dict[str, Any] = dict(zip(table.column_names, table.columns, strict=True))
            if "metric" in names:
                cells["metric"] = tables.repeat_value(metric.label, len(table))
            if "item" in names:
                cells["item"] = _decode_names(take_names(self.view.items, scored))
            if "system" in names:
                cells["system"] = _decode_names(take_names(self.view.systems, scored))
            blocks.append(pa.table([cells[name] for name in names], schema=schema))
        return pa.concat_tables(blocks)

    def wide(self) -> pa.Table:
        """One row per record: hash, item, system, and a column with the value of each metric. Metrics whose labels
        differ only in case, or are the name of another column, have columns with a number, such as `A (1)`."""
        hashes, finished = self.read_hashes(), self.finished_metrics()
        columns: dict[str, Any] = {
            "record": tables.make_hash_array(hashes),
            "item": _decode_names(self.view.items),
            "system": _decode_names(self.view.systems),
        }
        for name, metric in zip(name_columns([metric.label for metric in finished]), finished, strict=True):
            values = ScoreReader(self, metric, hashes).read_values()
            columns[name] = pa.array(values, pa.float64(), mask=np.isnan(values))
        return pa.table(columns)

    def query(self, sql: str) -> pa.Table:
        """The answer to a query over the views records, scores, wide, ratings, errors, preferences and pairs."""
        return run_query(self, sql).table

    def _table(self, folder: str, schema: pa.Schema, columns: str | Sequence[str] | None = None) -> pa.Table:
        wanted = names = _choose_columns(folder, schema, columns)
        if not self.manifest.texts:
            names = [name for name in names if name not in tables.QUOTING_COLUMNS]
            if columns and len(names) < len(wanted):
                raise RunError(f"{self.name} stores no texts: read them from its inputs", code="no_data")
        if folder == "records":
            parts = [table for _, table in self.iterate_records(names)]
        else:
            parts = [table for _, table in self.iterate_parts(folder, names)]
        schema = pa.schema([schema.field(name) for name in names])
        return pa.concat_tables([part.select(names) for part in parts]) if parts else schema.empty_table()

    def read_scores(self, metric: StoredMetric, hashes: Hashes | None = None) -> tuple[Scores, NDArray[np.int64]]:
        """One metric's scores of all records, and the positions of those that it has not scored yet, which have a
        failure of kind `pending`. `hashes` are those of the records, if they were read before."""
        reader = ScoreReader(self, metric, self.read_hashes() if hashes is None else hashes)
        return StoredScores(reader), reader.missing


def _list_names(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _choose_columns(table: str, schema: pa.Schema, columns: str | Sequence[str] | None) -> list[str]:
    """The columns that are asked for, or all that are not internal."""
    known = [name for name in schema.names if name != "original"]
    names = _list_names(columns) if columns else known
    if unknown := [name for name in names if name not in schema.names]:
        raise RunError(f"{table} have no column {unknown[0]!r}; they have {', '.join(known)}", code="unknown_name")
    return names


def _decode_names(column: NameColumn) -> pa.Array:
    """A column of names as texts, as the tables show them."""
    names = pa.array(map(encodable, column.names), pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(column.codes), names).dictionary_decode()
