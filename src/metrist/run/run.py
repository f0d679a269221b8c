"""Read a run: `open_run` gives a `Run`, through which everything else reads records, scores and ratings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrist.errors import RunError, format_path, label_item, quote_word
from metrist.io.dedup import SourceCheck
from metrist.io.remote import is_remote
from metrist.names import NameColumn, encode_names, take_names
from metrist.records import HASH_BYTES, Hashes
from metrist.run import tables
from metrist.run.store import Input, Manifest, Part, Store, StoredMetric, Version, open_store
from metrist.run.tables import Damaged, read_hashes
from metrist.scores import Failure, FailureKind, MeanRows, NarrowRows, Scores, plain_stats

#: Rows of scores from which on statistics are kept in narrower numbers.
_MANY = 1 << 20
_NARROW = (np.dtype(np.uint16), np.dtype(np.int32))
_NUMBERS = ("record", "value", "parts", "statistics", "failure", "failure_kind", "incomplete", "original")
#: Columns that only some scores have, by the field of `Scores`.
_SPARSE = {
    "errors": "errors",
    "explanations": "explanation",
    "raws": "raw",
    "tokens": "tokens",
    "usages": "usage",
}


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run folder, or its URL, for reading. Nothing is read before it is asked for."""
    store = open_store(path)
    store.check()
    return store.open_run()


class HashIndex:
    """Finds hashes among many others."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        beginnings = _begin(hashes)
        self._order = np.argsort(beginnings, kind="stable")
        self._beginnings = beginnings[self._order]

    def find(self, hashes: Hashes) -> NDArray[np.int64]:
        """The position of each hash, that of its last occurrence; -1 where there is none."""
        if not len(self._order):
            return np.full(len(hashes), -1, np.int64)
        wanted = _begin(hashes)
        at = np.searchsorted(self._beginnings, wanted, "right") - 1
        rows = self._order[np.maximum(at, 0)]
        same = (at >= 0) & (self._hashes[rows] == hashes).all(axis=1)
        found = np.where(same, rows, -1).astype(np.int64)
        # Two hashes with the same beginning are one in 10^19 pairs; the rest of them decides.
        for n in np.flatnonzero(~same & (at >= 0) & (self._beginnings[np.maximum(at, 0)] == wanted)).tolist():
            first = int(np.searchsorted(self._beginnings, wanted[n], "left"))
            rows_here = self._order[first : int(at[n]) + 1]
            equal = rows_here[(self._hashes[rows_here] == hashes[n]).all(axis=1)]
            found[n] = equal[-1] if len(equal) else -1
        return found


def _begin(hashes: Hashes) -> NDArray[np.uint64]:
    return np.ascontiguousarray(hashes[:, :8]).view(np.uint64).reshape(-1)


@dataclass(eq=False)
class RunRecords:
    """The names and hashes of all records of a run, in the order in which its inputs were added; a record that several
    inputs share is there once. `inputs` has the number of each record's input."""

    items: NameColumn
    systems: NameColumn
    hashes: Hashes
    #: Digests of the sources, by which systems' items are compared; empty where there is none.
    sources: NameColumn
    inputs: NDArray[np.int32]
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.hashes)


