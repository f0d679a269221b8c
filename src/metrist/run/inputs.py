"""The records and judgments of a run, as readers: from its tables, or from the files that it read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from metrist.errors import MetristError, RunError, agree, format_count, format_path, quote_word
from metrist.io import ParsedRow, Reader, read_records
from metrist.io.batches import drop_repeated
from metrist.io.hashes import hash_file
from metrist.io.reader import RowProgress
from metrist.io.row_model import Location, StoredChoice, StoredError, StoredScore
from metrist.io.rows import RowSource
from metrist.io.writer import encodable
from metrist.ratings import Error, Preference, Rating
from metrist.records import Record, hash_units

if TYPE_CHECKING:
    from metrist.run.manifest import Input
    from metrist.run.run import Run

#: Reading options that say what the columns of a file are; they belong together.
_COLUMN_OPTIONS = frozenset({"item_key", "fields", "outputs", "system"})
#: Reading options that do not matter where rows are stored.
PASSING_OPTIONS = frozenset({"announce", "skip_bad"})
_JUDGMENTS = frozenset({"rating", "ratings", "score", "scores", "rater", "raters"})
_NAMES = frozenset({"item", "system", "first", "second"})
Key = tuple[str, str]


def read_inputs(
    run: str | os.PathLike[str] | Run, files: Sequence[str | os.PathLike[str]] = (), **reading: Any
) -> Reader:
    """Return a reader of what a run holds, or of `files` where some are named.

    A run without texts reads its files again, with the options that it was given; `reading` are others, and its
    `fields` are added to those of the run. Texts that are not those which were scored are left out.
    """
    from metrist.run.run import Run, is_run, open_run

    if not isinstance(run, Run):
        if not is_run(run):
            if files:
                return read_records(list(files), **reading)
            raise RunError(
                f"{run} does not say which files it was made from: name them on the command line", code="missing_value"
            )
        run = open_run(run)
    if files:
        return read_files(files, [run], **reading)
    reading = {name: value for name, value in reading.items() if value}
    if run.has_texts and not reading.keys() - PASSING_OPTIONS:
        return StoredReader(sources=(), run=run)
    inputs = [one for one in run.manifest.inputs if one.path is not None]
    if not inputs:
        raise RunError(
            f"the run in {run.name} read no files but rows in memory: name the files with its texts",
            code="missing_value",
        )
    readers = list[Reader]()
    notes = list[str]()
    for one in inputs:
        place = run.find_file(one)
        if place is None:
            missing = f"the run in {run.name} read {one.name}, which is missing"
            raise RunError(f"{missing}: name the file on the command line", code="missing_value")
        readers.append(read_records(format_path(place), **_add_options(one, reading)))
        if place.resolve() != run.find_place(one).resolve():
            notes.append(f"{one.name} has moved since it was scored: it is read from {format_path(place)}")
    if not run.has_texts:
        notes.append(f"{run.name} stores no texts: {', '.join(str(one.name) for one in inputs)} was read again")
    return CheckedReader(readers=readers, inputs=[(run, one) for one in inputs], notes=notes)


def read_files(files: Sequence[str | os.PathLike[str]], runs: Sequence[Run], **reading: Any) -> Reader:
    """Return a reader of files that the user named. Those that one of the runs read, wherever they are now, are read
    with its options, and texts that are not those which were scored are left out. `reading` are other options; where
    they say what the columns are, the files are read as they say and not as the run did."""
    reading = {name: value for name, value in reading.items() if value}
    plain = read_records(list(files), **reading)
    fields = reading.get("fields", {})
    maps_texts = any(str(field).split(":")[0] not in _JUDGMENTS for field in fields)
    if maps_texts or reading.keys() & (_COLUMN_OPTIONS - {"fields"}):
        return plain
    inputs = [(run, one) for run in runs for one in run.manifest.inputs if one.path is not None]
    readers: list[Reader] = []
    matches: list[tuple[Run, Input] | None] = []
    others: list[Any] = []
    for source in plain.sources:
        known = _match_inputs(source.path, inputs) if source.path is not None else []
        for run, one in known:
            readers.append(read_records(source.path, **_add_options(one, reading)))
            matches.append((run, one))
        others += [] if known else [source]
    if not readers:
        return plain
    if others:
        readers.append(replace(plain, sources=tuple(others)))
        matches.append(None)
    return CheckedReader(readers=readers, inputs=matches)


def _add_options(one: Input, reading: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the run and `reading`, whose fields are added to those of the run."""
    options = {**one.options, **reading}
    if "fields" in reading:
        options["fields"] = {**one.options.get("fields", {}), **reading["fields"]}
    return options


