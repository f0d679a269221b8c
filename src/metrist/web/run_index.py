"""An index of a run that the viewer reads: one SQLite file in the user's folder for caches.

Reading a run of 100,000 outputs with its texts takes half a minute; opening its index takes a fraction of a second. An
index knows the files that it was built from. Where one has changed, it is built again, and only what the user picked is
kept.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MetristError, format_count, format_path

if TYPE_CHECKING:
    from metrist.io import Reader
    from metrist.metrics.base import Metric
    from metrist.records import Record
    from metrist.run.results import Results

#: Changes with the layout of the file.
FORMAT = 1
#: An index that was not used for so many days is deleted.
_KEEP_DAYS = 30
_BATCH = 2000
_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB);
CREATE TABLE columns (position INTEGER PRIMARY KEY, facts TEXT, numbers BLOB);
CREATE TABLE contexts (id INTEGER PRIMARY KEY, facts TEXT);
CREATE TABLE outputs (row INTEGER PRIMARY KEY, output BLOB, details TEXT, reasons BLOB);
CREATE TABLE tokens (row INTEGER, metric TEXT, readings TEXT, PRIMARY KEY (row, metric));
CREATE TABLE picks (item TEXT, system TEXT, PRIMARY KEY (item, system));
"""

Kind = Literal["metric", "aspect", "rating", "length"]
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexColumn:
    """A column of numbers: a metric's scores, those of an aspect, people's mean ratings or the length of the output.
    `higher` says whether higher is better; None: neither is."""

    name: str
    kind: Kind
    higher: bool | None
    decimals: int
    low: float | None
    high: float | None
    missing: int
    signature: str = ""


