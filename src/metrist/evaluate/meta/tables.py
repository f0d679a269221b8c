"""What sources say about outputs, as Arrow tables: a run has them, and files are read into the same ones.

Only lengths of texts are kept. Names are encoded by dictionaries, and the column `at` has the place of a row among all
rows: the number of its input and its row there.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrist.evaluate.meta.dataset import LENGTHS
from metrist.io import ParsedRow, Reader
from metrist.io.row_model import Location
from metrist.records import HASH_BYTES, RecordColumns
from metrist.run.inputs import StoredReader
from metrist.run.manifest import Input
from metrist.run.run import Run
from metrist.run.tables import judged_tables, records_table

#: A task with more distinct references, or longer ones, has no closed set of answers.
MAX_LABELS = 20
_MAX_LABEL_LENGTH = 100
#: How many items each label needs on average.
_ITEMS_PER_LABEL = 2
#: The columns of a run's tables that are used; `rater` and `weight`, and what records may have besides, are left out
#: where they are empty.
_RECORDS = ("item", "system", "task", "language", "extra", "output", "source", "references", "original", "row")
_JUDGED = {
    "ratings": ("item", "system", "aspect", "value"),
    "preferences": ("item", "first", "second", "aspect", "choice"),
    "errors": ("item", "system", "aspect", "severity", "side", "start", "end"),
    "given": ("item", "system", "second", "metric", "choice", "columns", "value"),
}
_NUMBERS = {"at": pa.int64(), "value": pa.float64(), "start": pa.int64(), "end": pa.int64()}
NAMES = pa.dictionary(pa.int32(), pa.string())
_ROW_BITS = 40
_ROWS_AT_ONCE = 8192


class LabelSets:
    """Collects tasks whose answers come from a small closed set, such as "Plausible" and "Not plausible"."""

    def __init__(self) -> None:
        self._labels: dict[str, Counter[str] | None] = {}
        self._items: set[tuple[str, str]] = set()

    def add(self, records: pa.Table) -> None:
        """Count the references of each item once."""
        tasks = pc.fill_null(records["task"], "")
        if opened := [task for task, labels in self._labels.items() if labels is None]:
            others = pc.invert(pc.is_in(tasks, pa.array(opened)))
            tasks, records = tasks.filter(others), records.filter(others)
        names = tasks.to_pylist()
        columns = (records[name].to_pylist() for name in ("item", "references")) if names else ((), ())
        for task, item, references in zip(names, *columns, strict=True):
            labels = self._labels.setdefault(task, Counter())
            if labels is None or (task, item) in self._items:
                continue
            self._items.add((task, item))
            if len(references) == 1 and len(references[0]) <= _MAX_LABEL_LENGTH:
                labels[references[0]] += 1
            if len(references) != 1 or len(references[0]) > _MAX_LABEL_LENGTH or len(labels) > MAX_LABELS:
                self._labels[task] = None

    def closed(self) -> Mapping[str, Mapping[str, int]]:
        """Return, per task with a closed set, its labels and the number of items with each as the answer."""
        return {
            task: dict(labels)
            for task, labels in self._labels.items()
            if labels and len(labels) >= 2 and labels.total() >= _ITEMS_PER_LABEL * len(labels)
        }


class SourceTables:
    """The tables of all sources, in the order in which these were added."""

    def __init__(self) -> None:
        self.labels = LabelSets()
        #: Names that Arrow cannot hold, by how they are written there.
        self.originals: dict[str, str] = {}
        self._places: list[str | None] = []
        #: The rows of the records of a run, where these are all records in its order.
        self.run_rows: dict[Run, slice] = {}
        #: The inputs of runs that were read.
        self._inputs: set[Any] = set()
        self._tables: dict[str, list[pa.Table]] = {name: [] for name in ("records", *_JUDGED)}

    def add(self, reader: Reader, progress: Callable[..., None] | None = None) -> None:
        """Add what the rows of a reader say."""
        if isinstance(reader, StoredReader):
            self._add_run(reader.run, progress)
        else:
            self._add_entries(reader, progress)

    def _add_run(self, run: Run, progress: Callable[..., None] | None) -> None:
        """Add what a run says, without the inputs that another run has read, too."""
        keys = {one.number: _identify(run, one) for one in run.manifest.inputs}
        inputs = [one for one in run.manifest.inputs if keys[one.number] not in self._inputs]
        self._inputs.update(keys.values())
        places = {one.number: self.open_place(one.name and run.describe_input(one)) for one in inputs}
        done, total = 0, sum(one.records for one in inputs)
        start = sum(map(len, self._tables["records"]))
        for one, table in run.iterate_records(_RECORDS):
            if one.number in places:
                if progress:
                    progress(done, total)
                self._add_records(table, places[one.number])
                done += len(table)
        if len(inputs) == len(keys) and run.kept_rows is None:
            self.run_rows[run] = slice(start, start + done)
        for name, columns in _JUDGED.items():
            for one, table in run.iterate_parts(name, [*columns, "rater", "weight", "row"]):
                if one.number in places:
                    self._add_table(name, table, places[one.number])

    def _add_entries(self, reader: Reader, progress: Callable[..., None] | None) -> None:
        rows: list[ParsedRow] = []
        place = -1
        for row in reader.entries(progress):
            here, before = row.location, rows[-1].location if rows else None
            # Some readers go through their rows twice.
            is_next = before is not None and here.file == before.file and here.line >= before.line
            if not is_next or len(rows) >= _ROWS_AT_ONCE:
                self._add_rows(rows, place)
                place = place if is_next else self.open_place(here.file)
                rows = []
            rows.append(row)
        self._add_rows(rows, place)

    def open_place(self, name: str | None) -> int:
        """The number of a further input."""
        self._places.append(name)
        return len(self._places) - 1

    def locate(self, at: int) -> Location:
        """Where a row is."""
        return Location(self._places[at >> _ROW_BITS], at & (1 << _ROW_BITS) - 1)

    def take(self, name: str) -> pa.Table:
        """A table with the rows of all sources, which are forgotten here."""
        columns = ("at", *_JUDGED.get(name, ("item", "system")))
        schema = pa.schema([(column, _NUMBERS.get(column, NAMES)) for column in columns])
        blocks = [schema.empty_table(), *self._tables.pop(name)]
        table = pa.concat_tables(blocks, promote_options="permissive")
        at = table["at"].to_numpy()
        if (at[1:] >= at[:-1]).all():
            return table
        return table.unify_dictionaries().take(pa.array(np.argsort(at, kind="stable")))

    def _add_rows(self, rows: Sequence[ParsedRow], place: int) -> None:
        records = [record for row in rows for record in row.new]
        if records:
            lines = [row.location.line for row in rows for _ in row.new]
            hashes = np.zeros((len(records), HASH_BYTES), np.uint8)
            self._add_records(records_table(RecordColumns.of(records), hashes, 0, lines), place)
        for name, table in judged_tables(rows, 0).items():
            self._add_table(name, table, place)

    def _add_records(self, records: pa.Table, place: int) -> None:
        records = records.combine_chunks()
        originals = {
            row: json.loads(records["original"][row].as_py())
            for row in np.flatnonzero(records["original"].is_valid().to_numpy()).tolist()
        }
        for row, (item, system, *_) in originals.items():
            self.originals |= {records["item"][row].as_py(): item, records["system"][row].as_py(): system}
        names = ("row", "item", "system", "task", "language", "extra")
        columns = {name: records[name] for name in names if name in records.column_names}
        if "output" in records.column_names:  # A run may store no texts.
            self.labels.add(records)
            for name, values in _measure_lengths(records, originals).items():
                short = values.astype(np.float32)  # Most lengths are whole.
                is_same = np.array_equal(short, values, equal_nan=True)
                columns[name] = pa.array(short if is_same else values, from_pandas=True)
        self._add_table("records", pa.table(columns), place)

    def _add_table(self, name: str, table: pa.Table, place: int) -> None:
        columns = {"at": pc.add(table["row"], start_place(place))}
        optional = ("rater", "weight") if name in _JUDGED else ("task", "language", "extra", *LENGTHS)
        for column in (*_JUDGED.get(name, ("item", "system")), *optional):
            is_there = column in table.column_names
            if is_there and (column not in optional or table[column].null_count < len(table)):
                values = table[column]
                columns[column] = values.dictionary_encode() if pa.types.is_string(values.type) else values
        self._tables[name].append(pa.table(columns))


def start_place(place: int) -> int:
    """The entry of the column `at` before the first row of a place."""
    return place << _ROW_BITS


def _identify(run: Run, one: Input) -> Any:
    """What two inputs share that are the same: the file and the options that read it, or else the rows."""
    if one.path is None:
        return tuple(sorted((table, parts) for table, parts in one.tables.items()))
    return os.path.realpath(run.find_place(one)), json.dumps(one.options, sort_keys=True)


def _measure_lengths(records: pa.Table, originals: Mapping[int, Sequence[Any]]) -> dict[str, NDArray[Any]]:
    """The lengths of the texts of records; `originals` are those that Arrow cannot hold, by their row."""
    lengths: dict[str, NDArray[Any]] = {
        "output_length": pc.utf8_length(records["output"]).to_numpy(),
        "reference_length": _average_lengths(records["references"]),
        "source_length": pc.utf8_length(records["source"]).to_numpy(),
    }
    if originals:
        lengths = {name: values.astype(np.float64) for name, values in lengths.items()}
    for row, (_, _, output, source, *_, references) in originals.items():
        mean = sum(map(len, references)) / len(references) if references else np.nan
        for name, length in zip(LENGTHS, (len(output), mean, np.nan if source is None else len(source)), strict=True):
            lengths[name][row] = length
    return lengths


def _average_lengths(lists: pa.ChunkedArray) -> NDArray[np.float64]:
    """The mean length of the texts of each list; NaN for an empty one."""
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    ends = np.cumsum(counts)
    lengths = pc.utf8_length(pc.list_flatten(lists)).to_numpy()
    sums = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    total = sums[ends] - sums[ends - counts]
    means: NDArray[np.float64] = np.divide(total, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return means
