"""What sources say about outputs: Arrow tables of runs and files, and the `JudgedDataset` that is made of them.

Only lengths of texts are kept. Names are encoded by dictionaries, and the column `at` has the place of a row among all
rows: the number of its input and its row there. Outputs are numbered by item and system, in the order in which they
first appear.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrist.errors import InputError, label_item
from metrist.evaluate.meta.dataset import (
    LENGTHS,
    Choices,
    ErrorSpans,
    JudgedDataset,
    Labels,
    LabelSets,
    MetricScores,
    are_all,
)
from metrist.evaluate.meta.lengths import length_columns, measure_lengths
from metrist.io import ParsedRow, Reader
from metrist.io.row_model import Location
from metrist.io.writer import encodable
from metrist.names import encode_names
from metrist.records import HASH_BYTES, TAG_FIELDS, RecordColumns
from metrist.run.inputs import StoredReader
from metrist.run.run import Run
from metrist.run.tables import judged_tables, records_table
from metrist.stats import Codes, Floats
from metrist.stats.gold import UNKNOWN, Ratings
from metrist.stats.samples import whole_weights

#: The columns of a run's tables that are used; `rater` and `weight`, and what records may have besides, are left out
#: where they are empty.
_RECORDS = ("item", "system", *TAG_FIELDS, "extra", "output", "source", "references", "original", "row")
_JUDGED = {
    "ratings": ("item", "system", "aspect", "value"),
    "preferences": ("item", "first", "second", "aspect", "choice"),
    "errors": ("item", "system", "severity", "side", "start", "end"),
    "given": ("item", "system", "second", "metric", "choice", "answer", "columns", "value"),
}
_NUMBERS = {"at": pa.int64(), "value": pa.float64(), "start": pa.int64(), "end": pa.int64()}
NAMES = pa.dictionary(pa.int32(), pa.string())
_ROW_BITS = 40
_ROWS_AT_ONCE = 8192


class SourceTables:
    """The tables of all sources, in the order in which these were added."""

    def __init__(self, units: Sequence[str] = ()) -> None:
        self.labels = LabelSets()
        #: The units of lengths besides characters.
        self._units = tuple(units)
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
            return
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

    def _add_run(self, run: Run, progress: Callable[..., None] | None) -> None:
        """Add what a run says, without the inputs that another run has read, too."""
        keys: dict[int, Any] = {}
        for source in run.manifest.inputs:
            # Two inputs are the same if they share the file and the options that read it, or else the rows.
            if source.path is None:
                keys[source.number] = tuple(sorted((table, parts) for table, parts in source.tables.items()))
            else:
                path = os.path.realpath(run.find_place(source))
                keys[source.number] = path, json.dumps(source.options, sort_keys=True)
        inputs = [source for source in run.manifest.inputs if keys[source.number] not in self._inputs]
        self._inputs.update(keys.values())
        places = {source.number: self.open_place(source.name and run.describe_input(source)) for source in inputs}
        done, total = 0, sum(source.records for source in inputs)
        start = sum(map(len, self._tables["records"]))
        for source, table in run.iterate_records(_RECORDS):
            if source.number in places:
                if progress:
                    progress(done, total)
                self._add_records(table, places[source.number])
                done += len(table)
        if len(inputs) == len(keys) and run.kept_rows is None:
            self.run_rows[run] = slice(start, start + done)
        for name, columns in _JUDGED.items():
            for source, table in run.iterate_parts(name, [*columns, "rater", "weight", "row"]):
                if source.number in places:
                    self._add_table(name, table, places[source.number])

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
        names = ("row", "item", "system", *TAG_FIELDS, "extra")
        columns = {name: records[name] for name in names if name in records.column_names}
        if "output" in records.column_names:  # A run may store no texts.
            self.labels.add(records)
            for name, values in measure_lengths(records, originals, self._units).items():
                short = values.astype(np.float32)  # Most lengths are whole.
                is_same = np.array_equal(short, values, equal_nan=True)
                columns[name] = pa.array(short if is_same else values, from_pandas=True)
        self._add_table("records", pa.table(columns), place)

    def _add_table(self, name: str, table: pa.Table, place: int) -> None:
        columns = {"at": pc.add(table["row"], place << _ROW_BITS)}
        optional = ("rater", "weight") if name in _JUDGED else (*TAG_FIELDS, "extra", *length_columns(self._units))
        for column in (*_JUDGED.get(name, ("item", "system")), *optional):
            is_there = column in table.column_names
            if is_there and (column not in optional or table[column].null_count < len(table)):
                values = table[column]
                columns[column] = values.dictionary_encode() if pa.types.is_string(values.type) else values
        self._tables[name].append(pa.table(columns))


# ---- From tables to columns


_CHOICES = {"first": 1.0, "second": -1.0, "tie": 0.0}
#: A column with longer values holds texts, not names to slice by.
_MAX_NAME_LENGTH = 200
#: Items and systems, one of each per output.
OutputNames = tuple[Sequence[str], Sequence[str]]
_Integers = NDArray[np.int64]


def build_dataset(
    tables: SourceTables, others: Sequence[tuple[Run | None, Callable[[], OutputNames]]]
) -> tuple[JudgedDataset, list[Codes | None]]:
    """Return what the tables say, without the scores of runs, and the numbers of the outputs of `others`: None where
    they are all outputs in order. Outputs that only those have come last.

    An entry of `others` is a run whose outputs are meant, if it is one, and a function that returns their names.
    """
    records, ratings, preferences, errors, given = map(
        tables.take, ("records", "ratings", "preferences", "errors", "given")
    )
    chosen = given.filter(pc.is_valid(given["second"]))
    named = {
        str(number): (_encode_outputs(list_names(), tables), "system")
        for number, (run, list_names) in enumerate(others)
        if run not in tables.run_rows
    }
    outputs = _number_outputs(
        {
            "records": (records, "system"),
            "given": (given, "system"),
            "ratings": (ratings, "system"),
            "errors": (errors, "system"),
            "first": (preferences, "first"),
            "second": (preferences, "second"),
            "chosen": (chosen, "second"),
            **named,
        },
        tables.originals,
    )
    named.clear()
    # Names are numbers now, and these tables are large.
    records, ratings = (table.drop_columns(["item", "system"]) for table in (records, ratings))
    raters, rater_codes = _number_raters([ratings, errors, preferences])
    lengths = {}
    for name in [name for name in records.column_names if name.partition(":")[0] in LENGTHS]:
        values = records[name].to_numpy()
        known = ~np.isnan(values)
        lengths[name] = np.full(len(outputs), np.nan, values.dtype)
        lengths[name][outputs.of["records"][known]] = values[known]
    dataset = JudgedDataset(
        items=outputs.items,
        systems=outputs.systems,
        columns=_read_columns(records, given, outputs),
        lengths=lengths,
        raters=raters,
        ratings={
            aspect: Ratings.of(
                outputs.of["ratings"][rows], rater_codes[0][rows], ratings["value"].to_numpy()[rows], len(outputs)
            )
            for aspect, rows in _group(ratings, "aspect")
        },
        scores=_read_scores(given, outputs, tables),
        preferences=_read_preferences(preferences, rater_codes[2], outputs),
        weight=_read_weights(ratings, given, outputs),
        choices=_read_choices(given, chosen, outputs),
        errors=_read_errors(errors, outputs.of["errors"], rater_codes[1]) if len(errors) else None,
        label_sets=tables.labels.closed(),
        notes=tuple(_describe_repeats(ratings, preferences, rater_codes, outputs)),
    )
    numbers: list[Codes | None] = []
    for number, (run, _) in enumerate(others):
        own = outputs.of["records"][tables.run_rows[run]] if run in tables.run_rows else outputs.of.get(str(number))
        numbers.append(None if own is None or are_all(own, len(outputs)) else own)
    return dataset, numbers


# ---- Numbers of outputs and names


@dataclass(frozen=True, slots=True, eq=False)
class _Outputs:
    """The item and the system of each output, and the number of the output of each row, by the name of the rows."""

    items: Labels
    systems: Labels
    of: Mapping[str, Codes]

    def __len__(self) -> int:
        return len(self.items.codes)


def _encode_outputs(names: OutputNames, tables: SourceTables) -> pa.Table:
    """Return outputs as rows that come after all others."""
    columns = {"at": pa.array((tables.open_place(None) << _ROW_BITS) + np.arange(len(names[0])))}
    for name, column in zip(("item", "system"), map(encode_names, names), strict=True):
        written = [encodable(own) for own in column.names]
        tables.originals.update(pair for pair in zip(written, column.names, strict=True) if pair[0] != pair[1])
        columns[name] = pa.DictionaryArray.from_arrays(
            pa.array(column.codes, pa.int32()), pa.array(written, pa.string())
        )
    return pa.table(columns)


def _number_outputs(rows: Mapping[str, tuple[pa.Table, str]], originals: Mapping[str, str]) -> _Outputs:
    """Number the outputs that rows are about, which are tables with the names of their columns of systems, in the order
    of their places. Those of records come first."""
    at = [table["at"].to_numpy() for table, _ in rows.values()]
    items, item_names = _unify([table["item"] for table, _ in rows.values()])
    systems, system_names = _unify([table[system] for table, system in rows.values()])
    width = max(1, len(system_names))
    keys = [items.pop(0) * np.int64(width) + systems.pop(0) for _ in at]
    # Rows about all records in order, such as ratings by one rater, are numbered as those are.
    own = [n for n, key in enumerate(keys) if not n or not np.array_equal(key, keys[0]) or (at[n] < at[0]).any()]
    sizes = [len(keys[n]) for n in own]
    all_keys, all_at = (np.concatenate([column[n] for n in own]) for column in (keys, at))
    keys.clear()
    if (all_keys[1:] > all_keys[:-1]).all() and (all_at[1:] >= all_at[:-1]).all():
        outputs, numbers = all_keys, np.arange(len(all_keys))
    else:
        order = np.argsort(all_at, kind="stable")
        encoded = pa.array(all_keys[order]).dictionary_encode()
        outputs, numbers = encoded.dictionary.to_numpy(), np.empty(len(all_keys), np.intp)
        numbers[order] = encoded.indices.to_numpy()
    labels = [_order_by_use(outputs // width, item_names), _order_by_use(outputs % width, system_names)]
    if originals:
        labels = [replace(own, names=tuple(originals.get(name, name) for name in own.names)) for own in labels]
    by_rows = dict(zip(own, np.split(numbers, np.cumsum(sizes)[:-1]), strict=True))
    of = {name: by_rows.get(n, by_rows[0]) for n, name in enumerate(rows)}
    return _Outputs(items=labels[0], systems=labels[1], of=of)


def _unify(columns: Sequence[pa.ChunkedArray]) -> tuple[list[Codes], pa.Array]:
    """Return the codes of several columns, -1 where there is no name, and the distinct names of all."""
    chunks = [chunk.cast(NAMES) for column in columns for chunk in column.chunks if len(chunk)]
    unified = iter(pa.chunked_array(chunks, NAMES).unify_dictionaries().chunks)
    codes, names = list[Codes](), pa.array([], pa.string())
    for column in columns:
        own = [next(unified) for chunk in column.chunks if len(chunk)]
        codes.append(
            np.concatenate([np.empty(0, np.int32), *(pc.fill_null(chunk.indices, -1).to_numpy() for chunk in own)])
        )
        names = own[0].dictionary if own else names
    return codes, names


def _encode_column(column: pa.ChunkedArray) -> Labels:
    (codes,), names = _unify([column])
    return _order_by_use(codes, names)


def _order_by_use(codes: Codes, names: pa.Array) -> Labels:
    """Return labels with those names that are used, in the order of their first use."""
    first = np.full(len(names) + 1, len(codes))
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)  # Those without a name fall on the last entry.
    order = np.argsort(first[:-1], kind="stable")[: np.count_nonzero(first[:-1] < len(codes))]
    number = np.full(len(names) + 1, UNKNOWN)
    number[order] = np.arange(len(order))
    return Labels(codes=number[codes], names=tuple(names.take(pa.array(order)).to_pylist()))


def _number_raters(tables: Sequence[pa.Table]) -> tuple[tuple[str, ...], list[Codes]]:
    """Return the raters of these tables in the order in which they first appear, and the raters of each."""
    named = [table for table in tables if "rater" in table.column_names]
    if not named:
        return (), [np.broadcast_to(np.intp(UNKNOWN), len(table)) for table in tables]
    codes, names = _unify([table["rater"] for table in named])
    order = np.argsort(np.concatenate([table["at"].to_numpy() for table in named]), kind="stable")
    labels = _order_by_use(np.concatenate(codes)[order], names)
    numbers = np.empty(len(order), np.intp)
    numbers[order] = labels.codes
    columns = iter(np.split(numbers, np.cumsum([len(table) for table in named])))
    return labels.names, [
        next(columns) if "rater" in table.column_names else np.broadcast_to(np.intp(UNKNOWN), len(table))
        for table in tables
    ]


def _group(table: pa.Table, column: str) -> list[tuple[str, Any]]:
    """Return the rows with each name, in the order of the first ones; all rows as a slice where there is one name."""
    labels = _encode_column(table[column])
    if len(labels.names) == 1 and labels.codes.min() == 0:
        return [(labels.names[0], slice(None))]
    order = np.argsort(labels.codes, kind="stable")
    ends = np.searchsorted(labels.codes[order], np.arange(len(labels.names) + 1))
    return [(name, order[ends[n] : ends[n + 1]]) for n, name in enumerate(labels.names)]


# ---- What the tables say of outputs


def _read_weights(ratings: pa.Table, given: pa.Table, outputs: _Outputs) -> Floats | None:
    """Return the sampling weights of the outputs; a rated one without stands for itself, and those that nobody rated
    have none."""
    weights = np.full(len(outputs), np.nan)
    rows = [
        (table["at"].to_numpy(), outputs.of[name], table["weight"].to_numpy(), is_one)
        for name, table, is_one in (
            ("ratings", ratings, np.ones(len(ratings), bool)),
            ("given", given, pc.is_null(given["second"]).to_numpy()),
        )
        if "weight" in table.column_names
    ]
    if not rows:
        return None
    at, numbers, values, is_one = map(np.concatenate, zip(*rows, strict=True))
    order = np.argsort(at, kind="stable")
    order = order[is_one[order] & ~np.isnan(values[order])]
    if not len(order):
        return None
    weights[numbers[order]] = values[order]
    rated = ~np.isnan(weights)
    rated[outputs.of["ratings"]] = True
    whole = whole_weights(np.nan_to_num(weights[rated], nan=1.0))
    if whole is None:
        return None
    weight = np.ones(len(outputs))
    weight[rated] = whole
    return weight


def _read_scores(given: pa.Table, outputs: _Outputs, tables: SourceTables) -> dict[str, MetricScores]:
    """Return the scores that the data contain; two rows may score the same output only alike."""
    is_score = pc.and_(pc.is_valid(given["metric"]), pc.is_null(given["second"]))
    numbers, given = outputs.of["given"][is_score.to_numpy()], given.filter(is_score)
    at, values = given["at"].to_numpy(), given["value"].to_numpy()
    scores, conflicts = dict[str, MetricScores](), list[tuple[int, int, str]]()
    for metric, rows in _group(given, "metric"):
        own, scored = values[rows], numbers[rows]
        if not (scored[1:] > scored[:-1]).all():
            order = np.argsort(scored, kind="stable")
            differ = np.flatnonzero((np.diff(scored[order]) == 0) & (np.diff(own[order]) != 0))
            positions = np.arange(len(given))[rows][order]
            conflicts += [(int(positions[n + 1]), int(positions[n]), metric) for n in differ.tolist()]
        column = np.full(len(outputs), np.nan)
        column[scored] = own
        origin = tables.locate(int(at[rows][0])).file or "the data"
        scores[metric] = MetricScores(name=metric, values=column, origin=origin)
    if conflicts:
        row, earlier, metric = min(conflicts)
        item, system = (labels.names[labels.codes[numbers[row]]] for labels in (outputs.items, outputs.systems))
        raise InputError(
            f"{tables.locate(int(at[row]))}: {metric} gives item {label_item(item)!r} of system {system!r} "
            f"{values[row]:g}, an earlier row gives it {values[earlier]:g}; keep one of the two, or give the metrics "
            "different names"
        )
    return scores


def _read_signs(column: pa.ChunkedArray) -> Floats:
    labels = _encode_column(column)
    return np.array([*(_CHOICES[name] for name in labels.names), np.nan])[labels.codes]


def _read_preferences(table: pa.Table, raters: Codes, outputs: _Outputs) -> dict[str, Choices]:
    first, second, signs = outputs.of["first"], outputs.of["second"], _read_signs(table["choice"])
    weights = np.ones(len(table))
    if "weight" in table.column_names:
        weights = np.nan_to_num(table["weight"].to_numpy(), nan=1.0)
    return {
        aspect: Choices(
            first=first[rows],
            second=second[rows],
            rater=raters[rows],
            choice=signs[rows],
            weight=whole_weights(weights[rows]),
        )
        for aspect, rows in _group(table, "aspect")
    }


def _read_choices(given: pa.Table, chosen: pa.Table, outputs: _Outputs) -> dict[str, Choices]:
    first = outputs.of["given"][pc.is_valid(given["second"]).to_numpy()]
    second, signs = outputs.of["chosen"], _read_signs(chosen["choice"])
    # AlpacaEval's judges answer with a number from 1, the first, to 2, the second.
    grades = _encode_column(chosen["answer"]).numbers()
    graded = np.where((grades >= 1) & (grades <= 2), 3 - 2 * grades, signs)
    unnamed = np.full(len(chosen), UNKNOWN)
    return {
        metric: Choices(
            first=first[rows], second=second[rows], rater=unnamed[rows], choice=signs[rows], graded=graded[rows]
        )
        for metric, rows in _group(chosen, "metric")
    }


def _read_errors(table: pa.Table, outputs: Codes, raters: Codes) -> ErrorSpans:
    start, end = table["start"].to_numpy(), table["end"].to_numpy()
    unknown = np.isnan(start) | np.isnan(end)
    return ErrorSpans(
        output=outputs,
        start=np.where(unknown, -1, start).astype(np.intp),
        end=np.where(unknown, -1, end).astype(np.intp),
        severity=_encode_column(table["severity"]),
        on_output=pc.equal(table["side"].cast(pa.string()), "output").to_numpy(),
        rater=raters,
    )


# ---- Columns to slice by


def _read_columns(records: pa.Table, given: pa.Table, outputs: _Outputs) -> dict[str, Labels]:
    """Return task, language and other columns, in the order in which they first have a value. Of several values for one
    output the last one counts."""
    cells: dict[str, list[tuple[_Integers, Codes, Labels]]] = {}
    for name, table, column in (
        *(("records", records, column) for column in (*TAG_FIELDS, "extra")),
        ("given", given, "columns"),
    ):
        if column not in table.column_names:
            continue
        texts = _encode_column(table[column])
        parsed = map(json.loads, texts.names) if column in ("extra", "columns") else ({column: n} for n in texts.names)
        for own, labels in _spread(parsed, texts.codes).items():
            has_value = labels.codes >= 0
            rows = table["at"].to_numpy()[has_value], outputs.of[name][has_value], labels.at(has_value)
            cells.setdefault(own, []).append(rows)
    first = {name: min(int(at[0]) for at, _, _ in pieces) for name, pieces in cells.items()}
    return {name: _join_cells(cells[name], len(outputs)) for name in sorted(cells, key=first.__getitem__)}


def _spread(rows: Iterable[Mapping[str, Any]], codes: Codes) -> dict[str, Labels]:
    """Return the columns of distinct rows; `codes` says which of them each output has."""
    columns: dict[str, tuple[list[int], dict[str, int]]] = {}
    for number, row in enumerate(rows):
        for column, value in row.items():
            name = str(value) if isinstance(value, bool | int | float) else value
            if isinstance(name, str) and 0 < len(name) <= _MAX_NAME_LENGTH:  # Neither empty, a structure nor a text.
                places, names = columns.setdefault(column, ([], {}))
                places += [UNKNOWN] * (number - len(places))
                places.append(names.setdefault(name, len(names)))
    size = int(codes.max(initial=-1)) + 2
    return {
        column: Labels(codes=np.array(places + [UNKNOWN] * (size - len(places)))[codes], names=tuple(names))
        for column, (places, names) in columns.items()
    }


def _join_cells(pieces: Sequence[tuple[_Integers, Codes, Labels]], size: int) -> Labels:
    _, outputs, labels = pieces[0]
    if len(pieces) > 1:
        names = list(dict.fromkeys(name for _, _, piece in pieces for name in piece.names))
        number = {name: n for n, name in enumerate(names)}
        codes = np.concatenate([np.array([number[n] for n in piece.names])[piece.codes] for _, _, piece in pieces])
        order = np.argsort(np.concatenate([at for at, _, _ in pieces]), kind="stable")
        outputs = np.concatenate([outputs for _, outputs, _ in pieces])[order]
        labels = _order_by_use(codes[order], pa.array(names))
    column = np.full(size, UNKNOWN)
    column[outputs] = labels.codes
    return Labels(codes=column, names=labels.names)


# ---- Judgments that come twice


def _describe_repeats(
    ratings: pa.Table, preferences: pa.Table, raters: Sequence[Codes], outputs: _Outputs
) -> list[str]:
    """Return notes on judgments that may have been read twice: in two rows by one rater, or by unnamed raters."""
    first, second = outputs.of["first"], outputs.of["second"]
    pairs = np.minimum(first, second) * len(outputs) + np.maximum(first, second)
    aspects: dict[tuple[int, int, str], list[str]] = {}
    for judgments, table, targets, own in (
        ("outputs are rated", ratings, outputs.of["ratings"], raters[0]),
        ("pairs are judged", preferences, pairs, raters[2]),
    ):
        for aspect, rows in _group(table, "aspect"):
            target, at = targets[rows], table["at"].to_numpy()[rows]
            if (target[1:] > target[:-1]).all():
                continue
            order = np.lexsort((at, own[rows], target))
            # Several unnamed ratings within one row come from different raters.
            again = np.diff(target[order]) == 0
            again &= np.diff(own[rows][order]) == 0
            again &= np.diff(at[order]) != 0
            if again.any():
                count = len(np.unique(target[order[1:][again]]))
                aspects.setdefault((count, len(np.unique(target)), judgments), []).append(aspect)
    return [
        f"{', '.join(listed)}: {count:,} of {distinct:,} {judgments} in more than one row by the same rater, or by "
        "unnamed raters: if a file was given twice, its ratings count twice."
        for (count, distinct, judgments), listed in aspects.items()
    ]
