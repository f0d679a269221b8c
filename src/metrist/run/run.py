"""Read a run: `open_run` gives a `Run`, through which everything else reads records, scores and ratings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.records import Hashes
from metrist.run import tables
from metrist.run.query import run_query
from metrist.run.store import MANIFEST, Store, StoredMetric
from metrist.run.stored_run import StoredRun
from metrist.run.stored_scores import ScoreReader, StoredScores
from metrist.run.stores import open_store
from metrist.scores import Scores


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run folder, or its URL, for reading. Nothing is read before it is asked for."""
    store = open_store(path)
    store.check()
    return Run.open(store)


class Run(StoredRun):
    """A run folder as tables.

    `records`, `scores`, `ratings`, `preferences`, `errors` and `wide` return `pyarrow.Table`s with the columns that are
    asked for; `query` answers SQL over views of these names. `results` gives the scores as `metrist.Results`.
    """

    @classmethod
    def open(cls, store: Store) -> Run:
        """The run of a store, whose parts stay as long as it is used."""
        store.hold_parts()
        manifest = store.read_manifest()
        if manifest is None:
            raise RunError(f"{store.name} is not a run folder: it has no {MANIFEST}")
        return cls(store, manifest)

    def __repr__(self) -> str:
        labels = ", ".join(metric.label for metric in self.manifest.metrics)
        return f"Run({self.name}, {sum(one.records for one in self.manifest.inputs):,} records, metrics: {labels})"

    # ---- Tables

    def records(self, columns: Sequence[str] | None = None) -> pa.Table:
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

    def scores(self, metrics: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Scores of finished metrics, or of these, a row for each metric and record of the run."""
        by_label = {metric.label: metric for metric in self.finished_metrics()}
        if unknown := [label for label in metrics or () if label not in by_label]:
            raise RunError(f"{self.name} has no finished metric {unknown[0]!r}; it has {', '.join(by_label)}")
        chosen = [metric for label, metric in by_label.items() if metrics is None or label in metrics]
        wanted = list(columns) if columns else [name for name in tables.SCORES.names if name != "original"]
        _check_columns("scores", wanted, tables.SCORES)
        schema = pa.schema([tables.SCORES.field(name) for name in wanted])
        blocks, hashes = [schema.empty_table()], self.read_hashes()
        for metric in chosen:
            parts = [schema.empty_table()]
            for part in metric.finished.parts if metric.finished else ():
                table = self.read_part(metric.place, part, wanted).replace_schema_metadata()
                parts.append(pa.concat_tables([schema.empty_table(), table], promote_options="default"))
            table = pa.concat_tables(parts)
            positions = ScoreReader(self, metric, hashes).positions
            blocks.append(table if positions is None else table.take(pa.array(positions[positions >= 0])))
        return pa.concat_tables(blocks)

    def wide(self) -> pa.Table:
        """One row per record: item, system, and a column with the value of each metric."""
        records = self.view
        columns: dict[str, Any] = {"item": list(records.items), "system": list(records.systems)}
        hashes = self.read_hashes()
        for metric in self.finished_metrics():
            values = ScoreReader(self, metric, hashes).read_values()
            columns[metric.label] = pa.array(values, pa.float64(), mask=np.isnan(values))
        return pa.table(columns)

    def query(self, sql: str) -> pa.Table:
        """The answer to a query over the views records, scores, wide, ratings, errors, preferences and pairs."""
        return run_query(self, sql)

    def _table(self, folder: str, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
        names = list(columns) if columns else schema.names
        _check_columns(folder, names, schema)
        if not self.manifest.texts:
            names = [name for name in names if name not in tables.TEXT_COLUMNS]
            if columns and len(names) < len(columns):
                raise RunError(f"{self.name} stores no texts (--no-texts): read them from its inputs")
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


def _check_columns(table: str, names: Sequence[str], schema: pa.Schema) -> None:
    if unknown := [name for name in names if name not in schema.names]:
        raise RunError(f"{table} have no column {unknown[0]!r}; they have {', '.join(schema.names)}")
