"""A run as the viewer shows it: its scores in memory, and its texts where they are stored.

There is no index to build: DuckDB fetches the texts of the outputs that are shown, and searches all of them.
Tables that make searches faster are built in the background.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MetristError, RunError, format_count, format_path
from metrist.io.remote import is_remote
from metrist.io.writer import atomic_write
from metrist.metrics.base import Metric, PartMetric
from metrist.names import encode_names
from metrist.ratings import Error
from metrist.records import TAG_FIELDS
from metrist.report.cells import decimals_for
from metrist.report.output_card import OutputCard
from metrist.report.outputs import build_heat
from metrist.run.loading import fetch_flat, load
from metrist.run.query import number_rows, open_database
from metrist.run.texts import OutputFacts, OutputTexts, take_scores

if TYPE_CHECKING:
    import duckdb

    from metrist.run.results import Results

Kind = Literal["metric", "aspect", "rating", "length"]
Key = tuple[str, str]
Floats = NDArray[np.float64]
Progress = Callable[[int, int | None], None]
#: Seconds that closing waits for running queries.
_CLOSE_SECONDS = 5.0
#: The texts that are searched, in SQL.
_TEXTS = {
    "output": "lower(output)",
    "context": """lower(concat_ws(chr(10), instruction, source, array_to_string("references", chr(10))))""",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewColumn:
    """A column of numbers: a metric's scores, those of an aspect, people's mean ratings or the length of the output.
    `higher` says whether higher is better; None: neither is. `finds_errors` says whether the metric lists errors."""

    name: str
    kind: Kind
    higher: bool | None
    decimals: int
    low: float | None
    high: float | None
    missing: int
    signature: str = ""
    finds_errors: bool = False


def open_view(
    path: str | os.PathLike[str],
    texts: Sequence[str] = (),
    *,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> ViewedRun:
    """A run folder, or a flat file that a run wrote. `texts` are files with the texts, by default what the run holds; a
    run whose texts cannot be read is shown without them, and a note says why."""
    results = load(fetch_flat(path))
    notes: list[str] = []
    opened = None
    try:
        opened = OutputTexts.open(results, list(texts) or None, progress=progress)
        notes += opened.remarks
        if missing := int(np.count_nonzero(~opened.has_text)):
            notes.append(f"{format_count(missing, 'output')} without a text in the files that were read")
    except MetristError as error:
        if texts:
            raise
        notes.append(f"texts are not shown: {error}")
    if note:
        for remark in notes:
            note(remark)
    where = str(path) if is_remote(path) else str(Path(path).resolve())
    name = str(path) if is_remote(path) else format_path(Path(path))
    return ViewedRun(name, results, opened, notes, Picks(where))


class Picks:
    """The outputs of a run, named by its path or URL, that the user picked, in a file of the folder for caches."""

    def __init__(self, run: str) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
        folder = (Path(base) if base else Path.home() / ".cache") / "metrist" / "view"
        self._path = folder / f"{hashlib.sha256(run.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}.json"
        self.keys: set[Key] = set()
        with suppress(OSError, ValueError, TypeError):
            self.keys = {(str(item), str(system)) for item, system in json.loads(self._path.read_bytes())}

    def change(self, keys: Iterable[Key], *, picked: bool) -> None:
        """Add outputs to the picks, or remove them."""
        self.keys = self.keys | set(keys) if picked else self.keys - set(keys)
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_write(self._path) as file:
            json.dump(sorted(self.keys), file)


class ViewedRun:
    """The numbers of a run in memory, and its texts on disk. Safe to use from several threads."""

    def __init__(
        self, name: str, results: Results, texts: OutputTexts | None, notes: Sequence[str], picks: Picks
    ) -> None:
        self.name, self.results, self.picks = name, results, picks
        self.notes = [*results.notes, *notes]
        self.items, self.systems = encode_names(results.items), encode_names(results.systems)
        #: The fields whose texts are in a table.
        self._prepared: set[str] = set()
        self._cursors: list[duckdb.DuckDBPyConnection] = []
        self._lock = threading.Lock()
        source = number_rows(texts.run, "records") if texts else None
        self._texts = texts if source else None
        self._database = open_database(texts.run) if texts and source else None
        if self._database:
            self._database.execute(f"CREATE VIEW texts AS {source}")
        self.labels: dict[str, list[str]] = {}
        self.tags = {tag: self._read_tags(tag) for tag in TAG_FIELDS}
        #: One line for each error: its row, and the indexes of its aspect and its severity.
        self.errors = self._list_errors()
        self.columns: dict[str, ViewColumn] = {}
        self.numbers: dict[str, Floats] = {}
        self._add_columns()

    def __len__(self) -> int:
        return len(self.items)

    def close(self) -> None:
        """Interrupt running queries and close the database: DuckDB complains about one that is open at exit."""
        with self._lock:
            database, self._database = self._database, None
        until = time.monotonic() + _CLOSE_SECONDS
        while self._cursors and time.monotonic() < until:
            for cursor in list(self._cursors):
                with suppress(Exception):  # DuckDB refuses at times.
                    cursor.interrupt()
            time.sleep(0.01)
        if database:
            database.close()

    @contextmanager
    def _open_cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._lock:  # A connection refuses a second call at the same time; cursors are connections of their own.
            if self._database is None:
                raise RunError("the run is closed")
            cursor = self._database.cursor()
            self._cursors.append(cursor)
        try:
            yield cursor
        finally:
            with self._lock:
                self._cursors.remove(cursor)
            cursor.close()

    def key(self, row: int) -> Key:
        """The item and system of a row."""
        return self.items[row], self.systems[row]

    def rows_of(self, item: str) -> list[int]:
        """The rows of all outputs for an item."""
        rows: list[int] = np.flatnonzero(self.items.codes == self._item_codes.get(item, -1)).tolist()
        return rows

    @cached_property
    def _item_codes(self) -> dict[str, int]:
        return {name: code for code, name in enumerate(self.items.names)}

    def list_picked(self) -> list[int]:
        """The rows that the user picked."""
        keys = self.picks.keys
        wanted = [self._item_codes.get(item, -1) for item, _ in keys]
        return [row for row in np.flatnonzero(np.isin(self.items.codes, wanted)).tolist() if self.key(row) in keys]

    # ---- Numbers

    def _add_columns(self) -> None:
        results = self.results
        with ThreadPoolExecutor(1) as pool:
            counting = pool.submit(self._fetch, "SELECT row_number, length(output) AS value FROM texts")
            for metric in results.columns:
                kind: Kind = "aspect" if isinstance(metric, PartMetric) else "metric"
                column = results[metric]
                self._add(
                    metric.label,
                    kind,
                    column.values,
                    metric,
                    signature=results.signatures.get(metric.label, ""),
                    finds_errors=kind == "metric" and (metric.reports_errors or bool(column.scores.errors)),
                )
            for aspect, rated in (self._texts.ratings if self._texts else {}).items():
                self._add(f"people: {aspect}", "rating", rated.mean(len(self)))
            rows, values = counting.result()
        lengths = np.full(len(self), np.nan)
        lengths[rows] = values
        self._add("characters", "length", lengths)

    def _add(self, name: str, kind: Kind, values: Floats, metric: Metric | None = None, **fields: Any) -> None:
        from metrist.evaluate.selection import choose_decimals

        finite = values[np.isfinite(values)]
        limits = [float(finite.min()), float(finite.max())] if len(finite) else []
        decimals = 0 if kind == "length" else 3
        if limits and kind != "length":
            decimals = choose_decimals(metric, *limits) if metric else decimals_for(*limits)
        self.numbers[name] = np.asarray(values, np.float64)
        self.columns[name] = ViewColumn(
            name=name,
            kind=kind,
            higher=metric.higher_is_better if metric else True if kind == "rating" else None,
            decimals=decimals,
            low=limits[0] if limits else None,
            high=limits[1] if limits else None,
            missing=int(np.count_nonzero(np.isnan(values))),
            **fields,
        )

    def _read_tags(self, tag: str) -> NDArray[np.int32]:
        """The number of each output's task or language among the `labels`; -1 where it has none."""
        numbers = np.full(len(self), -1, np.int32)
        self.labels[tag] = []
        for (label,) in self._ask(f"SELECT DISTINCT {tag} FROM texts WHERE {tag} IS NOT NULL ORDER BY {tag}"):
            rows, _ = self._fetch(f"SELECT row_number, 0 AS value FROM texts WHERE {tag} = ?", label)
            numbers[rows] = len(self.labels[tag])
            self.labels[tag].append(label)
        return numbers

    def _find_errors(self) -> list[Mapping[int, Sequence[Error]]]:
        """The errors of each metric, and of people, by the position of the output."""
        found: list[Mapping[int, Sequence[Error]]] = [b.errors for b in self.results.scores.values() if b.errors]
        return [*found, self._texts.errors] if self._texts else found

    def _list_errors(self) -> NDArray[np.int64]:
        found = self._find_errors()
        aspects: dict[str, int] = {}
        severities: dict[str, int] = {}
        lines = []
        for row in sorted({row for errors in found for row in errors}):
            for error in (error for errors in found for error in errors.get(row, ())):
                aspect = aspects.setdefault(error.aspect, len(aspects))
                severity = severities.setdefault((error.severity or "").lower(), len(severities))
                lines.append((row, aspect, severity))
        self.labels |= {"aspect": list(aspects), "severity": list(severities)}
        return np.array(lines, np.int64).reshape(-1, 3)

    def list_failures(self, row: int) -> dict[str, str]:
        """Why metrics have no score of an output, by the names of the metrics."""
        blocks = self.results.scores.items()
        return {name: str(block.failures[row]) for name, block in blocks if row in block.failures}

    @cached_property
    def unchecked(self) -> NDArray[np.bool_]:
        """Which outputs a metric that lists errors has no score of."""
        values = [self.numbers[name] for name, column in self.columns.items() if column.finds_errors]
        return np.asarray(np.isnan(values).any(axis=0)) if values else np.zeros(len(self), np.bool_)

    # ---- Texts

    def _ask(self, sql: str) -> list[tuple[Any, ...]]:
        if self._database is None:
            return []
        with self._open_cursor() as cursor:
            return cursor.execute(sql).fetchall()

    def _fetch(self, sql: str, *values: Any) -> tuple[NDArray[np.intp], NDArray[Any]]:
        """The positions and values of what a query finds, which gives the columns row_number and value."""
        if self._database is None:
            return np.empty(0, np.intp), np.empty(0)
        with self._open_cursor() as cursor:
            found = cursor.execute(sql, list(values)).fetchnumpy()
        rows = self._positions[np.asarray(found["row_number"])]
        return rows[rows >= 0], np.asarray(found["value"])[rows >= 0]

    @cached_property
    def _positions(self) -> NDArray[np.intp]:
        """The position of each row of the parts that hold the texts; -1 where it is none of these outputs."""
        assert self._texts is not None
        size = sum(part.rows for _, part in self._texts.run.list_parts("records"))
        positions = np.full(size, -1)
        has_text = self._texts.has_text
        positions[self._texts.rows[has_text]] = np.flatnonzero(has_text)
        return positions

    def prepare(self) -> None:
        """Copy the texts that searches read into tables of the database; takes seconds for a large run."""
        for field, text in _TEXTS.items():
            self._ask(
                f"CREATE TABLE search_{field} AS SELECT {text} AS text, list(row_number) AS rows FROM texts GROUP BY 1"
            )
            self._prepared.add(field)
        self.text_hashes  # noqa: B018

    def search(self, words: str, field: str) -> NDArray[np.bool_]:
        """Which outputs have these words in a field, whatever their case."""
        if field == "item":
            folded = words.casefold()
            names = np.fromiter((folded in name.casefold() for name in self.items.names), np.bool_)
            return names[self.items.codes]
        hits = np.zeros(len(self), np.bool_)
        if field == "reason":
            folded = words.casefold()
            hits[[row for row, text in self._reasons.items() if folded in text]] = True
            return hits
        sql = f"SELECT row_number, 0 AS value FROM texts WHERE contains({_TEXTS[field]}, lower(?))"
        if field in self._prepared:
            sql = f"SELECT unnest(rows) AS row_number, 0 AS value FROM search_{field} WHERE contains(text, lower(?))"
        hits[self._fetch(sql, words)[0]] = True
        return hits

    @cached_property
    def _reasons(self) -> dict[int, str]:
        """Explanations, failures and errors of the outputs that have some, without case."""
        reasons: dict[int, list[str]] = {}
        for block in self.results.scores.values():
            for said in (block.explanations, block.failures):
                for row, text in said.items() if said else ():
                    reasons.setdefault(row, []).append(text)
        for errors in self._find_errors():
            for row, listed in errors.items():
                texts = (text for error in listed for text in (error.aspect, error.explanation, error.text) if text)
                reasons.setdefault(row, []).extend(texts)
        return {row: "\n".join(texts).casefold() for row, texts in reasons.items()}

    @cached_property
    def text_hashes(self) -> NDArray[np.uint64]:
        """A hash of each output, 0 where there is none."""
        hashes = np.zeros(len(self), np.uint64)
        rows, values = self._fetch("SELECT row_number, hash(output) AS value FROM texts")
        hashes[rows] = values
        return hashes

    def read_texts(self, rows: Sequence[int], *fields: str) -> dict[int, dict[str, str | None]]:
        """Some fields of the records of some outputs; nothing where there is no record."""
        if self._database is None or self._texts is None:
            return {row: {} for row in rows}
        with self._open_cursor() as cursor:
            return self._texts.read_texts(rows, fields, cursor)

    def read_facts(self, row: int) -> OutputFacts:
        """The record of an output, and what people say about it."""
        if self._database is None or self._texts is None:
            return OutputFacts()
        with self._open_cursor() as cursor:
            return self._texts.read([row], cursor)[row]

    def read_card(self, row: int) -> tuple[OutputCard, OutputFacts, dict[str, Any]]:
        """All that is known about an output, its record with what people say, and metrics' readings of its tokens."""
        facts, readings = self.read_facts(row), dict[str, Any]()
        item, system = self.key(row)
        blocks = take_scores(self.results, [row])
        for metric in self.results.metrics:
            if (block := blocks[metric.label]).tokens:
                (read,) = build_heat([item], [system], [(metric, block)], item=None, system=None, limit=1).outputs
                readings[metric.label] = read.for_script()["readings"]
        scores = {label: block[0] for label, block in blocks.items()}
        card = OutputCard(item=item, system=system, scores=scores, record=facts.record, errors=tuple(facts.errors))
        return card, facts, readings
