"""SQL over a run: DuckDB in memory, with views over the parts that the manifest lists.

DuckDB installs and loads no extension; Parquet and JSON are built into its wheels. Its memory is limited, and what does
not fit goes to a private folder that is removed with the connection.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.io.remote import is_remote
from metrist.io.writer import encodable
from metrist.records import Hashes
from metrist.run import tables
from metrist.run.manifest import Damaged
from metrist.run.score_tables import find_rows, find_unsettled

if TYPE_CHECKING:
    import duckdb

    from metrist.run.manifest import Part, StoredMetric
    from metrist.run.stored_run import StoredRun

MEMORY_LIMIT = "1GiB"
VIEWS = ("records", "scores", "wide", "ratings", "errors", "preferences", "pairs")
#: The columns of `wide` that are not metrics.
KEYS = ("record", "item", "system")
_MAX_THREADS = 4
#: The schema of tables that views are made from.
_SCHEMA = "run_rows"
#: By which DuckDB asks us for the parts of a remote run.
_PROTOCOL = "metrist-run"
_EXPLAIN = re.compile(r"\s*explain\s+(analyze\s+)?(\([^)]*\)\s*)?", re.IGNORECASE)
_UNKNOWN_TABLE = re.compile(r"Table with name .* does not exist")
#: Of the statements that DuckDB runs as several, the only one that reads.
_PIVOT = re.compile(r"\s*(pivot|with|from|select)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer to a query. `reads_scores` says whether it is about metrics, `differing` lists those whose scores are
    not of exactly the records."""

    table: pa.Table
    reads_scores: bool
    differing: Sequence[StoredMetric]


def run_query(run: StoredRun, sql: str) -> QueryResult:
    """The answer to one reading statement over the views of a run. It can read nothing else."""
    import duckdb

    with closing(open_database(run)) as connection:
        views = _Views(run, connection)
        # A view that is not asked for takes time, and may be damaged.
        mentioned = [name for name in VIEWS if re.search(rf"\b{name}\b", sql, re.IGNORECASE)]
        try:
            views.create(mentioned or VIEWS)
        except duckdb.Error as error:
            raise RunError(f"{run.name} cannot be read: {_describe(error)}", code="unreadable") from None
        lock(connection, run)
        try:
            _check_statement(connection, sql)
            table = connection.sql(sql).to_arrow_table()
        except duckdb.Error as error:
            raise RunError(f"the query failed: {_explain(error, run)}", code="invalid_value") from None
    return QueryResult(table, not {"scores", "wide"}.isdisjoint(mentioned), views.differing)


def open_database(run: StoredRun, *, memory_limit: str = MEMORY_LIMIT) -> duckdb.DuckDBPyConnection:
    """A connection that can read the parts of a run, without views of them."""
    import duckdb

    folder = tempfile.mkdtemp(prefix="metrist-")
    connection = duckdb.connect(
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
            "memory_limit": memory_limit,
            "temp_directory": folder,
            "threads": min(_MAX_THREADS, os.cpu_count() or 1),
        }
    )
    weakref.finalize(connection, shutil.rmtree, folder, ignore_errors=True)
    if _has_own_files(run):
        connection.register_filesystem(_open_files(run))
    return connection


def scan_table(run: StoredRun, folder: str) -> str | None:
    """What reads a table of a run, in SQL; None if it has no rows."""
    paths = [quote_text(_find_part(run, folder, part)) for _, part in run.list_parts(folder)]
    return f"read_parquet([{', '.join(paths)}])" if paths else None


def number_rows(run: StoredRun, folder: str) -> str | None:
    """SQL that reads a table of a run with the number of each row among those of all parts, `row_number`; None if it
    has no rows."""
    parts = [part for _, part in run.list_parts(folder)]
    if not parts:
        return None
    paths = [quote_text(_find_part(run, folder, part)) for part in parts]
    starts = np.cumsum([0, *(part.rows for part in parts)]).tolist()
    numbers = ", ".join(f"({path}, {start})" for path, start in zip(paths, starts, strict=False))
    return (
        f"SELECT p.start + r.file_row_number AS row_number, r.* EXCLUDE (filename, file_row_number) "
        f"FROM read_parquet([{', '.join(paths)}], filename = true, file_row_number = true) r "
        f"JOIN (VALUES {numbers}) p(path, start) ON r.filename = p.path"
    )