def _match_inputs(path: str, inputs: Sequence[tuple[Run, Input]]) -> list[tuple[Run, Input]]:
    """The inputs that were read from this file: from its place, else with its bytes, else under its name if there is no
    such file any more."""
    place = os.path.realpath(path)
    known = [(run, one) for run, one in inputs if os.path.realpath(run.find_place(one)) == place]
    if known:
        return known
    digest = hash_file(path)
    known = [(run, one) for run, one in inputs if one.sha256 == digest]
    if known:
        return known
    return [
        (run, one) for run, one in inputs if Path(str(one.name)).name == Path(path).name and run.find_file(one) is None
    ]


class InputChange(NamedTuple):
    """A file that is not as it was when it was scored; the message has the command that scores it again."""

    name: str
    message: str


def find_changed_inputs(run: Run, metrics: Iterable[str]) -> tuple[list[InputChange], list[str]]:
    """The inputs of a run whose records are not those that were scored, and notes on files that are missing. A file
    with other bytes and the same records has not changed. `metrics` are for the command that scores again."""
    changed = list[InputChange]()
    notes = list[str]()
    options = " ".join([*(f"-m {quote_word(text)}" for text in metrics), f"-o {quote_word(f'{run.name}/')}"])
    for one in run.manifest.inputs:
        if one.path is None:
            continue
        name = run.describe_input(one)
        place = run.find_place(one)
        found = run.find_file(one)
        try:
            if found is not None and hash_file(str(found)) == one.sha256:
                continue
            if found is None or not place.is_file():
                notes.append(f"{one.name} is not where it was scored: whether it has changed since is unknown")
                continue
            reader = read_records(format_path(place), **one.options)
            now = {(record.item, record.system): record for record in reader}
        except MetristError as error:
            changed.append(InputChange(name, f"{name} has changed since it was scored and cannot be read: {error}"))
            continue
        before = _read_known(run, one)
        differ = sum(key in now and not _is_same(now[key], known) for key, known in before.items())
        counts = (
            (differ, "differs", "differ"),
            (len(before.keys() - now.keys()), "is gone", "are gone"),
            (len(now.keys() - before.keys()), "is not scored", "are not scored"),
        )
        parts = [f"{format_count(count, 'output')} {agree(count, *verbs)}" for count, *verbs in counts if count]
        if parts:
            again = f"score it again with `metrist score {run.describe_reading(one)} {options}`"
            changed.append(InputChange(name, f"{name} has changed since it was scored: {', '.join(parts)}; {again}"))
    return changed, notes


def _read_known(run: Run, one: Input) -> dict[Key, Record | bytes]:
    """What the run has of each record of an input: the record, or its hash where texts are not stored."""
    from metrist.run.tables import read_records_table

    parts = one.tables.get("records", ())
    if not run.has_texts:
        return {**run.read_digests(parts)}
    known: dict[Key, Record | bytes] = {}
    for part in parts:
        records = read_records_table(run.read_part("records", part))
        known |= {(record.item, record.system): record for record in records}
    return known