class RunIndex:
    """The scores of a run in memory, and its texts and reasons on disk. Safe to use from several threads."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self._connection = sqlite3.connect(path, check_same_thread=False)
        self._lock = threading.Lock()
        facts = dict(self._connection.execute("SELECT name, value FROM facts"))
        self.items: list[str] = json.loads(facts["items"])
        self.system_names: list[str] = json.loads(facts["systems"])
        self.system_ids = np.frombuffer(facts["system_ids"], np.int32)
        self.context_ids = np.frombuffer(facts["context_ids"], np.int32)
        #: One line for each error: its row, and the indexes of its aspect, its severity and of who found it.
        self.errors = np.frombuffer(facts["errors"], np.int32).reshape(-1, 4)
        self.labels: dict[str, list[str]] = json.loads(facts["labels"])
        self.tags: dict[str, NDArray[np.int32]] = {
            tag: np.frombuffer(facts[f"{tag}_ids"], np.int32) for tag in ("task", "language")
        }
        self.notes: list[str] = json.loads(facts["notes"])
        self.columns: dict[str, IndexColumn] = {}
        self.numbers: dict[str, NDArray[np.float64]] = {}
        for text, numbers in self._connection.execute("SELECT facts, numbers FROM columns ORDER BY position"):
            column = IndexColumn(**json.loads(text))
            self.columns[column.name] = column
            self.numbers[column.name] = np.frombuffer(numbers, np.float64)
        self.has_tokens = self._connection.execute("SELECT 1 FROM tokens LIMIT 1").fetchone() is not None
        self._rows_of_items: dict[str, list[int]] | None = None

    def __len__(self) -> int:
        return len(self.items)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def system(self, row: int) -> str:
        return self.system_names[int(self.system_ids[row])]

    @property
    def keys(self) -> Iterator[tuple[str, str]]:
        """The item and system of each row."""
        names = self.system_names
        return zip(self.items, (names[number] for number in self.system_ids.tolist()), strict=True)

    def rows_of(self, item: str) -> list[int]:
        """The rows of all outputs for an item."""
        if self._rows_of_items is None:
            rows: dict[str, list[int]] = {}
            for row, name in enumerate(self.items):
                rows.setdefault(name, []).append(row)
            self._rows_of_items = rows
        return self._rows_of_items.get(item, [])

    def _fetch(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def read_outputs(self, rows: Sequence[int]) -> dict[int, str | None]:
        """The texts of these outputs; None where the run's files do not have it."""
        marks = ",".join("?" * len(rows))
        found = self._fetch(f"SELECT row, output FROM outputs WHERE row IN ({marks})", list(map(int, rows)))
        return {row: None if output is None else _decode(output) for row, output in found}

    def read_details(self, row: int) -> dict[str, Any]:
        """What metrics and people say about an output, and its further columns."""
        ((text,),) = self._fetch("SELECT details FROM outputs WHERE row = ?", (int(row),))
        details: dict[str, Any] = json.loads(text, parse_constant=lambda name: None)  # noqa: ARG005 — NaN is no JSON.
        return details

    def read_context(self, number: int) -> dict[str, Any]:
        """The instruction, source and references that outputs share."""
        found = self._fetch("SELECT facts FROM contexts WHERE id = ?", (int(number),))
        context: dict[str, Any] = json.loads(found[0][0]) if found else {}
        return context

    def read_tokens(self, row: int) -> dict[str, Any]:
        """The readings of an output by metrics that score single tokens."""
        found = self._fetch("SELECT metric, readings FROM tokens WHERE row = ?", (int(row),))
        return {metric: json.loads(readings) for metric, readings in found}

    def iterate_texts(self, field: Literal["output", "context", "reason"]) -> Iterator[str]:
        """All texts of a kind, for a search: outputs and reasons by row, contexts by number."""
        if field == "context":
            rows = self._fetch("SELECT facts FROM contexts ORDER BY id")
            return ("\n".join(_list_texts(json.loads(text))) for (text,) in rows)
        rows = self._fetch(f"SELECT {'output' if field == 'output' else 'reasons'} FROM outputs ORDER BY row")
        return ("" if text is None else _decode(text) for (text,) in rows)

    # ---- What the user picked

    def read_picks(self) -> set[tuple[str, str]]:
        return {(json.loads(item), json.loads(system)) for item, system in self._fetch("SELECT * FROM picks")}

    def pick(self, keys: Iterable[tuple[str, str]], *, picked: bool) -> None:
        """Pick outputs by item and system, or pick them no longer."""
        # As JSON: SQLite cannot store a lone surrogate as text.
        rows = [(json.dumps(item), json.dumps(system)) for item, system in keys]
        add, remove = "INSERT OR IGNORE INTO picks VALUES (?, ?)", "DELETE FROM picks WHERE item = ? AND system = ?"
        with self._lock, self._connection:
            self._connection.executemany(add if picked else remove, rows)


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")


def _list_texts(context: dict[str, Any]) -> Iterator[str]:
    yield from (context[name] for name in ("instruction", "source") if context.get(name))
    yield from context.get("references", ())


def _list_reasons(details: dict[str, Any]) -> Iterator[str]:
    scores = details["scores"].values()
    yield from (score[name] for score in scores for name in ("explanation", "failure") if score.get(name))
    for error in (*(error for score in scores for error in score.get("errors", ())), *details.get("errors", ())):
        yield from (error[name] for name in ("aspect", "explanation", "text") if error.get(name))


# ---- Opening and building