def read_rows(
    connection: duckdb.DuckDBPyConnection,
    run: StoredRun,
    folder: str,
    parts: Sequence[Part],
    rows: NDArray[np.integer[Any]],
    schema: pa.Schema,
) -> pa.Table:
    """These rows of some parts with the columns of a schema, in this order. Only the pages that hold them are
    decoded."""
    if not len(rows):
        return schema.empty_table()
    starts = np.cumsum([0, *(part.rows for part in parts)])
    at = np.searchsorted(starts, rows, "right") - 1
    names = ", ".join(map(quote_name, schema.names))
    selects = [
        f"SELECT {starts[n]} + file_row_number AS position, {names} "
        f"FROM read_parquet({quote_text(_find_part(run, folder, parts[n]))}, file_row_number = true) "
        f"WHERE file_row_number IN ({', '.join(map(str, rows[at == n] - starts[n]))})"
        for n in np.unique(at).tolist()
    ]
    table = connection.sql(" UNION ALL ".join(selects)).to_arrow_table()
    positions = tables.read_numbers(table["position"], np.int64)
    order = np.argsort(positions)
    return tables.take(table.drop_columns("position"), order[np.searchsorted(positions[order], rows)])


def _describe(error: Exception) -> str:
    """An error of DuckDB in one line, without the statement and the place in it, or that of Python within it."""
    lines = str(error).strip().split("\n\n")[0].splitlines()
    if any("Traceback (most recent call last)" in line for line in lines):
        return lines[-1].partition(": ")[2]
    return "; ".join(lines)


def _explain(error: Exception, run: StoredRun) -> str:
    """An error of a query, with the tables and columns of the run where DuckDB would guess at others."""
    message = (str(error).splitlines() or [""])[0]
    if _UNKNOWN_TABLE.search(message):
        return f"{message}; a run has {', '.join(VIEWS[:-1])} and {VIEWS[-1]}"
    if message.startswith("Binder Error"):
        names = {name.casefold() for name in re.findall(r'"([^"]+)"', message)}
        labels = [metric.label for metric in run.finished_metrics()]
        columns = zip(labels, name_columns(labels), strict=True)
        numbered = [quote_name(column) for label, column in columns if label.casefold() in names and column != label]
        if numbered:
            return f"{message}; wide has {' and '.join(numbered)}"
        if not run.has_texts and not names.isdisjoint(tables.QUOTING_COLUMNS):
            return f"{message}; this run stores no texts"
    return _describe(error)


def name_columns(labels: Sequence[str]) -> list[str]:
    """The column of each metric in a table with a column for each. Labels that SQL takes for the same, or for one of
    the other columns, get a number."""
    uses = Counter([*KEYS, *(label.casefold() for label in labels)])
    taken = {name for name in uses if uses[name] == 1}
    numbers = Counter[str]()
    columns = []
    for label in labels:
        key, column = label.casefold(), label
        while uses[key] > 1 and (column == label or column.casefold() in taken):
            numbers[key] += 1
            column = f"{label} ({numbers[key]})"
        taken.add(column.casefold())
        columns.append(column)
    return columns


