"""One metric's scores of a run, read from its parts when they are asked for; values at once where they fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.records import HASH_BYTES, Hashes
from metrist.run import score_tables, tables
from metrist.run.manifest import StoredMetric
from metrist.run.score_tables import find_rows, find_unsettled
from metrist.run.stored_run import StoredRun, refuses_damage
from metrist.run.tables import read_hashes
from metrist.scores import Failure, FailureKind, Scores, plain_stats
from metrist.stats.resampling import narrow_numbers

if TYPE_CHECKING:
    import duckdb


#: Rows that are read to learn how many statistics a score has.
_FIRST_ROWS = 256
#: Scores of a block from which single ones are taken, and how many such blocks are kept: outputs of several systems are
#: often asked for in turn.
_BLOCK_ROWS, _KEPT_BLOCKS = 1 << 10, 16
#: The names of parts are few: as dictionaries they are read in a third of the time.
_PART_NAMES = ("parts.key_value.key",)
#: Columns that only some scores have, by the field of `Scores`.
_SPARSE = {"errors": "errors", **score_tables.SPARSE}


class ScoreReader:
    """Reads the columns of one metric's finished version, arranged as the records of the run are."""

    def __init__(self, run: StoredRun, metric: StoredMetric, hashes: Hashes) -> None:
        version = metric.finished
        if version is None:
            raise RunError(f"{metric.label} is not finished: run the same `metrist score` again", code="unfinished")
        self.metric, self._run, self._parts = metric, run, version.parts
        #: The run as messages name it.
        self.name = run.name
        self._rows = sum(part.rows for part in version.parts)
        #: What only some scores carry.
        self._sparse: dict[str, dict[int, Any]] = {}
        self._incomplete: dict[int, bool] = {}
        #: Whether a part has failures.
        self._has_failures: list[bool] = []
        #: For each record the row of its score, -1 if there is none; None: all rows are in order.
        self.size = len(hashes)
        self.positions = self._find_positions(hashes)
        #: The positions of scores that a resumed run computes again.
        self.incomplete = frozenset(self._arrange_sparse(self._incomplete))
        self._pending = Failure(FailureKind.pending, f"{metric.text} has not scored this output yet")
        #: The columns that have values, of each part.
        self.filled = [run.find_filled(metric.place, part) for part in version.parts]
        #: The part that was read last with all that scores carry, or its statistics alone, and its number.
        self._last_block: tuple[int, Scores] | None = None
        self._last_statistics: tuple[int, NDArray[Any]] | None = None
        #: Blocks from which single scores were taken.
        self._blocks: dict[int, Scores] = {}

    def _read(
        self, columns: Sequence[str], chosen: Sequence[bool] | None = None, encoded: Sequence[str] = ()
    ) -> Iterator[tuple[int, pa.Table]]:
        """The parts, or the chosen ones, with the number of rows before each."""
        start = 0
        for number, part in enumerate(self._parts):
            if chosen is None or chosen[number]:
                yield start, self._run.read_part(self.metric.place, part, columns, encoded)
            start += part.rows

    @refuses_damage
    def _find_positions(self, wanted: Hashes) -> NDArray[np.int64] | None:
        """For each record the row of its score; None: all are in order. Values are read on the way if they fit."""
        in_order = True
        unsettled = [np.empty(0, np.int64)]
        values = [np.empty(0)]
        reads_values = self._run.recent.has_room(8 * self.size)
        for start, table in self._read(["record", "failure_kind", "incomplete", *(["value"] if reads_values else [])]):
            values += [tables.read_numbers(table["value"])] if reads_values else []
            self._has_failures.append(table["failure_kind"].null_count < len(table))
            self._incomplete |= {start + row: True for row in pc.indices_nonzero(table["incomplete"]).to_pylist()}
            unsettled.append(start + find_unsettled(table))
            own = wanted[start : start + len(table)]
            in_order = in_order and not len(unsettled[-1]) and np.array_equal(read_hashes(table["record"]), own)
        positions = None
        if not in_order or self._rows != len(wanted):
            blocks = (read_hashes(table["record"]) for _, table in self._read(["record"]))
            hashes = np.concatenate([np.empty((0, HASH_BYTES), np.uint8), *blocks])
            positions = find_rows(wanted, hashes, np.concatenate(unsettled))
        if reads_values:
            self._run.recent.add((self.metric.place, "values"), _arrange(np.concatenate(values), positions, np.nan))
        return positions

    @property
    def missing(self) -> NDArray[np.int64]:
        """The positions of the records that have no score yet."""
        return np.empty(0, np.int64) if self.positions is None else np.flatnonzero(self.positions < 0)

    def _arrange_sparse(self, values: Mapping[int, Any]) -> dict[int, Any]:
        if self.positions is None or not values:
            return dict(sorted(values.items()))
        wanted = np.flatnonzero(np.isin(self.positions, list(values)))
        return {n: values[row] for n, row in zip(wanted.tolist(), self.positions[wanted].tolist(), strict=True)}

    @refuses_damage
    def read_values(self) -> NDArray[np.float64]:
        def read() -> NDArray[np.float64]:
            values = np.empty(self._rows)
            for start, table in self._read(["value"]):
                values[start : start + len(table)] = tables.read_numbers(table["value"])
            return _arrange(values, self.positions, np.nan)

        values: NDArray[np.float64] = self._run.recent.get((self.metric.place, "values"), 8 * self.size, read)
        return values

    @refuses_damage
    def read_parts(self) -> dict[str, NDArray[np.float64]]:
        def read() -> dict[str, NDArray[np.float64]]:
            columns: dict[str, NDArray[np.float64]] = {}
            for start, table in self._read(["parts"], encoded=_PART_NAMES):
                for name, numbers in score_tables.read_parts(table["parts"]).items():
                    column = columns.setdefault(name, np.full(self._rows, np.nan))
                    column[start : start + len(table)] = numbers
            return {name: _arrange(column, self.positions, np.nan) for name, column in columns.items()}

        size = 8 * self.size * len(self.part_names)
        parts: dict[str, NDArray[np.float64]] = self._run.recent.get((self.metric.place, "parts"), size, read)
        return parts

    @cached_property
    @refuses_damage
    def part_names(self) -> list[str]:
        names: dict[str, None] = {}
        for _, table in self._read(["parts"], encoded=_PART_NAMES):
            for chunk in table["parts"].chunks:
                names |= dict.fromkeys(chunk.keys.unique().to_pylist())
        return list(names)

    @refuses_damage
    def take(self, positions: Sequence[int], connection: duckdb.DuckDBPyConnection) -> Scores:
        """The scores at some positions. Nothing else is read."""
        from metrist.run.query import read_rows

        rows = np.asarray(positions, np.int64)
        rows = rows if self.positions is None else self.positions[rows]
        scored = np.flatnonzero(rows >= 0)
        hidden = frozenset() if self._run.has_texts else tables.QUOTING_COLUMNS
        schema = pa.schema([field for field in tables.SCORES if field.name not in hidden])
        table = read_rows(connection, self._run, self.metric.place, self._parts, rows[scored], schema)
        pending = dict.fromkeys(np.flatnonzero(rows < 0).tolist(), self._pending)
        return score_tables.read_scores_table(table).spread(len(rows), scored.tolist(), pending)

    @refuses_damage
    def read_block(self, start: int, stop: int) -> Scores:
        """The scores between two positions, with all that they carry."""
        starts = np.cumsum([0, *(part.rows for part in self._parts)])
        if self.positions is None:
            numbers = range(int(np.searchsorted(starts, start, "right")) - 1, int(np.searchsorted(starts, stop)))
            ends = ((max(start - starts[n], 0), min(stop, starts[n + 1]) - starts[n]) for n in numbers)
            blocks = [self._read_part_scores(n).block(*map(int, own)) for n, own in zip(numbers, ends, strict=True)]
            block = blocks[0] if len(blocks) == 1 else Scores.join(blocks)
        else:
            rows = self.positions[start:stop]
            at = np.where(rows >= 0, np.searchsorted(starts, rows, "right") - 1, -1)
            places = {n: np.flatnonzero(at == n) for n in np.unique(at[at >= 0]).tolist()}
            blocks = [self._read_part_scores(n).take((rows[own] - starts[n]).tolist()) for n, own in places.items()]
            pending = dict.fromkeys(np.flatnonzero(at < 0).tolist(), self._pending)
            known = [int(place) for own in places.values() for place in own]
            block = Scores.join(blocks or [Scores(values=np.empty(0))]).spread(stop - start, known, pending)
        parts = {name: block.parts.get(name, np.full(len(block), np.nan)) for name in self.part_names}
        return replace(block, parts=parts, stats=score_tables.widen_rows(block.stats, self.width))

    def recall_block(self, number: int) -> Scores:
        """A block of `_BLOCK_ROWS` scores, one of those that were read last or a new one."""
        block = self._blocks.pop(number, None)
        if block is None:
            block = self.read_block(number * _BLOCK_ROWS, min((number + 1) * _BLOCK_ROWS, self.size))
        self._blocks[number] = block
        if len(self._blocks) > _KEPT_BLOCKS:
            self._blocks.pop(next(iter(self._blocks)), None)
        return block

    def _read_part_scores(self, number: int) -> Scores:
        """The scores in one part, which are mostly asked for one after another."""
        last = self._last_block
        if last is None or last[0] != number:
            self._last_block = last = None
            wanted = [name for name in tables.SCORES.names if name not in ("record", "metric")]
            table = self._run.read_part(self.metric.place, self._parts[number], wanted, _PART_NAMES)
            self._last_block = last = number, score_tables.read_scores_table(table)
        return last[1]

    @cached_property
    @refuses_damage
    def width(self) -> int:
        """How many statistics a score has: those of the first one that has any."""
        for part, filled in zip(self._parts, self.filled, strict=True):
            if "statistics" in filled:
                with self._run.store.open_part(self.metric.place, part) as file:
                    for batch in file.iter_batches(_FIRST_ROWS, columns=["statistics", "value"], use_threads=False):
                        if batch["statistics"].null_count < len(batch):
                            return int(_read_statistics(pa.Table.from_batches([batch])).shape[1])
        return 2

    @refuses_damage
    def read_statistics(self, rows: slice | NDArray[np.intp] = slice(None)) -> NDArray[Any]:
        """These rows of statistics, whole numbers in a narrow type."""
        if not any("statistics" in filled for filled in self.filled):
            return plain_stats(self.read_values()[rows])
        if isinstance(rows, slice) and self.positions is None:
            start, stop, step = rows.indices(self.size)
            if step == 1 and stop - start < self.size:
                return self._read_range(start, stop)

        def read() -> NDArray[Any]:
            joined: NDArray[Any] = np.zeros((self._rows, self.width), np.uint8)
            for first, table in self._read(["value", "statistics"]):
                block = _read_statistics(table, self.width)
                joined = joined.astype(np.result_type(joined.dtype, block.dtype), copy=False)
                joined[first : first + len(block)] = block
            return _arrange(joined, self.positions, 0)

        key = (self.metric.place, "statistics")
        statistics: NDArray[Any] = self._run.recent.get(key, self.size * self.width, read)
        return statistics[rows]

    def _read_range(self, start: int, stop: int) -> NDArray[Any]:
        """Statistics that are in order, mostly within the part that was read last, or in the one after it."""
        first = 0
        blocks = [np.empty((0, self.width), np.uint8)]
        for number, part in enumerate(self._parts):
            if first < stop and start < first + part.rows:
                last = self._last_statistics
                if last is None or last[0] != number:
                    self._last_statistics = last = None
                    table = self._run.read_part(self.metric.place, part, ["value", "statistics"])
                    self._last_statistics = last = number, _read_statistics(table, self.width)
                    tables.release_memory()
                blocks.append(last[1][max(start - first, 0) : stop - first])
            first += part.rows
        return np.concatenate(blocks)

    @refuses_damage
    def read_failures(self) -> dict[int, Failure]:
        """The failures, those of records without a score included."""
        failures: dict[int, Failure] = {}
        for start, table in self._read(["failure", "failure_kind", "original"], self._has_failures):
            failures |= {start + row: failure for row, failure in score_tables.read_failures(table).items()}
        return self._arrange_sparse(failures) | dict.fromkeys(self.missing.tolist(), self._pending)

    @refuses_damage
    def read_sparse(self, name: str) -> dict[int, Any]:
        """Errors, explanations and so on, by position."""
        if name not in self._sparse:
            column, found = _SPARSE[name], dict[int, Any]()
            chosen = [column in filled for filled in self.filled]
            for start, table in self._read(["value", "failure_kind", column, "original"], chosen):
                values = getattr(score_tables.read_scores_table(table), name)
                found |= {start + row: value for row, value in values.items()}
            self._sparse[name] = self._arrange_sparse(found)
        return self._sparse[name]