def _is_same(record: Record, known: Record | bytes) -> bool:
    """Whether a record is as it was scored, columns aside that were added since."""
    if isinstance(known, bytes):
        return bool(hash_units([record])[0].tobytes() == known)
    extra = {name: record.extra[name] for name in known.extra if name in record.extra}
    return bool(replace(record, extra=extra) == replace(known, extra=dict(known.extra)))


@dataclass(eq=False, kw_only=True)
class CheckedReader(Reader):
    """Reads several files, each with the options with which a run read it, without the outputs whose texts are not
    those that were scored. An input is None where no run read the files of its reader."""

    sources: tuple[RowSource, ...] = field(init=False)
    readers: list[Reader]
    inputs: Sequence[tuple[Run, Input] | None]
    notes: list[str] = field(default_factory=list)
    _changed: dict[int, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.sources = tuple(source for reader in self.readers for source in reader.sources)

    @property
    def remarks(self) -> list[str]:
        changed = [
            f"{self.readers[n].sources[0].name} has changed since it was scored"
            + (f": {format_count(count, 'output')} with other texts left out" if count else "")
            for n, count in self._changed.items()
        ]
        return [*self.notes, *changed, *(remark for reader in self.readers for remark in reader.remarks)]

    @property
    def fields_by_column(self) -> dict[str, str]:
        return {column: name for reader in self.readers for column, name in reader.fields_by_column.items()}

    def __iter__(self) -> Iterator[Record]:
        seen: set[Key] = set()
        for entry in self.entries():
            for record in entry.new:
                if (record.item, record.system) not in seen:
                    seen.add((record.item, record.system))
                    yield record

    def entries(self, progress: RowProgress | None = None) -> Iterator[ParsedRow]:
        self.skipped.count = 0
        self.skipped.messages = []
        self._changed.clear()
        seen: set[int] = set()
        for n, reader in enumerate(self.readers):
            scored, known = self.inputs[n], None
            if scored and hash_file(str(reader.sources[0].path)) != scored[1].sha256:
                self._changed[n] = 0
                known = _read_known(*scored)
            left_out: set[Key] = set()
            for row in reader.entries(progress):
                entry = drop_repeated(row, seen) if len(self.readers) > 1 else row
                if known is None:
                    yield entry
                    continue
                for record in entry.records:
                    before = known.get((record.item, record.system))
                    if before is None or not _is_same(record, before):
                        self._changed[n] += 1
                        left_out.add((record.item, record.system))
                # Rows without a text may rate an output, too.
                yield entry.without(left_out) if not left_out.isdisjoint(entry.keys) else entry
            self.skipped.messages += reader.skipped.messages
            self.skipped.count += reader.skipped.count


@dataclass(eq=False, kw_only=True)
class StoredReader(Reader):
    """Reads records and judgments from the tables of a run."""

    run: Run

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.run.describe_input(one) for one in self.run.manifest.inputs if one.name is not None)

    @property
    def remarks(self) -> list[str]:
        notes = dict.fromkeys(note for one in self.run.manifest.inputs for note in one.notes)
        missing = f"{self.run.name} stores no texts: lengths and other columns are unknown unless its files are named"
        return [*notes, *([] if self.run.has_texts else [missing])]

    @property
    def fields_by_column(self) -> dict[str, str]:
        return {column: name for one in self.run.manifest.inputs for column, name in one.columns.items()}

    def __iter__(self) -> Iterator[Record]:
        from metrist.run.stored_run import report_damage
        from metrist.run.tables import read_records_table

        with report_damage(self.run.name):
            for _, table in self.run.iterate_records():
                yield from read_records_table(table)

    def entries(self, progress: RowProgress | None = None) -> Iterator[ParsedRow]:
        from metrist.run.stored_run import report_damage
        from metrist.run.tables import read_records_table

        total, done = sum(one.records for one in self.run.manifest.inputs), 0
        with report_damage(self.run.name):
            for one, tables in groupby(self.run.iterate_records(), key=lambda pair: pair[0]):
                judged = _read_judgments(self.run, one)
                for _, table in tables:
                    rows = zip(table["row"].to_pylist(), read_records_table(table), strict=True)
                    for row, members in groupby(rows, key=lambda pair: pair[0]):
                        records = tuple(record for _, record in members)
                        keys = tuple((record.item, record.system) for record in records)
                        facts = judged.pop(row, {})
                        if progress and not done % 4096:
                            progress(done, total)
                        done += len(records)
                        yield _parse(one, row, keys, records, facts)
                yield from _list_rows(one, judged)
            for one in self.run.manifest.inputs:
                if not one.tables.get("records"):
                    yield from _list_rows(one, _read_judgments(self.run, one))