def open_index(
    run: str | os.PathLike[str],
    texts: Sequence[str] = (),
    *,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> RunIndex:
    """Return the index of a run folder, or of a flat file that a run wrote; build it where there is none, or where a
    file has changed. `texts` are files with the texts, by default those that the run read."""
    from metrist.run.remote_folder import fetch_copy, find_url

    run = Path(fetch_copy(run))
    folder = index_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _delete_old(folder)
    name = json.dumps([str(run.resolve()), [str(Path(text).resolve()) for text in texts]])
    path = folder / f"{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}.sqlite"
    if not _is_current(path, run):
        _build(path, run, texts, progress, note)
    with suppress(OSError):
        os.utime(path)
    return RunIndex(path, find_url(run) or format_path(run))


def index_folder() -> Path:
    """The folder of all indexes, in the user's folder for caches."""
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "metrist" / "view"


def _delete_old(folder: Path) -> None:
    for path in folder.glob("*.sqlite*"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - 86400 * _KEEP_DAYS:
                path.unlink()


def _stamp_files(paths: Iterable[Path]) -> dict[str, list[int]]:
    """What tells cheaply whether one of these files was written again."""
    stamps = {}
    for path in sorted(set(paths)):
        with suppress(OSError):
            status = path.stat()
            stamps[str(path.resolve())] = [status.st_size, status.st_mtime_ns]
    return stamps


def _list_run_files(run: Path) -> list[Path]:
    if run.is_file():
        return [run]
    names = [run / "manifest.json", *(run / "inputs").glob("*"), *(run / "results").glob("*/*")]
    return [path for path in names if path.is_file()]


def _is_current(path: Path, run: Path) -> bool:
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(path)) as connection:
            facts = dict(
                connection.execute("SELECT name, value FROM facts WHERE name IN ('format', 'run_files', 'inputs')")
            )
    except sqlite3.Error:
        return False
    if facts.get("format") != str(FORMAT) or json.loads(facts["run_files"]) != _stamp_files(_list_run_files(run)):
        return False
    inputs: dict[str, list[int]] = json.loads(facts["inputs"])
    return inputs == _stamp_files(map(Path, inputs))


def _build(
    path: Path, run: Path, texts: Sequence[str], progress: Progress | None, note: Callable[[str], None] | None
) -> None:
    from metrist.run import load

    run_files = _stamp_files(_list_run_files(run))  # Before reading: a change while it is read counts as one.
    results = load(run)
    picks: set[tuple[str, str]] = set()
    if path.exists():
        with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as old:
            picks = set(old.execute("SELECT item, system FROM picks"))
    temporary = path.with_name(f"{path.stem}.{os.getpid()}.tmp.sqlite")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o600)  # It holds the user's texts.
    try:
        with closing(sqlite3.connect(temporary)) as connection, connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            connection.executescript(_TABLES)
            builder = _Builder(results, connection)
            inputs = builder.read_texts(run, texts, progress)
            builder.write({"format": FORMAT, "run_files": run_files, "inputs": inputs})
            connection.executemany("INSERT INTO picks VALUES (?, ?)", picks)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if note is not None:
        for remark in builder.notes:
            note(remark)