def _arrange(column: NDArray[Any], positions: NDArray[np.int64] | None, fill: float) -> NDArray[Any]:
    """The rows of a column at some positions; without a position, what fills the place."""
    if positions is None:
        return column
    rows = np.full((len(positions), *column.shape[1:]), fill, column.dtype)
    known = positions >= 0
    rows[known] = column[positions[known]]
    return rows


class StoredScores(Scores):
    """The scores of all records of a run by one metric, read when they are asked for. `usages` are those of this
    process instead of the stored ones."""

    __slots__ = ("reader",)
    reader: ScoreReader

    def __init__(self, reader: ScoreReader, usages: Mapping[int, Any] | None = None) -> None:
        values: dict[str, Any] = {name: LazyMapping(reader, name) for name in _SPARSE}
        values["reader"] = reader
        values["parts"] = LazyParts(reader)
        values["failures"] = reader.read_failures()
        values["incomplete"] = reader.incomplete
        if usages is not None:
            values["usages"] = usages
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def values(self) -> NDArray[np.float64]:
        """The values as an array; NaN where an output could not be scored."""
        return self.reader.read_values()

    @property
    def stats(self) -> NDArray[np.float64]:
        """The rows of statistics as an array."""
        return self.reader.read_statistics().astype(np.float64)

    @property
    def width(self) -> int:
        """The number of statistics of a score."""
        return self.reader.width

    def _take_stats(self, rows: slice | NDArray[np.intp]) -> NDArray[Any]:
        return self.reader.read_statistics(rows)

    def block(self, start: int, stop: int) -> Scores:
        """The scores between two positions. The part of the run that was read last is in memory."""
        start, stop, _ = slice(start, stop).indices(len(self))
        if stop <= start:
            return self.take([])
        return self._choose_usages(self.reader.read_block(start, stop), start)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return super().__getitem__(index)
        number, row = divmod(range(len(self))[index], _BLOCK_ROWS)
        return self._choose_usages(self.reader.recall_block(number), number * _BLOCK_ROWS)[row]

    def _choose_usages(self, block: Scores, start: int) -> Scores:
        """The block from a position on, with the usages of this process where it has its own."""
        if isinstance(self.usages, LazyMapping):
            return block
        own = {row - start: usage for row, usage in self.usages.items() if start <= row < start + len(block)}
        return replace(block, usages=own)

    def __len__(self) -> int:
        return self.reader.size

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Scores, **{field.name: getattr(self, field.name) for field in fields(Scores)}), ()