def lock(connection: duckdb.DuckDBPyConnection, run: StoredRun) -> None:
    """Confine a connection to the run: its SQL reads no other file and changes no setting."""
    paths = ", ".join(quote_text(_locate(run, name)) for name in run.manifest.list_parts())
    connection.execute(f"SET allowed_paths = [{paths}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def quote_text(text: str) -> str:
    return "'" + encodable(text).replace("'", "''") + "'"


def quote_name(name: str) -> str:
    return '"' + encodable(name).replace('"', '""') + '"'


def _check_statement(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = connection.extract_statements(sql)
    kinds = [statement.type.name for statement in statements]
    if kinds == ["EXPLAIN"]:  # EXPLAIN ANALYZE runs its statement.
        explained = connection.extract_statements(_EXPLAIN.sub("", statements[0].query, count=1))
        kinds = [statement.type.name for statement in explained]
    if kinds == ["SELECT"] or (kinds == ["MULTI"] and _PIVOT.match(statements[0].query)):
        return
    what = f"got {len(kinds)} statements" if len(kinds) != 1 else f"got {kinds[0]}"
    raise RunError(
        f"a query is one statement that reads, such as SELECT, DESCRIBE or SUMMARIZE; {what}", code="invalid_value"
    )


@dataclass(eq=False)
class _Views:
    """Creates the views of a run."""

    run: StoredRun
    connection: duckdb.DuckDBPyConnection
    #: Metrics whose scores are not of exactly the records.
    differing: list[StoredMetric] = field(default_factory=list)
    _tables: int = 0

    @cached_property
    def _record_hashes(self) -> Hashes:
        return self.run.read_hashes()

    def create(self, names: Collection[str]) -> None:
        """Create these views, and the one that they build on."""
        run = self.run
        # Out of the way of SHOW TABLES.
        self.connection.execute(f"CREATE SCHEMA {_SCHEMA}")
        schemas = {"ratings": tables.RATINGS, "errors": tables.ERRORS, "preferences": tables.PREFERENCES}
        for name, schema in schemas.items():
            if name in names:
                parts = [part for _, part in run.list_parts(name)]
                self.connection.execute(f"CREATE VIEW {name} AS {self._select(name, parts, schema)}")
        if not {"records", "scores", "wide"}.isdisjoint(names):
            parts, kept = [part for _, part in run.list_parts("records")], run.kept_rows
            # Other rows are in another input, too.
            repeated = "" if kept is None else self._list_dropped("records", parts, kept)
            select = self._select("records", parts, tables.RECORDS, repeated)
            self.connection.execute(f"CREATE VIEW records AS {select}")
        if not {"scores", "wide"}.isdisjoint(names):
            self._create_scores()
        if "pairs" in names:
            comparators = [metric for metric in run.manifest.metrics if metric.finished and metric.compares]
            selects = [self._select_metric(metric) for metric in comparators]
            pairs = " UNION ALL ".join(selects) or self._select("", [], tables.JUDGMENTS)
            self.connection.execute(f"CREATE VIEW pairs AS {pairs}")

    def _create_scores(self) -> None:
        """Create `scores` and `wide`."""
        finished = self.run.finished_metrics()
        # Where the scores are of exactly the records, which sums of hashes tell, each row is the score of a record.
        select_sums = "SELECT count(*), sum(hash(record)) FROM"
        selects = []
        records = self.connection.execute(f"{select_sums} records").fetchall()
        for metric in finished:
            select = self._select_metric(metric, is_exact=True)
            if self.connection.execute(f"{select_sums} ({select})").fetchall() != records:
                self.differing.append(metric)
                select = self._select_metric(metric)
            selects.append(select)
        scores = " UNION ALL ".join(selects) or self._select("", [], tables.SCORES)
        # The grouping tells DuckDB that no record is there twice: it leaves out the join where no name is asked for.
        names = "SELECT record, any_value(item) AS item, any_value(system) AS system FROM records GROUP BY record"
        self.connection.execute(
            f"CREATE VIEW scores AS SELECT r.item, r.system, s.* FROM ({scores}) s LEFT JOIN ({names}) r USING (record)"
        )
        columns = map(quote_name, name_columns([metric.label for metric in finished]))
        values = "".join(f", m{n}.value AS {column}" for n, column in enumerate(columns))
        joins = "".join(f" LEFT JOIN ({select}) m{n} USING (record)" for n, select in enumerate(selects))
        self.connection.execute(f"CREATE VIEW wide AS SELECT r.record, r.item, r.system{values} FROM records r{joins}")

    def _select(
        self, folder: str, parts: Sequence[Part], schema: pa.Schema, left_out: str = "", label: str = ""
    ) -> str:
        """SQL that reads parts, without the rows that the table `left_out` lists. A label takes the place of the first
        column."""
        hidden = {"original"} if self.run.has_texts else {"original", *tables.QUOTING_COLUMNS}
        names = [name for name in schema.names if name not in hidden]
        if not parts:
            return f"SELECT * FROM {self._create_table(schema.empty_table().select(names))}"
        columns = [f"p.{quote_name(name)}" for name in names]
        if label:
            columns[0] = f"{quote_text(label)} AS {quote_name(names[0])}"
        paths = ", ".join(quote_text(_find_part(self.run, folder, part)) for part in parts)
        source = f"read_parquet([{paths}], filename = true, file_row_number = true)"
        if left_out:
            source = f"{source} p ANTI JOIN {left_out} l ON p.filename = l.path AND p.file_row_number = l.position"
        return f"SELECT {', '.join(columns)} FROM {source}{'' if left_out else ' p'}"

    def _select_metric(self, metric: StoredMetric, *, is_exact: bool = False) -> str:
        """SQL that reads what a finished metric or comparator gave. Unless it is exactly that of the records, rows are
        left out that do not count, because there are others or the record is gone."""
        assert metric.finished is not None
        parts, left_out = metric.finished.parts, ""
        if parts and not is_exact:
            key = "pair" if metric.compares else "record"
            columns = [key, "failure_kind", "incomplete"]
            blocks = [self.run.read_part(metric.place, part, columns).replace_schema_metadata() for part in parts]
            table = pa.concat_tables(blocks, promote_options="default")
            hashes = tables.read_hashes(table[key])
            rows = find_rows(hashes if metric.compares else self._record_hashes, hashes, find_unsettled(table))
            kept = np.zeros(len(hashes), np.bool_)
            kept[rows[rows >= 0]] = True
            left_out = "" if kept.all() else self._list_dropped(metric.place, parts, kept)
        schema = tables.JUDGMENTS if metric.compares else tables.SCORES
        return self._select(metric.place, parts, schema, left_out, metric.label)

    def _list_dropped(self, folder: str, parts: Sequence[Part], kept: NDArray[np.bool_]) -> str:
        """The name of a table of the rows of some parts that are not kept."""
        starts = np.cumsum([0, *(part.rows for part in parts)])
        dropped = np.flatnonzero(~kept)
        at = np.searchsorted(starts, dropped, "right") - 1
        paths = [_find_part(self.run, folder, part) for part in parts]
        return self._create_table(pa.table({"path": [paths[n] for n in at.tolist()], "position": dropped - starts[at]}))

    def _create_table(self, rows: pa.Table) -> str:
        self._tables += 1
        name = f"{_SCHEMA}.rows_{self._tables}"
        self.connection.register("new_rows", rows)
        self.connection.execute(f"CREATE TABLE {name} AS SELECT * FROM new_rows")
        self.connection.unregister("new_rows")
        return name


def _find_part(run: StoredRun, folder: str, part: Part) -> str:
    """The path for DuckDB of a part that is as it was written."""
    try:
        run.store.check_part(folder, part)
    except Damaged as error:
        raise run.describe_damage(folder, part, error) from None
    return _locate(run, f"{folder}/{part.file}")


def _locate(run: StoredRun, name: str) -> str:
    """The path of a part, which is named as seen from the run folder, for DuckDB."""
    if _has_own_files(run):
        return f"{_PROTOCOL}://{name}"
    return os.path.join(os.path.abspath(run.store.path), name)


def _has_own_files(run: StoredRun) -> bool:
    """Whether DuckDB cannot open the parts by itself: they are not local, or their path reads as a pattern."""
    root = str(run.store.path)
    return is_remote(root) or any(mark in os.path.abspath(root) for mark in "*?[")


def _open_files(run: StoredRun) -> Any:
    """A file system for DuckDB that holds the parts of a run, and nothing else."""
    from fsspec import AbstractFileSystem

    listed = set(run.manifest.list_parts())

    class RunFiles(AbstractFileSystem):  # type: ignore[misc]
        protocol = _PROTOCOL
        cachable = False

        def open(self, path: str, mode: str = "rb", **_: Any) -> Any:
            name = path.removeprefix(f"{_PROTOCOL}://")
            if name not in listed:
                raise FileNotFoundError(path)
            if mode != "rb":
                raise PermissionError("a run is read, not written")
            return run.store.open_file(name)

        def info(self, path: str, **_: Any) -> Any:
            with self.open(path) as file:
                return {"name": path, "size": file.seek(0, os.SEEK_END), "type": "file"}

        def modified(self, path: str) -> datetime:  # noqa: ARG002
            return datetime.fromtimestamp(0, UTC)  # Parts never change.

        def glob(self, path: str, **_: Any) -> list[str]:
            return [path]

    return RunFiles()