class _Builder:
    """Gathers what is known about each output, and writes it."""

    def __init__(self, results: Results, connection: sqlite3.Connection) -> None:
        self.results = results
        self.connection = connection
        self.notes: list[str] = []
        self.rows = {key: row for row, key in enumerate(zip(results.items, results.systems, strict=True))}
        self.contexts: dict[bytes, int] = {}
        self.context_ids = np.full(len(results), -1, np.int32)
        self.lengths = np.full(len(results), np.nan)
        self.ratings: dict[str, dict[int, list[float]]] = {}
        self.errors: dict[int, list[dict[str, Any]]] = {}
        self.extras: dict[int, dict[str, Any]] = {}
        self.tags: dict[str, dict[int, str]] = {"task": {}, "language": {}}
        self.texts: list[bytes | None] = [None] * len(results)

    def read_texts(self, run: Path, files: Sequence[str], progress: Progress | None) -> dict[str, list[int]]:
        """Read texts, ratings and errors from the run's files, or from `files`; returns the stamps of what was read.
        A run whose files are gone is shown without texts, and a note says why."""
        from metrist.report.errors import error_row
        from metrist.run import read_inputs

        try:
            reader: Reader = read_inputs(run, list(files))
            stamps = _stamp_files(Path(source.path) for source in reader.sources if source.path is not None)
            for count, entry in enumerate(reader.entries()):
                for record in entry.records:
                    self._add_record(record)
                for rating in entry.ratings:
                    if (row := self.rows.get((rating.item, rating.system))) is not None:
                        self.ratings.setdefault(rating.aspect, {}).setdefault(row, []).append(rating.value)
                for stored in entry.errors:
                    if (row := self.rows.get((stored.item, stored.system))) is not None:
                        self.errors.setdefault(row, []).append(error_row(stored.error))
                if progress is not None and count % _BATCH == 0:
                    progress(min(count, len(self.results)), len(self.results))
        except MetristError as error:
            if files:
                raise
            self.notes.append(f"texts are not shown: {error}")
            return {}
        self.notes += reader.remarks
        if missing := int(np.isnan(self.lengths).sum()):
            self.notes.append(f"{format_count(missing, 'output')} without a text in the files that were read")
        return stamps

    def _add_record(self, record: Record) -> None:
        row = self.rows.get((record.item, record.system))
        if row is None or self.texts[row] is not None:
            return
        self.texts[row] = record.output.encode("utf-8", "surrogatepass")
        self.lengths[row] = len(record.output)
        text = json.dumps(
            {"instruction": record.instruction, "source": record.source, "references": list(record.references)}
        )
        digest = hashlib.sha256(text.encode()).digest()
        if digest not in self.contexts:
            self.contexts[digest] = len(self.contexts)
            self.connection.execute("INSERT INTO contexts VALUES (?, ?)", (self.contexts[digest], text))
        self.context_ids[row] = self.contexts[digest]
        for tag in ("task", "language"):
            if (value := getattr(record, tag)) is not None:
                self.tags[tag][row] = value
        if record.extra:
            self.extras[row] = dict(record.extra)

    def write(self, facts: dict[str, Any]) -> None:
        results = self.results
        labels: dict[str, list[str]] = {"aspect": [], "severity": [], "finder": []}
        error_lines = self._write_outputs(labels)
        self._write_tokens()
        self._write_columns()
        systems = list(dict.fromkeys(results.systems))
        numbers = {name: number for number, name in enumerate(systems)}
        arrays = {
            "system_ids": np.array([numbers[name] for name in results.systems], np.int32),
            "context_ids": self.context_ids,
            "errors": np.array(error_lines, np.int32).reshape(-1, 4),
        }
        for tag, values in self.tags.items():
            labels[tag] = sorted(set(values.values()))
            places = {value: number for number, value in enumerate(labels[tag])}
            arrays[f"{tag}_ids"] = np.array(
                [places.get(values.get(row, ""), -1) for row in range(len(results))], np.int32
            )
        facts |= {"items": list(results.items), "systems": systems, "labels": labels}
        facts["notes"] = [*results.notes, *self.notes]
        rows: list[tuple[str, str | bytes]] = [(name, json.dumps(value)) for name, value in facts.items()]
        rows += [(name, array.tobytes()) for name, array in arrays.items()]
        self.connection.executemany("INSERT INTO facts VALUES (?, ?)", rows)

    def _write_outputs(self, labels: dict[str, list[str]]) -> list[tuple[int, int, int, int]]:
        from metrist.report.errors import error_row

        places: dict[tuple[str, str], int] = {}

        def place(kind: str, label: str) -> int:
            if (kind, label) not in places:
                places[kind, label] = len(labels[kind])
                labels[kind].append(label)
            return places[kind, label]

        lines: list[tuple[int, int, int, int]] = []
        rows: list[tuple[int, bytes | None, str, bytes | None]] = []
        for row in range(len(self.results)):
            scores: dict[str, dict[str, Any]] = {}
            for label, block in self.results.scores.items():
                details = {
                    "explanation": block.explanations.get(row),
                    "failure": block.failures.get(row),
                    "raw": block.raws.get(row),
                    "errors": [error_row(error) for error in block.errors.get(row, ())],
                }
                if known := {name: value for name, value in details.items() if value}:
                    scores[label] = known
            finders = [(label, details.get("errors", ())) for label, details in scores.items()]
            for finder, errors in [*finders, ("people", self.errors.get(row, ()))]:
                lines += [
                    (
                        row,
                        place("aspect", error["aspect"]),
                        place("severity", (error["severity"] or "").lower()),
                        place("finder", finder),
                    )
                    for error in errors
                ]
            about: dict[str, Any] = {"scores": scores}
            about["ratings"] = {aspect: rated[row] for aspect, rated in self.ratings.items() if row in rated}
            about |= {"errors": self.errors[row]} if row in self.errors else {}
            about |= {"extra": self.extras[row]} if row in self.extras else {}
            reasons = "\n".join(_list_reasons(about)).encode("utf-8", "surrogatepass") or None
            rows.append((row, self.texts[row], json.dumps(about, default=str), reasons))
            if len(rows) == _BATCH:
                self.connection.executemany("INSERT INTO outputs VALUES (?, ?, ?, ?)", rows)
                rows = []
        self.connection.executemany("INSERT INTO outputs VALUES (?, ?, ?, ?)", rows)
        return lines

    def _write_tokens(self) -> None:
        results = self.results
        for metric in results.metrics:
            if results.scores[metric.label].tokens:
                rows = [
                    (self.rows[output.item, output.system], metric.label, json.dumps(list_readings(output)))
                    for output in results.heat(metric, limit=len(results)).outputs
                ]
                self.connection.executemany("INSERT INTO tokens VALUES (?, ?, ?)", rows)

    def _write_columns(self) -> None:
        from metrist.metrics.base import PartMetric

        results = self.results
        columns: list[tuple[IndexColumn, NDArray[np.float64]]] = []
        for metric in results.columns:
            values = results[metric].values
            kind: Kind = "aspect" if isinstance(metric, PartMetric) else "metric"
            signature = results.signatures.get(metric.label, "")
            columns.append((_describe(metric.label, kind, values, metric, signature), values))
        for aspect, rated in self.ratings.items():
            values = np.full(len(results), np.nan)
            values[list(rated)] = [float(np.mean(ratings)) for ratings in rated.values()]
            columns.append((_describe(f"people: {aspect}", "rating", values), values))
        columns.append((_describe("characters", "length", self.lengths), self.lengths))
        rows = [
            (position, json.dumps(asdict(column)), np.ascontiguousarray(values, np.float64).tobytes())
            for position, (column, values) in enumerate(columns)
        ]
        self.connection.executemany("INSERT INTO columns VALUES (?, ?, ?)", rows)


def _describe(
    name: str, kind: Kind, values: NDArray[np.float64], metric: Metric | None = None, signature: str = ""
) -> IndexColumn:
    from metrist.evaluate.selection import choose_decimals
    from metrist.report.tables import decimals_for

    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (math.nan, math.nan)
    if kind == "length":
        decimals = 0
    elif not len(finite):
        decimals = 3
    else:
        decimals = choose_decimals(metric, low, high) if metric else decimals_for(low, high)
    return IndexColumn(
        name=name,
        kind=kind,
        higher=metric.higher_is_better if metric else True if kind == "rating" else None,
        decimals=decimals,
        low=low if len(finite) else None,
        high=high if len(finite) else None,
        missing=int(np.isnan(values).sum()),
        signature=signature,
    )


def list_readings(output: Any) -> list[dict[str, Any]]:
    """The readings of a `HeatOutput` as plain data: words, log-probabilities and steps of the colour scale."""
    from metrist.report.heat import MAX_READINGS

    return [
        {
            "label": reading.label,
            "units": [
                [text, None if math.isnan(logprob) else round(logprob, 4), step]
                for text, logprob, step in reading.units()
            ],
        }
        for reading in output.readings[:MAX_READINGS]
    ]