class Run:
    """A run folder as tables.

    `records`, `scores`, `ratings`, `preferences`, `errors` and `wide` return `pyarrow.Table`s with the columns that are
    asked for; `query` answers SQL over views of these names. `results` gives the scores as `metrist.Results`.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self.store, self.manifest = store, manifest

    def __repr__(self) -> str:
        labels = ", ".join(metric.label for metric in self.manifest.metrics)
        return f"Run({self.name}, {sum(one.records for one in self.manifest.inputs):,} records, metrics: {labels})"

    @property
    def name(self) -> str:
        """The folder as messages name it."""
        return self.store.name

    @property
    def has_texts(self) -> bool:
        """Whether the run stores texts."""
        return self.manifest.texts

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
        chosen = [metric for metric in self.finished_metrics() if metrics is None or metric.label in metrics]
        wanted = list(columns) if columns else [name for name in tables.SCORES.names if name != "original"]
        blocks = []
        for metric in chosen:
            version = metric.finished
            assert version is not None
            table = self._read_version(metric, version, [*wanted, "record", "failure_kind", "incomplete"])
            positions, _ = self._find_rows(read_hashes(table["record"]), find_unsettled(table))
            blocks.append(table.take(pa.array(positions[positions >= 0])).select(wanted))
        schema = pa.schema([tables.SCORES.field(name) for name in wanted])
        return pa.concat_tables(blocks) if blocks else schema.empty_table()

    def wide(self) -> pa.Table:
        """One row per record: item, system, and a column with the value of each metric."""
        records = self.view
        columns: dict[str, Any] = {"item": list(records.items), "system": list(records.systems)}
        for metric in self.finished_metrics():
            values = self.read_scores(metric)[0].values
            columns[metric.label] = pa.array(values, pa.float64(), mask=np.isnan(values))
        return pa.table(columns)

    def query(self, sql: str) -> pa.Table:
        """The answer to a query over the views records, scores, wide, ratings, errors, preferences and pairs."""
        from metrist.run.query import run_query

        return run_query(self, sql)

    def _table(self, folder: str, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
        names = list(columns) if columns else schema.names
        unknown = [name for name in names if name not in schema.names]
        if unknown:
            raise RunError(f"{folder} have no column {unknown[0]!r}; they have {', '.join(schema.names)}")
        parts = [self.read_part(folder, part, names) for _, part in self.list_parts(folder)]
        if not self.manifest.texts:
            names = [name for name in names if name not in tables.TEXT_COLUMNS]
        schema = pa.schema([schema.field(name) for name in names])
        return pa.concat_tables([part.select(names) for part in parts]) if parts else schema.empty_table()

    def list_parts(self, folder: str) -> Iterator[tuple[Input, Part]]:
        """The parts of a table with their inputs."""
        for one in self.manifest.inputs:
            for part in one.tables.get(folder, ()):
                yield one, part

    def read_part(self, folder: str, part: Part, columns: Sequence[str] | None = None) -> pa.Table:
        """A part of the run; one that is damaged is an error."""
        try:
            return self.store.read_part(folder, part, columns)
        except Damaged as error:
            raise RunError(f"{error}: run the same `metrist score` again to redo it") from None

    def iterate_records(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Input, pa.Table]]:
        """The records part by part, each with its input; a record that several inputs share is there once."""
        start = 0
        kept = self._kept
        for one, part in self.list_parts("records"):
            table = self.read_part("records", part, columns)
            if kept is not None:
                table = table.filter(pa.array(kept[start : start + part.rows]))
            start += part.rows
            yield one, table

    # ---- Records

    @cached_property
    def view(self) -> RunRecords:
        """The names and hashes of all records."""
        return self._read_view()[0]

    @cached_property
    def _kept(self) -> NDArray[np.bool_] | None:
        """Which rows of the parts are records of the run; None: all."""
        return self._read_view()[1]

    def _read_view(self) -> tuple[RunRecords, NDArray[np.bool_] | None]:
        names = ("item", "system", "source_digest")
        columns: dict[str, list[pa.Array]] = {name: [] for name in names}
        hashes, inputs, originals = list[Hashes](), list[NDArray[np.int32]](), dict[int, list[Any]]()
        count = 0
        for one, part in self.list_parts("records"):
            table = self.read_part("records", part, ["record", *names, "original"])
            for name in names:
                columns[name] += table[name].dictionary_encode().chunks
            hashes.append(read_hashes(table["record"]))
            inputs.append(np.full(len(table), one.number, np.int32))
            if "original" in table.column_names and table["original"].null_count < len(table):
                originals |= {
                    count + row: json.loads(text) for row, text in enumerate(table["original"].to_pylist()) if text
                }
            count += len(table)
        encoded = {name: _encode_names(chunks) for name, chunks in columns.items()}
        for number, name in enumerate(("item", "system")):
            if any(original[number] != encoded[name][row] for row, original in originals.items()):
                texts = list(encoded[name])
                for row, original in originals.items():
                    texts[row] = original[number]
                encoded[name] = encode_names(texts)
        empty = np.empty((0, 16), np.uint8)
        records = RunRecords(
            items=encoded["item"],
            systems=encoded["system"],
            sources=encoded["source_digest"],
            hashes=np.concatenate([empty, *hashes]),
            inputs=np.concatenate([np.empty(0, np.int32), *inputs]),
        )
        several = len({one.number for one, _ in self.list_parts("records")}) > 1
        rows = self._choose_records(records) if several else None
        kept = None
        if rows is not None:
            kept = np.zeros(len(records), np.bool_)
            kept[rows] = True
            records = RunRecords(
                items=take_names(records.items, rows),
                systems=take_names(records.systems, rows),
                sources=take_names(records.sources, rows),
                hashes=records.hashes[rows],
                inputs=records.inputs[rows],
                notes=records.notes,
            )
        if several:
            check = SourceCheck()
            check.add(records.items, records.sources)
            records.notes += check.describe()
        return records, kept

    def _choose_records(self, records: RunRecords) -> NDArray[np.int64] | None:
        """The rows that are records of the run, in order: of rows with one name the first, unless a later row without a
        file takes its place; None: all."""
        keys = records.items.codes.astype(np.int64) * max(1, len(records.systems.names)) + records.systems.codes
        order = np.argsort(keys, kind="stable")
        repeated = np.zeros(len(keys), np.bool_)
        repeated[order[1:]] = keys[order[1:]] == keys[order[:-1]]
        if not repeated.any():
            return None
        chosen = np.arange(len(keys))
        is_file = {one.number: one.path is not None for one in self.manifest.inputs}
        first_of: dict[int, int] = {}
        for row in order[np.isin(keys[order], keys[repeated])].tolist():
            first = first_of.setdefault(int(keys[row]), row)
            if row == first or (records.hashes[row] == records.hashes[chosen[first]]).all():
                continue
            if not is_file[int(records.inputs[row])] and not is_file[int(records.inputs[first])]:
                chosen[first] = row
            elif not records.notes:  # Two runs at once added them.
                one, other = (self.find_input(int(records.inputs[n])) for n in (first, row))
                records.notes.append(
                    f"item {label_item(records.items[row])!r} of system {records.systems[row]!r} has one text in "
                    f"{self.describe_input(one)} and another in {self.describe_input(other)}: the first is used; "
                    "`metrist remove` one of them"
                )
        return chosen[~repeated]

    def find_input(self, number: int) -> Input:
        """The input with this number."""
        return next(one for one in self.manifest.inputs if one.number == number)

    @property
    def reference_counts(self) -> tuple[int, ...]:
        """The different numbers of references that records have."""
        return tuple(sorted({number for one in self.manifest.inputs for number in one.references}))

    # ---- Scores

    def finished_metrics(self) -> list[StoredMetric]:
        """The metrics whose scores can be read."""
        return [metric for metric in self.manifest.metrics if metric.finished and not metric.compares]

    def _read_version(self, metric: StoredMetric, version: Version, columns: Sequence[str]) -> pa.Table:
        wanted = list(dict.fromkeys(columns))
        schema = pa.schema([tables.SCORES.field(name) for name in wanted])
        parts = []
        for part in version.parts:
            table = self.read_part(metric.place, part, wanted)
            for name in wanted:
                if name not in table.column_names:
                    table = table.append_column(schema.field(name), pa.nulls(len(table), schema.field(name).type))
            parts.append(table.select(wanted).replace_schema_metadata())
        return pa.concat_tables([schema.empty_table(), *parts])

    def _find_rows(self, hashes: Hashes, unsettled: NDArray[np.int64]) -> tuple[NDArray[np.int64], bool]:
        """For each record the row of its score, -1 if there is none, and whether all rows are in order: of several
        rows, the last that is not to be computed again, or the last."""
        wanted = self.view.hashes
        if not len(unsettled) and np.array_equal(hashes, wanted):
            return np.arange(len(wanted)), True
        settled = np.delete(np.arange(len(hashes)), unsettled)
        found = HashIndex(hashes[settled]).find(wanted)
        positions = np.where(found >= 0, settled[found] if len(settled) else -1, -1)
        missing = np.flatnonzero(positions < 0)
        if len(unsettled) and len(missing):
            found = HashIndex(hashes[unsettled]).find(wanted[missing])
            positions[missing] = np.where(found >= 0, unsettled[found], -1)
        return positions, False

    def read_scores(self, metric: StoredMetric) -> tuple[Scores, NDArray[np.int64]]:
        """One metric's scores of all records, and the positions of those that it has not scored yet, which have a
        failure of kind `pending`. Texts and errors are read when they are asked for."""
        version = metric.finished
        if version is None:
            raise RunError(f"{metric.label} is not finished: run the same `metrist score` again")
        try:
            blocks = [
                _Numbers.read(self.read_part(metric.place, part, _NUMBERS), many=len(self.view) > _MANY)
                for part in version.parts
            ]
            stored = _Numbers.join(blocks)
            positions, in_order = self._find_rows(stored.hashes, stored.unsettled)
            missing = np.flatnonzero(positions < 0)
            if not in_order:
                stored = stored.take(positions)
            pending = Failure(FailureKind.pending, f"{metric.text} has not scored this output yet")
            loader = _SparseLoader(self, metric, version, None if in_order else positions)
            scores = Scores(
                values=stored.values,
                parts=stored.parts,
                stats=stored.wrap_statistics(),
                failures={**stored.failures, **dict.fromkeys(missing.tolist(), pending)},
                incomplete=stored.incomplete,
                **{name: LazyMapping(loader, name) for name in _SPARSE},  # type: ignore[arg-type]
            )
        except (ValueError, TypeError, KeyError, Damaged, pa.ArrowException) as error:
            raise RunError(f"{self.name}: the scores of {metric.label} are damaged: {error}") from None
        return scores, missing

    def read_settled(
        self,
        text: str,
        signature: str,
        *,
        tokens: bool = False,
        retry_failed: bool = False,
        damaged: dict[Part, str] | None = None,
    ) -> Hashes:
        """The hashes of the records, or pairs, that this version of a metric has scored and need not score again.
        Parts that cannot be read are added to `damaged`."""
        found = [np.empty((0, HASH_BYTES), np.uint8)]
        metric = self.manifest.metric(text)
        versions = [version for version in metric.versions if version.signature == signature] if metric else []
        for part in (part for version in versions for part in version.parts if part.tokens or not tokens):
            assert metric is not None
            key = "pair" if metric.compares else "record"
            try:
                table = self.store.read_part(metric.place, part, [key, "failure_kind", "incomplete"])
                found.append(np.delete(read_hashes(table[key]), find_unsettled(table, retry_failed=retry_failed), axis=0))
            except Damaged as error:
                if damaged is None:
                    raise RunError(f"{error}: run the same `metrist score` again to redo it") from None
                damaged[part] = str(error)
        return np.concatenate(found)

    def describe_missing(self, metric: StoredMetric, missing: NDArray[np.int64]) -> list[str]:
        """Notes on the records that a metric has not scored, with the command that adds their scores."""
        notes = []
        inputs = self.view.inputs[missing]
        for one in self.manifest.inputs:
            count = int((inputs == one.number).sum())
            if not count:
                continue
            outputs = f"{count:,} of {one.records:,} outputs of {self.describe_input(one)}"
            named = f"{metric.name}={metric.text}" if metric.name else metric.text
            options = f"-m {quote_word(named)} -o {quote_word(f'{self.name}/')}"
            command = f"`metrist score {self.describe_reading(one)} {options}`"
            if one.path is None:
                command = "score the same rows again"
            notes.append(f"{metric.label} has not scored {outputs}: {command} to add them")
        return notes

    # ---- Inputs

    def describe_input(self, one: Input) -> str:
        """An input as messages name it: its URL, or its file as seen from the current folder."""
        if one.path is None or one.name is None or is_remote(one.name):
            return one.name or "rows in memory"
        return format_path(self.find_file(one) or self._place(one))

    def describe_reading(self, one: Input) -> str:
        """The arguments that read an input again, from the current folder."""
        return " ".join([quote_word(self.describe_input(one)), *describe_options(one.options)])

    def _place(self, one: Input) -> Path:
        base = Path() if is_remote(str(self.store.path)) else Path(self.store.path)
        return base / str(one.path)

    def find_file(self, one: Input) -> Path | None:
        """Where the file of an input is now: where it lay as seen from the run folder, under the name that was typed,
        or beside the run folder; None if it is in none of these places."""
        if one.path is None or one.name is None:
            return None
        place = self._place(one)
        beside = Path(os.path.normpath(Path(self.store.path).parent / Path(one.name).name))
        return next((path for path in (place, Path(one.name), beside) if path.is_file()), None)


def describe_options(options: Mapping[str, Any]) -> list[str]:
    """Options of reading as they are typed."""
    texts: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if name == "fields":
            texts += [f"--field {quote_word(f'{ours}={theirs}')}" for ours, theirs in value.items()]
        elif name == "item_key":
            texts.append(f"{option} {quote_word('+'.join(value))}")
        elif name == "outputs":
            named = [f"{system}={column}" for system, column in value.items()] if isinstance(value, dict) else value
            texts += [f"--output {quote_word(entry)}" for entry in ([named] if isinstance(named, str) else named)]
        elif value is True:
            texts.append(option)
        elif isinstance(value, str):
            texts.append(f"{option} {'tab' if value == chr(9) else quote_word(value)}")
    return texts


@dataclass(eq=False, kw_only=True)
class _Numbers:
    """The numbers of some scores. `statistics` is None where they are (value, 1)."""

    hashes: Hashes
    values: NDArray[np.float64]
    parts: dict[str, NDArray[np.float64]]
    statistics: NDArray[Any] | None
    failures: dict[int, Failure]
    incomplete: frozenset[int]
    unsettled: NDArray[np.int64]

    @classmethod
    def read(cls, table: pa.Table, *, many: bool) -> _Numbers:
        values = table["value"].to_numpy()
        column = table["statistics"]
        statistics = None
        if column.null_count < len(column):
            statistics = tables.read_statistics(column, values)
            if many:
                statistics = _narrow(statistics)
        failures = tables.read_failures(table)
        originals = table["original"] if "original" in table.column_names else None
        if originals is not None and originals.null_count < len(originals):
            for row, text in enumerate(originals.to_pylist()):
                if text and "failure" in (original := json.loads(text)):
                    failures[row] = Failure(failures[row].kind, original["failure"])
        return cls(
            hashes=read_hashes(table["record"]),
            values=values,
            parts=tables.read_parts(table["parts"]),
            statistics=statistics,
            failures=failures,
            incomplete=frozenset(np.flatnonzero(table["incomplete"].to_numpy()).tolist()),
            unsettled=find_unsettled(table),
        )

    @classmethod
    def join(cls, blocks: Sequence[_Numbers]) -> _Numbers:
        starts = np.cumsum([0, *(len(block.values) for block in blocks)]).tolist()
        placed = list(zip(starts, blocks, strict=False))
        names = dict.fromkeys(name for block in blocks for name in block.parts)
        statistics = None
        if any(block.statistics is not None for block in blocks):
            rows = [plain_stats(b.values) if b.statistics is None else b.statistics for b in blocks]
            width = max(row.shape[1] for row in rows)
            # A block in which every output failed cannot know the width of its metric's rows.
            statistics = np.concatenate([np.pad(row, ((0, 0), (0, width - row.shape[1]))) for row in rows])
        return cls(
            hashes=np.concatenate([np.empty((0, HASH_BYTES), np.uint8), *(block.hashes for block in blocks)]),
            values=np.concatenate([np.empty(0), *(block.values for block in blocks)]),
            parts={n: np.concatenate([b.parts.get(n, np.full(len(b.values), np.nan)) for b in blocks]) for n in names},
            statistics=statistics,
            failures={start + n: failure for start, block in placed for n, failure in block.failures.items()},
            incomplete=frozenset(start + n for start, block in placed for n in block.incomplete),
            unsettled=np.concatenate([np.empty(0, np.int64), *(start + block.unsettled for start, block in placed)]),
        )

    def take(self, positions: NDArray[np.int64]) -> _Numbers:
        """The rows at these positions; at -1 there is no score."""
        absent = positions < 0
        at = np.where(absent, 0, positions)
        has_rows = len(self.values) > 0

        def pick(column: NDArray[Any], fill: float) -> NDArray[Any]:
            rows = column[at] if has_rows else np.zeros((len(at), *column.shape[1:]), column.dtype)
            rows[absent] = fill
            return rows

        by_row: dict[int, list[int]] = {}
        special = set(self.failures) | self.incomplete
        for n in np.flatnonzero(np.isin(positions, list(special))).tolist() if special else ():
            by_row.setdefault(int(positions[n]), []).append(n)
        return _Numbers(
            hashes=self.hashes,
            values=pick(self.values, np.nan),
            parts={name: pick(column, np.nan) for name, column in self.parts.items()},
            statistics=None if self.statistics is None else pick(self.statistics, 0),
            failures={n: f for row, f in self.failures.items() for n in by_row.get(row, ())},
            incomplete=frozenset(n for row in self.incomplete for n in by_row.get(row, ())),
            unsettled=np.empty(0, np.int64),
        )

    def wrap_statistics(self) -> Any:
        """The statistics as `Scores` takes them."""
        if self.statistics is None:
            return MeanRows(self.values) if len(self.values) > _MANY else plain_stats(self.values)
        return self.statistics if self.statistics.dtype == np.float64 else NarrowRows(self.statistics)


def _narrow(rows: NDArray[np.float64]) -> NDArray[Any]:
    """Whole numbers in the narrowest type that holds them all."""
    for dtype in _NARROW:
        limits = np.iinfo(dtype)
        if rows.size and rows.min() >= limits.min and rows.max() <= limits.max and (rows == np.trunc(rows)).all():
            return rows.astype(dtype)
    return rows


def find_unsettled(table: pa.Table, *, retry_failed: bool = False) -> NDArray[np.int64]:
    """The rows of a part that are to be computed again: where a request failed for a reason that may have passed, or
    all of them where nothing at all succeeded. With `retry_failed`, any failure but a missing input counts as one that
    may have passed."""
    kinds = table["failure_kind"]
    if kinds.null_count == 0 and len(kinds):
        return np.arange(len(kinds))
    retryable = [kind.value for kind in FailureKind if kind.is_retryable]
    if retry_failed:
        retryable = [kind.value for kind in FailureKind if kind is not FailureKind.missing_input]
    unsettled = table["incomplete"].to_numpy().astype(bool)
    if kinds.null_count < len(kinds):
        unsettled |= pc.is_in(kinds, pa.array(retryable)).to_numpy()
    return np.flatnonzero(unsettled)


class LazyMapping(Mapping[int, Any]):
    """What only some scores carry, by position, read when it is first asked for."""

    def __init__(self, loader: _SparseLoader, name: str) -> None:
        self._loader, self._name = loader, name

    def _values(self) -> Mapping[int, Any]:
        return self._loader.load(self._name)

    def __getitem__(self, position: int) -> Any:
        return self._values()[position]

    def __iter__(self) -> Iterator[int]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class _SparseLoader:
    """Reads errors, explanations and other texts of a metric's scores."""

    def __init__(
        self, run: Run, metric: StoredMetric, version: Version, positions: NDArray[np.int64] | None
    ) -> None:
        self._run, self._metric, self._version, self._positions = run, metric, version, positions
        self._loaded: dict[str, dict[int, Any]] = {}

    def load(self, name: str) -> dict[int, Any]:
        if name not in self._loaded:
            column = _SPARSE[name]
            rows: dict[int, Any] = {}
            start = 0
            for part in self._version.parts:
                columns = ["value", "failure_kind", column, "original"]
                table = self._run.read_part(self._metric.place, part, columns)
                if column in table.column_names and table[column].null_count < len(table):
                    values = getattr(tables.read_scores_table(table), name)
                    rows |= {start + row: value for row, value in values.items()}
                start += part.rows
            if self._positions is not None and rows:
                places: dict[int, list[int]] = {}
                for n in np.flatnonzero(np.isin(self._positions, list(rows))).tolist():
                    places.setdefault(int(self._positions[n]), []).append(n)
                rows = {n: rows[row] for row in sorted(places) for n in places[row]}
            self._loaded[name] = dict(sorted(rows.items()))
        return self._loaded[name]


def _encode_names(chunks: list[pa.DictionaryArray]) -> NameColumn:
    """A column of names from its encoded chunks, distinct names in the order of their first use."""
    if not chunks:
        return NameColumn(np.empty(0, np.int32), ())
    column = pa.chunked_array(chunks).unify_dictionaries()
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in column.chunks])
    return NameColumn(codes, tuple(column.chunk(column.num_chunks - 1).dictionary.to_pylist()))