class LazyMapping(Mapping[int, Any]):
    """What only some scores carry, by position, read when it is first asked for."""

    def __init__(self, reader: ScoreReader, name: str) -> None:
        self._reader, self._name = reader, name

    def __getitem__(self, position: int) -> Any:
        return self._reader.read_sparse(self._name)[position]

    def __iter__(self) -> Iterator[int]:
        return iter(self._reader.read_sparse(self._name))

    def __len__(self) -> int:
        return len(self._reader.read_sparse(self._name))

    def __bool__(self) -> bool:
        is_filled = any(_SPARSE[self._name] in filled for filled in self._reader.filled)
        # Rows that have one may all be of records that are gone.
        return is_filled and (self._reader.positions is None or len(self) > 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class LazyParts(Mapping[str, Any]):
    """The parts of scores by name, read when they are first asked for."""

    def __init__(self, reader: ScoreReader) -> None:
        self._reader = reader

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        return self._reader.read_parts()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._reader.part_names)

    def __len__(self) -> int:
        return len(self._reader.part_names)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _read_statistics(table: pa.Table, width: int | None = None) -> NDArray[Any]:
    """The rows of statistics; with a `width`, so many columns in a narrow type."""
    rows = score_tables.read_statistics(table["statistics"], tables.read_numbers(table["value"]))
    return rows if width is None else score_tables.widen_rows(narrow_numbers(rows), width)
