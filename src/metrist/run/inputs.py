"""The files that a run read, read again for their texts and ratings: a run stores neither."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from metrist.errors import InputError, MetristError, RunError, agree, format_count, format_path, quote_word
from metrist.io import ParsedRow, Reader, read_records
from metrist.io.reader import RowProgress
from metrist.io.row_model import Location
from metrist.io.rows import RowSource
from metrist.records import Record
from metrist.run.remote_folder import find_url
from metrist.run.run_folder import RunFolder, is_run_folder
from metrist.run.shard_file import hash_units
from metrist.run.view import Key, RunInput, View, hash_file

#: How folders of older versions, and of runs that did not finish, name it.
_STANDARD_INPUT = ("-", "standard input")
#: Reading options that say what the columns of a file are; they belong together.
_COLUMN_OPTIONS = frozenset({"item_key", "fields", "outputs", "system"})
_JUDGMENTS = frozenset({"rating", "ratings", "score", "scores", "rater", "raters"})


def read_inputs(
    run: str | os.PathLike[str] | RunFolder, files: Sequence[str | os.PathLike[str]] = (), **reading: Any
) -> Reader:
    """Return a reader of the files that a run folder read, or of `files` where some are named.

    A file is looked for where it lay as seen from the run folder, then under the name that the run was given, then
    beside the folder. It is read with the options of the run; `reading` are others, and its `fields` are added to those
    of the run. The reader's `remarks` say which files have moved or changed. Texts that are not those which were scored
    are left out.
    """
    folder = run if isinstance(run, RunFolder) else None
    path = Path(run.path if isinstance(run, RunFolder) else run)
    if folder is None and is_run_folder(path):
        folder = RunFolder(path)
    if files:
        return read_files(files, [folder] if folder else [], **reading)
    reading = {name: value for name, value in reading.items() if value}
    if folder is None:
        raise RunError(f"{path} does not say which files it was made from: name them on the command line")
    inputs = [source for source in View.read(path).inputs if source.path is not None]
    if not inputs and (manifest := folder.manifest) and manifest.input:
        # A folder of an older version, or one that was not read to the end.
        return read_records([_locate(name, path) for name in manifest.input], **reading)
    if not inputs:
        raise RunError(f"the run in {path} read no files but rows in memory: name the files with its texts")
    readers, notes = list[Reader](), list[str]()
    for source in inputs:
        place = _find(source, path)
        readers.append(read_records(format_path(place), **_add_options(source, reading)))
        if place.resolve() != (path / str(source.path)).resolve():
            notes.append(f"{source.label} has moved since it was scored: it is read from {format_path(place)}")
    return _join_readers(readers, [*inputs], notes)


def read_files(
    files: Sequence[str | os.PathLike[str]], runs: Sequence[str | os.PathLike[str] | RunFolder], **reading: Any
) -> Reader:
    """Return a reader of files that the user named. Those that one of the runs read, wherever they are now, are read
    with its options, and texts that are not those which were scored are left out; if such a file is no longer where the
    run read it, the other files of that run are read too. `reading` are other options; where they say what the columns
    are, the files are read as they say and not as the run did."""
    reading = {name: value for name, value in reading.items() if value}
    plain = read_records(list(files), **reading)
    own_columns = {
        name for name in reading if name in _COLUMN_OPTIONS and not _maps_only_judgments(name, reading[name])
    }
    if own_columns:
        return plain
    folders = [run if isinstance(run, RunFolder) else RunFolder(Path(run)) for run in runs]
    inputs = [(one, folder.path) for folder in folders for one in View.read(folder.path).inputs if one.path is not None]
    readers, matches, others = list[Reader](), list[RunInput | None](), list[RowSource]()
    notes = []
    for source in plain.sources:
        known = _match_inputs(source.path, inputs) if source.path is not None else []
        for one in known:
            readers.append(read_records(source.path, **_add_options(one, reading)))
            matches.append(one)
        others += [] if known else [source]
    if not readers:
        return plain
    moved = {run: one for one, run in inputs if one in matches and one.find(run) is None}
    for one, run in inputs:
        # A file that was named because it had moved stands for itself, not for all files of its run.
        if run in moved and one not in matches:
            place = _find(one, run)
            readers.append(read_records(format_path(place), **_add_options(one, reading)))
            matches.append(one)
            notes.append(f"{format_path(place)} is read too: it is another file of the run in {format_path(run)}")
    if others:
        readers.append(replace(plain, sources=tuple(others)))
        matches.append(None)
    return _join_readers(readers, matches, notes)


def _add_options(source: RunInput, reading: dict[str, Any]) -> dict[str, Any]:
    """The options of the run and `reading`, whose fields are added to those of the run."""
    options = {**source.options, **reading}
    if "fields" in reading:
        options["fields"] = {**source.options.get("fields", {}), **reading["fields"]}
    return options


def _maps_only_judgments(name: str, value: Any) -> bool:
    """Whether an option says only which columns hold ratings and scores, and nothing of the texts."""
    return name == "fields" and all(str(field).split(":")[0] in _JUDGMENTS for field in value)


class InputChange(NamedTuple):
    """A file that is not as it was when it was scored; the message has the command that scores it again."""

    name: str
    message: str


def find_changed_inputs(run: Path, metrics: Iterable[str]) -> tuple[list[InputChange], list[str]]:
    """The inputs of a run folder whose records are not those that were scored, and notes on files that are missing. A
    file with other bytes and the same records, such as one with a new column, has not changed. `metrics` are for the
    command that scores again."""
    changed, notes = list[InputChange](), list[str]()
    out = find_url(run) or format_path(run)
    options = " ".join([*(f"-m {quote_word(text)}" for text in metrics), f"-o {quote_word(f'{out}/')}"])
    for source in View.read(run).inputs if is_run_folder(run) else ():
        if source.path is None:
            continue
        place, name = run / source.path, source.describe(run)
        try:
            is_there = place.is_file()
            places = [place] if is_there else [one for one in source.locate(run) if one.is_file()]
            if any(hash_file(str(one)) == source.sha256 for one in places):
                continue
            if not is_there:
                notes.append(f"{source.label} is not where it was scored: whether it has changed since is unknown")
                continue
            reader = read_records(format_path(place), **source.options)
            now, unchanged = {(record.item, record.system) for record in reader}, _find_unchanged(reader, source)
        except MetristError as error:
            changed.append(InputChange(name, f"{name} has changed since it was scored and cannot be read: {error}"))
            continue
        before = set(source.keys())
        parts = [
            f"{format_count(count, 'output')} {agree(count, *verbs)}"
            for count, *verbs in (
                (len((before & now) - unchanged), "differs", "differ"),
                (len(before - now), "is gone", "are gone"),
                (len(now - before), "is not scored", "are not scored"),
            )
            if count
        ]
        if parts:
            again = f"score it again with `metrist score {source.describe_command(run)} {options}`"
            changed.append(InputChange(name, f"{name} has changed since it was scored: {', '.join(parts)}; {again}"))
    return changed, notes


def _match_inputs(path: str, inputs: Sequence[tuple[RunInput, Path]]) -> list[RunInput]:
    """The inputs that were read from this file: from its place, else with its bytes, else under its name if there is no
    such file any more."""
    place = os.path.realpath(path)
    if known := [one for one, run in inputs if os.path.realpath(run / str(one.path)) == place]:
        return known
    digest = hash_file(path)
    if known := [one for one, _ in inputs if one.sha256 == digest]:
        return known
    return [one for one, run in inputs if Path(one.label).name == Path(path).name and one.find(run) is None]


def _join_readers(readers: list[Reader], inputs: list[RunInput | None], notes: list[str]) -> RunReader:
    sources = tuple(rows for reader in readers for rows in reader.sources)
    return RunReader(sources=sources, readers=readers, inputs=inputs, notes=notes)


@dataclass(eq=False, kw_only=True)
class RunReader(Reader):
    """Reads several files, each with the options with which a run read it. An input is None where no run read the files
    of its reader."""

    readers: list[Reader]
    inputs: list[RunInput | None]
    notes: list[str]
    _changed: dict[int, int] = field(default_factory=dict, init=False)

    @property
    def remarks(self) -> list[str]:
        changed = [
            f"{self.readers[n].sources[0].name} has changed since it was scored"
            + (f": {count:,} {'output' if count == 1 else 'outputs'} with other texts left out" if count else "")
            for n, count in self._changed.items()
        ]
        return [*self.notes, *changed, *(remark for reader in self.readers for remark in reader.remarks)]

    @property
    def fields_by_column(self) -> dict[str, str]:
        return {column: name for reader in self.readers for column, name in reader.fields_by_column.items()}

    def __iter__(self) -> Iterator[Record]:
        seen: set[str] = set()
        for n, reader in enumerate(self.readers):
            known = self._check(n)
            for record in reader:
                if len(self.readers) > 1:  # A single reader yields each record once.
                    (digest,) = hash_units([record])
                    if digest in seen:
                        continue
                    seen.add(digest)
                if known is None or (record.item, record.system) in known:
                    yield record
                else:
                    self._changed[n] += 1
            self._add_skipped(reader)

    def entries(self, progress: RowProgress | None = None) -> Iterator[ParsedRow]:
        for n, reader in enumerate(self.readers):
            known = self._check(n)
            left_out: set[Key] = set()
            for entry in reader.entries(progress):
                if known is None:
                    yield entry
                    continue
                changed = [record for record in entry.records if (record.item, record.system) not in known]
                self._changed[n] += len(changed)
                left_out |= {(record.item, record.system) for record in changed}
                # Rows without a text may rate an output, too.
                yield entry.without(left_out) if not left_out.isdisjoint(entry.keys) else entry
            self._add_skipped(reader)

    def _check(self, number: int) -> frozenset[Key] | None:
        """The outputs whose texts are still those that were scored if the file has changed since; None if it has
        not."""
        if number == 0:
            self.skipped.count, self.skipped.messages = 0, []
            self._changed.clear()
        known = self.inputs[number]
        path = str(self.readers[number].sources[0].path)
        if known is None or hash_file(path) == known.sha256:
            return None
        self._changed[number] = 0
        try:
            # As the run read it: options that were given since are no change of the file.
            return _find_unchanged(read_records(path, **known.options), known)
        except InputError:
            return _find_unchanged(self.readers[number], known)

    def _add_skipped(self, reader: Reader) -> None:
        for message in reader.skipped.messages:
            self.skipped.messages.append(message)
        self.skipped.count += reader.skipped.count


def _find_unchanged(reader: Reader, source: RunInput) -> frozenset[Key]:
    """The outputs of a changed file that are as they were scored, columns aside that were added since."""
    hashes = dict(zip(source.keys(), source.hashes, strict=True))
    unchanged: set[Key] = set()
    added: frozenset[str] = frozenset()
    for record in reader:
        key = (record.item, record.system)
        if key not in hashes:
            continue
        names = list(record.extra)
        # Most columns are added one by one, or at the end.
        guesses = [
            added,
            frozenset(),
            *(frozenset(names[n:]) for n in range(len(names))),
            *(frozenset({n}) for n in names),
        ]
        for guess in dict.fromkeys(guesses):
            extra = {name: value for name, value in record.extra.items() if name not in guess}
            if hash_units([replace(record, extra=extra)])[0] == hashes[key]:
                added = guess
                unchanged.add(key)
                break
    return frozenset(unchanged)


@dataclass(eq=False, kw_only=True)
class ScoredInput(Reader):
    """The input of a run without a folder, with the texts that were scored.

    Iterating reads the input and, where it is in memory, keeps its records: frames and lists change under the hands of
    their owner. From then on the records are those, and judgments come from rows whose texts are still the same. A file
    is read again, unless it has changed since.
    """

    input: Reader
    _records: list[Record] | None = field(default=None, init=False)
    _stamps: dict[str, tuple[int, int] | None] = field(init=False)
    _changed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._stamps = {source.path: _stamp(source.path) for source in self.sources if source.path is not None}

    @property
    def remarks(self) -> list[str]:
        count = agree(
            self._changed, "a row has changed since it was", f"{self._changed:,} rows have changed since they were"
        )
        changed = f"{count} scored: the texts are those of then"
        return [*self.input.remarks, *([changed] if self._changed else [])]

    def __iter__(self) -> Iterator[Record]:
        if self._records is not None:
            yield from self._records
            return
        self._check_files()
        if self.names or not self.is_repeatable:
            yield from self.input
            return
        records = []
        for record in self.input:
            records.append(record)
            yield record
        self._records = records

    def entries(self, progress: RowProgress | None = None) -> Iterator[ParsedRow]:
        self._check_files()
        if self._records is None:
            yield from self.input.entries(progress)
            return
        records = {(record.item, record.system): record for record in self._records}
        for number, (key, record) in enumerate(records.items(), 1):
            yield ParsedRow(location=Location(None, number), keys=(key,), records=(record,), new=(record,))
        self._changed = 0
        rows = self.input.entries(progress)
        while True:
            try:
                entry = next(rows, None)
            except InputError:  # What is there now cannot be read; the texts are known all the same.
                self._changed += 1
                return
            if entry is None:
                return
            if all(records.get((record.item, record.system)) == record for record in entry.records):
                yield replace(entry, records=(), new=())
            else:
                self._changed += 1

    def _check_files(self) -> None:
        for path, stamp in self._stamps.items():
            if _stamp(path) != stamp:
                raise RunError(f"{path} has changed since it was scored: pass the records that were scored")


def _stamp(path: str) -> tuple[int, int] | None:
    """What tells cheaply whether a file was written again; None if it is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _find(source: RunInput, run: Path) -> Path:
    place = source.find(run)
    if place is not None:
        return place
    looked = ", ".join(os.path.abspath(place) for place in source.locate(run))
    raise RunError(
        f"the run in {run} read {source.label}, which is missing (looked for {looked}): name the file on the command "
        "line"
    )


def _locate(name: str, run: Path) -> Path:
    if name in _STANDARD_INPUT:
        raise RunError(f"the run in {run} read standard input, which is gone: name a file with its records")
    places = list(dict.fromkeys([Path(name), run.parent / name, run.parent / Path(name).name]))
    for place in places:
        if place.is_file():
            return place
    looked = ", ".join(str(place.absolute()) for place in places)
    raise RunError(
        f"the run in {run} read {name}, which is missing (looked for {looked}): name the file on the command line"
    )