def _list_rows(one: Input, judged: Mapping[int, dict[str, Any]]) -> Iterator[ParsedRow]:
    """Rows with judgments whose texts are in other rows, or in another input."""
    for row, facts in judged.items():
        first = next(value for values in facts.values() if isinstance(values, list) for value in values)
        systems = (first.first, first.second) if isinstance(first, Preference | StoredChoice) else (first.system,)
        yield _parse(one, row, tuple((first.item, system) for system in systems), (), facts)


def _parse(
    one: Input, row: int, keys: tuple[Key, ...], records: tuple[Record, ...], facts: Mapping[str, Any]
) -> ParsedRow:
    raters = dict.fromkeys(judgment.rater for name in ("ratings", "preferences") for judgment in facts.get(name, ()))
    raters |= dict.fromkeys(located.error.rater for located in facts.get("errors", ()))
    names = ("ratings", "preferences", "errors", "scores", "choices")
    judgments: dict[str, Any] = {name: tuple(facts[name]) for name in names if name in facts}
    return ParsedRow(
        location=Location(one.name, row),
        keys=keys,
        records=records,
        new=records,
        columns=facts.get("columns") or {},
        raters=tuple(rater for rater in raters if rater is not None),
        weight=facts.get("weight"),
        **judgments,
    )


def _read_judgments(run: Run, one: Input) -> dict[int, dict[str, Any]]:
    """What people and other metrics said in each row of an input."""
    judged: dict[int, dict[str, Any]] = {}
    # Tables show names that Arrow cannot hold with escapes.
    names = {encodable(name): name for column in (run.view.items, run.view.systems) for name in column.names}
    names = {shown: name for shown, name in names.items() if shown != name}

    def read(table: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        for part in one.tables.get(table, ()):
            for row in run.read_part(table, part).to_pylist():
                facts = judged.setdefault(row.pop("row"), {})
                row.pop("input")
                if names:
                    row |= {name: names.get(row[name], row[name]) for name in _NAMES & row.keys()}
                weight = row.pop("weight", None)
                if weight is not None:
                    facts["weight"] = weight
                yield facts, row

    for facts, row in read("ratings"):
        facts.setdefault("ratings", []).append(Rating(**row))
    for facts, row in read("preferences"):
        facts.setdefault("preferences", []).append(Preference(**row))
    for facts, row in read("errors"):
        key = {name: row.pop(name) for name in ("item", "system")}
        facts.setdefault("errors", []).append(StoredError(**key, error=Error(**row)))
    for facts, row in read("given"):
        if row["second"] is not None:
            fields = {name: row[name] for name in ("item", "second", "metric", "choice")}
            choice = StoredChoice(**fields, first=row["system"], answer=row.get("answer") or "")
            facts.setdefault("choices", []).append(choice)
        elif row["metric"] is not None:
            fields = {name: row[name] for name in ("item", "system", "metric", "value")}
            facts.setdefault("scores", []).append(StoredScore(**fields))
        else:
            if row.get("columns"):
                facts["columns"] = json.loads(row["columns"])
            facts.setdefault("rows", []).append(StoredScore(item=row["item"], system=row["system"], metric="", value=0))
    return judged
