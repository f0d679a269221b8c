"""Read the inputs of a run into its tables: records with their texts, and people's judgments of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrist.errors import RunError, agree, format_count, label_item, quote_word
from metrist.io import Reader
from metrist.io.batches import Batch
from metrist.io.dedup import FirstKeys
from metrist.io.hashes import hash_file
from metrist.io.remote import is_remote
from metrist.io.writer import encodable
from metrist.records import HASH_BYTES, Hashes, halve_hashes
from metrist.run.manifest import Damaged, Input, Manifest, Part
from metrist.run.run import Run
from metrist.run.store import Store
from metrist.run.tables import InputTables, read_hashes

#: Reading options that select rows and change no record: an input read with another value is the same input.
_PASSING_OPTIONS = frozenset({"skip_bad"})
Key = tuple[str, str]


@dataclass(eq=False, kw_only=True)
class Draft(InputTables):
    """An input that is being read. `path` is None for rows that have no file."""

    name: str | None
    path: str | None
    options: Mapping[str, Any]
    sha256: str | None = None
    previous: Input | None = None


class Ingest:
    """Reads the inputs of one command into a run. Nothing counts before `finish`."""

    def __init__(self, store: Store, reader: Reader, *, texts: bool) -> None:
        self._store = store
        self.reader = reader
        self.manifest = store.require_texts(store.read_manifest() or Manifest(), texts)
        self.texts = self.manifest.texts
        self._run = Run(store, self.manifest)
        self.notes: list[str] = []
        self._removal_hint = f"`metrist remove {quote_word(f'{store.name}/')} --unused` deletes the earlier scores"
        number = max((one.number for one in self.manifest.inputs), default=-1) + 1
        self.drafts = [self._open_draft(n, number + n) for n in range(len(reader.sources))]
        #: The numbers of the inputs of this command.
        self.numbers = [draft.number for draft in self.drafts]

    def _open_draft(self, source: int, number: int) -> Draft:
        rows = self.reader.sources[source]
        options = self.reader.source_options(source) if rows.path else {}
        draft = Draft(number=number, name=rows.name, path=rows.path, options=json.loads(json.dumps(options)))
        if draft.path is not None:
            draft.sha256 = hash_file(draft.path)
            draft.previous = self._find_previous(draft)
        if draft.previous:
            draft.number = draft.previous.number
            try:
                for name, parts in draft.previous.tables.items():
                    for part in parts:
                        self._store.verify_part(name, part)
            except Damaged as error:
                self.notes.append(f"{error}: it was set aside and {draft.name} was read again")
                draft.previous = msgspec.structs.replace(draft.previous, sha256=None, tables={})
                self._run.manifest = self._replace_inputs(self._run.manifest, [draft.previous])
        return draft

    @cached_property
    def _others(self) -> FirstKeys:
        """The records of other inputs of the run: hashes of their names with those of their contents, and the numbers
        of the inputs."""
        others = FirstKeys()
        own = {draft.number for draft in self.drafts}
        has_rows = any(draft.path is None for draft in self.drafts)
        for one, part in self._run.list_parts("records"):
            if one.number in own or (has_rows and one.path is None):
                continue
            table = self._run.read_part("records", part, ["item", "system", "record"])
            names = hash_names(zip(table["item"].to_pylist(), table["system"].to_pylist(), strict=True))
            is_known, _ = others.find(names)
            if not is_known.all():
                contents = halve_hashes(read_hashes(table["record"]))
                numbers = np.full(part.rows, one.number, np.uint64)
                others.add(names[~is_known], contents[~is_known], numbers[~is_known])
        return others

    def find_conflict(self, names: NDArray[np.uint64], hashes: Hashes) -> tuple[int, Input] | None:
        """Of records with these hashes of their names, the first whose name another input holds with other texts, and
        that input."""
        is_known, (contents, numbers) = self._others.find(names)
        rows = np.flatnonzero(is_known & (contents != halve_hashes(hashes)))
        return (int(rows[0]), self._run.find_input(int(numbers[rows[0]]))) if len(rows) else None

    @property
    def is_stored(self) -> bool:
        """Whether all inputs are in the run as they are now, and nothing has to be told about them."""
        return bool(self.drafts) and all(
            draft.previous and draft.previous.sha256 == draft.sha256 and not draft.previous.notes
            for draft in self.drafts
        )

    def add(self, batch: Batch) -> None:
        """Add rows. A record whose name another input holds with other texts is refused."""
        draft = self.drafts[batch.source]
        names = zip(batch.records.items, batch.records.systems, strict=True)
        if len(self._others) and (conflict := self.find_conflict(hash_names(names), batch.hashes)):
            row, other = conflict
            raise RunError(
                self._describe_conflict(draft, batch.records.items[row], batch.records.systems[row], other),
                code="conflict",
            )
        draft.add(batch)
        if draft.path is not None and draft.is_full:
            draft.write(self._store, self.texts)

    def finish(self) -> Manifest:
        """List what was read. What changed is in `notes`."""
        before = len(self._run.view)
        remarks = tuple(self.reader.remarks) + tuple(self.reader.skipped.describe())
        if remarks and not self.texts:  # They may quote a row.
            skipped = [self.reader.skipped.describe_count()] if self.reader.skipped.count else []
            remarks = (*skipped, "remarks on it are not stored in a run without texts")
        entries = list[Input]()
        for source, draft in enumerate(self.drafts):
            changed = self._drop_stored_rows(draft) if draft.path is None else set[Key]()
            draft.write(self._store, self.texts)
            if draft.path is None:
                entries += self._replace_judgments(draft, changed)
            if draft.tables or draft.previous:
                entries.append(self._make_entry(draft, self.reader.count_skipped(source), remarks))
        manifest = self._store.update(lambda latest: self._add_inputs(latest, entries))
        self._store.has_strays |= not set(self.manifest.list_parts()) <= set(manifest.list_parts())
        run = Run(self._store, manifest)
        added = len(run.view) - before if before else 0
        if added > 0:
            labels = ", ".join(dict.fromkeys(run.describe_input(one) for one in manifest.inputs))
            new = f"{added:,} {agree(added, 'is', 'are')} new"
            self.notes.append(
                f"{self._store.name} now holds {format_count(before + added, 'output')} of {labels}; {new}"
            )
        return manifest

    def _make_entry(self, draft: Draft, skipped: int, remarks: tuple[str, ...]) -> Input:
        tables = {name: tuple(parts) for name, parts in draft.tables.items()}
        if draft.previous is not None:
            self._note_changes(draft, draft.previous, tables)
        entry = Input(
            number=draft.number,
            name=draft.name,
            path=self._place(draft),
            sha256=draft.sha256,
            options=dict(draft.options),
            columns=dict(self.reader.fields_by_column),
            references=tuple(sorted(draft.references)),
            records=draft.records,
            skipped=skipped,
            notes=remarks,
            tables=tables,
        )
        if draft.path is None or draft.previous is not None:
            return entry
        for known in self.manifest.inputs:
            # The same file, read with other options that changed nothing, stays one input.
            if known.path == entry.path and np.array_equal(self._read_hashes(known), np.concatenate(draft.hashes)):
                return self._renumber(entry, known.number)
        return entry

    def _add_inputs(self, latest: Manifest, entries: Sequence[Input]) -> Manifest:
        """The latest manifest with these inputs. Another process may have added some since they were numbered."""
        latest = self._store.require_texts(latest, self.texts)
        if latest.texts is not self.texts:
            raise RunError(
                f"{self._store.name} was begun without texts by another process: run the command again", code="changed"
            )
        known = {one.number for one in self.manifest.inputs}
        added = [one for one in latest.inputs if one.number not in known]
        placed = list[Input]()
        for entry in entries:
            if entry.number not in known and added:
                options = _normal_form(entry.options)
                read = [one for one in added if one.path and one.path == entry.path]
                same = [one for one in read if _normal_form(one.options) == options]
                same += [one for one in added if one.tables == entry.tables]
                last = max(one.number for one in (*latest.inputs, *placed))
                entry = self._renumber(entry, same[0].number if same else last + 1)
            placed.append(entry)
        self.numbers = [entry.number for entry in placed]
        return self._replace_inputs(latest, placed)

    def _replace_inputs(self, manifest: Manifest, entries: Sequence[Input]) -> Manifest:
        new = {entry.number: entry for entry in entries}
        inputs = [*(new.pop(one.number, one) for one in manifest.inputs), *new.values()]
        kept = tuple(one for one in inputs if one.path is not None or any(one.tables.values()))
        return msgspec.structs.replace(manifest, inputs=kept)

    def _renumber(self, entry: Input, number: int) -> Input:
        """An input under another number, which its rows have too."""
        if number == entry.number:
            return entry
        tables = dict[str, tuple[Part, ...]]()
        for name, parts in entry.tables.items():
            written = []
            for part in parts:
                table = self._run.read_part(name, part)
                numbers = pa.array(np.full(part.rows, number, np.int32))
                table = table.set_column(table.schema.get_field_index("input"), "input", numbers)
                written.append(self._store.write_part(name, table))
            tables[name] = tuple(written)
        return msgspec.structs.replace(entry, number=number, tables=tables)

    # ---- Earlier inputs

    def _place(self, draft: Draft) -> str | None:
        """The path of a file as seen from the run folder, or its URL; the whole path where the run is in a store."""
        if draft.path is None:
            return None
        if is_remote(draft.name):
            return draft.name
        path = os.path.realpath(draft.path)
        if not is_remote(self._store.path):
            path = os.path.relpath(path, os.path.realpath(self._store.path))
        return Path(path).as_posix()

    def _find_previous(self, draft: Draft) -> Input | None:
        """The input that was read from this file with these options, also where the same file was moved since."""
        moved = None
        path = str(draft.path)
        for one in self.manifest.inputs:
            if one.path is None or one.name is None or _normal_form(one.options) != _normal_form(draft.options):
                continue
            places = {os.path.realpath(self._run.find_place(one))}
            if os.path.isabs(one.name):
                places.add(os.path.realpath(one.name))
            if os.path.realpath(path) in places:
                return one
            is_same = one.sha256 == draft.sha256 and Path(one.name).name == Path(path).name
            if is_same and not any(map(os.path.exists, places)):
                moved = one
        return moved

    def _read_hashes(self, one: Input) -> Hashes:
        parts = [self._run.read_part("records", part, ["record"]) for part in one.tables.get("records", ())]
        return np.concatenate([np.empty((0, HASH_BYTES), np.uint8), *(read_hashes(part["record"]) for part in parts)])

    def _note_changes(self, draft: Draft, earlier: Input, tables: Mapping[str, tuple[Part, ...]]) -> None:
        now: dict[Key, bytes] | None = None
        if not np.array_equal(self._read_hashes(earlier), np.concatenate(draft.hashes)):
            before = self._run.read_digests(earlier.tables.get("records", ()))
            now = self._run.read_digests(tables.get("records", ()))
            changed = sum(key in now and now[key] != digest for key, digest in before.items())
            gone = len(before.keys() - now.keys())
            parts = []
            if changed:
                verb = agree(changed, "was", "were")
                parts.append(f"{format_count(changed, 'output')} changed and {verb} scored again")
            if gone:
                what = agree(gone, "is no longer in the file and was", "are no longer in the file and were")
                parts.append(f"{gone:,} {what} set aside")
            if parts:
                self.notes.append(f"{draft.name}: {', '.join(parts)}; {self._removal_hint}")
        if any(self._lacks_judgment(name, earlier.tables, tables, now) for name in _JUDGED):
            self.notes.append(f"{draft.name}: its ratings, preferences and errors replace those read before")

    def _lacks_judgment(
        self,
        name: str,
        earlier: Mapping[str, tuple[Part, ...]],
        tables: Mapping[str, tuple[Part, ...]],
        outputs: Collection[Key] | None,
    ) -> bool:
        """Whether an earlier judgment of one of these outputs, or of any, is not among the new ones."""
        if earlier.get(name, ()) == tables.get(name, ()):
            return False
        new = [_join_cells(self._run.read_part(name, part)) for part in tables.get(name, ())]
        known = pa.chunked_array([chunk for column in new for chunk in column.chunks], pa.string())
        for part in earlier.get(name, ()):
            table = self._run.read_part(name, part)
            lost = table.filter(pc.invert(pc.is_in(_join_cells(table), value_set=known)))
            names = [lost[field].to_pylist() for field in _JUDGED[name][:2] if field]
            if any(outputs is None or key in outputs for key in zip(*names, strict=True)):
                return True
        return False

    def _drop_stored_rows(self, draft: Draft) -> set[Key]:
        """Leave only those records in a draft that the folder does not have yet, and return which ones it has with
        other texts."""
        known: dict[Key, bytes] = {}
        for one in self.manifest.inputs:
            if one.path is None:
                known |= self._run.read_digests(one.tables.get("records", ()))
        changed = set[Key]()
        batches = draft.waiting
        draft.waiting = []
        draft.records = 0
        for batch in batches:
            keys = list(zip(map(encodable, batch.records.items), map(encodable, batch.records.systems), strict=True))
            digests = [row.tobytes() for row in batch.hashes]
            new = [n for n, key in enumerate(keys) if known.get(key) != digests[n]]
            changed |= {keys[n] for n in new} & known.keys()
            draft.records += len(new)
            lines = [batch.lines[n] for n in new]
            draft.waiting.append(replace(batch, records=batch.records.take(new), lines=lines))
        if changed:
            count = len(changed)
            outputs = f"{format_count(count, 'output')} changed and {agree(count, 'was', 'were')} scored again"
            self.notes.append(f"{outputs}; {self._removal_hint}")
        return changed

    def _replace_judgments(self, draft: Draft, changed: set[Key]) -> list[Input]:
        """Leave only those judgments in a draft of rows in memory that the folder does not have yet. The earlier inputs
        are returned without those whose place they take and those of outputs that have changed."""
        earlier = {one.number: one for one in self.manifest.inputs if one.path is None}
        is_replaced = False
        for name, fields in _JUDGED.items():
            parts = [(one.number, part) for one in earlier.values() for part in one.tables.get(name, ())]
            stored = [self._run.read_part(name, part) for _, part in parts]
            new = [self._run.read_part(name, part) for part in draft.tables.pop(name, ())]
            self._store.has_strays |= bool(new)
            known = _group_judgments(stored, fields)
            brought = _group_judgments(new, fields)
            same = {key for key, rows in brought.items() if rows == known.get(key)}
            gone = brought.keys() & known.keys() - same
            is_replaced = is_replaced or bool(gone)
            gone |= {key for key in known if any((key[0], system) in changed for system in key[1:3])}
            left = [_drop_judgments(table, fields, same) for table in new]
            if any(map(len, left)):
                draft.tables[name] = [self._store.write_part(name, pa.concat_tables(left))]
            for (number, part), table in zip(parts, stored, strict=True):
                kept = _drop_judgments(table, fields, gone)
                if len(kept) == len(table):
                    continue
                one = earlier[number]
                listed = [other for other in one.tables[name] if other != part]
                if len(kept):
                    listed.append(self._store.write_part(name, kept))
                earlier[number] = msgspec.structs.replace(one, tables={**one.tables, name: tuple(listed)})
        if is_replaced:
            self.notes.append("rows in memory: their ratings, preferences and errors replace those read before")
        return [one for one in earlier.values() if one not in self.manifest.inputs]

    def _describe_conflict(self, draft: Draft, item: str, system: str, other: Input) -> str:
        where = self._run.describe_input(other)
        removal = f"`metrist remove {quote_word(f'{self._store.name}/')} --input {quote_word(where)}`"
        if draft.path is not None and other.path == self._place(draft):
            now = msgspec.structs.replace(other, options=dict(draft.options))
            readings = f"read as `{self._run.describe_reading(other)}` and now as `{self._run.describe_reading(now)}`"
            where += f", {readings} (`outputs={{'NAME': 'COLUMN'}}` for each column reads both)"
        return (
            f"{draft.name or 'rows in memory'}: item {label_item(item)!r} of system {system!r} is in "
            f"{self._store.name} already, with other texts, from {where}; nothing was scored. Give these outputs a "
            f"system of their own (`system='NAME'`), name a new run folder, or remove the earlier ones with {removal}"
        )


#: The columns by which a judgment is another one's successor, by the table; the first three name outputs.
_JUDGED = {
    "ratings": ("item", "system", None, "aspect", "rater"),
    "preferences": ("item", "first", "second", "aspect", "rater"),
    "errors": ("item", "system", None, "rater"),
    "given": ("item", "system", "second", "metric"),
}


def _list_keys(table: pa.Table, fields: Sequence[str | None]) -> list[tuple[Any, ...]]:
    """What each row of a table of judgments is about."""
    columns = [table[field].to_pylist() if field else [None] * len(table) for field in fields]
    return list(zip(*columns, strict=True))


def _group_judgments(tables: Iterable[pa.Table], fields: Sequence[str | None]) -> dict[tuple[Any, ...], list[str]]:
    """Rows of judgments, wherever they came from, by what they are about."""
    rows: dict[tuple[Any, ...], list[str]] = {}
    for table in tables:
        for key, text in zip(_list_keys(table, fields), _join_cells(table).to_pylist(), strict=True):
            rows.setdefault(key, []).append(text)
    return rows


def _join_cells(table: pa.Table) -> pa.ChunkedArray:
    """Each row of a table of judgments, wherever it came from, as one text."""
    columns = [pc.fill_null(column.cast(pa.string()), "\0") for column in table.drop_columns(["input", "row"]).columns]
    return pc.binary_join_element_wise(*columns, "\x1f")


def _drop_judgments(table: pa.Table, fields: Sequence[str | None], keys: Collection[tuple[Any, ...]]) -> pa.Table:
    return table.filter(pa.array([key not in keys for key in _list_keys(table, fields)], pa.bool_()))


def _normal_form(options: Mapping[str, Any]) -> dict[str, Any]:
    """The reading options that make the same file another input, the same of two ways to say the same: `--output v1` is
    `--output v1=v1`."""
    kept = {name: value for name, value in options.items() if name not in _PASSING_OPTIONS}
    outputs = kept.get("outputs")
    if isinstance(outputs, Mapping):
        outputs = [f"{system}={column}" for system, column in outputs.items()]
    if outputs:
        entries = (outputs if isinstance(outputs, str) else ",".join(outputs)).split(",")
        kept["outputs"] = sorted(entry if {"=", "*"} & set(entry) else f"{entry}={entry}" for entry in entries)
    return kept


def hash_texts(texts: Iterable[str]) -> NDArray[np.uint64]:
    """A hash of each text as tables hold it, the same in every process."""
    digests = bytearray()
    for text in texts:
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:
            data = encodable(text).encode("utf-8")
        digests += hashlib.blake2b(data, digest_size=8).digest()
    return np.frombuffer(bytes(digests), np.uint64)


def hash_names(names: Iterable[tuple[str, str]]) -> NDArray[np.uint64]:
    """A hash of each item and system."""
    return hash_texts(map("\0".join, names))
